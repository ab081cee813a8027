"""Ids and boundaries: both ways, the defaults, and what the installed engine itself makes of them."""

import importlib.util
import re
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.checkpoint.boundaries import (
    IDS_KEY,
    boundaries_of_ids,
    default_boundaries,
    engine_boundaries,
    engine_ids,
    target_facts,
)
from draftproof.engines import facts
from draftproof.errors import InputError

ENGINE = "sglang==0.5.23"
LLAMA, KIMI, GPT_OSS = "LlamaForCausalLM", "KimiK25ForConditionalGeneration", "GptOssForCausalLM"
TARGETS = facts(ENGINE, "checkpoint")["targets"]


def target(architecture: str = LLAMA, layers: int = 61) -> dict[str, Any]:
    return {"architectures": [architecture], "num_hidden_layers": layers}


def draft(*ids: int) -> dict[str, Any]:
    return {"eagle_config": {IDS_KEY: list(ids)}}


@pytest.mark.parametrize(
    ("architecture", "ids", "boundaries"),
    [
        (LLAMA, [2, 30, 58], (3, 31, 59)),
        (LLAMA, [-1, 2, 30], (0, 3, 31)),
        (LLAMA, [30, 2, 2], (3, 31)),
        (KIMI, [2, 30, 58], (2, 30, 58)),
        (KIMI, [0, 3, 31], (0, 3, 31)),
        (KIMI, [1, 29, 57], (2, 30, 58)),
        (KIMI, [29, 1, 57], (1, 29, 57)),
        (GPT_OSS, [2, 30, 58], (3, 31, 59)),
        (GPT_OSS, [2, 30, 61], (2, 30, 61)),
    ],
)
def test_what_ids_mean(architecture: str, ids: list[int], boundaries: tuple[int, ...]) -> None:
    assert engine_boundaries(ENGINE, target(architecture), draft(*ids)) == (boundaries, "explicit")


@pytest.mark.parametrize("layers", [30, 61])
def test_defaults(layers: int) -> None:
    expected = (2, layers // 2, layers - 3)
    assert default_boundaries(ENGINE, LLAMA, layers) == expected
    for config in ({}, {"eagle_config": None}, {"eagle_config": {}}, {IDS_KEY: [0, 3, 31]}):
        found = engine_boundaries(ENGINE, target(layers=layers), config)
        assert found == (expected, "default")
    shifted = default_boundaries(ENGINE, "MiniMaxM3SparseForConditionalGeneration", layers)
    assert shifted == tuple(boundary + 1 for boundary in expected)


@given(
    st.sampled_from(sorted(TARGETS)),
    st.sets(st.integers(0, 60), min_size=2, max_size=5),
)
def test_there_and_back(architecture: str, boundaries: set[int]) -> None:
    ids = engine_ids(ENGINE, architecture, sorted(boundaries))
    assert sorted(boundaries_of_ids(ENGINE, architecture, ids, 61)) == sorted(boundaries)


def test_what_cannot_be_said() -> None:
    with pytest.raises(InputError, match="boundary 1 alone"):
        engine_ids(ENGINE, KIMI, [1])
    with pytest.raises(InputError, match="MambaForCausalLM"):
        engine_boundaries(ENGINE, target("MambaForCausalLM"), {})
    with pytest.raises(InputError, match="num_hidden_layers"):
        engine_boundaries(ENGINE, target(layers=0), {})
    with pytest.raises(InputError, match="architectures"):
        engine_boundaries(ENGINE, {"num_hidden_layers": 12}, {})


# --- against the installed engine

MODELS = importlib.util.find_spec("sglang")
HOOK = "set_eagle3_layers_to_capture"
# Outer models hand the ids to a language model of their own.
INNER = {
    "KimiK25ForConditionalGeneration": "DeepseekV3ForCausalLM",
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
}


CLASS = re.compile(r"^class (\w+)\(([^)]*)\):", re.MULTILINE)
METHOD = re.compile(rf"^    def {HOOK}\(.*?(?=^    \S|^\S|\Z)", re.MULTILINE | re.DOTALL)
# {class: (its parents, its own hook as source or None)}
Classes = dict[str, tuple[list[str], str | None]]


@pytest.fixture(scope="module")
def classes() -> Classes:
    """The engine's model classes, read as text: importing them needs an accelerator's libraries."""
    if MODELS is None or MODELS.submodule_search_locations is None:
        pytest.skip("sglang is not installed")
    folder = Path(next(iter(MODELS.submodule_search_locations))) / "srt/models"
    found: Classes = {}
    for path in sorted(folder.glob("*.py")):
        _, *pieces = re.split(r"^(?=class )", path.read_text(), flags=re.MULTILINE)
        for piece in pieces:
            if head := CLASS.match(piece):
                method = METHOD.search(piece)
                parents = re.findall(r"\w+", head[2])
                found[head[1]] = parents, textwrap.dedent(method[0]) if method else None
    return found


def hook(classes: Classes, name: str) -> str | None:
    """Return the class's own or inherited hook."""
    parents, own = classes[name]
    found = (hook(classes, parent) for parent in parents if parent in classes and parent != name)
    return own or next((source for source in found if source), None)


def engines_answer(classes: Classes, name: str, ids: list[int] | None, layers: int) -> list[int]:
    """Run the engine's own lines on a stand-in for the model; return the layers it would capture."""
    source = hook(classes, INNER.get(name, name))
    assert source is not None, name
    text = SimpleNamespace(num_hidden_layers=layers)
    config = SimpleNamespace(num_hidden_layers=layers, text_config=text)
    inner = SimpleNamespace(layers=[SimpleNamespace() for _ in range(layers)])
    setattr(inner, HOOK, lambda chosen: setattr(inner, "layers_to_capture", chosen))
    pp_group = SimpleNamespace(is_last_rank=True)
    model = SimpleNamespace(config=config, model=inner, language_model=inner, pp_group=pp_group)
    scope: dict[str, Any] = {"get_parallel": lambda: SimpleNamespace(pp_group=pp_group)}
    exec(f"from __future__ import annotations\n{source}", scope)
    scope[HOOK](model, ids)
    return list(inner.layers_to_capture)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_the_facts_are_the_engines(classes: Classes, name: str) -> None:
    layers = 37
    assert engines_answer(classes, name, None, layers) == list(
        default_boundaries(ENGINE, name, layers)
    )
    for ids in ([2, 15, 30], [1, 15, 30], [15, 1, 30], [-1, 2, 15], [2, 15, 36], [2, 15, 37]):
        assert engines_answer(classes, name, ids, layers) == boundaries_of_ids(
            ENGINE, name, ids, layers
        )


def test_a_target_without_the_hook_is_not_in_the_facts(classes: Classes) -> None:
    assert hook(classes, "GPT2LMHeadModel") is None
    with pytest.raises(InputError):
        target_facts(ENGINE, "GPT2LMHeadModel")
