"""The scan on texts of real tiny targets: drafts fitted to what they read give no alarm, and a wrong list of layers does."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from string import ascii_letters

import pytest
import torch

from draftproof.cli import main
from draftproof.files import read_result
from tests.builders.tiny_models import tiny_draft, tiny_llama_target

LAYERS, DEFAULT = 8, (2, 4, 5)
# A draft that is right with its config: little is left of the token before, and each query finds its own key at any theta.
FITTED = {"fade": 1.3, "sharp": 3.0}
SAMPLES = 24


def draftproof(*arguments: object) -> None:
    assert main([str(argument) for argument in arguments]) == 0


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], tuple[Path, Path]]:
    """Return a target and its capture, made once per seed."""

    @cache
    def make(seed: int) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp("fitted")
        target = tiny_llama_target(folder / "target", layers=LAYERS, context=2.6, seed=seed)
        draft = tiny_draft(folder / "draft", target, boundaries=DEFAULT, fit=False)
        chance = random.Random(seed)
        prompts = ("".join(chance.choices(ascii_letters, k=12 + i)) for i in range(SAMPLES))
        lines = ({"messages": [{"role": "user", "content": each}]} for each in prompts)
        (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        draftproof(*("validate", "--draft", draft, "--target", target, "--json", folder / "v.json"))
        draftproof(
            *("capture", "--target", target, "--validation", folder / "v.json", "--max-new-tokens"),
            *(32, "--prompts", folder / "prompts.jsonl", "--out", folder / "capture"),
        )
        return target, folder / "capture"

    return make


def scanned(draft: Path, target: Path, capture: Path) -> dict:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    file = draft / "wiring.json"
    pair = ("--draft", draft, "--target", target, "--samples", capture)
    draftproof("accuracy", *pair, "--steps", 3, "--wiring", file)
    torch.set_num_threads(threads)
    return read_result(file, "wiring")


HEALTHY = [(DEFAULT, (0, 2, 4), (1, 3, 5), (2, 3, 6))[seed % 4] for seed in range(24)]


@pytest.mark.parametrize(
    "seed",
    [pytest.param(n, marks=[pytest.mark.slow] if n > 1 else []) for n in range(len(HEALTHY))],
)
def test_a_healthy_draft_gives_no_alarm(captured, tmp_path: Path, seed: int) -> None:
    target, capture = captured(seed % 3)
    draft = tiny_draft(
        tmp_path / "draft", target, boundaries=HEALTHY[seed], seed=100 + seed, **FITTED
    )
    found = scanned(draft, target, capture)
    assert not found["significant"], found["message"]
    assert found["configured"]["accept_length"] > 1.2, "a draft that is never right proves nothing"
    assert found["alternatives"] >= 28


@pytest.mark.parametrize("boundaries", [(0, 2, 4), (1, 3, 4)], ids=["founding case", "one lower"])
def test_a_draft_served_with_the_engines_default_layers_is_named(
    captured, tmp_path: Path, boundaries: tuple[int, ...]
) -> None:
    target, capture = captured(0)
    draft = tiny_draft(tmp_path / "draft", target, boundaries=boundaries, **FITTED)
    config = json.loads((draft / "config.json").read_text())
    ids = config.pop("eagle_config")["eagle_aux_hidden_state_layer_ids"]
    (draft / "config.json").write_text(json.dumps(config))
    found = scanned(draft, target, capture)
    assert found["configured"]["boundaries"] == list(DEFAULT)
    assert found["significant"], found["message"]
    assert found["best"]["boundaries"] == list(boundaries)
    assert found["best"]["kinds"] == ["boundaries"]
    assert (
        found["best"]["setting"] == f'"eagle_config": {{"eagle_aux_hidden_state_layer_ids": {ids}}}'
    )
