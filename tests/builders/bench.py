"""A target with a capture of it, and what a draft does there: offline, and on the real server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from draftproof.cli import main
from draftproof.files import read_result
from tests.builders.checkpoints import Parts, write_parts
from tests.builders.tiny_models import tiny_draft

LAYERS = 8
# 2, N/2, N-3: what every trainer and the engine take when nobody says otherwise.
BOUNDARIES = (2, 4, 5)
TIMEOUT_S = 850
TEXT = "the quick brown fox jumps over the lazy dog 0123456789 "
ASKED = tuple(TEXT[i : i + 12 + 3 * i] for i in range(8))
FLAGS = {
    "dtype": "float32",
    "max-total-tokens": 4096,
    "max-running-requests": 8,
    "disable-radix-cache": True,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a server drafts: a chain, unless topk and draft tokens are given."""

    steps: int
    topk: int = 1
    tokens: int = 0

    @property
    def name(self) -> str:
        """As accuracy calls the walk."""
        return f"{self.steps},{self.topk},{self.tokens}" if self.topk > 1 else str(self.steps)

    @property
    def flags(self) -> dict[str, int]:
        """As the server is told."""
        return {
            "speculative-num-steps": self.steps,
            "speculative-eagle-topk": self.topk,
            "speculative-num-draft-tokens": self.tokens or self.steps + 1,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How often drafts were accepted: histograms over accepted drafts, one of accuracy and one of the server."""

    offline: list[int]
    served: list[int]

    @property
    def accept_lengths(self) -> tuple[float, float]:
        """Offline and served."""
        offline, served = (
            1 + sum(m * count for m, count in enumerate(h)) / sum(h)
            for h in (self.offline, self.served)
        )
        return offline, served

    def is_as_predicted(self, at_least: float) -> None:
        """Assert that the texts are equal token by token, so the served steps are those of the walk, not only alike."""
        offline, served = self.accept_lengths
        assert offline > at_least, "a draft that is never right proves nothing"
        assert served == pytest.approx(offline, rel=0.01)
        assert self.served == self.offline


def draftproof(*arguments: object) -> None:
    assert main([str(argument) for argument in arguments]) == 0


class Bench:
    """Drafts are made of the target's own tensors, converted, scored and served; texts are captured once."""

    def __init__(
        self, folder: Path, target: Path, *, latent: bool = False, asked: Sequence[str] = ASKED
    ) -> None:
        self.folder, self.target = folder, target
        self.capture = folder / "capture"
        self.prompts = folder / "prompts.jsonl"
        self.requests = len(asked)
        self.prompts.write_text(
            "".join(
                json.dumps({"messages": [{"role": "user", "content": each}]}) + "\n"
                for each in asked
            )
        )
        self.latent = latent

    def draft(
        self, path: Path, change: Callable[[Parts], object] = lambda parts: None, *, layers: int = 1
    ) -> Path:
        """Write a draft that guesses this target now and then, in the words of one dialect."""
        own = tiny_draft(
            path / "own", self.target, boundaries=BOUNDARIES, layers=layers, latent=self.latent
        )
        parts = Parts(
            config=json.loads((own / "config.json").read_text()),
            tensors=load_file(own / "model.safetensors"),
            target=json.loads((self.target / "config.json").read_text()),
        )
        change(parts)
        return write_parts(path / "written", parts)[0]

    def convert(self, path: Path, draft: Path) -> Path:
        """Validate and convert a draft, capture what it needs, and return what is served."""
        validation, converted = path / "validation.json", path / "converted"
        pair = ("--draft", draft, "--target", self.target)
        draftproof("validate", *pair, "--json", validation)
        draftproof("convert", *pair, "--validation", validation, "--out", converted)
        if not self.capture.exists():
            source = ("--prompts", self.prompts, "--validation", validation)
            draftproof(
                *("capture", "--target", self.target, *source),
                *("--max-new-tokens", 32, "--out", self.capture),
            )
        return converted

    def offline(self, path: Path, converted: Path, shapes: Sequence[Shape]) -> dict[str, Any]:
        """Return accuracy.json of these shapes."""
        file = path / "accuracy.json"
        trees = [argument for s in shapes if s.topk > 1 for argument in ("--tree", s.name)]
        draftproof(
            *("accuracy", "--draft", converted, "--target", self.target),
            *("--samples", self.capture, "--steps", max(s.steps for s in shapes)),
            *(*trees, "--json", file),
        )
        return read_result(file, "accuracy")

    def served(
        self, path: Path, converted: Path, shape: Shape, concurrency: Sequence[int] = (2,)
    ) -> list[list[int]]:
        """Return the histogram of a real server's verify steps at each number of users; its texts are the capture's."""
        launch, store = path / "serving/launch.json", path / "cells"
        program = [sys.executable, "-m", "draftproof"]
        done = subprocess.run(
            [
                *(*program, "serve", "--server", "it", "--arm", "spec", "--device", "cpu"),
                *("--draft", str(converted), "--target", str(self.target)),
                *("--flags", json.dumps(FLAGS | shape.flags), "--out", str(launch.parent)),
                *("--environment", '{"OMP_NUM_THREADS": "1"}', "--"),
                *(*program, "bench", "--launch", str(launch), "--samples", str(self.capture)),
                *("--concurrency", *map(str, concurrency), "--warmup", "2"),
                *("--store", str(store), "--out", str(path / "bench.json")),
            ],
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr
        cells = [read_result(store / f"it-c{n}" / "cell.json", "cell") for n in concurrency]
        for cell in cells:
            assert (cell["status"], cell["reasons"]) == ("valid", [])
            assert cell["same_text_as_capture"] == self.requests
        return [cell["spec"]["histogram"] for cell in cells]

    def outcome(self, path: Path, draft: Path, shape: Shape) -> Outcome:
        """Convert, score and serve a draft."""
        converted = self.convert(path, draft)
        walk = self.offline(path, converted, [shape])["walk"][shape.name]
        (served,) = self.served(path, converted, shape)
        return Outcome(offline=walk["histogram"], served=served)
