"""How much faster is decoding with speculation, and from which accept length on would it pay?

Speed is tokens per second per user while decoding: the tokens after a request's first event, over the time from its first
token to its last, both summed over requests. The prefill is left out, as speculation does not touch it. The speedup is
the ratio of the two arms on the same requests; its interval comes from a paired bootstrap over requests, so it holds
for other prompts on these two launches. It does not hold what changes from launch to launch.

break-even accept length = accept length / speedup: what one iteration costs in plain steps, and so the tokens per verify
step from which on it pays (Leviathan et al. 2023, Theorem 3.8: speedup = accept length / cost; here the cost is measured).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from draftproof.benchmark.acceptance import RESAMPLES, SEED
from draftproof.benchmark.records import Record
from draftproof.diagnosis.results import Cell
from draftproof.errors import InputError

BOUND_SLACK = 1.05
"""An iteration cannot be cheaper than a plain step: speedup <= accept length, with this much room for noise."""


def decode(record: Record) -> tuple[float, float]:
    """Return (tokens, seconds) of decoding; (0, 0) for an answer of one event."""
    if len(record.event_times_s) < 2:
        return 0.0, 0.0
    return float(record.decode_tokens), record.decode_s


def paired_speed(
    baseline: Sequence[Record], spec: Sequence[Record]
) -> tuple[float, float, tuple[float, float]]:
    """Return (baseline, spec) tokens/s per user and the 95 % interval of their ratio spec / baseline.

    Raises InputError when no time was spent decoding in one of the arms.
    """
    table = np.array([decode(a) + decode(b) for a, b in zip(baseline, spec, strict=True)])
    tokens_a, seconds_a, tokens_b, seconds_b = table.sum(axis=0)
    if min(tokens_a, seconds_a, tokens_b, seconds_b) <= 0:
        raise InputError(
            "no request decoded more than one event, so there is no speed to compare",
            "benchmark",
            "Capture longer answers (capture.max_new_tokens) and measure again.",
        )
    chosen = np.random.default_rng(SEED).integers(len(table), size=(RESAMPLES, len(table)))
    sums = np.maximum(table[chosen].sum(axis=1), 1e-9)
    ratios = (sums[:, 2] / sums[:, 3]) / (sums[:, 0] / sums[:, 1])
    low, high = np.percentile(ratios, [2.5, 97.5])
    return (
        float(tokens_a / seconds_a),
        float(tokens_b / seconds_b),
        (float(low), float(high)),
    )


def outcome(interval: tuple[float, float]) -> str:
    """Return pays, does-not-pay, or undecided when the interval of the speedup holds 1."""
    low, high = interval
    return "pays" if low > 1 else "does-not-pay" if high < 1 else "undecided"


def compare(baseline: Cell, spec: Cell) -> dict[str, Any]:
    """Return one row of the speed table; raises InputError when the two cells asked different prompts."""
    if baseline.data["workload"]["digest"] != spec.data["workload"]["digest"]:
        raise InputError(
            f"{baseline.name} and {spec.name} were measured on different prompts",
            str(spec.folder),
            "Run the stage `benchmark` again.",
        )
    plain, drafted = baseline.records(), spec.records()
    common = [identity for identity in plain if identity in drafted]
    before, after, interval = paired_speed(
        [plain[identity] for identity in common], [drafted[identity] for identity in common]
    )
    accept_length = spec.data["spec"]["accept_length"]
    return {
        "server": spec.server,
        "concurrency": spec.concurrency,
        "baseline_tokens_per_s": before,
        "spec_tokens_per_s": after,
        "speedup": after / before,
        "speedup_ci95": list(interval),
        "requests": len(common),
        "accept_length": accept_length,
        "break_even_accept_length": accept_length * before / after,
        "outcome": outcome(interval),
    }


def table(baseline: Sequence[Cell], spec: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return one row per speculative cell that has a baseline at its load."""
    at = {cell.concurrency: cell for cell in baseline}
    return [compare(at[cell.concurrency], cell) for cell in spec if cell.concurrency in at]
