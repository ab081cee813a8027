"""What the engine will really use of a draft's config, each value with where it came from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from draftproof.checkpoint.boundaries import IDS_KEY, engine_boundaries
from draftproof.checkpoint.configuration import (
    Config,
    architecture,
    configured_dtype,
    eagle_config,
    number,
    size,
)
from draftproof.checkpoint.findings import plain
from draftproof.errors import InputError

T = TypeVar("T")
EXPLICIT, DEFAULT, OVERRIDDEN = "explicit", "default", "overridden by engine"
YARN_LIKE = {"llama3", "yarn", "longrope"}


@dataclass(frozen=True, slots=True)
class Value(Generic[T]):
    """A value, its origin (``explicit``, ``default`` or ``overridden by engine``) and a note for people."""

    value: T
    origin: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """The draft as the engine builds it; None stands where the config is no use (a rule says why)."""

    architecture: Value[str | None]
    algorithm: Value[str | None]  # what --speculative-algorithm must say
    hidden_size: Value[int | None]
    target_hidden_size: Value[int | None]  # width of one captured state, as the draft believes
    num_attention_heads: Value[int | None]
    num_key_value_heads: Value[int | None]
    head_dim: Value[int | None]
    latent: Value[
        Mapping[str, int | None] | None
    ]  # sizes of latent attention; None for heads of keys and values
    intermediate_size: Value[int | None]
    num_hidden_layers: Value[int | None]
    rms_norm_eps: Value[float]
    rope: Value[Mapping[str, Any]]
    norm_before_fc: Value[bool]
    fc_norm: Value[bool]
    norm_output: Value[bool]
    norm_before_residual: Value[bool]
    vocab_size: Value[int | None]
    draft_vocab_size: Value[int | None]
    vocabulary_map: Value[str]  # d2t or identity
    embedding_source: Value[str]  # target or draft
    head_source: Value[str]  # draft, target or embedding
    max_position_embeddings: Value[int | None]
    dtype: Value[str]
    num_aux_hidden_states: Value[int | None]
    boundaries: Value[list[int] | None]

    def as_json(self) -> dict[str, dict[str, Any]]:
        """Return {field: {value, origin, note?}} for validation.json."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: {"value": plain(value.value), "origin": value.origin}
            | ({"note": value.note} if value.note else {})
            for name, value in values.items()
        }


def derive(
    engine: str,
    reader: Mapping[str, Any],
    draft: Config,
    target: Config,
    tensors: Collection[str],
    algorithm: str | None,
) -> Effective:
    """Return what the engine makes of a flat draft config; `reader` is the part of its facts on the draft's class.

    `algorithm` is what it must be started with for the kind of checkpoint that the tensors are.

    Sources: models/llama_eagle3.py, models/llama.py and models/kimi_k25_eagle3.py of sglang, LlamaConfig and
    DeepseekV3Config of transformers.
    """
    read = _Reader(draft, reader["config_defaults"])
    latent = {key: read.size(key).value for key in reader["latent_sizes"]} or None
    hidden, heads = read.size("hidden_size"), read.size("num_attention_heads")
    kv_heads = read.size("num_key_value_heads", heads.value)
    divided = hidden.value // heads.value if hidden.value and heads.value else None
    vocab = read.size("vocab_size")
    draft_vocab, head = _vocabulary(draft, vocab, reader["needs_draft_vocab_size"])
    state = read.size("target_hidden_size", hidden.value)
    own_embedding = "target_hidden_size" in draft and state.value != hidden.value
    positions = read.size("max_position_embeddings")
    nested = eagle_config(draft)
    return Effective(
        architecture=Value(architecture(draft), EXPLICIT),
        algorithm=Value(algorithm, EXPLICIT, "--speculative-algorithm; told by the tensors"),
        hidden_size=hidden,
        target_hidden_size=state,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=_latent_head(latent) if latent else read.size("head_dim", divided),
        latent=Value(latent, EXPLICIT if latent else DEFAULT),
        intermediate_size=read.size("intermediate_size"),
        num_hidden_layers=read.size("num_hidden_layers"),
        rms_norm_eps=read.number("rms_norm_eps"),
        rope=rope_of(draft, float(reader["config_defaults"]["rope_theta"]), positions.value),
        norm_before_fc=_flag(nested if "norm_before_fc" in nested else draft, "norm_before_fc")
        if reader["norm_before_fc"]
        else Value(False, OVERRIDDEN, "this draft class has no norm before fc"),
        fc_norm=_flag(draft, "fc_norm", "use_aux_norm"),
        norm_output=_flag(draft, "norm_output"),
        norm_before_residual=_norm_before_residual(draft),
        vocab_size=vocab,
        draft_vocab_size=draft_vocab,
        vocabulary_map=Value("d2t", EXPLICIT, "offsets: target id = draft id + d2t")
        if any("d2t" in name for name in tensors)
        else Value("identity", DEFAULT, "no d2t: draft ids are taken as target ids"),
        embedding_source=Value("draft", EXPLICIT, "target_hidden_size differs from hidden_size")
        if own_embedding
        else Value("target", OVERRIDDEN if _has(tensors, "embed_tokens.weight") else DEFAULT),
        head_source=head,
        max_position_embeddings=positions,
        dtype=_dtype(draft),
        num_aux_hidden_states=_states(draft, reader),
        boundaries=_boundaries(engine, target, draft),
    )


def rope_of(
    config: Config, default_theta: float, positions: int | None
) -> Value[Mapping[str, Any]]:
    """Return {type, theta, scaling} after transformers' own rewriting (modeling_rope_utils.py).

    A truthy ``rope_scaling`` replaces ``rope_parameters``; theta comes from that block, else from the top level, else
    from the default. `scaling` holds the block's other keys, with the original length filled in where it is needed.
    """
    block = config.get("rope_scaling") or config.get("rope_parameters") or {}
    block = dict(block) if isinstance(block, Mapping) else {}
    kind = str(block.pop("rope_type", block.get("type", "default")))
    block.pop("type", None)
    theta = number(block, "rope_theta") or number(config, "rope_theta")
    block.pop("rope_theta", None)
    if kind in YARN_LIKE:
        outside = size(config, "original_max_position_embeddings")
        if outside:
            block["original_max_position_embeddings"] = outside
        block.setdefault("original_max_position_embeddings", positions)
    value = {"type": kind, "theta": theta or default_theta, "scaling": block or None}
    return Value(value, EXPLICIT if theta else DEFAULT)


class _Reader:
    """Keys of a config with their defaults."""

    def __init__(self, config: Config, defaults: Mapping[str, Any]) -> None:
        self._config, self._defaults = config, defaults

    def size(self, key: str, default: int | None = None) -> Value[int | None]:
        if self._config.get(key) is None:
            return Value(default or self._defaults.get(key), DEFAULT)
        return Value(size(self._config, key), EXPLICIT)

    def number(self, key: str) -> Value[float]:
        found = number(self._config, key)
        if found is None:
            return Value(float(self._defaults[key]), DEFAULT)
        return Value(found, EXPLICIT)


def _has(tensors: Collection[str], name: str) -> bool:
    return name in tensors or f"model.{name}" in tensors


def _flag(config: Config, *keys: str) -> Value[bool]:
    present = [key for key in keys if key in config]
    return Value(any(bool(config[key]) for key in present), EXPLICIT if present else DEFAULT)


def _norm_before_residual(config: Config) -> Value[bool]:
    if config.get("norm_before_residual") or eagle_config(config).get("norm_before_residual"):
        return Value(False, OVERRIDDEN, "the engine does not read this key")
    return Value(False, EXPLICIT if "norm_before_residual" in config else DEFAULT)


def _vocabulary(
    config: Config, vocab: Value[int | None], needed: bool
) -> tuple[Value[int | None], Value[str]]:
    """Return the draft vocabulary's size and where the head comes from (LlamaForCausalLMEagle3.__init__)."""
    tied = bool(config.get("tie_word_embeddings"))
    if "draft_vocab_size" not in config and needed:
        missing: Value[int | None] = Value(None, DEFAULT, "the engine fails without this key")
        return missing, Value("embedding" if tied else "draft", DEFAULT)
    if config.get("draft_vocab_size") is None:
        whole = Value(vocab.value, DEFAULT, "null: the target's vocabulary")
        return whole, Value("embedding" if tied else "target", DEFAULT)
    own = Value(size(config, "draft_vocab_size"), EXPLICIT)
    return own, Value("embedding", OVERRIDDEN) if tied else Value("draft", EXPLICIT)


def _dtype(config: Config) -> Value[str]:
    note = "the engine's --dtype goes first; its auto makes float16 of float32"
    found = configured_dtype(config)
    if isinstance(found, str):
        return Value(found, EXPLICIT, note)
    return Value("float32", DEFAULT, note)


def _latent_head(latent: Mapping[str, int | None]) -> Value[int | None]:
    plain, rotary = latent["qk_nope_head_dim"], latent["qk_rope_head_dim"]
    whole = None if plain is None or rotary is None else plain + rotary
    return Value(whole, EXPLICIT, "qk_nope_head_dim + qk_rope_head_dim")


def _states(config: Config, reader: Mapping[str, Any]) -> Value[int | None]:
    if reader["num_aux_hidden_states"] and config.get("num_aux_hidden_states") is not None:
        return Value(size(config, "num_aux_hidden_states"), EXPLICIT)
    places = [(eagle_config(config), f"eagle_config.{IDS_KEY}")]
    if reader["counts_top_level_ids"]:
        places.append((config, IDS_KEY))
    for place, key in places:
        ids = place.get(IDS_KEY)
        if isinstance(ids, list) and ids:
            return Value(len(ids), EXPLICIT, f"length of {key}")
    return Value(reader["states_without_ids"], DEFAULT)


def _boundaries(engine: str, target: Config, draft: Config) -> Value[list[int] | None]:
    try:
        boundaries, origin = engine_boundaries(engine, target, draft)
    except InputError as error:
        return Value(None, DEFAULT, str(error))
    return Value(list(boundaries), origin, "" if origin == EXPLICIT else "no ids in eagle_config")
