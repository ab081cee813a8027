import random

from draftproof.accuracy.bootstrap import Bootstrap
from draftproof.accuracy.wiring import Candidate, candidates, setting, wiring

ENGINE = "sglang==0.5.23"
STORED = [0, 1, 2, 3, 14, 15, 16, 26, 27, 28]
LLAMA = "LlamaForCausalLM"
TRIED = [Candidate("configured", (2, 15, 27)), Candidate("one lower", (1, 14, 26))]


def boundaries_tried(configured: tuple[int, ...], stored: list[int] = STORED) -> dict:
    found = candidates(configured, ENGINE, LLAMA, 30, stored)
    return {candidate.boundaries: candidate.label for candidate in found}


def test_alternatives_of_a_default_wiring() -> None:
    assert boundaries_tried((2, 15, 27)) == {
        (2, 15, 27): "configured",
        (3, 16, 28): "one higher",
        (1, 14, 26): "one lower",
        (0, 2, 15): "embedding included",
    }


def test_only_what_is_stored_and_makes_sense_is_tried() -> None:
    assert list(boundaries_tried((0, 2, 15), [*STORED, 4])) == [(0, 2, 15), (2, 15, 27), (1, 3, 16)]
    assert list(boundaries_tried((2, 15, 27), [2, 15, 27])) == [(2, 15, 27)]
    assert list(boundaries_tried((2, 15))) == [(2, 15), (3, 16), (1, 14), (0, 2)]


def test_the_setting_is_the_config_line_in_the_engines_ids() -> None:
    line = '"eagle_config": {"eagle_aux_hidden_state_layer_ids": '
    assert setting(ENGINE, LLAMA, (0, 2, 15)) == line + "[-1, 1, 14]}"
    assert setting(ENGINE, "DeepseekV3ForCausalLM", (2, 30, 58)) == line + "[2, 30, 58]}"
    assert setting(ENGINE, "DeepseekV3ForCausalLM", (1,)).startswith("none: ")


def scan(own: list[list[int]], other: list[list[int]]) -> dict:
    return wiring(TRIED, [own, other], Bootstrap(len(own)), ["first", "second"], 2)


def test_a_clearly_better_wiring_is_named_with_its_setting() -> None:
    found = scan([[20, 1, 0]] * 12, [[8, 4, 3]] * 12)
    assert found["significant"]
    assert found["best"]["boundaries"] == [1, 14, 26]
    assert found["best"]["difference_adjusted"][0] > 0
    assert "set second" in found["message"]


def test_few_samples_accuse_nobody() -> None:
    found = scan([[20, 1, 0]] * 4, [[8, 4, 3]] * 4)
    assert not found["significant"]
    assert "too few" in found["message"]


def test_equal_wirings_keep_the_configured_one() -> None:
    found = scan([[8, 4, 3]] * 12, [[8, 4, 3]] * 12)
    assert found["best"]["label"] == "configured"
    assert not found["significant"]
    assert found["configured"]["difference_ci95"] == [0.0, 0.0]


def test_chance_differences_are_seldom_called_significant() -> None:
    alarms = 0
    for seed in range(40):
        chance = random.Random(seed)
        histograms = [
            [[chance.randint(5, 15), chance.randint(1, 5), chance.randint(0, 4)] for _ in range(24)]
            for _ in TRIED
        ]
        alarms += scan(*histograms)["significant"]
    assert alarms <= 3
