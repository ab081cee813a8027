"""A target's weights as headers alone: names and shapes that go with its config, and files of the right length without values.

Written from published checkpoints, not from the code under test: `KIMI` is the language model of moonshotai/Kimi-K2.5
(its config.json and the names, shapes and dtypes of its 64 files, as listed in public model reports).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Headers = dict[str, tuple[str, list[int]]]
BYTES = {"F16": 2, "BF16": 2, "F32": 4, "I32": 4, "I64": 8, "U8": 1, "F8_E4M3": 1}
INT4 = {
    "config_groups": {
        "group_0": {
            "input_activations": None,
            "output_activations": None,
            "targets": ["Linear"],
            "weights": {
                "actorder": None,
                "block_structure": None,
                "dynamic": False,
                "group_size": 32,
                "num_bits": 4,
                "observer": "minmax",
                "observer_kwargs": {},
                "strategy": "group",
                "symmetric": True,
                "type": "int",
            },
        }
    },
    "format": "pack-quantized",
    "ignore": [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
    ],
    "kv_cache_scheme": None,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}
KIMI: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "quantization_config": INT4,
    "text_config": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "first_k_dense_replace": 1,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "kv_lora_rank": 512,
        "max_position_embeddings": 262144,
        "moe_intermediate_size": 2048,
        "moe_layer_freq": 1,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_attention_heads": 64,
        "num_hidden_layers": 61,
        "num_key_value_heads": 64,
        "num_nextn_predict_layers": 0,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "quantization_config": INT4,
        "rope_theta": 50000.0,
        "tie_word_embeddings": False,
        "topk_method": "noaux_tc",
        "v_head_dim": 128,
        "vocab_size": 163840,
    },
    "tie_word_embeddings": False,
}
# {name after `layers.N.`: (dtype, shape)} of its layers; layer 0 alone is dense.
KIMI_EVERY_LAYER: Headers = {
    "input_layernorm.weight": ("BF16", [7168]),
    "post_attention_layernorm.weight": ("BF16", [7168]),
    "self_attn.kv_a_layernorm.weight": ("BF16", [512]),
    "self_attn.kv_a_proj_with_mqa.weight": ("BF16", [576, 7168]),
    "self_attn.kv_b_proj.weight": ("BF16", [16384, 512]),
    "self_attn.o_proj.weight": ("BF16", [7168, 8192]),
    "self_attn.q_a_layernorm.weight": ("BF16", [1536]),
    "self_attn.q_a_proj.weight": ("BF16", [1536, 7168]),
    "self_attn.q_b_proj.weight": ("BF16", [12288, 1536]),
}
KIMI_DENSE: Headers = {
    "mlp.down_proj.weight": ("BF16", [7168, 18432]),
    "mlp.gate_proj.weight": ("BF16", [18432, 7168]),
    "mlp.up_proj.weight": ("BF16", [18432, 7168]),
}
KIMI_SPARSE: Headers = {
    "mlp.gate.e_score_correction_bias": ("F32", [384]),
    "mlp.gate.weight": ("BF16", [384, 7168]),
    "mlp.shared_experts.down_proj.weight": ("BF16", [7168, 2048]),
    "mlp.shared_experts.gate_proj.weight": ("BF16", [2048, 7168]),
    "mlp.shared_experts.up_proj.weight": ("BF16", [2048, 7168]),
}
KIMI_EXPERT: Headers = {
    "down_proj.weight_packed": ("I32", [7168, 256]),
    "down_proj.weight_scale": ("BF16", [7168, 64]),
    "down_proj.weight_shape": ("I32", [2]),
    "gate_proj.weight_packed": ("I32", [2048, 896]),
    "gate_proj.weight_scale": ("BF16", [2048, 224]),
    "gate_proj.weight_shape": ("I32", [2]),
    "up_proj.weight_packed": ("I32", [2048, 896]),
    "up_proj.weight_scale": ("BF16", [2048, 224]),
    "up_proj.weight_shape": ("I32", [2]),
}
KIMI_REST: Headers = {
    "language_model.lm_head.weight": ("BF16", [163840, 7168]),
    "language_model.model.embed_tokens.weight": ("BF16", [163840, 7168]),
    "language_model.model.norm.weight": ("BF16", [7168]),
}


def kimi(layers: int = 61, experts: int = 384) -> tuple[dict[str, Any], Iterator[Headers]]:
    """Return the config of Kimi-K2.5 and its headers, layer by layer, cut to so many layers and experts."""
    text = KIMI["text_config"] | {"num_hidden_layers": layers, "n_routed_experts": experts}
    return KIMI | {"text_config": text}, _kimi_layers(layers, experts)


def _kimi_layers(layers: int, experts: int) -> Iterator[Headers]:
    sparse = KIMI_SPARSE | {
        "mlp.gate.e_score_correction_bias": ("F32", [experts]),
        "mlp.gate.weight": ("BF16", [experts, 7168]),
    }
    for layer in range(layers):
        start = f"language_model.model.layers.{layer}."
        own = KIMI_EVERY_LAYER | (sparse if layer else KIMI_DENSE)
        found = {start + name: entry for name, entry in own.items()}
        for expert in range(experts if layer else 0):
            found |= {f"{start}mlp.experts.{expert}.{n}": e for n, e in KIMI_EXPERT.items()}
        yield found
    yield KIMI_REST


def llama(config: Mapping[str, Any], prefix: str = "model.") -> Headers:
    """Return the headers of a Llama-type target; Qwen2's biases and Qwen3's norms where its architecture says so."""
    text = config.get("text_config", config)

    def one(key: str, otherwise: int) -> int:
        return int(text.get(key) or otherwise)

    hidden, vocab, layers = one("hidden_size", 32), one("vocab_size", 128), 12
    heads, inner = one("num_attention_heads", 4), one("intermediate_size", 48)
    groups, count = one("num_key_value_heads", heads), one("num_hidden_layers", layers)
    dim = one("head_dim", hidden // heads)
    shapes = {f"{prefix}embed_tokens": [vocab, hidden], f"{prefix}norm": [hidden]}
    if not text.get("tie_word_embeddings"):
        shapes["lm_head"] = [vocab, hidden]
    family = config["architectures"][0]
    for layer in range(count):
        start = f"{prefix}layers.{layer}"
        shapes |= {
            f"{start}.input_layernorm": [hidden],
            f"{start}.post_attention_layernorm": [hidden],
            f"{start}.self_attn.q_proj": [heads * dim, hidden],
            f"{start}.self_attn.k_proj": [groups * dim, hidden],
            f"{start}.self_attn.v_proj": [groups * dim, hidden],
            f"{start}.self_attn.o_proj": [hidden, heads * dim],
            f"{start}.mlp.gate_proj": [inner, hidden],
            f"{start}.mlp.up_proj": [inner, hidden],
            f"{start}.mlp.down_proj": [hidden, inner],
        }
        if family == "Qwen3ForCausalLM":
            shapes |= {f"{start}.self_attn.{n}_norm": [dim] for n in ("q", "k")}
    found = {f"{name}.weight": ("F16", shape) for name, shape in shapes.items()}
    if family == "Qwen2ForCausalLM":
        found |= {
            name.replace("weight", "bias"): (dtype, shape[:1])
            for name, (dtype, shape) in found.items()
            if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
        }
    return found


def write_headers(path: Path, headers: Headers) -> None:
    """Write a safetensors file without values: right headers, right length, holes instead of content."""
    entries, end = {}, 0
    for name, (dtype, shape) in headers.items():
        begin, end = end, end + math.prod(shape) * BYTES[dtype]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + end)


def write_shards(folder: Path, shards: list[Headers]) -> Path:
    """Write headers over several files with their index; returns the index."""
    weight_map: dict[str, str] = {}
    for number, headers in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_headers(folder / file, headers)
        weight_map |= dict.fromkeys(headers, file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index
