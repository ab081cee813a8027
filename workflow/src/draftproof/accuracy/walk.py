"""The serve loop on the target's own text: draft, verify, jump; a pure function of what would match.

The end of a text as SGLang 0.5.23 counts it (managers/scheduler_components/batch_result_processor.py,
_resolve_spec_v2_tokens): a verify step counts all its accepted drafts, those beyond the stop token or the token limit too,
and afterwards the request is finished. So a text of n output tokens has start rows for its first n - 1 tokens, and a step
that jumps past the last of them is the last step. Matches beyond the end come from the capture's continuation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.bool_]


def accepted(match: Matrix) -> NDArray[np.int64]:
    """Return how many drafts of each row match before the first miss, [R], of match [R, K]."""
    lengths: NDArray[np.int64] = np.logical_and.accumulate(match, axis=1).sum(axis=1)
    return lengths


def walk(match: Matrix, start_row: int = 0, steps: Sequence[int] | None = None) -> list[list[int]]:
    """Return one histogram per number of draft steps (default 1..K): h[m] = verify steps with m accepted drafts.

    match [R, K]: row r is the verify step that starts after token r of the output; the walk starts at `start_row`, the
    token that prefill gave, accepts m drafts and goes on at row r + m + 1 until it leaves the rows. A walk with fewer steps
    than K reads the first columns only: the drafts of a chain do not depend on how many follow.
    """
    lengths = accepted(match).tolist()
    counts = range(1, match.shape[1] + 1) if steps is None else steps
    return [histogram(lengths, most, visited(lengths, most, start_row)) for most in counts]


def visited(lengths: Sequence[int], most: int, start_row: int = 0) -> list[int]:
    """Return the rows at which a verify step starts, of drafts that would be accepted at each row, `most` at a time."""
    rows, row = [], start_row
    while row < len(lengths):
        rows.append(row)
        row += min(lengths[row], most) + 1
    return rows


def histogram(lengths: Sequence[int], most: int, rows: Sequence[int]) -> list[int]:
    """Return h[m] of the verify steps that start at these rows."""
    counts = [0] * (most + 1)
    for row in rows:
        counts[min(lengths[row], most)] += 1
    return counts


def pooled(histograms: Sequence[Sequence[int]]) -> list[int]:
    """Return the sum of histograms of equal length."""
    return [sum(column) for column in zip(*histograms, strict=True)]


def drafts_and_steps(histogram: Sequence[int]) -> tuple[int, int]:
    """Return accepted drafts and verify steps; accept length = 1 + drafts / steps."""
    return sum(m * count for m, count in enumerate(histogram)), sum(histogram)
