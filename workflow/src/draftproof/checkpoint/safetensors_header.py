"""Read the header of one safetensors file strictly, without its values, and say what is wrong with it.

The format: 8 bytes with the header's length, the header (JSON: name -> dtype, shape, data_offsets), the values without
gaps or overlaps (https://github.com/huggingface/safetensors, "Format"). Every fault is an InputError naming the file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from functools import partial
from itertools import repeat
from operator import add, attrgetter, sub
from pathlib import Path
from typing import Any, NamedTuple

from draftproof.errors import InputError

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
MAX_DIMENSION = 2**63
BITS = {
    **dict.fromkeys(("F4", "F4_E2M1"), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
FETCH = "Fetch the file again."
# What stands in place of weights after a clone without LFS, or a download of an error page.
IMPOSTORS = {
    b"version https://git-lfs": ("is a Git-LFS pointer, not the weights", "Run git lfs pull."),
    b"<!DOCTYPE": ("is an HTML page, not weights", FETCH),
    b"<html": ("is an HTML page, not weights", FETCH),
}
ZIP = b"PK\x03\x04"


class Tensor(NamedTuple):
    """Where a tensor's values lie: bytes ``begin`` to ``end`` of the file.

    A tuple, because a big target has hundreds of thousands.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    begin: int
    end: int


def read_header(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name, in the header's order."""
    where = str(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            start = stream.read(64)
            header_bytes = _header_length(start, size, where)
            stream.seek(LENGTH_BYTES)
            raw = stream.read(header_bytes)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where) from None
    base = LENGTH_BYTES + header_bytes
    tensors = _usual(raw, path, base)
    if tensors is None:
        header = _parse(raw, where)
        header.pop("__metadata__", None)
        tensors = {name: _tensor(name, entry, path, base) for name, entry in header.items()}
        end = _check_any_order(tensors.values(), base, where)
    else:
        end = next(reversed(tensors.values())).end
    if size < end:
        raise InputError(f"is cut off: {size} bytes of {end}", where, FETCH)
    if size > end:
        raise InputError(f"has {size - end} bytes behind the last tensor", where, FETCH)
    return tensors


def refuse_impostor(start: bytes, where: str) -> None:
    """Raise InputError when a file starts like what stands in place of weights."""
    for magic, (what, fix) in IMPOSTORS.items():
        if start.startswith(magic):
            raise InputError(what, where, fix)


def _header_length(start: bytes, size: int, where: str) -> int:
    refuse_impostor(start, where)
    if start.startswith(ZIP):
        raise InputError(
            "is a zip archive (a pickled torch file?), not safetensors",
            where,
            "Save the weights as safetensors.",
        )
    if size < LENGTH_BYTES:
        raise InputError(f"is {size} bytes long, too short for safetensors", where, FETCH)
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise InputError(
            f"its first 8 bytes announce a header of {length} bytes; this is no safetensors file",
            where,
            FETCH,
        )
    if length > size - LENGTH_BYTES:
        raise InputError(
            f"is cut off inside its header: {size} bytes of at least {LENGTH_BYTES + length}",
            where,
            FETCH,
        )
    return length


def _parse(raw: bytes, where: str) -> dict[str, Any]:
    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise InputError(f"its header holds the key {key!r} twice", where, FETCH)
            found[key] = value
        return found

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError) as error:
        raise InputError(f"its header is not JSON ({str(error)[:100]})", where, FETCH) from None
    if not isinstance(header, dict):
        raise InputError("its header is no JSON object", where, FETCH)
    metadata = header.get("__metadata__", {})
    if not isinstance(metadata, dict) or any(not isinstance(v, str) for v in metadata.values()):
        raise InputError("its __metadata__ is not a map of strings", where, FETCH)
    return header


# An entry as the safetensors library writes it, with the comma before it; sizes below 10**18.
_ENTRY = re.compile(
    r',"([^"\\\x00-\x1f]*)":\{"dtype":"([A-Z0-9_]+)","shape":\[([0-9,]*)\],'
    r'"data_offsets":\[(0|[1-9][0-9]{0,17}),(0|[1-9][0-9]{0,17})\]\}'
)
_ENTRY_CHARS = len(',"":{"dtype":"","shape":[],"data_offsets":[,]}')
_METADATA = '{"__metadata__":'
# What NamedTuple._make does, without a Python frame per tensor.
_MAKE = partial(tuple.__new__, Tensor)


class _Kinds(dict[tuple[str, str], tuple[str, tuple[int, ...], int]]):
    """{(dtype, shape as text): dtype, shape and bytes}, each made once: a big target has few.

    Raises KeyError or ValueError for what is none.
    """

    def __missing__(self, key: tuple[str, str]) -> tuple[str, tuple[int, ...], int]:
        dtype, text = key
        shape = json.loads(f"[{text}]")
        bits = math.prod(shape) * BITS[dtype] if _naturals(shape) else 1
        if bits % 8:
            raise KeyError(key)
        self[key] = kind = (dtype, tuple(shape), bits // 8)
        return kind


def _usual(raw: bytes, path: Path, base: int) -> dict[str, Tensor] | None:
    """Return the tensors of a header that is right and written the usual way, in the values' order.

    None: parse it and look at each entry. No Python runs per tensor, and what tensors have in common is kept once: a big
    target has hundreds of thousands.
    """
    try:
        text = raw.decode("utf-8").rstrip(" ")
        start = _after_metadata(text)
        body = "," + text[start:-1]
        names, dtypes, shapes, begins, ends = zip(*_ENTRY.findall(body), strict=True)
        parts = (names, dtypes, shapes, begins, ends)
        covered = len(names) * _ENTRY_CHARS + sum(sum(map(len, part)) for part in parts)
        if covered != len(body) or text[-1] != "}":
            return None
        kinds = map(_Kinds().__getitem__, zip(dtypes, shapes, strict=True))
        dtypes, shapes, sizes = zip(*kinds, strict=True)
    except (KeyError, ValueError, RecursionError):
        return None
    first, last = list(map(int, begins)), list(map(int, ends))
    if first[0] != 0 or first[1:] != last[:-1] or tuple(map(sub, last, first)) != sizes:
        return None
    last = list(map(add, last, repeat(base)))
    first = [base, *last[:-1]]
    made = map(_MAKE, zip(names, dtypes, shapes, repeat(path), first, last, strict=False))
    tensors = dict(zip(names, made, strict=True))
    return None if len(tensors) < len(names) or "__metadata__" in tensors else tensors


def _after_metadata(text: str) -> int:
    """Return where the first tensor's entry starts; raises ValueError when the header starts in no usual way."""
    if not text.startswith(_METADATA):
        if text[:1] != "{":
            raise ValueError
        return 1
    # An object comes as a tuple of its pairs, so that a key that stands twice shows.
    pairs, end = json.JSONDecoder(object_pairs_hook=tuple).raw_decode(text, len(_METADATA))
    texts = isinstance(pairs, tuple) and all(isinstance(value, str) for _, value in pairs)
    if not texts or len(dict(pairs)) < len(pairs) or text[end : end + 1] != ",":
        raise ValueError
    return end + 1


def _naturals(values: object) -> bool:
    """Return whether values is a list of sizes."""
    return type(values) is list and all(
        type(value) is int and 0 <= value < MAX_DIMENSION for value in values
    )


def _wrong(name: str, path: Path, what: str) -> InputError:
    return InputError(f"tensor {name[:200]!r} {what}", str(path), FETCH)


def _tensor(name: str, entry: Any, path: Path, base: int) -> Tensor:
    try:
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        exact = len(entry) == 3
    except (KeyError, TypeError):
        exact = False
    if not exact:
        raise _wrong(name, path, "is not described by exactly dtype, shape and data_offsets")
    if not isinstance(dtype, str) or dtype not in BITS:
        raise _wrong(name, path, f"has the unknown dtype {str(dtype)[:40]!r}")
    if not _naturals(shape):
        raise _wrong(name, path, f"has the shape {str(shape)[:80]}, not a list of sizes")
    if not _naturals(offsets) or len(offsets) != 2:
        raise _wrong(name, path, f"has the data_offsets {str(offsets)[:80]}, not [begin, end]")
    begin, end = offsets
    bits = math.prod(shape) * BITS[dtype]
    if bits % 8 or end - begin != bits // 8:
        needed = str(-(-bits // 8))[:40]
        what = f"holds {end - begin} bytes, but {dtype} {str(shape)[:80]} needs {needed}"
        raise _wrong(name, path, what)
    return Tensor(name, dtype, tuple(shape), path, base + begin, base + end)


def _check_any_order(tensors: Iterable[Tensor], base: int, where: str) -> int:
    """Return where the last tensor ends; raises InputError unless they follow each other without gap or overlap."""
    position, before = base, "its header"
    for tensor in sorted(tensors, key=attrgetter("begin", "end")):
        if tensor.begin != position:
            fault = "a gap" if tensor.begin > position else "an overlap"
            raise InputError(
                f"{fault} of {abs(tensor.begin - position)} bytes between {before[:200]!r} and {tensor.name[:200]!r}",
                where,
                FETCH,
            )
        position, before = tensor.end, tensor.name
    return position
