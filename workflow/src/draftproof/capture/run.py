"""From prompts to sample files: turn after turn, in batches, keeping what is finished."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof.capture.generate import Answer, Limits
from draftproof.capture.samples import (
    FORMAT,
    LAST,
    file_name,
    read_metadata,
    refuse_not_finite,
    remove_stale,
    write_sample,
)
from draftproof.capture.target import Target
from draftproof.errors import InputError
from draftproof.files import digest, sha256
from draftproof.progress import progress
from draftproof.prompts.prompt import Prompt
from draftproof.prompts.prompt import digest as prompts_digest

log = logging.getLogger(__name__)
# Tokens kept beyond the end of an output: enough to judge the last verify step of up to 9 drafts.
LOOKAHEAD_TOKENS = 8
MIN_REPEATED = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """How many generated tokens were checked, and how many the whole pass did not repeat."""

    tokens: int
    mismatches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One answer to capture: a turn of a prompt, with the token ids it starts from."""

    id: str
    prompt: Prompt
    prompt_ids: tuple[int, ...]
    path: Path
    settings: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """What shapes every sample."""

    target: Target
    boundaries: tuple[int, ...]
    max_new_tokens: int
    dtype: str
    batch: int

    def limits(self) -> Limits:
        """Return where texts end."""
        return Limits(
            max_new_tokens=self.max_new_tokens,
            stop_token_ids=frozenset(self.target.stop_token_ids),
            lookahead=LOOKAHEAD_TOKENS,
        )

    def digest(self, prompt_ids: Sequence[int]) -> str:
        """Return what a sample must have been made with to be taken over."""
        # The batch size is not in it: it cannot change a sample (see generate).
        return digest(
            {
                "format": FORMAT,
                "source": self.target.source,
                "target": self.target.digest,
                "boundaries": self.boundaries,
                "max_new_tokens": self.max_new_tokens,
                "stop_token_ids": self.target.stop_token_ids,
                "lookahead": LOOKAHEAD_TOKENS,
                "dtype": self.dtype,
                "versions": dict(self.target.versions),
                "prompt_ids": list(prompt_ids),
            }
        )

    def manifest(
        self,
        entries: Sequence[Mapping[str, Any]],
        checked: Check,
        prompts: Sequence[Prompt],
        source: str,
        split: str | None,
    ) -> dict[str, Any]:
        """Return the content of manifest.json."""
        return {
            "schema": "draftproof/capture/1",
            "target": {
                "path": str(self.target.path),
                self.target.digest_of: self.target.digest,
                "architecture": self.target.architecture,
            },
            "source": self.target.source,
            "versions": dict(self.target.versions),
            "prompts": {
                "source": source,
                "split": split or "all",
                "count": len(prompts),
                "digest": prompts_digest(prompts),
            },
            "max_new_tokens": self.max_new_tokens,
            "stop_token_ids": list(self.target.stop_token_ids),
            "lookahead_tokens": LOOKAHEAD_TOKENS,
            "dtype": self.dtype,
            "num_layers": self.target.num_layers,
            "hidden_size": self.target.hidden_size,
            "boundaries": list(self.boundaries),
            **({} if self.target.last_state is None else {"last_state": self.target.last_state}),
            "self_check": {"tokens": checked.tokens, "mismatches": checked.mismatches},
            "samples": list(entries),
        }


def capture(
    settings: Capture, prompts: Sequence[Prompt], out: Path
) -> tuple[list[dict[str, Any]], Check]:
    """Capture every turn of every prompt; return the manifest's entries, in the prompts' order, and the check.

    Sample files of the same settings are kept, others removed. Raises InputError when a prompt is too long, ids clash,
    states are not finite, or (float32) the target repeats fewer than 99 % of its own tokens.
    """
    conversations = {prompt.id: opening(prompt) for prompt in prompts}
    made: dict[str, dict[str, Any]] = {}
    mismatches = tokens = 0
    for turn in range(max(len(prompt.turns) for prompt in prompts)):
        jobs = [
            job_of(settings, prompt, turn, conversations[prompt.id], out)
            for prompt in prompts
            if turn < len(prompt.turns)
        ]
        for job, entry, output_ids, check in progress(
            finish(settings, jobs), f"capture, turn {turn + 1}", len(jobs)
        ):
            if job.id in made:
                raise InputError(f"two samples would be named {job.id}", "prompts", "Rename one.")
            made[job.id] = entry
            conversations[job.prompt.id].append(
                {"role": "assistant", "content": settings.target.text_of(output_ids)}
            )
            mismatches += check.mismatches
            tokens += check.tokens
            refuse_unfaithful(settings, mismatches, tokens, final=False)
    checked = Check(tokens=tokens, mismatches=mismatches)
    refuse_unfaithful(settings, mismatches, tokens, final=True)
    remove_stale(out, {entry["file"] for entry in made.values()})
    ids = (sample_id(prompt, turn) for prompt in prompts for turn in range(len(prompt.turns)))
    return [made[name] for name in ids], checked


def opening(prompt: Prompt) -> list[dict[str, str]]:
    """Return the messages before the first turn."""
    return [] if prompt.system is None else [{"role": "system", "content": prompt.system}]


def sample_id(prompt: Prompt, turn: int) -> str:
    """Return the sample's id: the prompt's, with .1, .2 when it has several turns."""
    return prompt.id if len(prompt.turns) == 1 else f"{prompt.id}.{turn + 1}"


def job_of(
    settings: Capture, prompt: Prompt, turn: int, messages: list[dict[str, str]], out: Path
) -> Job:
    """Add the user's turn to the conversation and return the answer to capture."""
    messages.append({"role": "user", "content": prompt.turns[turn]})
    name = sample_id(prompt, turn)
    ids = settings.target.prompt_ids(messages, name)
    room = settings.target.max_positions
    needed = len(ids) + settings.max_new_tokens + LOOKAHEAD_TOKENS
    if room is not None and needed > room:
        raise InputError(
            f"prompt {name} needs {needed} positions, its answer included; the target has {room}",
            str(settings.target.path),
            "Shorten the prompt or lower max_new_tokens.",
        )
    return Job(
        id=name,
        prompt=prompt,
        prompt_ids=tuple(ids),
        path=out / file_name(name),
        settings=settings.digest(ids),
    )


def finish(
    settings: Capture, jobs: Sequence[Job]
) -> Iterator[tuple[Job, dict[str, Any], list[int], Check]]:
    """Yield (job, manifest entry, output ids, check) of every job: kept ones first, then made in batches."""
    todo = []
    for job in jobs:
        found = read_metadata(job.path)
        if found is None or found.get("settings") != job.settings or found.get("id") != job.id:
            todo.append(job)
        else:
            yield job, entry_of(job, found), stored_output(job), check_of(found)
    if len(todo) < len(jobs):
        log.info("%d of %d samples are there already", len(jobs) - len(todo), len(jobs))
    # Like lengths together: less padding.
    todo.sort(key=lambda job: len(job.prompt_ids))
    for first in range(0, len(todo), settings.batch):
        batch = todo[first : first + settings.batch]
        prompts = [job.prompt_ids for job in batch]
        made = settings.target.answers(prompts, settings.boundaries, settings.limits())
        for job, answer in zip(batch, made, strict=True):
            metadata = store(job, answer)
            yield job, entry_of(job, metadata), answer.output_ids, check_of(metadata)


def store(job: Job, answer: Answer) -> dict[str, str]:
    """Write a sample file and return its metadata; raises InputError when its states are not finite."""
    import torch

    tensors = {
        "token_ids": torch.tensor(answer.prompt_ids + answer.output_ids),
        "hidden_states": answer.hidden_states,
        "continuation_ids": torch.tensor(answer.continuation_ids, dtype=torch.long),
    }
    if answer.last_hidden_state is not None:
        tensors[LAST] = answer.last_hidden_state
    refuse_not_finite(tensors, f"sample {job.id}")
    metadata = {
        "format": FORMAT,
        "id": job.id,
        "settings": job.settings,
        "prompt_tokens": str(len(answer.prompt_ids)),
        "output_tokens": str(len(answer.output_ids)),
        "finish": answer.finish,
        "checked": str(answer.checked),
        "mismatches": str(answer.mismatches),
    }
    write_sample(job.path, tensors, metadata)
    return metadata


def check_of(metadata: Mapping[str, str]) -> Check:
    """Return the check that a sample file's metadata tells of."""
    return Check(tokens=int(metadata["checked"]), mismatches=int(metadata["mismatches"]))


def stored_output(job: Job) -> list[int]:
    """Return the output token ids of a sample file."""
    from safetensors import safe_open

    with safe_open(job.path, framework="pt") as file:
        ids: list[int] = file.get_tensor("token_ids").tolist()
    return ids[len(job.prompt_ids) :]


def entry_of(job: Job, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return a sample's entry in the manifest."""
    return {
        "id": job.id,
        "category": job.prompt.category,
        "split": job.prompt.split,
        "prompt_tokens": int(metadata["prompt_tokens"]),
        "output_tokens": int(metadata["output_tokens"]),
        "finish": metadata["finish"],
        "file": job.path.name,
        "sha256": sha256(job.path),
    }


def refuse_unfaithful(settings: Capture, mismatches: int, tokens: int, *, final: bool) -> None:
    """Raise InputError when the whole pass does not repeat the text; at lower precision, say so at the end."""
    if mismatches <= (1 - MIN_REPEATED) * max(tokens, 0 if final else 1000):
        return
    if settings.dtype == "float32":
        raise InputError(
            f"the target repeats only {tokens - mismatches} of {tokens} of its own tokens when it reads them whole",
            str(settings.target.path),
            "Its cached and its whole forward pass disagree: check the transformers version.",
        )
    if final:
        log.warning(
            "%d of %d tokens are not repeated in %s: near ties; acceptance is uncertain by as much",
            mismatches,
            tokens,
            settings.dtype,
        )
