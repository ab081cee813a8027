"""The weights of a checkpoint: one safetensors file or several, found the way the engine finds them.

Headers are read at once and values only when asked for. No pickle is ever opened.
"""

from __future__ import annotations

import gc
import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof.checkpoint.configuration import read_object
from draftproof.checkpoint.safetensors_header import Tensor, read_header
from draftproof.errors import InputError
from draftproof.files import sha256

if TYPE_CHECKING:
    import numpy as np

INDEX = "model.safetensors.index.json"
PICKLED = {".bin", ".pt", ".pth", ".ckpt"}
CHUNK_BYTES = 8 << 20
STORED_AS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """``tensors`` by name over all ``files``; ``ignored_files`` lie beside them and the engine does not read them."""

    files: tuple[Path, ...]
    index: Path | None
    tensors: Mapping[str, Tensor]
    ignored_files: tuple[str, ...] = ()


def open_weights(path: Path) -> Weights:
    """Read the headers of a checkpoint directory, or of a single file.

    Raises InputError for anything but complete safetensors: the message names the file and the reason.
    """
    if not path.is_dir():
        _refuse_pickle([path])
        return _gather((path,), None)
    index = path / INDEX
    if index.is_file():
        with _collector_paused():
            return _indexed(path, index)
    found = sorted(p for p in path.glob("*.safetensors") if p.is_file() or p.is_symlink())
    # An engine that sees both the vendor's consolidated file and the usual one reads the usual one.
    read = [p for p in found if not p.name.endswith("consolidated.safetensors")]
    if len(found) == 2 and [p.name for p in read] == ["model.safetensors"]:
        return _gather(tuple(read), None, tuple(p.name for p in found if p not in read))
    if not found:
        _refuse_pickle(sorted(p for p in path.iterdir() if p.is_file()))
        raise InputError(
            "holds no *.safetensors file",
            str(path),
            "Give the folder with config.json and weights.",
        )
    return _gather(tuple(found), None)


def _refuse_pickle(paths: list[Path]) -> None:
    for path in paths:
        if path.suffix in PICKLED:
            raise InputError(
                "is a pickled torch file, which could run any code when opened; it was not opened",
                str(path),
                "Save the weights as safetensors where you trust the file.",
            )


def _gather(
    files: tuple[Path, ...], index: Path | None, ignored_files: tuple[str, ...] = ()
) -> Weights:
    tensors: dict[str, Tensor] = {}
    for file in files:
        found = read_header(file)
        if (twice := next(iter(tensors.keys() & found.keys()), None)) is not None:
            raise InputError(
                f"tensor {twice!r} is in {tensors[twice].path.name} too",
                str(file),
                "Remove the file that does not belong to the checkpoint.",
            )
        tensors |= found
    if not tensors:
        raise InputError("holds no tensor", str(files[0]), "Fetch or save the weights again.")
    return Weights(files=files, index=index, tensors=tensors, ignored_files=ignored_files)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from walking all tensors again and again while more of them are made."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _indexed(directory: Path, index: Path) -> Weights:
    content = read_object(index, "index")
    mapping = content.get("weight_map")
    if not isinstance(mapping, dict) or not mapping:
        raise InputError("has no weight_map", str(index), "Fetch the index again.")
    names = sorted({str(name) for name in mapping.values()})
    for name in names:
        if name != Path(name).name or not name.endswith(".safetensors") or len(name) > 255:
            raise InputError(f"names {name[:200]!r}, no safetensors file beside it", str(index))
        if not (directory / name).is_file():
            raise InputError(
                f"names {name}, which is missing", str(index), "Fetch the missing file."
            )
    beside = sorted(p.name for p in directory.glob("*.safetensors") if p.name not in names)
    weights = _gather(tuple(directory / name for name in names), index, tuple(beside))
    stale = "Fetch the index and the weights again; they are not of one checkpoint."
    names_of = {str(path): path.name for path in weights.files}
    held: dict[str, str] = {}
    for file, tensors in groupby(weights.tensors.values(), attrgetter("path")):
        held |= dict.fromkeys((tensor.name for tensor in tensors), names_of[str(file)])
    if held != mapping:
        for tensor, file in mapping.items():
            if held.get(tensor) != file:
                raise InputError(
                    f"says that {file!r} holds {tensor!r}; it does not", str(index), stale
                )
        unnamed = next(tensor for tensor in held if tensor not in mapping)
        raise InputError(f"does not name the tensor {unnamed!r}", str(index), stale)
    return weights


def read_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return a small tensor's values (any dtype numpy has); raises InputError when the library refuses the file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(tensor.path, framework="numpy") as file:
            array: np.ndarray[Any, Any] = file.get_tensor(tensor.name)
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise InputError(
            f"tensor {tensor.name!r} cannot be read ({error})", str(tensor.path)
        ) from None
    return array


def stored_chunks(tensor: Tensor) -> Iterator[np.ndarray[Any, Any]]:
    """Yield a floating tensor's values as flat arrays of at most 8 MiB, straight from the file.

    bfloat16, which numpy lacks, comes as its 16 bits (uint16). Nothing is yielded for other dtypes.
    """
    import numpy as np

    if tensor.dtype not in STORED_AS or not math.prod(tensor.shape):
        return
    kind = np.dtype(STORED_AS[tensor.dtype])
    count = (tensor.end - tensor.begin) // kind.itemsize
    step = CHUNK_BYTES // kind.itemsize
    try:
        with tensor.path.open("rb") as stream:
            stream.seek(tensor.begin)
            for first in range(0, count, step):
                yield np.fromfile(stream, dtype=kind, count=min(step, count - first))
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", str(tensor.path)) from None


def checkpoint_digest(config: Path, weights: Weights) -> str:
    """Return one SHA-256 over names and contents of config.json, the index and the weight files."""
    files = [config, *([weights.index] if weights.index else []), *weights.files]
    lines = "".join(f"{sha256(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()
