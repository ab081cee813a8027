"""Who wrote this draft, and is it an EAGLE-3 draft at all? Told by tensors and config, not by what it calls itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from draftproof.checkpoint.configuration import Config, architecture, eagle_config
from draftproof.checkpoint.safetensors_header import Tensor

SPECULATORS_KEYS = ("speculators_model_type", "speculators_config", "transformer_layer_config")
# Model-Optimizer writes its whole training config into eagle_config; nobody reads these.
MODELOPT_KEYS = {
    "use_input_layernorm_in_first_layer",
    "use_last_layernorm",
    "use_mtp_layernorm",
    "next_layer_regular",
    "parallel_draft_step",
}
MODELOPT_MEGATRON = "LlamaForCausalLMEagle3Deep"
NUMBERED_MIDLAYER = re.compile(r"midlayer\.(\d+)\.")
MTP = re.compile(r"(^|\.)(eh_proj|enorm|hnorm|shared_head|pre_fc_norm_\w+)\.|^mtp\.")
# Drafts of a block in one pass: named by their architecture or a block of config (models/dflash.py, models/dspark.py).
BLOCKWISE = ("dflash", "dspark")
# What a checkpoint that is no EAGLE-3 draft is instead, and what to do with it.
OTHERS = {
    "p-eagle": (
        "this is a P-EAGLE draft: it drafts several tokens in one pass, which the engine cannot",
        "Serve it with vLLM, or train an EAGLE-3 draft.",
    ),
    "eagle1": (
        "this is an EAGLE-1 or EAGLE-2 draft: its fc merges one hidden state with the embedding",
        "Serve it with --speculative-algorithm EAGLE; this version checks EAGLE-3 drafts.",
    ),
    "mtp": (
        "these are MTP layers, which belong to their own target",
        "Serve them with --speculative-algorithm NEXTN; this version checks EAGLE-3 drafts.",
    ),
    "dflash": (
        "this is a DFlash draft: it drafts a block of tokens in one pass",
        "Serve it with --speculative-algorithm DFLASH; this version checks EAGLE-3 drafts.",
    ),
    "dspark": (
        "this is a DSpark draft: it drafts a block of tokens in one pass",
        "Serve it with --speculative-algorithm DSPARK; this version checks EAGLE-3 drafts.",
    ),
    "plain": (
        "this is a whole model, no draft: nothing in it merges hidden states of a target",
        "Give the draft's folder, not the target's; a small model drafts with STANDALONE.",
    ),
    "unknown": (
        "this is no EAGLE-3 draft: it has neither fc.weight nor a hidden_norm in its first layer",
        "Give the draft's folder, not the target's.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """``name`` of the writer, or of what the checkpoint is instead. ``eagle3``: its tensors are an EAGLE-3 draft's."""

    name: str
    eagle3: bool


def recognise(config: Config, tensors: Mapping[str, Tensor], known_architecture: bool) -> Dialect:
    """Return the dialect: sglang, eagle, specforge, speculators, modelopt, or a name of `OTHERS`."""
    named = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    if _parallel(config, named):
        return Dialect(name="p-eagle", eagle3=False)
    if any(key in config for key in SPECULATORS_KEYS):
        if _merges_states(named) or known_architecture:
            return Dialect(name="speculators", eagle3=True)
        return Dialect(name=_other(config, named), eagle3=False)
    if not known_architecture and not _merges_states(named):
        return Dialect(name=_other(config, named), eagle3=False)
    return Dialect(name=_writer(config, named, known_architecture), eagle3=True)


def _writer(config: Config, named: Mapping[str, Tensor], known_architecture: bool) -> str:
    midlayer = any(name.startswith("midlayer.") for name in named)
    if (
        MODELOPT_KEYS & set(eagle_config(config))
        or architecture(config) == MODELOPT_MEGATRON
        or any(NUMBERED_MIDLAYER.match(name) for name in named)
    ):
        return "modelopt"
    if not known_architecture:
        return "eagle" if midlayer else "unknown"
    if midlayer and {"d2t", "t2d"} <= set(named) and "transformers_version" in config:
        return "specforge"
    return "sglang"


def _parallel(config: Config, named: Mapping[str, Tensor]) -> bool:
    steps = eagle_config(config).get("parallel_draft_step")
    return (
        "mask_hidden" in named
        or config.get("speculators_model_type") == "peagle"
        or "peagle" in (architecture(config) or "").lower()
        or (type(steps) is int and steps > 1)
    )


def _merges_states(named: Mapping[str, Tensor]) -> bool:
    """Return whether the first layer sees embedding and hidden state side by side, as only EAGLE-3's does."""
    first = {name for name in named if name.startswith(("midlayer.", "layers.0."))}
    if any(name.endswith(".hidden_norm.weight") for name in first):
        return True
    fc = named.get("fc.weight")
    if fc is None or len(fc.shape) != 2:
        return False
    queries = ("self_attn.q_proj.weight", "self_attn.q_a_proj.weight")
    return any(
        name.endswith(queries) and named[name].shape[1:] == (2 * fc.shape[0],) for name in first
    )


def _other(config: Config, named: Mapping[str, Tensor]) -> str:
    labels = (architecture(config), config.get("speculators_model_type"))
    for name in BLOCKWISE:
        if f"{name}_config" in config or any(name in str(label).lower() for label in labels):
            return name
    if any(MTP.search(name) for name in named):
        return "mtp"
    if not any(name.startswith("layers.0.") for name in named):
        return "unknown"
    if "fc.weight" in named:
        return "eagle1"
    return "plain" if {"embed_tokens.weight", "norm.weight"} & set(named) else "unknown"
