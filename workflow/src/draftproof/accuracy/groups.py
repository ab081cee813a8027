"""Where in the material are drafts accepted: by category of the prompts, and by position in the text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.accuracy.bootstrap import Bootstrap, Ratio
from draftproof.accuracy.scores import Scored, one_more
from draftproof.accuracy.walk import accepted, visited

FIRST_POSITIONS = 64
Rows = NDArray[np.bool_]


def categories(samples: Sequence[Scored], bootstrap: Bootstrap) -> dict[str, dict[str, Any]]:
    """Return the entries of ``categories``, in order of name."""

    def of(name: str) -> Callable[[Scored], Rows]:
        return lambda sample: np.full(len(sample.match), sample.category == name)

    names = sorted({sample.category for sample in samples})
    return {name: _group(samples, of(name), bootstrap) for name in names}


def positions(samples: Sequence[Scored], bootstrap: Bootstrap) -> dict[str, dict[str, Any]]:
    """Return the entries of ``position_buckets``: of a verify step counts the position that it starts from.

    Positions count the prompt. The first bucket has 64, each later one as many as all before it; those without a start row
    are left out.
    """

    def of(first: int, last: int) -> Callable[[Scored], Rows]:
        return lambda sample: (first <= _positions(sample)) & (_positions(sample) <= last)

    spans = _spans(max(sample.position + len(sample.match) for sample in samples))
    found = {f"{a}-{b}": _group(samples, of(a, b), bootstrap) for a, b in spans}
    return {name: group for name, group in found.items() if group["positions"]}


def _spans(end: int) -> Iterable[tuple[int, int]]:
    first, last = 0, FIRST_POSITIONS - 1
    while first < end:
        yield first, last
        first, last = last + 1, 2 * last + 1


def _positions(sample: Scored) -> NDArray[np.int64]:
    found: NDArray[np.int64] = sample.position + np.arange(len(sample.match))
    return found


def _group(
    samples: Sequence[Scored], member: Callable[[Scored], Rows], bootstrap: Bootstrap
) -> dict[str, Any]:
    """Return the scores of the rows that are members, [R] of each sample."""
    members = [member(sample) for sample in samples]
    pairs = list(zip(samples, members, strict=True))
    first = Ratio(
        [int((sample.match[:, 0] & rows).sum()) for sample, rows in pairs],
        [int((sample.known[:, 0] & rows).sum()) for sample, rows in pairs],
    )
    depth = samples[0].match.shape[1]
    return {
        "samples": sum(bool(rows.any()) for rows in members),
        "positions": int(sum(rows.sum() for rows in members)),
        "first_step": {
            "acceptance": first.value,
            "count": int(sum(first.denominators)),
            "ci95": bootstrap.interval(first) if first.value is not None else None,
        },
        "walk": {str(k): _walked(pairs, k, bootstrap) for k in range(1, depth + 1)},
    }


def _walked(
    pairs: Sequence[tuple[Scored, Rows]], steps: int, bootstrap: Bootstrap
) -> dict[str, Any]:
    """Return the accept length of the verify steps that start at member rows; null where the walk has none there."""
    drafts, verify_steps = [], []
    for sample, rows in pairs:
        lengths = np.minimum(accepted(sample.match), steps)
        started = [row for row in visited(lengths.tolist(), steps) if rows[row]]
        drafts.append(int(lengths[started].sum()))
        verify_steps.append(len(started))
    ratio = Ratio(drafts, verify_steps)
    counted = ratio.value is not None
    return {
        "verify_steps": sum(verify_steps),
        "accept_length": 1 + (ratio.value or 0.0) if counted else None,
        "ci95": one_more(bootstrap.interval(ratio)) if counted else None,
    }
