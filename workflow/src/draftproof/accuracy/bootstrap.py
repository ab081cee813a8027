"""Intervals for pooled ratios, by drawing whole samples again: tokens of one text are not independent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS = 10_000
SEED = 20_260
Counts = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of sums over samples: numerators and denominators, one of each per sample."""

    numerators: Sequence[float]
    denominators: Sequence[float]

    @property
    def value(self) -> float | None:
        """The pooled ratio, or None when nothing was counted."""
        total = sum(self.denominators)
        return sum(self.numerators) / total if total else None


class Bootstrap:
    """Draws of `samples` samples with replacement, the same for every ratio, so that differences are paired."""

    def __init__(self, samples: int, draws: int = DRAWS, seed: int = SEED) -> None:
        generator = np.random.default_rng(seed)
        share = np.full(samples, 1 / samples)
        self._times: Counts = generator.multinomial(samples, share, size=draws).astype(float)

    def values(self, ratio: Ratio) -> Counts:
        """Return the ratio in each draw; NaN where nothing was counted."""
        top = self._times @ np.asarray(ratio.numerators, dtype=float)
        bottom = self._times @ np.asarray(ratio.denominators, dtype=float)
        with np.errstate(invalid="ignore", divide="ignore"):
            drawn: Counts = np.where(bottom > 0, top / bottom, np.nan)
        return drawn

    def interval(self, ratio: Ratio, level: float = 0.95) -> list[float]:
        """Return the percentile interval [low, high] of a ratio that counts something."""
        return quantiles(self.values(ratio), level)


def quantiles(drawn: Counts, level: float) -> list[float]:
    """Return the middle `level` of the draws, [low, high]."""
    tail = (1 - level) / 2
    low, high = np.nanquantile(drawn, [tail, 1 - tail])
    return [float(low), float(high)]
