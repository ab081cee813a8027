"""Accept length from the requests' own counters, and whether these counters can be believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np

RESAMPLES = 2000
SEED = 20250301


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """The engine's counters of speculation, of one request or pooled. All zero without speculation."""

    verify_steps: int = 0
    correct_drafts: int = 0
    proposed_drafts: int = 0
    histogram: list[int] = field(default_factory=list)
    """Index m: verify steps in which exactly m drafts were accepted."""

    @classmethod
    def of(cls, meta: dict[str, Any]) -> Counters:
        """Return the counters of a finished request from its ``meta_info``."""
        return cls(
            verify_steps=int(meta.get("spec_verify_ct", 0)),
            correct_drafts=int(meta.get("spec_num_correct_drafts", 0)),
            proposed_drafts=int(meta.get("spec_num_proposed_drafts", 0)),
            histogram=[int(n) for n in meta.get("spec_correct_drafts_histogram") or []],
        )

    @property
    def accept_length(self) -> float:
        """Tokens per verify step, bonus token included: 1 + correct drafts / verify steps; 0 without verify steps."""
        return 1 + self.correct_drafts / self.verify_steps if self.verify_steps else 0.0

    def faults(self, steps: int, draft_tokens: int) -> list[str]:
        """Return what contradicts what: these are exact identities, so any fault is a bug in the engine or in us.

        `steps` and `draft_tokens` are the server's settings. In a chain and in a tree alike a verify step accepts
        at most `steps` drafts and is offered `draft_tokens` - 1.
        """
        total = sum(self.histogram)
        weighted = sum(m * n for m, n in enumerate(self.histogram))
        longest = max((m for m, n in enumerate(self.histogram) if n), default=0)
        checks = [
            (
                total == self.verify_steps,
                f"histogram counts {total} verify steps, the counter {self.verify_steps}",
            ),
            (
                weighted == self.correct_drafts,
                f"histogram holds {weighted} drafts, the counter {self.correct_drafts}",
            ),
            (longest <= steps, f"{longest} drafts accepted in one step of at most {steps}"),
            (
                self.proposed_drafts == self.verify_steps * (draft_tokens - 1),
                f"{self.proposed_drafts} drafts proposed in {self.verify_steps} steps of {draft_tokens - 1}",
            ),
            (
                self.correct_drafts <= self.proposed_drafts,
                f"{self.correct_drafts} drafts accepted of {self.proposed_drafts} proposed",
            ),
        ]
        return [fault for right, fault in checks if not right]


def pool(counters: Sequence[Counters]) -> Counters:
    """Return the sums over requests."""
    columns = zip_longest(*(each.histogram for each in counters), fillvalue=0)
    return Counters(
        verify_steps=sum(each.verify_steps for each in counters),
        correct_drafts=sum(each.correct_drafts for each in counters),
        proposed_drafts=sum(each.proposed_drafts for each in counters),
        histogram=[sum(column) for column in columns],
    )


def accept_length_interval(counters: Sequence[Counters]) -> tuple[float, float]:
    """Return the 95 % percentile-bootstrap interval of the pooled accept length; (0, 0) without verify steps.

    Requests are resampled, not steps: the steps of one request are correlated. The seed is fixed, so the same
    records give the same interval.
    """
    pairs = np.array(
        [(each.correct_drafts, each.verify_steps) for each in counters if each.verify_steps]
    )
    if not len(pairs):
        return 0.0, 0.0
    chosen = np.random.default_rng(SEED).integers(len(pairs), size=(RESAMPLES, len(pairs)))
    correct, verified = pairs[chosen].sum(axis=1).T
    low, high = np.percentile(1 + correct / verified, [2.5, 97.5])
    return float(low), float(high)
