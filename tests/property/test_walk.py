"""The walk against a loop that does what the server does, token by token."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from draftproof.accuracy.walk import drafts_and_steps, pooled, walk

matrices = arrays(bool, array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12))


def served(match: np.ndarray, steps: int) -> list[int]:
    """Draft, verify and emit one token after the other until the text of R + 1 tokens is out."""
    histogram = [0] * (steps + 1)
    emitted = 1  # prefill
    while emitted < len(match) + 1:
        row = emitted - 1
        accepted = 0
        for k in range(steps):
            if not match[row, k]:
                break
            accepted += 1
        emitted += accepted + 1
        histogram[accepted] += 1
    return histogram


@given(matrices)
def test_every_step_count_from_one_pass_equals_the_server_loop(match: np.ndarray) -> None:
    steps = range(1, match.shape[1] + 1)
    assert walk(match) == [served(match, k) for k in steps]


@given(matrices, st.data())
def test_fewer_columns_give_the_same_walk(match: np.ndarray, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, match.shape[1]))
    assert walk(match[:, :k])[-1] == walk(match, steps=[k])[0]


@given(matrices)
def test_every_token_is_emitted_once_up_to_the_last_jump(match: np.ndarray) -> None:
    for k, histogram in enumerate(walk(match), start=1):
        drafts, verify_steps = drafts_and_steps(histogram)
        assert len(match) <= drafts + verify_steps <= len(match) + k


@given(matrices, st.data())
def test_a_later_start_is_the_walk_of_the_rest(match: np.ndarray, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(match)))
    rest = match[start:]
    expected = walk(rest) if len(rest) else [[0] * (k + 2) for k in range(match.shape[1])]
    assert walk(match, start) == expected


@given(matrices)
def test_the_first_miss_decides(match: np.ndarray) -> None:
    cut = match & np.logical_and.accumulate(match, axis=1)
    assert walk(match) == walk(cut)


@given(st.integers(1, 30), st.integers(1, 8))
def test_all_or_nothing(rows: int, steps: int) -> None:
    nothing = walk(np.zeros((rows, steps), dtype=bool))[-1]
    assert nothing == [rows] + [0] * steps
    everything = walk(np.ones((rows, steps), dtype=bool))[-1]
    assert everything == [0] * steps + [-(-rows // (steps + 1))]


def test_pooling_adds_bins() -> None:
    assert pooled([[1, 2, 3], [4, 5, 6]]) == [5, 7, 9]
