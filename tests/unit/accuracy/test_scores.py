from typing import Any

import numpy as np
import pytest

from draftproof.accuracy.bootstrap import Bootstrap, Ratio
from draftproof.accuracy.groups import categories, positions
from draftproof.accuracy.scores import (
    Scored,
    coverage,
    request_scores,
    step_scores,
    tree_histogram,
    tree_scores,
    walk_scores,
)
from draftproof.accuracy.tree import Tree


def matrix(lines: list[str]) -> np.ndarray:
    return np.array([[c == "1" for c in line] for line in lines])


def sample(rows: list[str], name: str = "a", **parts: Any) -> Scored:
    match = matrix(rows)
    matrices = {
        part: matrix(
            parts.pop(part, rows if part == "forced" else ["1" * len(rows[0])] * len(rows))
        )
        for part in ("forced", "known", "in_vocabulary")
    }
    whole = {"category": "math", "position": 0, "tree_histograms": {}, "covered": 3, "judged": 4}
    return Scored(id=name, match=match, **matrices, **(whole | parts))


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
    def walked(lengths: list[int]) -> Scored:
        histogram = tree_histogram(Tree(2, 3, 5), lengths)
        return sample(["0"] * len(lengths), tree_histograms={"2,3,5": histogram})

    long, short = walked([2, 2, 2, 0]), walked([1])
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


def test_within_the_vocabulary_only_its_tokens_count() -> None:
    rows = sample(["10", "10", "00", "11"], in_vocabulary=["10", "11", "01", "11"])
    first, second = (step["in_vocabulary"] for step in step_scores([rows], Bootstrap(1)))
    assert (first["marginal"], first["count"]) == (3 / 3, 3)
    # Of step 2, rows 2 to 4 count; of those, rows 2 and 4 follow a right first draft and have both tokens in it.
    assert (second["marginal"], second["count"]) == (1 / 3, 3)
    assert (second["conditional"], second["conditional_count"]) == (1 / 2, 2)
    assert (second["cumulative"], second["cumulative_count"]) == (1 / 2, 2)


def test_teacher_forcing_has_its_own_marginal() -> None:
    rows = sample(["10", "00"], forced=["10", "01"])
    second = step_scores([rows], Bootstrap(1))[1]
    assert (second["marginal"], second["teacher_forced"]) == (0, 1 / 2)
    assert second["ci95"]["teacher_forced"] == [0.5, 0.5]


def test_categories_count_their_own_samples() -> None:
    found = categories([sample(["1", "0"]), sample(["1"], category="code")], Bootstrap(2))
    assert list(found) == ["code", "math"]
    assert (found["math"]["samples"], found["math"]["positions"]) == (1, 2)
    assert found["math"]["first_step"]["acceptance"] == 1 / 2
    assert found["code"]["walk"]["1"]["accept_length"] == 2
    assert found["math"]["walk"]["1"]["verify_steps"] == 1  # row 0 jumps past row 1


def test_positions_count_the_verify_steps_that_start_there() -> None:
    # Start rows 62 to 65; the walk starts at 62, accepts one, starts at 64, accepts none, and at 65.
    found = positions([sample(["1", "1", "0", "1"], position=62)], Bootstrap(1))
    assert list(found) == ["0-63", "64-127"]
    assert found["0-63"]["first_step"] == {"acceptance": 1.0, "count": 2, "ci95": [1.0, 1.0]}
    assert (found["0-63"]["walk"]["1"]["verify_steps"], found["64-127"]["positions"]) == (1, 2)
    assert found["64-127"]["walk"]["1"] == {
        "verify_steps": 2,
        "accept_length": 1.5,
        "ci95": [1.5, 1.5],
    }


def test_a_bucket_that_the_walk_jumps_over_is_null() -> None:
    found = positions([sample(["11", "11"], position=63)], Bootstrap(1))
    assert found["64-127"]["walk"]["2"] == {"verify_steps": 0, "accept_length": None, "ci95": None}


def test_nothing_to_condition_on_is_null() -> None:
    assert step_scores([sample(["01"])], Bootstrap(1))[1]["conditional"] is None


def test_intervals_are_over_samples_and_repeatable() -> None:
    ratio = Ratio([10] * 20 + [0] * 20, [10] * 40)
    low, high = Bootstrap(40).interval(ratio)
    assert low < 0.5 < high
    # Standard error of a share of 40 independent samples: 0.079.
    assert high - low == pytest.approx(4 * 0.079, rel=0.1)
    assert Bootstrap(40).interval(ratio) == [low, high]
    assert Bootstrap(3).interval(Ratio([1, 1, 1], [2, 2, 2])) == [0.5, 0.5]
    assert Ratio([], []).value is None
