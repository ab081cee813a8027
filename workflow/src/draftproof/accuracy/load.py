"""Build a Draft from checkpoint files, or say in one line why this draft cannot be scored."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from draftproof.accuracy.draft import Draft
from draftproof.accuracy.layer import Heads, Latent, Layer
from draftproof.accuracy.rotary import rotary_of
from draftproof.checkpoint.layout import EMBEDDING, FC, HEAD, MAP, fits, optional, required
from draftproof.checkpoint.pair import Pair
from draftproof.checkpoint.weights import open_weights, read_tensor
from draftproof.errors import InputError

ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM")
VALIDATE = "Run draftproof validate for the reason and the fix."


Vocabulary = Callable[[Pair, int, int], Tensor]


def load_draft(pair: Pair, mapped: Vocabulary | None = None) -> Draft:
    """Return the draft as the engine builds it, in float32; `mapped` makes its vocabulary map in another way.

    Raises InputError for other kinds of drafts, missing or misshapen tensors, and sizes that the config leaves open.
    """
    refuse_other_kinds(pair)
    weights = own_weights(pair)
    embedding = embedding_of(pair, weights)
    head = head_of(pair, weights, embedding)
    to_target = (mapped or vocabulary)(pair, len(head), len(embedding))
    return assembled(pair, weights, embedding, head.float(), to_target)


def assembled(
    pair: Pair,
    weights: Mapping[str, Tensor],
    embedding: Tensor,
    head: Tensor,
    to_target: Tensor,
) -> Draft:
    """Return the draft of these weights with the sizes and flags of the pair's config."""
    effective = pair.effective
    return Draft(
        weights=weights,
        layers=tuple(
            layer_of(pair, weights, number) for number in range(positive(pair, "num_hidden_layers"))
        ),
        embedding=embedding,
        head=head,
        to_target=to_target,
        hidden_size=positive(pair, "hidden_size"),
        eps=effective.rms_norm_eps.value,
        norm_before_fc=effective.norm_before_fc.value,
        fc_norm=effective.fc_norm.value,
        norm_output=effective.norm_output.value,
    )


def layer_of(pair: Pair, weights: Mapping[str, Tensor], number: int) -> Layer:
    """Return one layer, with its weights by their names below ``layers.<number>``."""
    prefix, eps = f"layers.{number}.", pair.effective.rms_norm_eps.value
    own = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
    inner = {k.removeprefix("self_attn."): v for k, v in own.items() if k.startswith("self_attn.")}
    make = latent_of if pair.effective.latent.value else heads_of
    return Layer(weights=own, attention=make(pair, inner), eps=eps, first=number == 0)


def heads_of(pair: Pair, weights: Mapping[str, Tensor]) -> Heads:
    """Return grouped-query attention."""
    heads, head_dim = positive(pair, "num_attention_heads"), positive(pair, "head_dim")
    return Heads(
        weights=weights,
        rotary=rotary_of(
            pair.effective.rope.value,
            hidden_size=positive(pair, "hidden_size"),
            heads=heads,
            head_dim=head_dim,
            positions=positive(pair, "max_position_embeddings"),
            interleaved=not pair.draft.get("rope_is_neox_style", True),
        ),
        heads=heads,
        kv_heads=positive(pair, "num_key_value_heads"),
        head_dim=head_dim,
    )


def latent_of(pair: Pair, weights: Mapping[str, Tensor]) -> Latent:
    """Return latent attention; any scaling of positions is YaRN with DeepSeek's two factors (models/deepseek_v2.py)."""
    sizes, heads = pair.effective.latent.value or {}, positive(pair, "num_attention_heads")
    if missing := [key for key, size in sizes.items() if size is None]:
        raise InputError(f"{missing[0]} is missing or no size", where(pair), VALIDATE)
    nope, rope = int(sizes["qk_nope_head_dim"] or 0), int(sizes["qk_rope_head_dim"] or 0)
    positions, scale = dict(pair.effective.rope.value), float((nope + rope) ** -0.5)
    if positions["type"] != "default":
        scaling, all_dimensions = deepseek_yarn(positions["scaling"] or {})
        positions |= {"type": "yarn", "scaling": scaling}
        scale *= all_dimensions**2
    return Latent(
        weights=weights,
        rotary=rotary_of(
            positions,
            hidden_size=positive(pair, "hidden_size"),
            heads=heads,
            head_dim=rope,
            positions=positive(pair, "max_position_embeddings"),
            interleaved=bool(pair.draft.get("rope_interleave", True)),
        ),
        heads=heads,
        nope=nope,
        rope=rope,
        eps=pair.effective.rms_norm_eps.value,
        scale=scale,
    )


def deepseek_yarn(scaling: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """Return YaRN's parameters with the factor of sine and cosine written out, and the one whose square scales scores.

    Source: layers/rotary_embedding (DeepseekScalingRotaryEmbedding), compute_mla_mscale_scaling of sglang 0.5.23.
    """

    def grown(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    factor = float(scaling.get("factor") or 1.0)
    own = grown(float(scaling.get("mscale", 1)))
    all_dimensions = grown(float(scaling.get("mscale_all_dim", 0)))
    attention_factor = own / all_dimensions * float(scaling.get("attn_factor", 1))
    read = {k: v for k, v in scaling.items() if k not in {"mscale", "mscale_all_dim"}}
    return read | {"factor": factor, "attention_factor": attention_factor}, all_dimensions


def boundaries_of(pair: Pair) -> tuple[int, ...]:
    """Return the boundaries that the engine feeds this draft; raises InputError when it cannot feed it."""
    found, states = pair.effective.boundaries, pair.effective.num_aux_hidden_states.value
    if not found.value:
        raise InputError(f"its boundaries are unknown ({found.note})", where(pair), VALIDATE)
    if len(found.value) != states:
        raise InputError(
            f"the engine captures {len(found.value)} boundaries {found.value}, fc takes {states}",
            where(pair),
            VALIDATE,
        )
    return tuple(found.value)


def refuse_other_kinds(pair: Pair) -> None:
    """Raise InputError for drafts that accuracy cannot compute yet."""
    effective = pair.effective
    if effective.architecture.value not in ARCHITECTURES:
        raise InputError(
            f"accuracy computes {' and '.join(ARCHITECTURES)} drafts, this one is {effective.architecture.value}",
            where(pair),
            VALIDATE,
        )
    if pair.draft.get("hidden_act", "silu") != "silu":
        raise InputError(
            f"hidden_act is {pair.draft['hidden_act']!r}, the engine has silu only", where(pair)
        )


def own_weights(pair: Pair) -> dict[str, Tensor]:
    """Return the draft's own tensors by the engine's names, in float32.

    A norm that is missing is ones, as in the engine. A missing matrix would be whatever is in memory there: InputError.
    """
    wanted = {k: v for k, v in required(pair.effective).items() if k not in {EMBEDDING, HEAD}}
    allowed = {k: v for k, v in optional(pair.effective).items() if k not in {EMBEDDING, HEAD}}
    if not pair.draft.get("bias"):
        allowed.pop("fc.bias", None)
    if not pair.draft.get("attention_bias"):
        allowed = {k: v for k, v in allowed.items() if not k.endswith("o_proj.bias")}
    skipped_fc = wanted[FC][1] == pair.effective.hidden_size.value
    weights: dict[str, Tensor] = {}
    for name, shape in (allowed | wanted).items():
        stored = pair.tensor(name)
        if stored is not None:
            if not fits(stored.shape, shape):
                raise InputError(
                    f"{stored.name} is {list(stored.shape)}, the config asks for {list(shape)}",
                    where(pair),
                    VALIDATE,
                )
            weights[name] = read_tensor(stored).float()
        elif "norm" in name:
            weights[name] = torch.ones(math.prod(size or 0 for size in shape))
        elif name in wanted and not (name == FC and skipped_fc):
            raise InputError(f"the tensor {name} is missing", where(pair), VALIDATE)
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{name} holds NaN or infinity", where(pair), VALIDATE)
    return weights


def embedding_of(pair: Pair, weights: dict[str, Tensor]) -> Tensor:
    """Return the embedding [V, H] that the engine uses: the target's, unless target_hidden_size differs."""
    if pair.effective.embedding_source.value == "draft":
        found = own(pair, EMBEDDING)
    else:
        found = of_target(pair, EMBEDDING)
    hidden = weights["norm.weight"].shape[0]
    if found.ndim != 2 or found.shape[1] != hidden:
        raise InputError(
            f"the embedding is {list(found.shape)}, the draft's hidden size is {hidden}",
            where(pair),
            VALIDATE,
        )
    return found


def head_of(pair: Pair, weights: dict[str, Tensor], embedding: Tensor) -> Tensor:
    """Return the head [Vd, H] that the engine uses: the draft's, the target's, or the embedding (tied)."""
    source = pair.effective.head_source.value
    if source == "embedding" or (
        source == "target" and pair.target_text.get("tie_word_embeddings")
    ):
        return embedding
    found = own(pair, HEAD) if source == "draft" else of_target(pair, HEAD)
    if found.ndim != 2 or found.shape[1] != weights["norm.weight"].shape[0]:
        raise InputError(f"lm_head is {list(found.shape)}", where(pair), VALIDATE)
    return found


def vocabulary(pair: Pair, draft_vocab: int, vocab: int) -> Tensor:
    """Return int64 [Vd]: the target id of each draft id; d2t holds offsets (llama_eagle3.py, load_weights)."""
    ids = torch.arange(draft_vocab)
    offsets = stored_map(pair, draft_vocab)
    return inside(pair, ids if offsets is None else ids + offsets, vocab)


def absolute_vocabulary(pair: Pair, draft_vocab: int, vocab: int) -> Tensor:
    """Return int64 [Vd] from a d2t that holds target ids; raises InputError when there is none or it cannot."""
    ids = stored_map(pair, draft_vocab)
    if ids is None:
        raise InputError("the draft has no d2t", where(pair))
    return inside(pair, ids, vocab)


def stored_map(pair: Pair, draft_vocab: int) -> Tensor | None:
    """Return d2t as it is stored, int64 [Vd], or None; raises InputError when its length is another."""
    stored = pair.tensor(MAP)
    if stored is None:
        return None
    found = read_tensor(stored).long()
    if found.shape != (draft_vocab,):
        raise InputError(
            f"d2t has {list(found.shape)} entries for {draft_vocab} draft tokens",
            where(pair),
            VALIDATE,
        )
    return found


def inside(pair: Pair, ids: Tensor, vocab: int) -> Tensor:
    """Return ids that are all the target's; raises InputError when they are not."""
    if int(ids.min()) < 0 or int(ids.max()) >= vocab:
        raise InputError(
            f"d2t leads to ids {int(ids.min())} to {int(ids.max())}; the target has {vocab}",
            where(pair),
            VALIDATE,
        )
    return ids


def own(pair: Pair, name: str) -> Tensor:
    """Return one of the draft's tensors; raises InputError when it is missing."""
    stored = pair.tensor(name)
    if stored is None:
        raise InputError(f"the tensor {name} is missing", where(pair), VALIDATE)
    return read_tensor(stored)


def of_target(pair: Pair, name: str) -> Tensor:
    """Return the target's embedding or head, found by the end of its name; raises InputError when there is not one."""
    tensors = open_weights(pair.target_path).tensors
    found = [t for t in tensors.values() if t.name == name or t.name.endswith("." + name)]
    if len(found) != 1:
        raise InputError(
            f"the target holds {len(found) or 'no'} tensors named {name}", str(pair.target_path)
        )
    if found[0].dtype not in {"F32", "BF16", "F16", "F64"}:
        raise InputError(
            f"the target's {found[0].name} is stored as {found[0].dtype}, quantised",
            str(pair.target_path),
            "Use a checkpoint whose embedding and head are not quantised.",
        )
    return read_tensor(found[0])


def positive(pair: Pair, name: str) -> int:
    """Return a size of the effective draft; raises InputError when the config leaves it open."""
    value: Any = getattr(pair.effective, name).value
    if value is None:
        raise InputError(f"{name} is missing or no size", where(pair), VALIDATE)
    return int(value)


def where(pair: Pair) -> str:
    """Return the draft's path for messages."""
    return str(pair.draft_path)
