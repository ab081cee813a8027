"""Read a tensor's values once, in pieces, and say whether they can be weights."""

from __future__ import annotations

from dataclasses import dataclass

from draftproof.checkpoint.safetensors_header import Tensor
from draftproof.checkpoint.weights import stored_chunks

# bfloat16 in its 16 bits: sign, 8 of exponent, 7 of mantissa. All exponent bits set: infinite or not a number.
BF16_EXPONENT, BF16_ALL_BUT_SIGN = 0x7F80, 0x7FFF


@dataclass(frozen=True, slots=True)
class Scan:
    """What a pass over a tensor's values found."""

    not_finite: int
    all_zero: bool


def scan(tensor: Tensor) -> Scan:
    """Read a tensor's values once, in pieces of at most 8 MiB; other dtypes than floats pass unread."""
    import numpy as np

    bad, zero, pieces = 0, True, 0
    for chunk in stored_chunks(tensor):
        pieces += 1
        if tensor.dtype == "BF16":
            bad += int(((chunk & BF16_EXPONENT) == BF16_EXPONENT).sum())
            zero = zero and not bool((chunk & BF16_ALL_BUT_SIGN).any())
        else:
            finite = np.isfinite(chunk)
            bad += 0 if bool(finite.all()) else int((~finite).sum())
            zero = zero and not bool(chunk.any())
    return Scan(bad, zero and pieces > 0)
