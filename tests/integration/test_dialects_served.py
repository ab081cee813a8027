"""Every dialect on the real engine: converted, served, and accepted as often as accuracy says before any server starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders.bench import LAYERS, Bench, Outcome, Shape
from tests.builders.checkpoints import Parts
from tests.builders.checkpoints_dialects import DIALECTS
from tests.builders.tiny_models import tiny_deepseek_target, tiny_llama_target

pytestmark = pytest.mark.engine

CHAIN = Shape(3)
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
            known.append(llama.outcome(path, llama.draft(path), CHAIN))
        return known[0]

    return outcome


def test_speculators_is_served_as_predicted(llama: Bench, tmp_path: Path) -> None:
    draft = llama.draft(tmp_path, DIALECTS["speculators 0.3"].build)
    llama.outcome(tmp_path, draft, CHAIN).is_as_predicted(1.4)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", SAME)
def test_the_same_weights_are_served_the_same_in_every_dialect(
    llama: Bench, as_the_engine_names_it: Callable[[], Outcome], tmp_path: Path, dialect: str
) -> None:
    outcome = llama.outcome(tmp_path, llama.draft(tmp_path, DIALECTS[dialect].build), CHAIN)
    outcome.is_as_predicted(1.4)
    assert outcome == as_the_engine_names_it()


@pytest.mark.slow
@pytest.mark.parametrize("dialect", NORMS)
def test_norms_around_fc_and_output_are_served_as_predicted(
    llama: Bench, tmp_path: Path, dialect: str
) -> None:
    draft = llama.draft(tmp_path, DIALECTS[dialect].build)
    llama.outcome(tmp_path, draft, CHAIN).is_as_predicted(1.05)


def speculators_of_two_layers(parts: Parts) -> None:
    """Plain layers norm their input under another name than the engine's later layers do."""
    DIALECTS["speculators 0.3"].build(parts)
    parts.tensors["layers.1.input_layernorm.weight"] = parts.tensors.pop(
        "layers.1.hidden_norm.weight"
    )


@pytest.mark.slow
def test_two_layers_are_served_as_predicted(llama: Bench, tmp_path: Path) -> None:
    draft = llama.draft(tmp_path, speculators_of_two_layers, layers=2)
    llama.outcome(tmp_path, draft, CHAIN).is_as_predicted(1.2)


def prefixed(parts: Parts) -> None:
    """Put `model.` before the names, which the engine's class for latent attention would skip."""
    kept = {"lm_head.weight", "d2t", "t2d"}
    parts.tensors = {k if k in kept else f"model.{k}": v for k, v in parts.tensors.items()}


@pytest.mark.slow
@pytest.mark.parametrize("change", [lambda parts: None, prefixed], ids=["own names", "prefixed"])
def test_latent_attention_is_served_as_predicted(
    deepseek: Bench, tmp_path: Path, change: Callable[[Parts], None]
) -> None:
    deepseek.outcome(tmp_path, deepseek.draft(tmp_path, change), CHAIN).is_as_predicted(1.2)
