"""The tensors of a target as its config promises them: names and shapes, for the families known in full.

H hidden size, E routed experts; a size that the config leaves open is None and fits anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from draftproof.checkpoint.configuration import Config, size
from draftproof.checkpoint.layout import Shape, fits, plus, times
from draftproof.checkpoint.quantisation import Quantisation, stored
from draftproof.checkpoint.safetensors_header import Tensor

# Where the language model's parts stand in a checkpoint, and its head.
PREFIXES = ("model.", "language_model.model.", "model.language_model.", "language_model.", "")
HEADS = ("lm_head", "language_model.lm_head", "model.lm_head")
EMBEDDING = "embed_tokens.weight"
FIRST = "mlp.experts.0"
LISTED = 40  # faults; a wrong config could promise any number of tensors
# Keys without which a family's layers are not known in full.
NEEDED = {
    "llama": ("hidden_size", "intermediate_size"),
    "deepseek": ("hidden_size", "intermediate_size", "kv_lora_rank", "moe_intermediate_size"),
}
# Ends of names, and their shapes.
Templates = tuple[tuple[str, ...], tuple[Shape, ...]]
_SHAPE = itemgetter(Tensor._fields.index("shape"))


@dataclass(slots=True)
class Comparison:
    """``missing`` names; ``wrong`` {name: (found, promised)}; ``checked``: how many were looked for."""

    missing: list[str] = field(default_factory=list)
    wrong: dict[str, tuple[Shape, Shape]] = field(default_factory=dict)
    checked: int = 0

    def add(self, tensors: Mapping[str, Tensor], prefix: str, templates: Templates) -> bool:
        """Look for tensors whose names start with prefix; returns whether to go on."""
        endings, shapes = templates
        self.checked += len(endings)
        names = map(prefix.__add__, endings)
        try:
            # All are there, nearly always: no Python runs per tensor, of which there may be hundreds of thousands.
            if tuple(map(_SHAPE, map(tensors.__getitem__, names))) == shapes:
                return True
        except KeyError:
            pass
        for ending, shape in zip(endings, shapes, strict=True):
            tensor = tensors.get(prefix + ending)
            if tensor is None:
                self.missing.append(prefix + ending)
            elif not fits(tensor.shape, shape):
                self.wrong[tensor.name] = (tensor.shape, shape)
        return len(self.missing) + len(self.wrong) < LISTED


def prefix_of(tensors: Mapping[str, Tensor]) -> str | None:
    """Return what stands before the language model's names; None when it has no embedding by a usual name."""
    return next((p for p in PREFIXES if p + EMBEDDING in tensors), None)


def layers_prefix(tensors: Mapping[str, Tensor], prefix: str) -> str:
    """Return what stands before a layer's number; nvidia's Kimi-K2.5-NVFP4 leaves `model.` out (models/kimi_k25.py)."""
    usual, short = f"{prefix}layers.", f"{prefix.removesuffix('model.')}layers."
    is_short = f"{usual}0.input_layernorm.weight" not in tensors
    return short if is_short and f"{short}0.input_layernorm.weight" in tensors else usual


def compare(
    tensors: Mapping[str, Tensor],
    text: Config,
    family: Mapping[str, Any] | None,
    how: Quantisation | None,
) -> Comparison:
    """Compare a target's tensors with what its text config promises.

    `family` is the engine's fact on how the layers of this architecture are built; None: they are not known, so only
    embedding, head and final norm are looked at.
    """
    found = Comparison()
    prefix = prefix_of(tensors)
    if prefix is None:
        if family:
            found.missing.append(PREFIXES[0] + EMBEDDING)
        return found
    hidden = size(text, "hidden_size")
    table = (size(text, "vocab_size"), hidden)
    found.add(tensors, prefix, ((EMBEDDING, "norm.weight"), (table, (hidden,))))
    head = next((h for h in HEADS if f"{h}.weight" in tensors), None)
    if head:
        found.add(tensors, head, ((".weight",), (table,)))
    elif text.get("tie_word_embeddings") is False and not _quantised_head(tensors):
        found.missing.append(HEADS[0] + ".weight")
    if family is None or any(size(text, key) is None for key in NEEDED[family["layers"]]):
        return found
    start = layers_prefix(tensors, prefix)
    for block, templates in _blocks(text, family, how, len(tensors) + LISTED):
        if not found.add(tensors, start + block, templates):
            break
    return found


def _quantised_head(tensors: Mapping[str, Tensor]) -> bool:
    return any(f"{h}.{end}" in tensors for h in HEADS for end in ("weight_packed", "qweight"))


def _blocks(
    text: Config, family: Mapping[str, Any], how: Quantisation | None, most: int
) -> Iterator[tuple[str, Templates]]:
    """Yield (start of a name after `layers.`, the ends with their shapes), layer by layer; no more than `most` experts."""
    latent = family["layers"] == "deepseek"
    hidden, inner = size(text, "hidden_size"), size(text, "moe_intermediate_size")
    experts = min(size(text, "n_routed_experts") or 0, most)
    made: dict[object, Templates] = {}  # most layers are alike
    for layer in range(size(text, "num_hidden_layers") or 0):
        sparse = latent and _sparse(text, layer)
        plain, matrices = _deepseek(text, sparse) if latent else _llama(text, family)
        shapes = plain | _stored(how, layer, matrices)
        # The engine quantises all experts of a layer one way, so one of them tells.
        expert = _stored(how, layer, _gated(f"{FIRST}.", hidden, inner)) if sparse else {}
        kind = (tuple(shapes.items()), tuple(expert.items()))
        if kind not in made:
            ends = {name.removeprefix(FIRST): shape for name, shape in expert.items()}
            for number in range(experts):
                shapes |= {f"mlp.experts.{number}{end}": shape for end, shape in ends.items()}
            made[kind] = tuple(shapes), tuple(shapes.values())
        yield f"{layer}.", made[kind]


def _stored(
    how: Quantisation | None, layer: int, matrices: Mapping[str, tuple[int | None, int | None]]
) -> dict[str, Shape]:
    found: dict[str, Shape] = {}
    for module, (rows, columns) in matrices.items():
        parts = stored(how, f"model.layers.{layer}.{module}", rows, columns) or {}
        found |= {module + ending: shape for ending, shape in parts.items()}
    return found


def _llama(text: Config, family: Mapping[str, Any]) -> tuple[dict[str, Shape], dict[str, Any]]:
    """Return (plain tensors, matrices) of a layer as models/llama.py, qwen2.py and qwen3.py build it."""
    hidden, heads = size(text, "hidden_size"), size(text, "num_attention_heads")
    groups, one = size(text, "num_key_value_heads"), size(text, "head_dim")
    if one is None and not family.get("head_norms") and hidden and heads:
        one = hidden // heads
    queries, keys = times(heads, one), times(groups, one)
    plain: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if family.get("head_norms"):
        plain |= {"self_attn.q_norm.weight": (one,), "self_attn.k_norm.weight": (one,)}
    if family.get("biases") or text.get("attention_bias") is True:
        plain |= {
            "self_attn.q_proj.bias": (queries,),
            "self_attn.k_proj.bias": (keys,),
            "self_attn.v_proj.bias": (keys,),
        }
    attention = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
    }
    return plain, attention | _gated("mlp.", hidden, size(text, "intermediate_size"))


def _sparse(text: Config, layer: int) -> bool:
    """Return whether a layer has experts (models/deepseek_v2.py, _is_layer_sparse)."""
    dense, every = text.get("first_k_dense_replace", 0), size(text, "moe_layer_freq") or 1
    first = dense if type(dense) is int else 0
    return bool(size(text, "n_routed_experts")) and layer >= first and layer % every == 0


def _deepseek(text: Config, sparse: bool) -> tuple[dict[str, Shape], dict[str, Any]]:
    """Return (plain tensors, matrices) of a layer with latent attention, routed experts left out.

    Built by models/deepseek_v2.py (DeepseekV2AttentionMLA, MoEGate, DeepseekV2MoE, DeepseekV2MLP).
    """
    hidden, heads = size(text, "hidden_size"), size(text, "num_attention_heads")
    q_rank, kv_rank = size(text, "q_lora_rank"), size(text, "kv_lora_rank")
    plain_dim, rotary = size(text, "qk_nope_head_dim"), size(text, "qk_rope_head_dim")
    value, queries = size(text, "v_head_dim"), times(heads, plus(plain_dim, rotary))
    plain: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.kv_a_layernorm.weight": (kv_rank,),
    }
    matrices: dict[str, tuple[int | None, int | None]] = {
        "self_attn.kv_a_proj_with_mqa": (plus(kv_rank, rotary), hidden),
        "self_attn.kv_b_proj": (times(heads, plus(plain_dim, value)), kv_rank),
        "self_attn.o_proj": (hidden, times(heads, value)),
    }
    if text.get("q_lora_rank") is None:
        matrices["self_attn.q_proj"] = (queries, hidden)
    else:
        plain["self_attn.q_a_layernorm.weight"] = (q_rank,)
        matrices["self_attn.q_a_proj"] = (q_rank, hidden)
        matrices["self_attn.q_b_proj"] = (queries, q_rank)
    if not sparse:
        return plain, matrices | _gated("mlp.", hidden, size(text, "intermediate_size"))
    experts, inner = size(text, "n_routed_experts"), size(text, "moe_intermediate_size")
    plain["mlp.gate.weight"] = (experts, hidden)
    if text.get("topk_method") == "noaux_tc":
        plain["mlp.gate.e_score_correction_bias"] = (experts,)
    if shared := size(text, "n_shared_experts"):
        matrices |= _gated("mlp.shared_experts.", hidden, times(inner, shared))
    return plain, matrices


def _gated(
    prefix: str, hidden: int | None, inner: int | None
) -> dict[str, tuple[int | None, int | None]]:
    return {
        f"{prefix}gate_proj": (inner, hidden),
        f"{prefix}up_proj": (inner, hidden),
        f"{prefix}down_proj": (hidden, inner),
    }
