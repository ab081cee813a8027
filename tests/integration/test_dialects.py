"""Every dialect on the real engine: converted, served, and accepted as often as accuracy says before any server starts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from draftproof.cli import main
from draftproof.files import read_result
from tests.builders.checkpoints import Parts, write_parts
from tests.builders.checkpoints_dialects import DIALECTS
from tests.builders.tiny_models import tiny_deepseek_target, tiny_draft, tiny_llama_target

pytestmark = pytest.mark.engine

LAYERS, BOUNDARIES = (
    8,
    (2, 4, 5),
)  # 2, N/2, N-3: what every trainer and the engine take when nobody says otherwise
STEPS, TIMEOUT_S = 3, 850
FLAGS = {
    "dtype": "float32",
    "max-total-tokens": 4096,
    "max-running-requests": 8,
    "disable-radix-cache": True,
    "speculative-num-steps": STEPS,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": STEPS + 1,
}
# The engine computes the same of all these: other names, other config, the same draft.
SAME = (
    "eagle",
    "specforge",
    "speculators 0.3",
    "speculators flat",
    "modelopt",
    "modelopt megatron",
)
NORMS = ("specforge 3.1", "speculators 0.9", "eagle 3.1", "eagle 3.1, one norm")


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


def draftproof(*arguments: object) -> None:
    assert main([str(argument) for argument in arguments]) == 0


class Bench:
    """A target with a capture; drafts are made of its own tensors, converted and served."""

    def __init__(self, folder: Path, target: Path, *, latent: bool = False) -> None:
        self.folder, self.target = folder, target
        self.capture = folder / "capture"
        self.prompts = folder / "prompts.jsonl"
        text = "the quick brown fox jumps over the lazy dog 0123456789 "
        asked = (text[i : i + 12 + 3 * i] for i in range(8))
        self.prompts.write_text(
            "".join(
                json.dumps({"messages": [{"role": "user", "content": each}]}) + "\n"
                for each in asked
            )
        )
        self.latent = latent

    def draft(self, path: Path, change: Callable[[Parts], object], *, layers: int = 1) -> Path:
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

    def outcome(self, path: Path, draft: Path) -> Outcome:
        """Validate, convert, score and serve a draft."""
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
        served = ("--draft", converted, "--target", self.target)
        accuracy, launch, store = (
            path / "accuracy.json",
            path / "serving/launch.json",
            path / "cells",
        )
        draftproof(
            *("accuracy", *served, "--samples", self.capture),
            *("--steps", STEPS, "--json", accuracy),
        )
        program = [sys.executable, "-m", "draftproof"]
        done = subprocess.run(
            [
                *(*program, "serve", "--server", "it", "--arm", "spec", "--device", "cpu"),
                *(*map(str, served), "--flags", json.dumps(FLAGS), "--out", str(launch.parent)),
                *("--environment", '{"OMP_NUM_THREADS": "1"}', "--"),
                *(*program, "bench", "--launch", str(launch), "--samples", str(self.capture)),
                *("--concurrency", "2", "--warmup", "2", "--store", str(store)),
                *("--out", str(path / "bench.json")),
            ],
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr
        cell = read_result(store / "it-c2" / "cell.json", "cell")
        assert (cell["status"], cell["reasons"]) == ("valid", [])
        assert cell["same_text_as_capture"] == 8
        walk = read_result(accuracy, "accuracy")["walk"][str(STEPS)]
        return Outcome(offline=walk["histogram"], served=cell["spec"]["histogram"])


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("llama")
    return Bench(folder, tiny_llama_target(folder / "target", layers=LAYERS))


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("deepseek")
    return Bench(folder, tiny_deepseek_target(folder / "target", layers=LAYERS), latent=True)


@pytest.fixture(scope="module")
def as_the_engine_names_it(
    llama: Bench, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Outcome]:
    """Return what the draft does in the engine's own dialect, served once."""
    known: list[Outcome] = []

    def outcome() -> Outcome:
        if not known:
            path = tmp_path_factory.mktemp("own")
            known.append(llama.outcome(path, llama.draft(path, lambda parts: None)))
        return known[0]

    return outcome


def served_as_predicted(outcome: Outcome, at_least: float) -> None:
    """The texts are equal token by token, so the served steps are those of the walk, not only alike."""
    offline, served = outcome.accept_lengths
    assert offline > at_least, "a draft that is never right proves nothing"
    assert served == pytest.approx(offline, rel=0.01)
    assert outcome.served == outcome.offline


def test_speculators_is_served_as_predicted(llama: Bench, tmp_path: Path) -> None:
    draft = llama.draft(tmp_path, DIALECTS["speculators 0.3"].build)
    served_as_predicted(llama.outcome(tmp_path, draft), 1.4)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", SAME)
def test_the_same_weights_are_served_the_same_in_every_dialect(
    llama: Bench, as_the_engine_names_it: Callable[[], Outcome], tmp_path: Path, dialect: str
) -> None:
    outcome = llama.outcome(tmp_path, llama.draft(tmp_path, DIALECTS[dialect].build))
    served_as_predicted(outcome, 1.4)
    assert outcome == as_the_engine_names_it()


@pytest.mark.slow
@pytest.mark.parametrize("dialect", NORMS)
def test_norms_around_fc_and_output_are_served_as_predicted(
    llama: Bench, tmp_path: Path, dialect: str
) -> None:
    draft = llama.draft(tmp_path, DIALECTS[dialect].build)
    served_as_predicted(llama.outcome(tmp_path, draft), 1.05)


def speculators_of_two_layers(parts: Parts) -> None:
    """Plain layers norm their input under another name than the engine's later layers do."""
    DIALECTS["speculators 0.3"].build(parts)
    parts.tensors["layers.1.input_layernorm.weight"] = parts.tensors.pop(
        "layers.1.hidden_norm.weight"
    )


@pytest.mark.slow
def test_two_layers_are_served_as_predicted(llama: Bench, tmp_path: Path) -> None:
    draft = llama.draft(tmp_path, speculators_of_two_layers, layers=2)
    served_as_predicted(llama.outcome(tmp_path, draft), 1.2)


def prefixed(parts: Parts) -> None:
    """Put `model.` before the names, which the engine's class for latent attention would skip."""
    kept = {"lm_head.weight", "d2t", "t2d"}
    parts.tensors = {k if k in kept else f"model.{k}": v for k, v in parts.tensors.items()}


@pytest.mark.slow
@pytest.mark.parametrize("change", [lambda parts: None, prefixed], ids=["own names", "prefixed"])
def test_latent_attention_is_served_as_predicted(
    deepseek: Bench, tmp_path: Path, change: Callable[[Parts], None]
) -> None:
    served_as_predicted(deepseek.outcome(tmp_path, deepseek.draft(tmp_path, change)), 1.2)
