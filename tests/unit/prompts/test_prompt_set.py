"""What the built-in prompt set promises."""

import re
from collections import Counter
from itertools import combinations

import pytest

from draftproof.prompts.load import load
from draftproof.prompts.prompt import Prompt, digest

CATEGORIES = (
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
)


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return load("builtin")


def test_ids_count_from_one_in_each_category(prompts: list[Prompt]) -> None:
    assert [p.id for p in prompts] == [f"{c}-{n:02d}" for c in CATEGORIES for n in range(1, 13)]
    assert all(p.id.startswith(p.category) for p in prompts)


def test_splits_halve_every_category_odd_to_tune_even_to_report(prompts: list[Prompt]) -> None:
    assert Counter((p.category, p.split) for p in prompts) == {
        (c, s): 6 for c in CATEGORIES for s in ("tune", "report")
    }
    assert all((p.split == "tune") == (int(p.id[-2:]) % 2 == 1) for p in prompts)


def test_both_splits_of_every_category_have_a_second_turn(prompts: list[Prompt]) -> None:
    longer = Counter((p.category, p.split) for p in prompts if len(p.turns) == 2)
    assert set(longer) == {(c, s) for c in CATEGORIES for s in ("tune", "report")}
    assert {len(p.turns) for p in prompts} == {1, 2}


def test_no_turn_repeats_or_nearly_repeats_another(prompts: list[Prompt]) -> None:
    words = [(p.id, set(re.findall(r"\w+", t.lower()))) for p in prompts for t in p.turns]
    near = [
        (a_id, b_id)
        for (a_id, a), (b_id, b) in combinations(words, 2)
        if len(a & b) / len(a | b) > 0.5
    ]
    assert near == []


def test_lengths_vary_from_a_line_to_a_passage(prompts: list[Prompt]) -> None:
    lengths = sorted(len(p.turns[0].split()) for p in prompts)
    assert lengths[0] < 8
    assert lengths[-1] > 50
    assert sum("\n" in p.turns[0] for p in prompts) >= 8


def test_turns_are_tidy(prompts: list[Prompt]) -> None:
    assert [p.id for p in prompts for t in p.turns if t != t.strip() or "  \n" in t] == []


def test_the_set_is_the_published_one() -> None:
    """Runs are compared by this digest: a change to the set must be meant, and be told."""
    assert (
        digest(load("builtin"))
        == "6c4a31c0813209124fa27eda411d644a75a74efc2077c52df57615bd768c0d2f"
    )
