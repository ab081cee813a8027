"""The effective values are those that transformers, through which the engine reads a config, arrives at."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from draftproof.checkpoint.configuration import context_length
from draftproof.checkpoint.pair import read_pair
from draftproof.engines import facts
from tests.builders.checkpoints import tiny_draft

ENGINE = "sglang==0.5.23"
YARN = {"factor": 4.0, "original_max_position_embeddings": 256}
CONFIGS: dict[str, dict[str, Any]] = {
    "as built": {},
    "no theta": {"rope_theta": None},
    "new layout": {"rope_theta": None, "rope_parameters": {"rope_theta": 5e5}},
    "theta in both places": {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}},
    "old scaling goes first": {
        "rope_scaling": {"type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
    },
    "yarn": {"rope_scaling": {"type": "yarn", **YARN}},
    "yarn without original length": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "llama3": {
        "rope_theta": 5e5,
        "rope_scaling": {
            "rope_type": "llama3",
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            **YARN,
        },
    },
    "sizes left out": dict.fromkeys(
        ("head_dim", "num_key_value_heads", "intermediate_size", "max_position_embeddings")
    ),
}
SIZES = (
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "num_hidden_layers",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
)


@pytest.mark.parametrize("name", CONFIGS)
def test_sizes_and_rope_are_transformers(tmp_path: Path, name: str) -> None:
    draft, target = tiny_draft(tmp_path, config=CONFIGS[name])
    file = draft / "config.json"
    config = {k: v for k, v in json.loads(file.read_text()).items() if v is not None}
    file.write_text(json.dumps(config))
    pair = read_pair(draft, target, ENGINE)
    theirs = LlamaConfig.from_pretrained(draft)
    for size in SIZES:
        assert getattr(pair.effective, size).value == getattr(theirs, size), size
    rope = dict(theirs.rope_parameters)
    ours = pair.effective.rope.value
    assert ours["theta"] == rope.pop("rope_theta")
    assert ours["type"] == rope.pop("rope_type")
    rope.pop("type", None)
    assert (ours["scaling"] or {}) == rope


@pytest.mark.parametrize(
    ("config", "rope", "tokens"),
    [
        ({"max_position_embeddings": 2048}, {"type": "default", "scaling": None}, 2048),
        ({"max_position_embeddings": 2048}, {"type": "linear", "scaling": {"factor": 2.0}}, 4096),
        ({"max_position_embeddings": 2048}, {"type": "yarn", "scaling": YARN}, 2048),
        ({"max_position_embeddings": 2048}, {"type": "llama3", "scaling": {"factor": 8.0}}, 2048),
        ({"max_position_embeddings": 2048, "seq_length": 99}, {"type": "default"}, 99),
        ({}, {"type": "default"}, None),
    ],
)
def test_context_length(config: dict[str, Any], rope: dict[str, Any], tokens: int | None) -> None:
    keys = facts(ENGINE, "checkpoint")["context_length_keys"]
    assert context_length(config, keys, rope) == tokens


@pytest.mark.parametrize(
    ("changes", "field", "value", "origin"),
    [
        ({"norm_before_residual": True}, "norm_before_residual", False, "overridden by engine"),
        ({"norm_before_fc": True}, "norm_before_fc", True, "explicit"),
        ({"eagle_config": {"norm_before_fc": True}}, "norm_before_fc", True, "explicit"),
        (
            {"norm_before_fc": True, "eagle_config": {"norm_before_fc": False}},
            "norm_before_fc",
            False,
            "explicit",
        ),
        ({"use_aux_norm": True}, "fc_norm", True, "explicit"),
        ({"norm_output": True}, "norm_output", True, "explicit"),
        ({}, "algorithm", "EAGLE3", "explicit"),
        ({"torch_dtype": "float16", "dtype": "bfloat16"}, "dtype", "bfloat16", "explicit"),
        ({"torch_dtype": None}, "dtype", "float32", "default"),
        ({"tie_word_embeddings": True}, "head_source", "embedding", "overridden by engine"),
        ({"draft_vocab_size": None}, "head_source", "target", "default"),
        ({"draft_vocab_size": None}, "draft_vocab_size", 128, "default"),
        ({"target_hidden_size": 64}, "embedding_source", "draft", "explicit"),
        ({"num_aux_hidden_states": 2}, "num_aux_hidden_states", 2, "explicit"),
        ({"eagle_config": None}, "boundaries", [2, 6, 9], "default"),
    ],
)
def test_where_values_come_from(
    tmp_path: Path, changes: dict[str, Any], field: str, value: object, origin: str
) -> None:
    pair = read_pair(*tiny_draft(tmp_path, config=changes), ENGINE)
    found = getattr(pair.effective, field)
    assert (found.value, found.origin) == (value, origin)
