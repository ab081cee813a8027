"""Accept length: pooled, bounded, and its counters held against each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.benchmark.acceptance import Counters, accept_length_interval, pool

STEPS = 4


def counters_of(accepted: list[int]) -> Counters:
    """Return the counters of a request whose verify steps accepted so many drafts."""
    return Counters(
        verify_steps=len(accepted),
        correct_drafts=sum(accepted),
        proposed_drafts=len(accepted) * STEPS,
        histogram=[accepted.count(m) for m in range(max(accepted, default=-1) + 1)],
    )


requests = st.lists(st.lists(st.integers(0, STEPS), max_size=30), min_size=1, max_size=12)


@given(requests)
def test_pooling_is_the_same_as_counting_all_steps_at_once(accepted: list[list[int]]) -> None:
    pooled = pool([counters_of(each) for each in accepted])
    flat = [m for each in accepted for m in each]
    assert pooled == counters_of(flat)
    assert pooled.faults(STEPS, STEPS + 1) == []
    if flat:
        assert pooled.accept_length == pytest.approx(sum(m + 1 for m in flat) / len(flat))
        assert 1 <= pooled.accept_length <= STEPS + 1


@given(requests)
def test_interval_holds_within_the_possible_and_repeats(accepted: list[list[int]]) -> None:
    counters = [counters_of(each) for each in accepted]
    low, high = accept_length_interval(counters)
    assert (low, high) == accept_length_interval(counters)
    per_request = [each.accept_length for each in counters if each.verify_steps]
    if per_request:
        assert min(per_request) - 1e-9 <= low <= high <= max(per_request) + 1e-9
    else:
        assert (low, high) == (0.0, 0.0)


@given(
    st.lists(st.integers(0, STEPS), min_size=1, max_size=30),
    st.integers(0, STEPS),
    st.sampled_from([-1, 1]),
)
def test_a_histogram_that_is_off_by_one_is_always_a_fault(
    accepted: list[int], at: int, by: int
) -> None:
    right = counters_of(accepted)
    histogram = right.histogram + [0] * (STEPS + 1 - len(right.histogram))
    histogram[at] += by
    wrong = Counters(
        verify_steps=right.verify_steps,
        correct_drafts=right.correct_drafts,
        proposed_drafts=right.proposed_drafts,
        histogram=histogram,
    )
    assert wrong.faults(STEPS, STEPS + 1)


def test_meta_info_of_a_request_without_speculation_counts_nothing() -> None:
    counters = Counters.of({"completion_tokens": 3, "finish_reason": {"type": "length"}})
    assert counters == Counters()
    assert counters.accept_length == 0.0


def test_interval_covers_the_true_accept_length() -> None:
    """A hundred benchmarks of a known acceptance: the 95 % interval holds it about that often."""
    import numpy as np

    random = np.random.default_rng(1)
    held = 0
    for _ in range(100):
        run = [counters_of((random.random(40) < 0.6).astype(int).tolist()) for _ in range(24)]
        low, high = accept_length_interval(run)
        held += low <= 1.6 <= high
    assert 85 <= held <= 100
