import numpy as np
import pytest

from draftproof.accuracy.bootstrap import Bootstrap, Ratio
from draftproof.accuracy.scores import (
    Scored,
    coverage,
    known_mask,
    request_scores,
    scored,
    step_scores,
    tree_scores,
    walk_scores,
)
from draftproof.accuracy.tree import Tree


def sample(rows: list[str], known: list[str] | None = None, name: str = "a") -> Scored:
    def matrix(lines: list[str]) -> np.ndarray:
        return np.array([[c == "1" for c in line] for line in lines])

    match = matrix(rows)
    mask = matrix(known) if known else np.ones_like(match)
    return scored(name, "math", match, mask, in_vocabulary=3, judged=4, trees={})


def test_scores_counted_by_hand() -> None:
    one, two = sample(["110", "011", "100"]), sample(["111"], name="b")
    first, second, third = step_scores([one, two], Bootstrap(2))
    assert (first["marginal"], second["marginal"], third["marginal"]) == (3 / 4, 3 / 4, 2 / 4)
    assert (first["cumulative"], second["cumulative"], third["cumulative"]) == (3 / 4, 2 / 4, 1 / 4)
    assert (first["conditional"], second["conditional"], third["conditional"]) == (
        3 / 4,
        2 / 3,
        1 / 2,
    )
    assert (second["count"], second["conditional_count"]) == (4, 3)
    walked = walk_scores([one, two], Bootstrap(2))
    assert walked["3"]["histogram"] == [0, 0, 1, 1]  # "110" jumps past the other rows
    assert walked["3"]["verify_steps"] == 2
    assert walked["3"]["accept_length"] == pytest.approx(1 + 5 / 2)
    assert request_scores([one, two])[1] == {
        "id": "b",
        "category": "math",
        "walk": {"1": [0, 1], "2": [0, 0, 1], "3": [0, 0, 0, 1]},
        "trees": {},
    }
    assert coverage([one, two]) == 6 / 8


def test_a_tree_walks_like_a_chain_and_is_told_both_ways() -> None:
    shape, none = Tree(2, 3, 5), np.zeros((4, 1), dtype=bool)
    long = scored("a", "math", none, ~none, 1, 1, {shape: [2, 2, 2, 0]})
    short = scored("b", "math", none[:1], ~none[:1], 1, 1, {shape: [1]})
    told = tree_scores([long, short], Bootstrap(2))["2,3,5"]
    # Row 0 accepts 2 and jumps to row 3, which accepts none; the other sample has one verify step.
    assert told["histogram"] == [1, 1, 1]
    assert told["accept_length"] == 1 + 3 / 3
    assert told["mean_of_requests"] == 1 + (2 / 2 + 1 / 1) / 2
    assert request_scores([long])[0]["trees"] == {"2,3,5": [1, 0, 1]}


def test_unknown_tokens_are_not_counted() -> None:
    scores = step_scores([sample(["10", "10"], known=["11", "10"])], Bootstrap(1))
    assert (scores[1]["count"], scores[1]["marginal"], scores[1]["conditional_count"]) == (
        1,
        0.0,
        1,
    )


def test_nothing_to_condition_on_is_null() -> None:
    assert step_scores([sample(["01"])], Bootstrap(1))[1]["conditional"] is None


def test_known_is_what_the_text_and_its_continuation_hold() -> None:
    # 10 tokens, 1 of them a continuation: from row 6 drafts stand for tokens 8, 9 and (unknown) 10.
    assert known_mask(2, 3, 6, 10).tolist() == [[True, True, False], [True, False, False]]


def test_intervals_are_over_samples_and_repeatable() -> None:
    ratio = Ratio([10] * 20 + [0] * 20, [10] * 40)
    low, high = Bootstrap(40).interval(ratio)
    assert low < 0.5 < high
    # Standard error of a share of 40 independent samples: 0.079.
    assert high - low == pytest.approx(4 * 0.079, rel=0.1)
    assert Bootstrap(40).interval(ratio) == [low, high]
    assert Bootstrap(3).interval(Ratio([1, 1, 1], [2, 2, 2])) == [0.5, 0.5]
    assert Ratio([], []).value is None
