"""Hidden states that training tools have dumped, read one file at a time: speculators, SpecForge, Model-Optimizer.

Every reader returns a Dump: rows are tokens, slots are what the tool captured, in the order of the file. Pickled files go
through torch's weights-only loading alone, which builds tensors and plain values and runs nothing; what it refuses, we do.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof.capture.loss_masks import LossMasks
from draftproof.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

CAPTURE = "Dump the states again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """One text: token_ids [T], aux [T, A, H], last [T, H], own bool [T] (the tokens that the target said itself).

    `last_state` is the side of the final norm that the file itself states, None when it does not.
    """

    name: str
    path: Path
    token_ids: Tensor
    aux: Tensor
    last: Tensor
    own: Tensor
    last_state: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A tool's dump: which files, how one is read (path, target's width, loss masks), and its last state by convention."""

    suffixes: tuple[str, ...]
    last_state: str
    read: Callable[[Path, int, LossMasks | None], Dump]
    source: str


def dump_files(directory: Path, format_name: str) -> list[Path]:
    """Return a dump's files, by the numbers in their names; raises InputError when there is none."""
    suffixes = FORMATS[format_name].suffixes
    found = [p for p in directory.rglob("*") if p.name.endswith(suffixes) and p.is_file()]
    if format_name == "speculators":
        found = [path for path in found if re.fullmatch(r"hs_\d+", path.stem)]
    if not found:
        wanted = " or ".join(f"*{suffix}" for suffix in suffixes)
        raise InputError(
            f"holds no {wanted} file of {format_name}",
            str(directory),
            "Give the folder of the dump, or another --format.",
        )
    return sorted(found, key=lambda path: _natural(str(path)))


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def read_speculators(path: Path, width: int, masks: LossMasks | None) -> Dump:
    """Read hs_<index>.safetensors: token_ids [T], hidden_states [T, A + 1, H]; the last slot is behind the last layer."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"cannot be read ({error})", str(path), CAPTURE) from None
    token_ids, states = tensor(found, "token_ids", 1, path), tensor(found, "hidden_states", 3, path)
    if masks is None:
        raise InputError(
            "does not say which tokens the target said itself",
            str(path),
            "Give the prepared dataset of this dump with --dataset.",
        )
    own = masks.of(int(path.stem.removeprefix("hs_")), token_ids, path)
    return Dump(
        name=path.stem,
        path=path,
        token_ids=token_ids,
        aux=states[:, :-1],
        last=states[:, -1],
        own=own,
    )


def read_specforge(path: Path, width: int, _masks: LossMasks | None) -> Dump:
    """Read data_<index>.ckpt or .ckpt.gz: input_ids, loss_mask [T], aux_hidden_state [1, T, A*H], hidden_state [1, T, H]."""
    found = load_pickled(path)
    aux, last = tensor(found, "aux_hidden_state", 3, path), tensor(found, "hidden_state", 3, path)
    return Dump(
        name=path.name.partition(".")[0],
        path=path,
        token_ids=tensor(found, "input_ids", 1, path),
        aux=slots(aux.flatten(0, 1), width, path),
        last=last.flatten(0, 1),
        own=tensor(found, "loss_mask", 1, path).bool(),
    )


def read_modelopt(path: Path, width: int, _masks: LossMasks | None) -> Dump:
    """Read <conversation_id>.pt: input_ids, loss_mask [T], aux_hidden_states [T, A*H], hidden_states [T, H]."""
    found = load_pickled(path)
    if "loss_mask" not in found:
        raise InputError(
            "holds no loss_mask: which tokens the target said itself is unknown",
            str(path),
            "Dump the states again with --answer-only-loss.",
        )
    side = found.get("hidden_states_prenorm")
    return Dump(
        name=path.stem,
        path=path,
        token_ids=tensor(found, "input_ids", 1, path),
        aux=slots(tensor(found, "aux_hidden_states", 2, path), width, path),
        last=tensor(found, "hidden_states", 2, path),
        own=tensor(found, "loss_mask", 1, path).bool(),
        last_state=None if side is None else "pre_norm" if side else "post_norm",
    )


FORMATS: Mapping[str, Format] = {
    "speculators": Format(
        suffixes=(".safetensors",),
        last_state="pre_norm",
        read=read_speculators,
        source="speculators 0.9, train/data.py and vLLM's extract_hidden_states",
    ),
    "specforge": Format(
        suffixes=(".ckpt", ".ckpt.gz"),
        last_state="post_norm",
        read=read_specforge,
        source="SpecForge 0.2, scripts/prepare_hidden_states.py",
    ),
    "modelopt": Format(
        suffixes=(".pt",),
        last_state="post_norm",
        read=read_modelopt,
        source="Model-Optimizer 0.47, torch/speculative/eagle/utils.py",
    ),
}


def load_pickled(path: Path) -> dict[str, Any]:
    """Return a torch file's dictionary, weights only; raises InputError for anything else, and runs nothing of it."""
    import torch

    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot be read ({error})", str(path), CAPTURE) from None
    except Exception as error:  # noqa: BLE001 - whatever a hostile or broken file makes the library raise
        raise InputError(
            f"is no file of tensors alone, nothing of it was run ({_reason(error)})",
            str(path),
            "Dump the states again as plain tensors.",
        ) from None
    if not isinstance(found, dict):
        raise InputError(f"holds a {type(found).__name__}, not named tensors", str(path), CAPTURE)
    return found


def _reason(error: Exception) -> str:
    """Return the telling part of a refusal of torch's, in one line."""
    text = str(error)
    if unsupported := re.search(r"Unsupported \w+[^.\n]*|GLOBAL \S+|Unsupported operand \d+", text):
        return unsupported.group(0).strip()
    return next(iter(text.strip().splitlines()), type(error).__name__)[:160].rstrip(".")


def tensor(found: Mapping[str, Any], name: str, dimensions: int, path: Path) -> Tensor:
    """Return a named tensor with this many dimensions; raises InputError when it is missing or of another kind."""
    import torch

    value = found.get(name)
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        known = ", ".join(map(str, list(found)[:8])) or "nothing"
        raise InputError(
            f"holds no tensor {name!r}, but {known}", str(path), "Is it this --format?"
        )
    if value.ndim != dimensions or (
        dimensions == 3 and name != "hidden_states" and len(value) != 1
    ):
        raise InputError(
            f"{name} is of shape {list(value.shape)}", str(path), "Is it this --format?"
        )
    if value.is_floating_point() != (dimensions > 1) or value.is_complex():
        raise InputError(f"{name} is of dtype {value.dtype}", str(path), "Is it this --format?")
    return value


def slots(joined: Tensor, width: int, path: Path) -> Tensor:
    """Return states [T, A, H] of joined ones [T, A * H]; raises InputError when the width does not divide them."""
    if joined.shape[1] % width or not joined.shape[1]:
        raise InputError(
            f"its states are {joined.shape[1]} wide, no multiple of the target's {width}",
            str(path),
            "Give the target that the states were captured from.",
        )
    return joined.reshape(len(joined), -1, width)


def read_dump(path: Path, format_name: str, width: int, masks: LossMasks | None) -> Dump:
    """Read one file of a dump; raises InputError, with the reason, unless it has one row per token, all of them numbers."""
    import torch

    dump = FORMATS[format_name].read(path, width, masks)
    tokens = len(dump.token_ids)
    for what, value in (("states", dump.aux), ("last states", dump.last), ("loss mask", dump.own)):
        if len(value) != tokens:
            raise InputError(
                f"holds {len(value)} rows of {what} for {tokens} tokens", str(path), CAPTURE
            )
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise InputError(
                f"holds {what} that are not finite (NaN or infinity)", str(path), CAPTURE
            )
    if dump.aux.shape[2] != width or dump.last.shape[1] != width:
        raise InputError(
            f"its states are {dump.aux.shape[2]} and {dump.last.shape[1]} wide, the target's {width}",
            str(path),
            "Give the target that the states were captured from.",
        )
    if not tokens or int(dump.token_ids.min()) < 0:
        raise InputError("holds no tokens, or negative ones", str(path), CAPTURE)
    return dump


def own_runs(own: Tensor) -> Iterator[tuple[int, int]]:
    """Yield (first, behind the last) of each run of tokens that the target said itself."""
    first = None
    for i, mine in enumerate([*own.tolist(), False]):
        if mine and first is None:
            first = i
        elif not mine and first is not None:
            yield first, i
            first = None
