"""Read a pickled torch file through torch's weights-only loading alone, and keep its tensors as safetensors.

Unpickling can run any code. Weights-only loading builds tensors and plain containers and nothing else; whatever it
refuses is refused here. The engine loads .bin and .pt the same way (model_loader/weight_utils.py, _load_pt_file).
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof.checkpoint.safetensors_header import LENGTH_BYTES, ZIP, refuse_impostor
from draftproof.errors import InputError, MachineError

if TYPE_CHECKING:
    import torch

# In a folder without safetensors the engine reads all *.bin, without those all *.pt, but never these
# (model_loader/loader.py, _prepare_weights; weight_utils.py, filter_files_not_needed_for_inference).
READ_BY_ENGINE = (".bin", ".pt")
NOT_WEIGHTS = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")
DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
# Tensors may share values (a tied head); more than this is a file made to fill the disk.
MOST_TIMES_THE_FILE, SMALL_BYTES = 4, 1 << 20
SAVE = "Save the plain weights as safetensors where you trust the file."


class Scratch:
    """A folder that goes away with the last reference to this, or when the program ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="draftproof."))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def pickled_files(folder: Path) -> list[Path]:
    """Return the pickled files that the engine would read in a folder without safetensors."""
    for suffix in READ_BY_ENGINE:
        found = sorted(p for p in folder.glob(f"*{suffix}") if not p.name.endswith(NOT_WEIGHTS))
        if found:
            return found
    return []


def unpickled(source: Path, destination: Path) -> None:
    """Write the tensors of a pickled file as safetensors, one at a time; tensors that share values get their own.

    Raises InputError for what weights-only loading refuses, and for anything but a plain map of tensors.
    """
    tensors = _tensors(_load(source), source)
    entries: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")]
        entries[name] = {"dtype": dtype, "shape": [*tensor.shape], "data_offsets": [begin, end]}
    size = source.stat().st_size
    if end > max(MOST_TIMES_THE_FILE * size, SMALL_BYTES):
        raise InputError(f"holds {size} bytes and claims tensors of {end}", str(source), SAVE)
    header = json.dumps(entries, separators=(",", ":")).encode("utf-8")
    header += b" " * (-len(header) % LENGTH_BYTES)
    try:
        with destination.open("wb") as stream:
            stream.write(len(header).to_bytes(LENGTH_BYTES, "little") + header)
            for tensor in tensors.values():
                _values(tensor).tofile(stream)
    except OSError as error:
        raise MachineError(
            f"cannot be written ({error.strerror})",
            str(destination.parent),
            f"Set TMPDIR to a folder on a disk with {end >> 20} MiB free.",
        ) from None


def _load(source: Path) -> object:
    try:
        import torch
    except ImportError:
        raise MachineError(
            "torch is needed to read a pickled file", str(source), "Install draftproof[models]."
        ) from None
    try:
        with source.open("rb") as stream:
            start = stream.read(64)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", str(source)) from None
    refuse_impostor(start, str(source))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # A file of before torch 1.6 is no zip archive and cannot be mapped.
            mapped = start.startswith(ZIP)
            return torch.load(source, weights_only=True, mmap=mapped, map_location="cpu")
    except Exception as error:  # noqa: BLE001  whatever hostile bytes bring about in the reader is its refusal
        raise InputError(
            f"torch's weights-only loading refuses it ({_reason(error)}); a pickled file can run any code, and nothing"
            " in it was executed",
            str(source),
            SAVE,
        ) from None


def _tensors(content: object, source: Path) -> dict[str, torch.Tensor]:
    import torch

    if not isinstance(content, Mapping) or not content:
        what = f"holds {type(content).__name__}, not a map of tensors"
        raise InputError(what, str(source), SAVE)
    for name, value in content.items():
        plain = (
            isinstance(name, str)
            and isinstance(value, torch.Tensor)
            and value.layout == torch.strided
            and value.device.type == "cpu"
            and str(value.dtype).removeprefix("torch.") in DTYPES
        )
        if not plain or name == "__metadata__":
            what = f"holds {str(name)[:200]!r}, a {_kind(value)}, among its tensors"
            raise InputError(what, str(source), SAVE)
    return {name: value.detach() for name, value in content.items()}


def _kind(value: object) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        return f"{value.layout} tensor of {value.dtype} on {value.device.type}".replace(
            "torch.", ""
        )
    return type(value).__name__


def _values(tensor: torch.Tensor) -> Any:
    import torch

    flat = tensor.contiguous().reshape(-1)
    return (flat.view(torch.uint8) if math.prod(tensor.shape) else flat.to(torch.uint8)).numpy()


def _reason(error: Exception) -> str:
    """Return what torch has to say, without its advice to load the file anyway."""
    text = str(error).rpartition("WeightsUnpickler error: ")[2].strip()
    line = next(iter(text.splitlines()), "") or type(error).__name__
    return "".join(c if c.isprintable() else " " for c in line)[:200].strip(". ")
