"""What transformers refuses of a draft's config, validation refuses; what the engine reads as garbage, too."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from draftproof.checkpoint.pair import read_pair
from draftproof.checkpoint.validate import validation
from tests.builders.checkpoints import tiny_draft
from tests.builders.checkpoints_dialects import mla

ENGINE = "sglang==0.5.23"
KEYS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"),
    *("rms_norm_eps", "hidden_act", "tie_word_embeddings", "attention_bias", "mlp_bias"),
    *("use_cache", "initializer_range", "attention_dropout", "rope_parameters", "rope_scaling"),
    *("rope_theta", "eos_token_id", "bos_token_id", "pad_token_id", "layer_types", "torch_dtype"),
    *("dtype", "pretraining_tp", "model_type", "q_lora_rank", "kv_lora_rank", "v_head_dim"),
)
REFUSALS = (StrictDataclassError, TypeError, ValueError, AttributeError, LookupError)
JUNK: tuple[Any, ...] = (None, "x", 1.5, True, [1], {})


def errors(paths: tuple[Path, Path]) -> set[str]:
    found = validation(read_pair(*paths, ENGINE))["findings"]
    return {finding["id"] for finding in found if finding["severity"] == "error"}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("build", [lambda parts: None, mla], ids=["llama", "mla"])
def test_what_transformers_refuses_is_an_error(tmp_path: Path, build: Any, key: str) -> None:
    draft, target = tiny_draft(tmp_path, change=build)
    healthy = json.loads((draft / "config.json").read_text())
    for value in JUNK:
        (draft / "config.json").write_text(json.dumps(healthy | {key: value}))
        try:
            AutoConfig.from_pretrained(draft)
        except REFUSALS:
            assert errors((draft, target)), (key, value)


def yarn(**changes: Any) -> dict[str, Any]:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    return {"rope_scaling": scaling | changes}


# Tried with transformers 5.19.0 and the engine's own ModelConfig, get_rope and RMSNorm: they fail or give NaN or zeros.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "scaling a name": ({"rope_scaling": "yarn"}, "config.not-a-block"),
    "parameters a list": ({"rope_parameters": [1]}, "config.not-a-block"),
    "parameters an empty list": ({"rope_parameters": []}, "config.not-a-block"),
    "eagle_config a name": ({"eagle_config": "x"}, "config.not-a-block"),
    "quantisation a name": ({"quantization_config": "fp8"}, "config.not-a-block"),
    "type a list": ({"model_type": ["llama"]}, "config.model-type"),
    "type misspelt": ({"model_type": "llamma"}, "config.model-type"),
    "type half a character": ({"model_type": "\ud800"}, "config.model-type"),
    "type of another reader": ({"model_type": "eagle"}, "config.model-type"),
    "dtype unknown": ({"torch_dtype": "float8?"}, "config.dtype"),
    "dtype with torch.": ({"torch_dtype": "torch.bfloat16"}, "config.dtype"),
    "dtype short": ({"torch_dtype": "bf16"}, "config.dtype"),
    "dtype of whole numbers": ({"torch_dtype": "int8"}, "config.dtype"),
    "dtype a number": ({"torch_dtype": 16}, "config.dtype"),
    "dtype nothing": ({"torch_dtype": ""}, "config.dtype"),
    "eps endless": ({"rms_norm_eps": math.inf}, "config.not-a-number"),
    "eps no number": ({"rms_norm_eps": math.nan}, "config.not-a-number"),
    "eps a word": ({"rms_norm_eps": "1e-5"}, "config.not-a-number"),
    "eps whole": ({"rms_norm_eps": 1}, "config.not-a-number"),
    "eps below zero": ({"rms_norm_eps": -1e-5}, "config.not-a-number"),
    "eps null": ({"rms_norm_eps": None}, "config.null"),
    "range": ({"initializer_range": 2.0}, "config.not-a-number"),
    "share no number": ({"partial_rotary_factor": math.nan}, "config.not-a-number"),
    "theta no number": ({"rope_theta": math.nan}, "rope.theta"),
    "theta endless": ({"rope_theta": math.inf}, "rope.theta"),
    "theta below zero": ({"rope_theta": -1.0}, "rope.theta"),
    "theta a word": ({"rope_theta": "10000"}, "rope.theta"),
    "theta null": ({"rope_theta": None}, "rope.theta"),
    "theta inside": ({"rope_parameters": {"rope_theta": math.nan}}, "rope.theta"),
    "factor no number": (yarn(factor=math.nan), "rope.numbers"),
    "factor a word": (yarn(factor="4"), "rope.numbers"),
    "factor zero": (yarn(factor=0), "rope.numbers"),
    "factor endless": (yarn(factor=math.inf), "rope.numbers"),
    "factor null": (yarn(factor=None), "rope.numbers"),
    "length a word": (yarn(original_max_position_embeddings="256"), "rope.numbers"),
    "length zero": (yarn(original_max_position_embeddings=0), "rope.numbers"),
    "linear": ({"rope_scaling": {"type": "linear"}}, "rope.numbers"),
    "llama3": ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope.numbers"),
    "longrope": (
        {"rope_scaling": {"rope_type": "longrope", "short_factor": 1.0, "long_factor": [1.0]}},
        "rope.numbers",
    ),
    "kinds a name": ({"layer_types": "sliding_attention"}, "config.layer-types"),
    "kinds unknown": ({"layer_types": ["x"]}, "config.layer-types"),
    "bos a list": ({"bos_token_id": [1]}, "config.not-a-token-id"),
    "eos a word": ({"eos_token_id": "2"}, "config.not-a-token-id"),
    "size absurd": ({"hidden_size": 10**400}, "config.not-a-size"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_or_garbage_is_one_error(tmp_path: Path, name: str) -> None:
    changes, id = REFUSED[name]
    assert errors(tiny_draft(tmp_path, config=changes)) == {id}


FINE: dict[str, dict[str, Any]] = {
    "empty scaling": {"rope_scaling": {}},
    "false scaling": {"rope_scaling": False},
    "no scaling": {"rope_scaling": None},
    "yarn": yarn(),
    "yarn with a whole factor": yarn(factor=4, beta_fast=32, beta_slow=1, mscale=1.0),
    "longrope": {
        "rope_scaling": {
            "rope_type": "longrope",
            "short_factor": [1.0] * 4,
            "long_factor": [2] * 4,
            "factor": 4.0,
        }
    },
    "dtype half": {"torch_dtype": "half"},
    "new name goes first": {"torch_dtype": "float8?", "dtype": "bfloat16"},
    "dtype null": {"torch_dtype": None},
    "another type": {"model_type": "qwen3"},
    "several ends": {"eos_token_id": [2, 3]},
    "no start": {"bos_token_id": None},
    "eps zero": {"rms_norm_eps": 0.0},
    "theta whole": {"rope_theta": 10000},
    "half of the head": {"partial_rotary_factor": 0.5},
    "one layer of a kind": {"layer_types": ["full_attention"]},
}


@pytest.mark.parametrize("name", FINE)
def test_what_is_read_is_no_error(tmp_path: Path, name: str) -> None:
    assert errors(tiny_draft(tmp_path, config=FINE[name])) == set()


def test_an_architecture_alone_is_read_letter_by_letter(tmp_path: Path) -> None:
    paths = tiny_draft(tmp_path, config={"architectures": "LlamaForCausalLMEagle3"})
    answer = validation(read_pair(*paths, ENGINE))
    assert [(f["id"], f["severity"]) for f in answer["findings"]] == [
        ("config.architecture", "warning")
    ]
    assert "must be a list" in answer["findings"][0]["message"]
    assert answer["dialect"] == "sglang"
    assert answer["effective"]["architecture"]["value"] == "LlamaForCausalLMEagle3"
