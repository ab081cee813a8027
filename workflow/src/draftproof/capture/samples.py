"""The sample file: one target answer with the hidden states behind it, `<id>.safetensors` (workflow/capture-format.md).

    token_ids          int64 [T]       prompt, then the target's own greedy output
    hidden_states      [T, A, H]       in the capture's dtype; row i belongs to token i; axis 1 = the manifest's boundaries
    last_hidden_state  [T, H]          behind the last layer; the manifest's last_state says on which side of the final norm
    continuation_ids   int64 [C]       what the target says after its output, the stop token ignored (C may be 0)

`last_hidden_state` is there when the manifest has `last_state`.

The key `sample` of the file's metadata (safetensors ``__metadata__``) is a JSON object with id, settings (a digest of everything that shaped the
sample), prompt_tokens, output_tokens, finish, checked and mismatches. The continuation is there because an engine's last verify
step may accept drafts beyond the end of the output, and counts them.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
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
FORMAT = "draftproof/sample/2"
METADATA_KEY = "sample"
LAST = "last_hidden_state"
MAX_NAME = 120
WRITING = ".writing."
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
    last_hidden_state: Tensor | None = None


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
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=WRITING) as folder:
        part = Path(folder) / path.name
        kept = {name: tensor.contiguous() for name, tensor in tensors.items()}
        # One key only: the library writes several in random order, and equal samples should be equal files.
        save_file(kept, part, metadata={METADATA_KEY: json.dumps(dict(metadata), sort_keys=True)})
        part.chmod(0o644)
        part.replace(path)


def remove_stale(out: Path, kept: set[str]) -> None:
    """Remove sample files that the manifest will not list, and what a killed capture was writing."""
    for path in out.glob(f"*{SUFFIX}"):
        if path.name not in kept:
            path.unlink()
    for part in out.glob(f"{WRITING}*"):
        shutil.rmtree(part)


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
    path = directory / entry["file"]
    if not path.is_file():
        raise InputError("the sample file is missing", str(path), AGAIN)
    if sha256(path) != entry["sha256"]:
        raise InputError("is not the file that the manifest lists (SHA-256)", str(path), AGAIN)
    last = (LAST,) if "last_state" in manifest else ()
    tensors = read_tensors(path, ("token_ids", "hidden_states", *last), ("continuation_ids",))
    require_rows(tensors, entry, manifest, path)
    refuse_not_finite(tensors, str(path))
    return Sample(
        id=entry["id"],
        category=entry["category"],
        prompt_tokens=entry["prompt_tokens"],
        token_ids=tensors["token_ids"].long(),
        hidden_states=tensors["hidden_states"],
        continuation_ids=tensors.get("continuation_ids", tensors["token_ids"][:0]).long(),
        last_hidden_state=tensors.get(LAST),
    )


def read_tensors(path: Path, needed: Sequence[str], more: Sequence[str] = ()) -> dict[str, Tensor]:
    """Return these tensors of a sample file, and those of `more` that it has; raises InputError when one is missing."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            held = set(file.keys())
            if missing := [name for name in needed if name not in held]:
                raise InputError(f"holds no tensor {missing[0]!r}", str(path), AGAIN)
            return {name: file.get_tensor(name) for name in (*needed, *more) if name in held}
    except (SafetensorError, OSError) as error:
        raise InputError(f"cannot be read ({error})", str(path), AGAIN) from None


def require_rows(
    tensors: Mapping[str, Tensor],
    entry: Mapping[str, Any],
    manifest: Mapping[str, Any],
    path: Path,
) -> None:
    """Raise InputError unless every tensor of a sample has one row per token, and the manifest's other sizes."""
    tokens, width = entry["prompt_tokens"] + entry["output_tokens"], manifest["hidden_size"]
    wanted: dict[str, tuple[int, ...]] = {
        "token_ids": (tokens,),
        "hidden_states": (tokens, len(manifest["boundaries"]), width),
        LAST: (tokens, width),
    }
    for name in tensors.keys() & wanted.keys():
        found = tuple(tensors[name].shape)
        if found != wanted[name]:
            raise InputError(
                f"holds {name} of {found}, not {wanted[name]}: one row per token", str(path), AGAIN
            )


def refuse_not_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    """Raise InputError when states hold NaN or infinity."""
    import torch

    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            bad = int((~torch.isfinite(tensor.flatten(1)).all(1)).sum())
            raise InputError(
                f"{name} is not finite (NaN or infinity) in {bad} of {len(tensor)} rows",
                where,
                "Check the target's weights and the precision it ran in.",
            )
