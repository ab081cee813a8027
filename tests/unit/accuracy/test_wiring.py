import random

import pytest

from draftproof.accuracy.wiring import Found, Judge, Screened, Walked, least_samples, wiring
from draftproof.accuracy.wiring_boundaries import listed, other_boundaries, other_orders, ranges
from draftproof.accuracy.wiring_readings import ids_line
from draftproof.accuracy.wiring_scan import likeliest, survivors
from draftproof.checkpoint.pair import read_pair
from draftproof.files import schema_faults
from tests.builders.tiny_models import tiny_deepseek_target, tiny_draft
from tests.unit.accuracy.conftest import ENGINE

STORED = [0, 1, 2, 3, 14, 15, 16, 26, 27, 28]
DEFAULT = (2, 15, 27)


def test_likely_faults_come_first() -> None:
    found = other_boundaries(DEFAULT, DEFAULT, STORED)
    assert list(found.items())[:4] == [
        ((3, 16, 28), "one higher"),
        ((1, 14, 26), "one lower"),
        ((0, 2, 15), "embedding included, the last left out"),
        ((15, 27, 28), "the first left out, one more at the end"),
    ]
    assert other_boundaries((0, 2, 15), DEFAULT, STORED)[DEFAULT] == "engine default"
    # A list of four cut at the other end: any later boundary may have been the fourth.
    cut = [b for b, label in other_boundaries((0, 2, 15), (), STORED).items() if "first" in label]
    assert cut == [(2, 15, last) for last in (16, 26, 27, 28)]


def test_every_slot_is_varied_over_what_is_stored() -> None:
    found = other_boundaries(DEFAULT, DEFAULT, STORED)
    assert found[(0, 15, 27)] == "2 replaced by 0"
    assert found[(2, 14, 27)] == "15 replaced by 14"
    assert found[(2, 3, 27)] == "15 replaced by 3"
    assert found[(2, 15, 28)] == "27 replaced by 28"
    for boundaries in found:
        assert boundaries == tuple(sorted(set(boundaries)))
        assert len(boundaries) == 3
        assert set(boundaries) <= set(STORED)
    assert DEFAULT not in found
    assert other_boundaries(DEFAULT, DEFAULT, DEFAULT) == {}


def test_orders() -> None:
    assert len(other_orders((2, 15, 27))) == 5
    assert other_orders((1, 2)) == [(2, 1)]
    assert other_orders((1,)) == []
    assert other_orders((1, 2, 3, 4, 5)) == [
        (2, 1, 3, 4, 5),
        (1, 3, 2, 4, 5),
        (1, 2, 4, 3, 5),
        (1, 2, 3, 5, 4),
        (5, 4, 3, 2, 1),
    ]


def test_numbers_as_text() -> None:
    assert ranges([1, 4, 5, 6, 9]) == "1, 4 to 6, 9"
    assert listed((0, 3, 31)) == "(0, 3, 31)"


def test_the_setting_is_the_config_line_in_the_engines_ids(make_draft, target, tmp_path) -> None:
    llama = read_pair(make_draft(), target, ENGINE)
    told = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [-1, 1, 3]}
    assert ids_line(llama, (0, 2, 4)) == {"eagle_config": told}
    other = tiny_deepseek_target(tmp_path / "deepseek")
    deepseek = read_pair(tiny_draft(tmp_path / "d", other, fit=False), other, ENGINE)
    assert ids_line(deepseek, (0, 2, 4)) == {
        "eagle_config": told | {"eagle_aux_hidden_state_layer_ids": [0, 2, 4]}
    }


def test_few_of_each_kind_are_walked_and_feedback_always() -> None:
    kinds = ["rope"] * 4 + ["boundaries", "norms", "pairing", "order", "order", "feedback"]
    assert survivors(kinds) == {0, 1, 2, 4, 5, 6, 9}


def walked(label: str, histograms: list[list[int]], *kinds: str) -> Walked:
    return Walked(
        kinds=kinds, label=label, boundaries=(2, 15, 27), setting=label, histograms=histograms
    )


def scan(
    own: list[list[int]], other: list[list[int]], *, tried: int = 1, fault: str | None = None
) -> dict:
    configured, better = walked("first", own), walked("second", other, "boundaries")
    judge = Judge(len(own))
    clear = judge.clear(better, configured, tried)
    seen = Screened(kinds=(), label="s", boundaries=(), hits=1, rows=2, walked=True)
    best = better if clear else configured
    found = [better] if fault else [configured, better]
    answer = wiring(
        Found(
            fault=fault,
            walked=found,
            screened=[seen] * tried,
            not_tried=[],
            best=better if fault else best,
        ),
        judge,
        2,
    )
    assert schema_faults(answer, "wiring") == []
    return answer


POOR, GOOD = [20, 1, 0], [8, 4, 3]


def test_a_clearly_better_wiring_is_named_with_its_setting() -> None:
    found = scan([POOR] * 12, [GOOD] * 12)
    assert found["significant"]
    assert found["best"]["label"] == "second"
    assert found["best"]["difference_adjusted"][0] > 0
    assert "The draft fits second better" in found["message"]
    assert "set second" in found["message"]


def test_few_samples_accuse_nobody_and_more_alternatives_need_more() -> None:
    found = scan([POOR] * 7, [GOOD] * 7)
    assert not found["significant"]
    assert "too few" in found["message"]
    assert [least_samples(tried) for tried in (0, 1, 6, 7, 60, 200)] == [8, 8, 8, 9, 12, 13]
    assert not scan([POOR] * 11, [GOOD] * 11, tried=60)["significant"]
    assert scan([POOR] * 12, [GOOD] * 12, tried=60)["significant"]


def test_intervals_are_widened_for_what_was_tried() -> None:
    own = [[10, 5, 5]] * 12
    other = [[9, 5, 6], [10, 5, 5], [8, 5, 7]] * 3 + [[11, 5, 4], [9, 6, 5], [9, 5, 6]]
    one, many = scan(own, other), scan(own, other, tried=60)
    assert one["best"]["difference_ci95"] == many["best"]["difference_ci95"]
    assert many["best"]["difference_adjusted"][0] < one["best"]["difference_adjusted"][0]
    assert (one["significant"], many["significant"]) == (True, False)


def test_of_equally_good_wirings_the_likelier_fault_is_named() -> None:
    near = [[8, 4, 3], [8, 4, 4]] * 8, [[8, 4, 4], [8, 4, 3]] * 8
    likely, other = (
        walked(name, texts, "boundaries") for name, texts in zip("ab", near, strict=True)
    )
    worse = walked("c", [POOR] * 16, "boundaries")
    better = walked("d", [[1, 4, 9]] * 16, "boundaries")
    third = walked("e", near[0], "rope")
    judge = Judge(16)
    assert likeliest([likely, other], judge) is likely
    assert likeliest([other, likely], judge) is other
    assert likeliest([worse, other], judge) is other
    assert likeliest([likely, better], judge) is better
    assert likeliest([third, walked("f", [[8, 4, 4]] * 16, "boundaries")], judge).label == "f"


def test_wirings_that_cannot_be_told_from_the_best_are_listed() -> None:
    judge = Judge(16)
    texts = [[8, 4, 3], [8, 4, 4]] * 8, [[8, 4, 4], [8, 4, 3]] * 8
    own = walked("own", [POOR] * 16)
    best, tied = (walked(name, each, "rope") for name, each in zip("ab", texts, strict=True))
    more = walked("a; more", texts[0], "rope", "feedback")
    found = Found(fault=None, walked=[own, best, tied, more], screened=[], not_tried=[], best=best)
    answer = wiring(found, judge, 2)
    assert (answer["significant"], answer["ties"]) == (True, ["b"])
    assert answer["message"].endswith("Too few samples to tell it from b.")


def test_a_sure_but_tiny_gain_is_no_accusation() -> None:
    found = scan([[500, 250, 250]] * 20, [[490, 255, 255]] * 20)
    assert found["best"]["difference_adjusted"][0] > 0
    assert 0 < found["best"]["difference"] < 0.03
    assert not found["significant"]


def test_equal_wirings_keep_the_configured_one() -> None:
    found = scan([GOOD] * 12, [GOOD] * 12)
    assert found["best"]["label"] == "first"
    assert not found["significant"]
    assert found["configured"]["difference_ci95"] == [0.0, 0.0]


def test_without_a_configured_wiring_the_difference_is_from_no_accepted_draft() -> None:
    found = scan([POOR] * 12, [GOOD] * 12, fault="d2t leads astray")
    assert found["configured"] is None
    assert found["significant"]
    assert found["best"]["difference"] == pytest.approx(found["best"]["accept_length"] - 1)
    assert "cannot be computed: d2t leads astray. With second it reaches" in found["message"]


def test_chance_differences_are_seldom_called_significant() -> None:
    alarms = 0
    for seed in range(40):
        chance = random.Random(seed)
        own, other = (
            [[chance.randint(5, 15), chance.randint(1, 5), chance.randint(0, 4)] for _ in range(24)]
            for _ in range(2)
        )
        alarms += scan(own, other)["significant"]
    assert alarms <= 3
