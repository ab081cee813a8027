"""Offline against served acceptance: the same prompts, two ways of counting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from draftproof.benchmark.acceptance import (
    RESAMPLES,
    SEED,
    Counters,
    accept_length_interval,
    pool,
)
from draftproof.diagnosis.results import Cell
from draftproof.errors import InputError

AGREE_RATIO = 0.01
"""Served and offline accept length count as equal up to this share of the offline one."""


def counters_of(histogram: Sequence[int]) -> Counters:
    """Return the counters of a walk from its histogram (index m: verify steps that accepted m drafts)."""
    return Counters(
        verify_steps=sum(histogram),
        correct_drafts=sum(m * n for m, n in enumerate(histogram)),
        histogram=list(histogram),
    )


def offline_counters(accuracy: Mapping[str, Any], steps: int) -> dict[str, Counters]:
    """Return the walk's counters by sample id; raises InputError when it was not walked with so many steps."""
    if str(steps) not in accuracy["walk"]:
        raise InputError(
            f"the walk was made with {', '.join(accuracy['walk'])} steps, the server drafts {steps}",
            "accuracy/accuracy.json",
            f"Run the stage `accuracy` with --steps {steps} or more.",
        )
    return {
        request["id"]: counters_of(request["walk"][str(steps)])
        for request in accuracy["requests"]
        if str(steps) in request["walk"]
    }


def total_variation(first: Sequence[int], second: Sequence[int]) -> float:
    """Return half the sum of absolute differences of the two normalised histograms: 0 the same, 1 disjoint."""
    sums = sum(first) or 1, sum(second) or 1
    pairs = zip_longest(first, second, fillvalue=0)
    return sum(abs(a / sums[0] - b / sums[1]) for a, b in pairs) / 2


def difference_interval(
    offline: Sequence[Counters], served: Sequence[Counters]
) -> tuple[float, float]:
    """Return the 95 % interval of served minus offline accept length, bootstrapped over requests, paired."""
    table = np.array(
        [
            (a.correct_drafts, a.verify_steps, b.correct_drafts, b.verify_steps)
            for a, b in zip(offline, served, strict=True)
        ],
        dtype=float,
    )
    chosen = np.random.default_rng(SEED).integers(len(table), size=(RESAMPLES, len(table)))
    sums = np.maximum(table[chosen].sum(axis=1), [0, 1, 0, 1])
    low, high = np.percentile(sums[:, 2] / sums[:, 3] - sums[:, 0] / sums[:, 1], [2.5, 97.5])
    return float(low), float(high)


def summary(counters: Sequence[Counters]) -> dict[str, Any]:
    """Return pooled histogram, verify steps, accept length and its interval."""
    pooled = pool(counters)
    return {
        "histogram": pooled.histogram or [0],
        "verify_steps": pooled.verify_steps,
        "accept_length": pooled.accept_length,
        "ci95": list(accept_length_interval(counters)),
    }


def agreement(
    offline: Mapping[str, Any], served: Mapping[str, Any], gap: tuple[float, float], topk: int
) -> str:
    """Return agree, differ, undecided (beyond the tolerance, within the noise) or not-comparable (a tree).

    The walk simulates a chain; a tree (topk > 1) tries more drafts per step and accepts at least as many.
    """
    if topk > 1:
        return "not-comparable"
    ratio = served["accept_length"] / offline["accept_length"] - 1
    if abs(ratio) <= AGREE_RATIO:
        return "agree"
    return "undecided" if gap[0] <= 0 <= gap[1] else "differ"


def compare(accuracy: Mapping[str, Any], cell: Cell, others: Sequence[Cell]) -> dict[str, Any]:
    """Return the acceptance part of the diagnosis for one served cell, over the requests that both have.

    Raises InputError when the walk has no sample or no step count in common with the cell.
    """
    spec = cell.data["spec"]
    walked, records = offline_counters(accuracy, spec["steps"]), cell.records()
    common = [identity for identity in records if identity in walked]
    if not common:
        raise InputError(
            "no request of the benchmark is a sample of the accuracy stage",
            str(cell.folder),
            "Run `accuracy` and `benchmark` on the same capture.",
        )
    before = [walked[identity] for identity in common]
    after = [records[identity].counters for identity in common]
    offline, served = summary(before), summary(after)
    if not offline["verify_steps"] or not served["verify_steps"]:
        raise InputError(
            "not one verify step to compare",
            str(cell.folder),
            "Capture prompts with longer answers, and measure again.",
        )
    gap = difference_interval(before, after)
    return {
        "server": cell.server,
        "cell": cell.name,
        "steps": spec["steps"],
        "requests": len(common),
        "unpaired": len(set(records) ^ set(walked)),
        "offline": offline,
        "served": served,
        "difference_ratio": served["accept_length"] / offline["accept_length"] - 1,
        "difference_ci95": list(gap),
        "total_variation": total_variation(offline["histogram"], served["histogram"]),
        "agreement": agreement(offline, served, gap, spec["topk"]),
        "bins": bins(offline["histogram"], served["histogram"]),
        "others": [other_cell(each, offline["histogram"]) for each in others],
    }


def bins(offline: Sequence[int], served: Sequence[int]) -> list[dict[str, int]]:
    """Return the two histograms side by side, in verify steps."""
    pairs = zip_longest(offline, served, fillvalue=0)
    return [{"accepted": m, "offline": a, "served": b} for m, (a, b) in enumerate(pairs)]


def other_cell(cell: Cell, offline: Sequence[int]) -> dict[str, Any]:
    """Return how another speculative cell compares with the same walk."""
    spec = cell.data["spec"]
    return {
        "cell": cell.name,
        "steps": spec["steps"],
        "requests": cell.data["requests"]["done"],
        "accept_length": spec["accept_length"],
        "ci95": spec["ci95"],
        "total_variation": total_variation(offline, spec["histogram"]),
    }
