"""The tensors of an EAGLE-3 draft as the engine names and shapes them.

Names are those of models/llama_eagle3.py; models/kimi_k25_eagle3.py (latent attention) differs in attention alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from draftproof.checkpoint.effective import Effective

# A size that the config leaves open is None and fits anything.
Shape = tuple[int | None, ...]
MAP, MASK = "d2t", "t2d"
HEAD, EMBEDDING, FC = "lm_head.weight", "embed_tokens.weight", "fc.weight"
DROPPED_COMPUTATION = re.compile(
    r"layers\.\d+\.self_attn\.([qkv]_proj\.bias|[qk]_norm\.weight)$"
    r"|layers\.\d+\.self_attn\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj)\.bias$"
    r"|layers\.\d+\.mlp\.\w+_proj\.bias$|lm_head\.bias$"
)
NORMS_BEHIND_FLAGS = ("input_norm.", "fc_norm.")


def engine_names(tensors: Iterable[str], renames: Mapping[str, str]) -> dict[str, list[str]]:
    """Return {the engine's name: names in the file}; more than one name in a list is a clash.

    The engine rewrites parts of names, takes whatever holds d2t or t2d in its name as map and mask, and tries each
    name as it is and with ``model.`` before it (the head stands outside ``model.``).
    """
    found: dict[str, list[str]] = {}
    for name in tensors:
        new = name
        for old, replacement in renames.items():
            new = new.replace(old, replacement)
        if MAP in new:
            new = MAP
        elif MASK in new:
            new = MASK
        elif not new.startswith("model.lm_head"):
            new = new.removeprefix("model.")
        found.setdefault(new, []).append(name)
    return found


def required(effective: Effective) -> dict[str, Shape]:
    """Return the parameters the engine builds and does not fill from elsewhere, with their shapes.

    Norms and biases that only a flag brings are in `optional`.
    """
    e = effective
    hidden, inner = e.hidden_size.value, e.intermediate_size.value
    states, state = e.num_aux_hidden_states.value, e.target_hidden_size.value
    shapes: dict[str, Shape] = {FC: (hidden, times(states, state)), "norm.weight": (hidden,)}
    for layer in range(e.num_hidden_layers.value or 0):
        prefix, fed = f"layers.{layer}", hidden
        if layer == 0:
            # The first layer sees the embedding beside the hidden state.
            fed = times(2, hidden)
            shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        attention = _latent(e, fed) if e.latent.value else _heads(e, fed)
        shapes |= {f"{prefix}.self_attn.{name}.weight": shape for name, shape in attention.items()}
        shapes |= {
            f"{prefix}.hidden_norm.weight": (hidden,),
            f"{prefix}.post_attention_layernorm.weight": (hidden,),
            f"{prefix}.mlp.gate_proj.weight": (inner, hidden),
            f"{prefix}.mlp.up_proj.weight": (inner, hidden),
            f"{prefix}.mlp.down_proj.weight": (hidden, inner),
        }
    if e.head_source.value == "draft":
        shapes[HEAD] = (e.draft_vocab_size.value, hidden)
    if e.embedding_source.value == "draft":
        shapes[EMBEDDING] = (e.vocab_size.value, hidden)
    return shapes


def _heads(e: Effective, fed: int | None) -> dict[str, Shape]:
    q_rows = times(e.num_attention_heads.value, e.head_dim.value)
    kv_rows = times(e.num_key_value_heads.value, e.head_dim.value)
    return {
        "q_proj": (q_rows, fed),
        "k_proj": (kv_rows, fed),
        "v_proj": (kv_rows, fed),
        "o_proj": (e.hidden_size.value, q_rows),
    }


def _latent(e: Effective, fed: int | None) -> dict[str, Shape]:
    sizes, heads = e.latent.value or {}, e.num_attention_heads.value
    q_rank, kv_rank = sizes.get("q_lora_rank"), sizes.get("kv_lora_rank")
    plain, rotary = sizes.get("qk_nope_head_dim"), sizes.get("qk_rope_head_dim")
    value = sizes.get("v_head_dim")
    return {
        "q_a_proj": (q_rank, fed),
        "q_a_layernorm": (q_rank,),
        "q_b_proj": (times(heads, e.head_dim.value), q_rank),
        "kv_a_proj_with_mqa": (plus(kv_rank, rotary), fed),
        "kv_a_layernorm": (kv_rank,),
        "kv_b_proj": (times(heads, plus(plain, value)), kv_rank),
        "o_proj": (e.hidden_size.value, times(heads, value)),
    }


def optional(effective: Effective) -> dict[str, Shape]:
    """Return further tensors the engine accepts, whatever the flags say, with their shapes."""
    e = effective
    hidden, state = e.hidden_size.value, e.target_hidden_size.value
    states = e.num_aux_hidden_states.value
    shapes: dict[str, Shape] = {
        EMBEDDING: (e.vocab_size.value, hidden),
        HEAD: (e.draft_vocab_size.value, hidden),
        "input_norm.weight": (times(states, state),),
        "fc.bias": (hidden,),
    }
    shapes |= {f"fc_norm.{number}.weight": (state,) for number in range(states or 0)}
    for layer in range(e.num_hidden_layers.value or 0):
        shapes[f"layers.{layer}.self_attn.o_proj.bias"] = (hidden,)
        shapes[f"layers.{layer}.input_layernorm.weight"] = (hidden,)
    return shapes


def fits(shape: tuple[int, ...], wanted: Shape) -> bool:
    """Return whether a shape is the wanted one, open sizes aside."""
    return len(shape) == len(wanted) and all(
        w is None or s == w for s, w in zip(shape, wanted, strict=True)
    )


def plus(a: int | None, b: int | None) -> int | None:
    """Return a + b; None when one of them is open."""
    return None if a is None or b is None else a + b


def times(a: int | None, b: int | None) -> int | None:
    """Return a * b; None when one of them is open."""
    return None if a is None or b is None else a * b
