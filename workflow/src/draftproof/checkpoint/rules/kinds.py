"""Rules on the kind of each value in the draft's config.json: what is refused, and what is read as garbage."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from draftproof.checkpoint.configuration import (
    FLAGS,
    SIZES,
    Config,
    configured_dtype,
    is_size,
)
from draftproof.checkpoint.findings import Fault, rule
from draftproof.checkpoint.pair import Pair

MOST = 2**63
WIDE = ("float32", "float")
STRICT = "transformers configuration_llama.py, LlamaConfig (strict types)"
# Blocks, with what the engine or transformers takes in their place: a false value, or only null.
BLOCKS = {
    "rope_scaling": "false",
    "rope_parameters": "null",
    "eagle_config": "false",
    "quantization_config": "null",
}


@rule("config.model-type", "error", "transformers AutoConfig; utils/hf_transformers/config.py")
def model_type(pair: Pair) -> Iterator[Fault]:
    """model_type is missing, or none that transformers or the engine knows, so the config cannot be read."""
    found = pair.draft.get("model_type")
    if not pair.dialect.eagle3 or _is_one_of(found, pair.facts["model_types"]):
        return
    right = "deepseek_v3" if pair.effective.latent.value else "llama"
    yield Fault(
        subject="model_type",
        message=f"model_type is {shown(found)}, which the engine cannot read the config by"
        if found
        else "model_type is missing; the engine cannot read the config without it",
        evidence={"model_type": found},
        fix=f'Write "model_type": "{right}".',
    )


@rule(
    "config.dtype", "error", "transformers configuration_utils.py, PreTrainedConfig.__post_init__"
)
def dtype(pair: Pair) -> Iterator[Fault]:
    """The dtype is none that the engine can serve in, or not called as torch calls it."""
    found, known = configured_dtype(pair.draft), pair.facts["auto_dtypes"]
    if pair.dialect.eagle3 and found is not None and not _is_one_of(found, known):
        key = "torch_dtype" if pair.draft.get("dtype") is None else "dtype"
        yield Fault(
            subject=key,
            message=f"{key} is {shown(found)}, which the engine cannot serve in",
            evidence={key: found, "known": sorted(known)},
            fix=f'Write "{key}": "bfloat16", or what the draft was trained in.',
        )


@rule(
    "config.dtype-differs",
    "warning",
    "configs/model_config.py, _get_and_verify_dtype; models/llama_eagle3.py: fc multiplies the target's states",
    layout=True,
)
def dtype_differs(pair: Pair) -> Iterator[Fault]:
    """Left to itself (--dtype auto), the engine serves the draft in another dtype than the target, and fails on the first product."""
    known = pair.facts["auto_dtypes"]
    named = configured_dtype(pair.target) or configured_dtype(pair.target_text)
    # A target of 32 bits, or of a dtype unsaid, is served with a --dtype given.
    target = known[named] if _is_one_of(named, known) and named not in WIDE else None
    own = known.get(pair.effective.dtype.value)
    if target and own and own != target:
        yield Fault(
            subject="torch_dtype",
            message=f"by their configs the target is served in {target}, the draft in {own}: the engine cannot mix them",
            evidence={"draft": own, "target": target, "draft's config": pair.effective.dtype.value},
            fix=f'Serve with --dtype {target}, or write "torch_dtype": "{target}" in the draft\'s config.',
        )


@rule("config.not-a-block", "error", f"{STRICT}; models/llama_eagle3.py, LlamaModel", layout=True)
def not_a_block(pair: Pair) -> Iterator[Fault]:
    """Something else stands where a block of keys is read: rotary positions, eagle_config, quantisation."""
    for key, allowed in BLOCKS.items():
        found = pair.draft.get(key)
        passes = found is None or (allowed == "false" and not found)
        if not passes and not isinstance(found, dict):
            yield Fault(
                subject=key,
                message=f"{key} is {shown(found)}, where a block in braces is read",
                evidence={key: found},
                fix="Write the block the draft was trained with, or remove the key.",
            )


@rule("config.null", "error", STRICT, layout=True)
def null(pair: Pair) -> Iterator[Fault]:
    """A key is null whose absence would be a default."""
    for key in pair.reader["never_null"]:
        if key in pair.draft and pair.draft[key] is None:
            yield Fault(
                subject=key,
                message=f"{key} is null; the config is refused",
                fix="Write the value the draft was trained with, or remove the key for the default.",
            )


@rule("config.not-a-size", "error", STRICT, layout=True)
def not_a_size(pair: Pair) -> Iterator[Fault]:
    """A size is no positive whole number."""
    for key in (*SIZES, *pair.reader["latent_sizes"]):
        value = pair.draft.get(key)
        if value is not None and not is_size(value, key):
            yield Fault(
                subject=key,
                message=f"{key} is {shown(value)}, not a positive whole number",
                evidence={key: value},
                fix="Write the number the weights have.",
            )


@rule("config.not-a-flag", "error", STRICT, layout=True)
def not_a_flag(pair: Pair) -> Iterator[Fault]:
    """A switch is neither true nor false."""
    for key in FLAGS:
        value = pair.draft.get(key)
        if value is not None and not isinstance(value, bool):
            yield Fault(
                subject=key,
                message=f"{key} is {shown(value)}, not true or false",
                evidence={key: value},
                fix="Write true or false.",
            )


@rule(
    "config.not-a-number",
    "error",
    f"{STRICT}; layers/layernorm.py, RMSNorm (an endless eps makes zeros); models/llama.py, LlamaAttention",
    layout=True,
)
def not_a_number(pair: Pair) -> Iterator[Fault]:
    """A number is none, is endless or below zero, or is whole where a fraction is wanted: the config is refused, or every norm gives zeros."""
    for key, wanted in _unlike_numbers(pair.draft):
        yield Fault(
            subject=key,
            message=f"{key} is {shown(pair.draft[key])}, not {wanted}",
            evidence={key: pair.draft[key]},
            fix="Write the value the draft was trained with.",
        )


def _unlike_numbers(config: Config) -> Iterator[tuple[str, str]]:
    """Yield keys whose value is not the number it must be, with what is wanted; null has a rule of its own."""
    for key, most in (("rms_norm_eps", math.inf), ("initializer_range", 1.0)):
        value = config.get(key)
        fits = type(value) is float and math.isfinite(value) and 0 <= value <= most
        if value is not None and not fits:
            yield key, "a small fraction such as 1e-6 (written with a point or an e)"
    if config.get("attention_dropout") is not None and not is_number(config["attention_dropout"]):
        yield "attention_dropout", "a number"
    if "partial_rotary_factor" in config:
        share = config["partial_rotary_factor"]
        if not is_number(share) or not 0 < share <= 1:
            yield "partial_rotary_factor", "a number above 0 and up to 1"


@rule("config.not-a-token-id", "error", STRICT, layout=True)
def not_a_token_id(pair: Pair) -> Iterator[Fault]:
    """The id of a special token is no whole number (for the end of text also a list of them)."""
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = pair.draft.get(key)
        each = value if key == "eos_token_id" and isinstance(value, list) else [value]
        if value is not None and any(type(one) is not int for one in each):
            yield Fault(
                subject=key,
                message=f"{key} is {shown(value)}, not a whole number",
                evidence={key: value},
                fix="Write the target's, or remove the key.",
            )


@rule(
    "config.layer-types", "error", "transformers PreTrainedConfig.validate_layer_type", layout=True
)
def layer_types(pair: Pair) -> Iterator[Fault]:
    """layer_types does not name one known kind per layer, as when it was copied from the target."""
    kinds, count = pair.draft.get("layer_types"), pair.effective.num_hidden_layers.value
    if kinds is None:
        return
    named = isinstance(kinds, list)
    if named and count and len(kinds) != count:
        message = f"layer_types names {len(kinds)} layers, the draft has {count}"
    elif not named or not all(_is_one_of(kind, pair.facts["layer_types"]) for kind in kinds):
        message = f"layer_types is {shown(kinds)}, not a list of kinds that are known"
    else:
        return
    yield Fault(
        subject="layer_types",
        message=f"{message}: the config is refused",
        evidence={
            "layer_types": kinds[:8] if named else kinds,
            "num_hidden_layers": count,
            "known": pair.facts["layer_types"],
        },
        fix="Leave out what was copied from the target, or name the draft's own layers.",
    )


def shown(value: object) -> str:
    """Return a value from a config, short enough for a message."""
    return repr(str(value)[:60])


def is_number(value: object) -> bool:
    """Return whether a value is a number that a model can have."""
    if isinstance(value, float):
        return math.isfinite(value)
    return type(value) is int and abs(value) < MOST


def _is_one_of(value: object, names: Any) -> bool:
    return isinstance(value, str) and value in names
