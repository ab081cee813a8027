"""What accuracy predicts without a server is what the real engine does: chains and trees, one user and eight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from draftproof.diagnosis.acceptance import total_variation
from tests.builders.bench import LAYERS, Bench, Outcome, Shape
from tests.builders.tiny_models import tiny_deepseek_target, tiny_llama_target

pytestmark = pytest.mark.engine

CHAINS = [Shape(steps) for steps in range(1, 8)]
TREES = [Shape(3, 4, 8), Shape(4, 2, 8), Shape(5, 4, 16), Shape(2, 8, 40)]
QUICK = ("llama", Shape(3, 4, 8))
USERS = (1, 8)
SAME_LENGTH, SAME_HISTOGRAM = 0.01, 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A draft as it is served, and its accuracy.json."""

    bench: Bench
    converted: Path
    accuracy: Mapping[str, Any]

    def offline(self, shape: Shape) -> list[int]:
        """Return the walk's histogram."""
        part = self.accuracy["trees" if shape.topk > 1 else "walk"]
        histogram: list[int] = part[shape.name]["histogram"]
        return histogram


def bench_of(kind: str, folder: Path) -> Bench:
    make = tiny_llama_target if kind == "llama" else tiny_deepseek_target
    return Bench(folder, make(folder / "target", layers=LAYERS), latent=kind == "latent")


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Scored]:
    """Score a target's draft once: `latent` is a latent draft of a DeepSeek-type target."""
    known: dict[str, Scored] = {}

    def score(kind: str) -> Scored:
        if kind not in known:
            folder = tmp_path_factory.mktemp(kind)
            bench = bench_of(kind, folder)
            converted = bench.convert(folder, bench.draft(folder))
            accuracy = bench.offline(folder, converted, [*CHAINS, *TREES])
            known[kind] = Scored(bench=bench, converted=converted, accuracy=accuracy)
        return known[kind]

    return score


CASES = [
    pytest.param(
        kind,
        shape,
        id=f"{kind}-{shape.name}",
        marks=() if (kind, shape) == QUICK else pytest.mark.slow,
    )
    for kind in ("llama", "deepseek", "latent")
    for shape in (*CHAINS, *TREES)
]


@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_the_walk_is_what_is_served(
    scored: Callable[[str], Scored], tmp_path: Path, kind: str, shape: Shape
) -> None:
    found = scored(kind)
    offline = found.offline(shape)
    histograms = found.bench.served(tmp_path, found.converted, shape, USERS)
    for users, served in zip(USERS, histograms, strict=True):
        lengths = Outcome(offline=offline, served=served).accept_lengths
        print(f"{kind} {shape.name}, {users} at a time: {lengths}, {offline}, {served}")
        assert lengths[0] > 1.1, "a draft that is never right proves nothing"
        assert lengths[1] == pytest.approx(lengths[0], rel=SAME_LENGTH)
        assert total_variation(offline, served) <= SAME_HISTOGRAM
