"""Read a tensor's values once, in pieces, and say whether they can be weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

from draftproof.checkpoint.safetensors_header import Tensor
from draftproof.checkpoint.weights import stored_chunks

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

# Floats of 16 bits, told by their bits: all but the sign are ordered as the numbers without their sign are, and what is
# not finite has all exponent bits set and comes last.
ALL_BUT_SIGN = 0x7FFF
INFINITE = {"BF16": 0x7F80, "F16": 0x7C00}
# One value in so many is squared. A prime, so that no row length makes it skip columns.
STRIDE = 61
BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Scan:
    """What a pass over a tensor's values found; all but ``not_finite`` is about the finite ones.

    ``rms`` is the root of the mean square, estimated from one value in 61.
    """

    not_finite: int = 0
    count: int = 0
    constant: bool = False
    largest: float = 0.0
    rms: float = 0.0

    @property
    def all_zero(self) -> bool:
        """Whether there are values and all are zero."""
        return self.count > 0 and not self.not_finite and self.largest == 0


def scan(tensor: Tensor) -> Scan:
    """Read a tensor's values once, in pieces of at most 8 MiB; other dtypes than floats pass unread."""
    bad, count, largest, squares, squared = 0, 0, 0.0, 0.0, 0
    first, constant = None, True
    for values in _blocks(tensor):
        not_finite, most = _extremes(values, tensor.dtype)
        bad, largest = bad + not_finite, max(largest, most)
        first = values[0] if first is None else first
        # Few tensors pass the first values, so the others are compared for those alone.
        constant = constant and bool((values[:64] == first).all() and (values == first).all())
        total, number = _squares(values[-count % STRIDE :: STRIDE], tensor.dtype)
        squares, squared = squares + total, squared + number
        count += len(values)
    rms = sqrt(squares / squared) if squared else 0.0
    return Scan(bad, count, constant and count > 0 and not bad, largest, rms)


def _blocks(tensor: Tensor) -> Iterator[Array]:
    """Yield a tensor's values in blocks that stay in the processor's cache while they are looked at several times."""
    for chunk in stored_chunks(tensor):
        for start in range(0, len(chunk), BLOCK):
            yield chunk[start : start + BLOCK]


def _extremes(values: Array, dtype: str) -> tuple[int, float]:
    """Return how many values are not finite, and the largest of the others without its sign."""
    import numpy as np

    if dtype in INFINITE:
        sizes = values.view(np.uint16) & ALL_BUT_SIGN
        most = sizes.max()
        if most < INFINITE[dtype]:
            return 0, float(_numbers(most, dtype))
        finite = sizes[sizes < INFINITE[dtype]]
        return len(sizes) - len(finite), float(_numbers(finite.max(initial=np.uint16(0)), dtype))
    # The extremes of values among which one is not a number are not a number either.
    low, high = float(values.min()), float(values.max())
    if np.isfinite(low) and np.isfinite(high):
        return 0, max(abs(low), abs(high))
    finite = values[np.isfinite(values)]
    return len(values) - len(finite), float(np.abs(finite).max(initial=0))


def _squares(values: Array, dtype: str) -> tuple[float, int]:
    """Return the sum of squares of values, those that are not finite left out, and how many they are."""
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore"):
        some = _numbers(values, dtype).astype(np.float64)
        some = some[np.isfinite(some)]
        return float(some @ some), len(some)


def _numbers(stored: Any, dtype: str) -> Any:
    """Return what an array, or one of its values, holds as numbers that numpy has."""
    import numpy as np

    if dtype == "BF16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored.view(np.float16) if dtype == "F16" else stored
