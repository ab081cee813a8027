"""How many times as long one thing takes as another, measured in turn."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from scipy import stats


def seconds(call: Callable[[], object]) -> float:
    """Return the wall time of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def ratio(one: Callable[[], object], other: Callable[[], object], repeats: int) -> str:
    """Return the geometric mean of one / other over pairs of neighbouring runs with its 95 % interval (Student's t)."""
    pairs = np.array([(seconds(one), seconds(other)) for _ in range(repeats)])
    logs = np.log(pairs[:, 0] / pairs[:, 1])
    low, high = np.exp(stats.t.interval(0.95, repeats - 1, loc=logs.mean(), scale=stats.sem(logs)))
    medians = np.median(pairs, axis=0)
    return (
        f"{np.exp(logs.mean()):.2f} (95 % {low:.2f} to {high:.2f}, {repeats} pairs;"
        f" medians {medians[0]:.2f} s and {medians[1]:.2f} s)"
    )
