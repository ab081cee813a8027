"""The same small draft as each trainer writes it, and checkpoints that are no EAGLE-3 drafts at all.

Each function turns the parts of a healthy draft into a writer's own. `DIALECTS` says which dialect must be recognised and
which findings are true of a healthy checkpoint of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.builders.checkpoints import (
    DRAFT_VOCAB,
    HEADS,
    HIDDEN,
    IDS_KEY,
    VOCAB,
    Parts,
    draft_tensors,
    weight,
)

LATENT = {
    "q_lora_rank": 12,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 2,
    "v_head_dim": 8,
}


def ones(*shape: int) -> Any:
    """Return float32 ones."""
    return np.ones(shape, dtype=np.float32)


def boundaries(parts: Parts) -> list[int]:
    """Return every trainer's default for this target."""
    layers = parts.target["num_hidden_layers"]
    return [2, layers // 2, layers - 3]


def state_norms(parts: Parts) -> dict[str, Any]:
    """Return a norm per state."""
    hidden = parts.config["hidden_size"]
    return {f"fc_norm.{number}.weight": ones(hidden) for number in range(3)}


def first_layer_as(parts: Parts, prefix: str) -> None:
    """Rename the first layer's tensors."""
    parts.tensors = {
        name.replace("midlayer.", f"{prefix}."): value for name, value in parts.tensors.items()
    }


def eagle(parts: Parts) -> None:
    """EAGLE's own: the architecture of the target, no layer ids."""
    parts.config["architectures"] = ["LlamaForCausalLM"]
    del parts.config["eagle_config"]


def specforge(parts: Parts) -> None:
    """SpecForge: the engine's names, written by transformers."""
    parts.config["transformers_version"] = "4.57.1"


def specforge_31(parts: Parts) -> None:
    """SpecForge's EAGLE-3.1: a norm per state; norm_output is about its head."""
    specforge(parts)
    parts.config |= {"fc_norm": True, "norm_output": True}
    parts.tensors |= state_norms(parts)


def speculators(parts: Parts) -> None:
    """Speculators 0.3: nested config, no ids, no flags for norms."""
    first_layer_as(parts, "layers.0")
    shape = parts.config["vocab_size"], parts.config["hidden_size"]
    parts.tensors["embed_tokens.weight"] = weight(*shape)
    own = {"architectures", "eagle_config", "draft_vocab_size", "torch_dtype"}
    inner = {key: value for key, value in parts.config.items() if key not in own}
    parts.config = {
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": parts.config["draft_vocab_size"],
        IDS_KEY: None,
        "norm_before_residual": False,
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "target"}},
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        # The block is copied from the target, ties and all.
        "transformer_layer_config": inner | {"tie_word_embeddings": True},
        "transformers_version": "4.57.1",
    }


def speculators_09(parts: Parts) -> None:
    """Speculators 0.9: norms around fc and output on, every layer with a window, ids written."""
    input_norm = ones(3 * parts.config["hidden_size"])
    speculators(parts)
    parts.config["transformer_layer_config"] |= {
        "layer_types": ["sliding_attention"],
        "sliding_window": 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
    del parts.config["transformer_layer_config"]["rope_theta"]
    parts.config |= {
        "speculators_version": "0.9.0",
        IDS_KEY: boundaries(parts),
        "norm_before_fc": True,
        "fc_norm": False,
        "norm_output": True,
    }
    parts.tensors["input_norm.weight"] = input_norm


def speculators_flat(parts: Parts) -> None:
    """Speculators with the block's keys at the top level."""
    speculators(parts)
    inner = parts.config.pop("transformer_layer_config")
    parts.config = inner | parts.config


def speculators_layers(parts: Parts) -> None:
    """Speculators with two layers: the second is a plain one, which norms its input."""
    speculators(parts)
    parts.config["transformer_layer_config"]["num_hidden_layers"] = 2
    fed = ("q_proj.weight", "k_proj.weight", "v_proj.weight")
    for name, value in list(parts.tensors.items()):
        if name.startswith("layers.0.") and "hidden_norm" not in name:
            narrow = value[:, :HIDDEN] if name.endswith(fed) else value
            parts.tensors[name.replace("layers.0.", "layers.1.")] = narrow.copy()


def modelopt(parts: Parts) -> None:
    """Model-Optimizer's Hugging Face export: no t2d, its whole configuration in eagle_config."""
    first_layer_as(parts, "layers.0")
    del parts.tensors["t2d"]
    parts.config["eagle_config"] |= {
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
    }


def modelopt_megatron(parts: Parts) -> None:
    """Model-Optimizer's Megatron export of a draft that could have more layers: midlayer is numbered."""
    first_layer_as(parts, "midlayer.0")
    del parts.tensors["t2d"]
    parts.config["architectures"] = ["LlamaForCausalLMEagle3Deep"]


def eagle31(parts: Parts) -> None:
    """EAGLE-3.1: a norm per state, and the normed state fed back."""
    first_layer_as(parts, "layers.0")
    parts.config |= {"fc_norm": True, "norm_output": True}
    parts.tensors |= state_norms(parts)


def eagle31_one_norm(parts: Parts) -> None:
    """EAGLE-3.1 with one norm over all states."""
    first_layer_as(parts, "layers.0")
    parts.config |= {"norm_before_fc": True, "norm_output": True}
    parts.tensors["input_norm.weight"] = ones(3 * parts.config["hidden_size"])


def mla(parts: Parts) -> None:
    """A draft with latent attention, for a target that has it."""
    s = LATENT
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        del parts.tensors[f"midlayer.self_attn.{name}.weight"]
    del parts.config["head_dim"], parts.config["draft_vocab_size"]
    parts.config |= s | {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_key_value_heads": HEADS,
        "draft_vocab_size": DRAFT_VOCAB,
        "target_hidden_size": None,
        "eagle_config": {IDS_KEY: boundaries(parts)},
    }
    parts.target["architectures"] = ["DeepseekV3ForCausalLM"]
    shapes: dict[str, tuple[int, ...]] = {
        "q_a_proj": (s["q_lora_rank"], 2 * HIDDEN),
        "q_a_layernorm": (s["q_lora_rank"],),
        "q_b_proj": (HEADS * (s["qk_nope_head_dim"] + s["qk_rope_head_dim"]), s["q_lora_rank"]),
        "kv_a_proj_with_mqa": (s["kv_lora_rank"] + s["qk_rope_head_dim"], 2 * HIDDEN),
        "kv_a_layernorm": (s["kv_lora_rank"],),
        "kv_b_proj": (HEADS * (s["qk_nope_head_dim"] + s["v_head_dim"]), s["kv_lora_rank"]),
        "o_proj": (HIDDEN, HEADS * s["v_head_dim"]),
    }
    for name, shape in shapes.items():
        parts.tensors[f"midlayer.self_attn.{name}.weight"] = weight(*shape)


def mla_prefixed(parts: Parts) -> None:
    """The same with names that the engine's class would skip."""
    mla(parts)
    parts.tensors = {
        name if name in {"lm_head.weight", "d2t", "t2d"} else f"model.{name}": value
        for name, value in parts.tensors.items()
    }


def p_eagle(parts: Parts) -> None:
    """P-EAGLE: a learned state for tokens not yet drafted."""
    parts.tensors["mask_hidden"] = ones(1, 1, 3 * HIDDEN)


def eagle1(parts: Parts) -> None:
    """EAGLE-1/2: fc merges embedding and one state; the layer is an ordinary one."""
    _plain_layer(parts)
    parts.tensors["fc.weight"] = weight(HIDDEN, 2 * HIDDEN)


def dflash(parts: Parts) -> None:
    """DFlash: fc and a norm over all states, plain layers, a block of config of its own."""
    _plain_layer(parts)
    parts.config |= {"architectures": ["DFlashDraftModel"], "dflash_config": {"mask_token_id": 3}}
    parts.tensors |= {"fc.weight": weight(HIDDEN, 3 * HIDDEN), "hidden_norm.weight": ones(HIDDEN)}


def dspark(parts: Parts) -> None:
    """DSpark, which is laid out alike."""
    dflash(parts)
    del parts.config["dflash_config"]
    parts.config["architectures"] = ["DSparkDraftModel"]


def mtp(parts: Parts) -> None:
    """MTP layers as DeepSeek has them."""
    _plain_layer(parts)
    parts.tensors |= {
        "model.layers.0.eh_proj.weight": weight(HIDDEN, 2 * HIDDEN),
        "model.layers.0.enorm.weight": ones(HIDDEN),
        "model.layers.0.hnorm.weight": ones(HIDDEN),
    }


def plain(parts: Parts) -> None:
    """A whole model."""
    _plain_layer(parts)


def _plain_layer(parts: Parts) -> None:
    tensors = draft_tensors(layer="model.layers.0")
    for name in ("fc.weight", "d2t", "t2d", "model.layers.0.hidden_norm.weight"):
        del tensors[name]
    for name in ("q_proj", "k_proj", "v_proj"):
        key = f"model.layers.0.self_attn.{name}.weight"
        tensors[key] = tensors[key][:, :HIDDEN]
    tensors["model.embed_tokens.weight"] = weight(VOCAB, HIDDEN)
    tensors["model.norm.weight"] = tensors.pop("norm.weight")
    parts.tensors = tensors
    parts.config["architectures"] = ["LlamaForCausalLM"]


@dataclass(frozen=True)
class Healthy:
    """How to build a healthy checkpoint, the dialect it is, and the findings that are true of it."""

    build: Callable[[Parts], None]
    dialect: str
    findings: frozenset[str] = frozenset()


_first = frozenset({"draft.convert-first", "embedding.overwritten"})
DIALECTS: dict[str, Healthy] = {
    "eagle": Healthy(eagle, "eagle", frozenset({"config.architecture", "boundaries.default"})),
    "specforge": Healthy(specforge, "specforge"),
    "specforge 3.1": Healthy(specforge_31, "specforge", frozenset({"norms.output-specforge"})),
    "speculators 0.3": Healthy(speculators, "speculators", _first),
    "speculators 0.9": Healthy(speculators_09, "speculators", _first | {"meaning.sliding-window"}),
    "speculators flat": Healthy(speculators_flat, "speculators", _first),
    "speculators two layers": Healthy(speculators_layers, "speculators", _first),
    "modelopt": Healthy(modelopt, "modelopt", frozenset({"meaning.modelopt-first-norm"})),
    "modelopt megatron": Healthy(
        modelopt_megatron, "modelopt", frozenset({"config.architecture", "draft.convert-first"})
    ),
    "eagle 3.1": Healthy(eagle31, "sglang"),
    "eagle 3.1, one norm": Healthy(eagle31_one_norm, "sglang"),
    "mla": Healthy(mla, "sglang"),
    "mla, model. in front": Healthy(mla_prefixed, "sglang", frozenset({"draft.convert-first"})),
}
# Not EAGLE-3: the kind, and a word of its explanation.
OTHERS: dict[str, tuple[Callable[[Parts], None], str]] = {
    "p-eagle": (p_eagle, "vLLM"),
    "eagle1": (eagle1, "--speculative-algorithm EAGLE"),
    "dflash": (dflash, "--speculative-algorithm DFLASH"),
    "dspark": (dspark, "--speculative-algorithm DSPARK"),
    "mtp": (mtp, "NEXTN"),
    "plain": (plain, "draft's folder"),
}
