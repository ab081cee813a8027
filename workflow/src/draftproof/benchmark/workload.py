"""The requests of the benchmark: the capture's samples, asked again of the server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from draftproof.benchmark.client import Ask
from draftproof.errors import InputError
from draftproof.files import digest, read_result, require_directory

WARMUP_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request and what the capture saw the target answer."""

    id: str
    category: str
    ask: Ask
    expected_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """All requests, in the order in which they are sent."""

    samples: list[Sample]
    max_new_tokens: int
    digest: str

    def warmup(self, count: int) -> list[Ask]:
        """Return `count` requests of the measured lengths that share no prompt with the measured ones.

        They are the measured prompts read backwards: real tokens, the same lengths, another text. The end of text is
        ignored, so that each runs for its full length.
        """
        tokens = min(self.max_new_tokens, WARMUP_TOKENS)
        prompts = (self.samples[i % len(self.samples)].ask.input_ids for i in range(count))
        return [Ask(input_ids=ids[::-1], max_new_tokens=tokens, ignore_eos=True) for ids in prompts]


def load_workload(samples: Path) -> Workload:
    """Return the workload of a capture directory; raises InputError when it is incomplete or contradicts itself."""
    require_directory(samples, "capture", "Run the capture stage.")
    manifest = read_result(samples / "manifest.json", "capture")
    loaded = []
    for entry in manifest["samples"]:
        ids = token_ids(samples / entry["file"])
        prompt = entry["prompt_tokens"]
        if len(ids) != prompt + entry["output_tokens"]:
            raise InputError(
                f"holds {len(ids)} tokens, the manifest says {prompt} + {entry['output_tokens']}",
                str(samples / entry["file"]),
                "Run the capture stage again.",
            )
        ask = Ask(
            input_ids=ids[:prompt],
            max_new_tokens=manifest["max_new_tokens"],
            stop_token_ids=manifest["stop_token_ids"],
        )
        loaded.append(
            Sample(id=entry["id"], category=entry["category"], ask=ask, expected_ids=ids[prompt:])
        )
    if not loaded:
        raise InputError("holds no samples", str(samples), "Capture at least one prompt.")
    return Workload(
        samples=loaded,
        max_new_tokens=manifest["max_new_tokens"],
        digest=digest([(sample.id, sample.ask.body()) for sample in loaded]),
    )


def token_ids(file: Path) -> list[int]:
    """Return the token ids of a sample file without reading its hidden states; raises InputError when it cannot."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as tensors:
            ids: list[int] = tensors.get_tensor("token_ids").tolist()
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"not a sample ({error})", str(file), "Run the capture stage again."
        ) from None
    return ids
