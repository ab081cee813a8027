"""The weights of a checkpoint: one safetensors file or several, found the way the engine finds them.

Headers are read at once and values only when asked for. A pickled file is opened on request alone, see `pickled`.
"""

from __future__ import annotations

import gc
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import is_, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof.checkpoint.configuration import read_object
from draftproof.checkpoint.pickled import READ_BY_ENGINE, Scratch, pickled_files, unpickled
from draftproof.checkpoint.safetensors_header import Tensor, read_header
from draftproof.errors import InputError
from draftproof.files import sha256

if TYPE_CHECKING:
    import numpy as np
    import torch

INDEX, PICKLED_INDEX = "model.safetensors.index.json", "pytorch_model.bin.index.json"
WHOLE = "model.safetensors"
PICKLED = {".bin", ".pt", ".pth", ".ckpt"}
CHUNK_BYTES = 8 << 20
_PATH = itemgetter(Tensor._fields.index("path"))
STORED_AS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """``tensors`` by name over all ``files``; ``ignored_files`` lie beside them and the engine does not read them.

    ``pickled``: the checkpoint's own files, when ``files`` are what was read out of them; these live as long as this.
    """

    files: tuple[Path, ...]
    index: Path | None
    tensors: Mapping[str, Tensor]
    ignored_files: tuple[str, ...] = ()
    pickled: tuple[Path, ...] = ()
    scratch: Scratch | None = None


def open_weights(path: Path, *, unpickle: bool = False) -> Weights:
    """Read the headers of a checkpoint directory, or of a single file.

    With `unpickle`, .bin and .pt files are read too, where the engine would, through torch's weights-only loading.
    Raises InputError for anything but complete weights: the message names the file and the reason.
    """
    with _collector_paused():
        if path.is_dir():
            return _directory(path, unpickle)
        return _pickled([path], None, unpickle) if path.suffix in PICKLED else _gather((path,))


def has_safetensors(path: Path) -> bool:
    """Return whether a checkpoint's folder holds a weight file at all, whole or not; links count, whereto they lead or not."""
    return not path.is_dir() or any(path.glob("*.safetensors"))


def _directory(path: Path, unpickle: bool) -> Weights:
    index = path / INDEX
    if index.is_file():
        return _indexed(path, index)
    found = sorted(p for p in path.glob("*.safetensors") if p.is_file() or p.is_symlink())
    # An engine that sees both the vendor's consolidated file and the usual one reads the usual one.
    read = [p for p in found if not p.name.endswith("consolidated.safetensors")]
    if len(found) == 2 and [p.name for p in read] == ["model.safetensors"]:
        ignored = tuple(p.name for p in found if p not in read)
        return replace(_gather(tuple(read)), ignored_files=ignored)
    if found:
        return _gather(tuple(found))
    pickled = pickled_files(path) or sorted(p for p in path.iterdir() if p.suffix in PICKLED)
    if pickled:
        return _pickled(pickled, path / PICKLED_INDEX, unpickle)
    raise InputError(
        "holds no *.safetensors file", str(path), "Give the folder with config.json and weights."
    )


def _pickled(paths: list[Path], index: Path | None, unpickle: bool) -> Weights:
    for path in paths:
        if not unpickle or path.suffix not in READ_BY_ENGINE:
            raise InputError(
                "is a pickled torch file, which could run any code when opened; it was not opened",
                str(path),
                "Save the weights as safetensors where you trust the file.",
            )
    scratch = Scratch()
    names = [f"{path.stem}.safetensors" for path in paths] if len(paths) > 1 else [WHOLE]
    files = tuple(scratch.path / name for name in names)
    for path, file in zip(paths, files, strict=True):
        unpickled(path, file)
    weights = replace(_gather(files), pickled=tuple(paths), scratch=scratch)
    if index is not None and index.is_file():
        mapping = _weight_map(index, ".bin")
        _check_index(index, mapping, weights, [path.name for path in paths])
    return weights


def _gather(files: tuple[Path, ...]) -> Weights:
    """Read the headers of files that are one checkpoint."""
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
    return Weights(files=files, index=None, tensors=tensors)


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
    mapping = _weight_map(index, ".safetensors")
    names = sorted({*mapping.values()})
    beside = sorted(p.name for p in directory.glob("*.safetensors") if p.name not in names)
    weights = _gather(tuple(directory / name for name in names))
    _check_index(index, mapping, weights, names)
    return replace(weights, index=index, ignored_files=tuple(beside))


def _weight_map(index: Path, suffix: str) -> dict[str, str]:
    """Return an index's {tensor: file}; raises InputError unless every file is there, beside the index."""
    mapping = read_object(index, "index").get("weight_map")
    if not isinstance(mapping, dict) or not mapping:
        raise InputError("has no weight_map", str(index), "Fetch the index again.")
    for name in sorted({*map(str, mapping.values())}):
        if name != Path(name).name or not name.endswith(suffix) or len(name) > 255:
            raise InputError(f"names {name[:200]!r}, no {suffix[1:]} file beside it", str(index))
        if not (index.parent / name).is_file():
            raise InputError(
                f"names {name}, which is missing", str(index), "Fetch the missing file."
            )
    return mapping


def _check_index(
    index: Path, mapping: Mapping[str, str], weights: Weights, names: Sequence[str]
) -> None:
    """Raise InputError unless the index says of every tensor which file really holds it; `names`: what it calls the files."""
    path_of = dict(zip(names, weights.files, strict=True))
    tensors = weights.tensors
    try:
        held = map(_PATH, map(tensors.__getitem__, mapping))
        said = map(path_of.__getitem__, mapping.values())
        if len(mapping) == len(tensors) and all(map(is_, said, held)):
            return
    except KeyError:
        pass
    stale = "Fetch the index and the weights again; they are not of one checkpoint."
    for tensor, file in mapping.items():
        if tensor not in tensors or tensors[tensor].path != path_of.get(file):
            raise InputError(f"says that {file!r} holds {tensor!r}; it does not", str(index), stale)
    unnamed = next(tensor for tensor in tensors if tensor not in mapping)
    raise InputError(f"does not name the tensor {unnamed!r}", str(index), stale)


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


def read_tensor(stored: Tensor) -> torch.Tensor:
    """Return a tensor's values in their stored dtype; raises InputError when the library refuses the file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(stored.path, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(stored.name)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{stored.name} cannot be read ({error})", str(stored.path)) from None
    return tensor


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
    own = weights.pickled or weights.files
    files = [config, *([weights.index] if weights.index else []), *own]
    lines = "".join(f"{sha256(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()
