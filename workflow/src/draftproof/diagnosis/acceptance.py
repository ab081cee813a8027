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


def walk_of(accuracy: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    """Return the name of the walk that a server's shape is compared with, in ``walk`` or ``trees``.

    A tree that was not scored is put beside the chain of as many steps.
    """
    tree = f"{spec['steps']},{spec['topk']},{spec['draft_tokens']}"
    return tree if spec["topk"] > 1 and tree in accuracy["trees"] else str(spec["steps"])


def offline_counters(accuracy: Mapping[str, Any], walk: str) -> dict[str, Counters]:
    """Return a walk's counters by sample id; raises InputError when there is no such walk."""
    part = "trees" if "," in walk else "walk"
    if walk not in accuracy[part]:
        raise InputError(
            f"the walk was made with {', '.join(accuracy['walk'])} steps, the server drafts {walk}",
            "accuracy/accuracy.json",
            f"Run the stage `accuracy` with --steps {walk} or more.",
        )
    return {
        request["id"]: counters_of(request[part][walk])
        for request in accuracy["requests"]
        if walk in request[part]
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
    offline: Mapping[str, Any], served: Mapping[str, Any], gap: tuple[float, float]
) -> str:
    """Return agree, differ or undecided (beyond the tolerance, within the noise)."""
    ratio = served["accept_length"] / offline["accept_length"] - 1
    if abs(ratio) <= AGREE_RATIO:
        return "agree"
    return "undecided" if gap[0] <= 0 <= gap[1] else "differ"


def compare(accuracy: Mapping[str, Any], cell: Cell, others: Sequence[Cell]) -> dict[str, Any]:
    """Return the acceptance part of the diagnosis for one served cell, over the requests that both have.

    Raises InputError when the walk has no sample or no step count in common with the cell.
    """
    spec = cell.data["spec"]
    walk = walk_of(accuracy, spec)
    walked, records = offline_counters(accuracy, walk), cell.records()
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
        "walk": walk,
        "requests": len(common),
        "unpaired": len(set(records) ^ set(walked)),
        "offline": offline,
        "served": served,
        "difference_ratio": served["accept_length"] / offline["accept_length"] - 1,
        "difference_ci95": list(gap),
        "total_variation": total_variation(offline["histogram"], served["histogram"]),
        "agreement": "not-comparable"
        if spec["topk"] > 1 and "," not in walk
        else agreement(offline, served, gap),
        "bins": bins(offline["histogram"], served["histogram"]),
        "others": [other_cell(each, accuracy) for each in others],
    }


def bins(offline: Sequence[int], served: Sequence[int]) -> list[dict[str, int]]:
    """Return the two histograms side by side, in verify steps."""
    pairs = zip_longest(offline, served, fillvalue=0)
    return [{"accepted": m, "offline": a, "served": b} for m, (a, b) in enumerate(pairs)]


def other_cell(cell: Cell, accuracy: Mapping[str, Any]) -> dict[str, Any]:
    """Return how another speculative cell compares with the walk of its own shape."""
    spec = cell.data["spec"]
    walked = offline_counters(accuracy, walk_of(accuracy, spec))
    return {
        "cell": cell.name,
        "steps": spec["steps"],
        "requests": cell.data["requests"]["done"],
        "accept_length": spec["accept_length"],
        "ci95": spec["ci95"],
        "total_variation": total_variation(
            pool(list(walked.values())).histogram, spec["histogram"]
        ),
    }
