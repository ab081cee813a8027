"""Which other boundaries may a draft have been trained on? Lists of boundaries with the fault that leads to each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

Boundaries = tuple[int, ...]
# All orders of so many boundaries are tried; of more only neighbours swapped, and all reversed.
MAX_PERMUTED = 4


def other_boundaries(
    configured: Boundaries, default: Boundaries, stored: Sequence[int]
) -> dict[Boundaries, str]:
    """Return {boundaries: how they differ}: ascending, as many as configured, all stored, the likely faults first."""
    ascending = tuple(sorted(configured))
    found: dict[Boundaries, str] = {}
    for boundaries, label in _likely(ascending, default, stored):
        strictly = tuple(sorted(set(boundaries))) == boundaries
        usable = len(boundaries) == len(configured) and set(boundaries) <= set(stored)
        if strictly and usable and boundaries != configured:
            found.setdefault(boundaries, label)
    return found


def _likely(
    own: Boundaries, default: Boundaries, stored: Sequence[int]
) -> Iterator[tuple[Boundaries, str]]:
    yield default, "engine default"
    yield tuple(b + 1 for b in own), "one higher"
    yield tuple(b - 1 for b in own), "one lower"
    # A captured list that is one longer, cut at the wrong end: (0, a, b, c) gives (0, a, b) or (a, b, c).
    yield (0, *own[:-1]), "embedding included, the last left out"
    for later in stored:
        yield (*own[1:], later), "the first left out, one more at the end"
    for slot in range(len(own)):
        for other in stored:
            changed = tuple(sorted((*own[:slot], other, *own[slot + 1 :])))
            yield changed, f"{own[slot]} replaced by {other}"


def other_orders(configured: Boundaries) -> list[Boundaries]:
    """Return the configured boundaries in other orders."""
    count = len(configured)
    if count <= MAX_PERMUTED:
        return list(permutations(configured))[1:]
    swapped = [
        (*configured[:n], configured[n + 1], configured[n], *configured[n + 2 :])
        for n in range(count - 1)
    ]
    return [*swapped, configured[::-1]]


def listed(boundaries: Sequence[int]) -> str:
    """Return boundaries as text: ``(0, 3, 31)``."""
    return f"({', '.join(map(str, boundaries))})"


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending whole numbers as text: ``4 to 12, 17``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(
        f"{part[0]} to {part[-1]}" if len(part) > 1 else str(part[0]) for part in parts
    )
