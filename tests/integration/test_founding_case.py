"""The founding case: a draft served with other layers than it was trained on, named, corrected, and served as predicted."""

from __future__ import annotations

import json
import random
from pathlib import Path
from string import ascii_letters
from typing import Any

import pytest
from safetensors.numpy import load_file

from draftproof.files import read_result
from tests.builders.bench import BOUNDARIES, LAYERS, Bench, Outcome, Shape, draftproof
from tests.builders.checkpoints import Parts, write_parts
from tests.builders.tiny_models import tiny_draft, tiny_llama_target

pytestmark = pytest.mark.engine

TRAINED_ON, CHAIN, SAMPLES = (0, 2, 4), Shape(3), 24


def scan(bench: Bench, path: Path, draft: Path) -> dict[str, Any]:
    """Return what the wiring scan says of a draft that was converted in `path`."""
    file = path / "wiring.json"
    pair = ("--draft", draft, "--target", bench.target, "--samples", bench.capture)
    draftproof("accuracy", *pair, "--steps", CHAIN.steps, "--wiring", file)
    return read_result(file, "wiring")


def served(bench: Bench, path: Path, draft: Path) -> Outcome:
    """Serve a converted draft."""
    walk = bench.offline(path, draft, [CHAIN])["walk"][CHAIN.name]
    (histogram,) = bench.served(path, draft, CHAIN)
    return Outcome(offline=walk["histogram"], served=histogram)


@pytest.mark.slow
def test_the_founding_case_is_named_and_corrected(tmp_path: Path) -> None:
    """Trained on (embedding, layer, layer), served with the engine's defaults: the weights say what they were fed."""
    target = tiny_llama_target(tmp_path / "target", layers=LAYERS, context=2.6)
    chance = random.Random(0)
    asked = ["".join(chance.choices(ascii_letters, k=12 + i)) for i in range(SAMPLES)]
    bench = Bench(tmp_path, target, asked=asked)
    own = tiny_draft(tmp_path / "own", target, boundaries=TRAINED_ON, fade=1.3, sharp=3.0)
    config = json.loads((own / "config.json").read_text())
    told = config.pop("eagle_config")
    parts = Parts(
        config=config,
        tensors=load_file(own / "model.safetensors"),
        target=json.loads((target / "config.json").read_text()),
    )

    wrong = tmp_path / "wrong"
    converted = bench.convert(wrong, write_parts(wrong / "written", parts)[0])
    found = scan(bench, wrong, converted)
    assert found["configured"]["boundaries"] == list(BOUNDARIES)
    assert found["significant"], found["message"]
    assert found["best"]["boundaries"] == list(TRAINED_ON)
    assert found["best"]["difference_adjusted"][0] > 0
    line = json.loads(f"{{{found['best']['setting']}}}")
    assert line["eagle_config"].items() <= told.items()
    bare = served(bench, wrong, converted)
    assert bare.served == bare.offline

    parts.config |= line
    right = tmp_path / "right"
    converted = bench.convert(right, write_parts(right / "written", parts)[0])
    assert not scan(bench, right, converted)["significant"]
    corrected = served(bench, right, converted)
    corrected.is_as_predicted(1.4)
    assert corrected.accept_lengths[1] > bare.accept_lengths[1] + 0.2
    expected = found["best"]["accept_length"]
    assert corrected.accept_lengths[0] == pytest.approx(expected, rel=0.001)
