"""The sample file: one target answer with the hidden states behind it, `<id>.safetensors`.

    token_ids         int64 [T]       prompt, then the target's own greedy output
    hidden_states     [T, A, H]       in the capture's dtype; row i belongs to token i; axis 1 = the manifest's boundaries
    continuation_ids  int64 [C]       what the target says after its output, the stop token ignored (C may be 0)

The key `sample` of the file's metadata (safetensors ``__metadata__``) is a JSON object with id, settings (a digest of everything that shaped the
sample), prompt_tokens, output_tokens, finish and mismatches. The continuation is there because an engine's last verify
step may accept drafts beyond the end of the output, and counts them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from draftproof.errors import InputError
from draftproof.files import digest, read_result, sha256

if TYPE_CHECKING:
    from torch import Tensor

MANIFEST = "manifest.json"
SUFFIX = ".safetensors"
METADATA_KEY = "sample"
MAX_NAME = 120
AGAIN = "Run draftproof capture again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One answer. Shapes are in the module's docstring; `prompt_tokens` of the T tokens are the prompt."""

    id: str
    category: str
    prompt_tokens: int
    token_ids: Tensor
    hidden_states: Tensor
    continuation_ids: Tensor


def file_name(sample_id: str) -> str:
    """Return the file name of a sample; ids from people's own files may hold anything."""
    name = quote(sample_id, safe=" ")
    if len(name) > MAX_NAME:
        name = f"{name[:MAX_NAME]}-{digest(sample_id)}"
    return name + SUFFIX


def write_sample(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a sample file whole or not at all."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    # A folder beside it: the library opens the file by name and makes it anew.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing.") as folder:
        part = Path(folder) / path.name
        kept = {name: tensor.contiguous() for name, tensor in tensors.items()}
        # One key only: the library writes several in random order, and equal samples should be equal files.
        save_file(kept, part, metadata={METADATA_KEY: json.dumps(dict(metadata), sort_keys=True)})
        part.chmod(0o644)
        part.replace(path)


def read_metadata(path: Path) -> dict[str, str] | None:
    """Return a sample file's metadata, or None when there is no readable sample file."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            found = json.loads((file.metadata() or {}).get(METADATA_KEY, "null"))
    except (SafetensorError, OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the manifest of a capture; raises InputError when there is none or it is of another form."""
    if not (directory / MANIFEST).is_file():
        raise InputError("holds no manifest.json of a capture", str(directory), AGAIN)
    return read_result(directory / MANIFEST, "capture")


def read_sample(directory: Path, manifest: Mapping[str, Any], entry: Mapping[str, Any]) -> Sample:
    """Return one sample of a manifest; raises InputError when its file is not what the manifest says.

    Refused: another content than was captured, missing tensors, rows that do not equal the tokens, NaN or infinity.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = directory / entry["file"]
    if not path.is_file():
        raise InputError("the sample file is missing", str(path), AGAIN)
    if sha256(path) != entry["sha256"]:
        raise InputError("is not the file that the manifest lists (SHA-256)", str(path), AGAIN)
    try:
        tensors = load_file(path)
        token_ids, states = tensors["token_ids"], tensors["hidden_states"]
    except (SafetensorError, OSError) as error:
        raise InputError(f"cannot be read ({error})", str(path), AGAIN) from None
    except KeyError as error:
        raise InputError(f"holds no tensor {error}", str(path), AGAIN) from None
    tokens = entry["prompt_tokens"] + entry["output_tokens"]
    wanted = (tokens, len(manifest["boundaries"]), manifest["hidden_size"])
    if tuple(token_ids.shape) != (tokens,) or tuple(states.shape) != wanted:
        raise InputError(
            f"holds {tuple(token_ids.shape)} tokens and {tuple(states.shape)} states, not ({tokens},) and {wanted}",
            str(path),
            AGAIN,
        )
    if not bool(torch.isfinite(states).all()):
        raise InputError("holds hidden states that are not finite (NaN or infinity)", str(path))
    return Sample(
        id=entry["id"],
        category=entry["category"],
        prompt_tokens=entry["prompt_tokens"],
        token_ids=token_ids.long(),
        hidden_states=states,
        continuation_ids=tensors.get("continuation_ids", token_ids[:0]).long(),
    )
