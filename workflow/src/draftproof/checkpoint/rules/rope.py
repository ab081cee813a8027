"""Rules on rotary positions and context length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from draftproof.checkpoint.configuration import Config, context_length, size
from draftproof.checkpoint.effective import rope_of
from draftproof.checkpoint.findings import Fault, rule
from draftproof.checkpoint.pair import Pair
from draftproof.checkpoint.rules.kinds import is_number, shown

READ = "transformers/modeling_rope_utils.py; sglang models/llama.py, LlamaDecoderLayer.__init__"
EAGLE_THETA = 10000.0
LISTS = ("short_factor", "long_factor")
OPTIONAL = (
    "original_max_position_embeddings",
    "attention_factor",
    "attn_factor",
    "beta_fast",
    "beta_slow",
    "extrapolation_factor",
)
KEYS = ("rope_theta", "rope_parameters", "rope_scaling")


@rule("rope.type", "error", "layers/rotary_embedding/factory.py, get_rope", layout=True)
def kind(pair: Pair) -> Iterator[Fault]:
    """The engine knows no rotary scaling of this name."""
    known = pair.reader["rope_types"]
    if pair.effective.rope.value["type"] not in known:
        yield Fault(
            subject="rope",
            message=f"the engine knows no rope type {pair.effective.rope.value['type'][:60]!r}",
            evidence={"known": known},
            fix="Write the type the draft was trained with.",
        )


@rule("rope.theta", "error", f"{READ}; layers/rotary_embedding/base.py", layout=True)
def theta(pair: Pair) -> Iterator[Fault]:
    """rope_theta is no number above zero: the engine fails on it, or every angle becomes NaN."""
    found = _written_theta(pair.draft)
    if found is not None:
        key, value = found
        if not is_number(value) or value <= 0:
            yield Fault(
                subject=key,
                message=f"{key} is {shown(value)}, not a number above zero",
                evidence={key: value},
                fix="Write the theta the draft was trained with.",
            )


@rule(
    "rope.numbers",
    "error",
    "transformers/modeling_rope_utils.py, validate_rope; layers/rotary_embedding/factory.py, get_rope",
    layout=True,
)
def numbers(pair: Pair) -> Iterator[Fault]:
    """A rotary scaling lacks a number it needs, or has something else in its place: the engine fails or computes NaN."""
    rope = pair.effective.rope.value
    block, needed = rope["scaling"] or {}, pair.facts["rope_needs"].get(rope["type"], [])
    for key in (*needed, *(key for key in OPTIONAL if block.get(key) is not None)):
        value = block.get(key)
        wanted = "a list of numbers above zero" if key in LISTS else "a number above zero"
        if not _above_zero(value if key in LISTS else [value]):
            yield Fault(
                subject=f"rope_scaling.{key}",
                message=f"{key} of rope type {rope['type'][:20]} is {shown(value)}, not {wanted}"
                if key in block
                else f"rope type {rope['type'][:20]} needs {key}, which is missing",
                evidence={"rope": block, "needed": needed},
                fix="Write the scaling the draft was trained with.",
            )


def _above_zero(values: object) -> bool:
    return (
        isinstance(values, list)
        and len(values) > 0
        and all(is_number(value) and value > 0 for value in values)
    )


def _written_theta(config: Config) -> tuple[str, Any] | None:
    """Return the key and value that theta is taken from, or None when the config leaves it to the default."""
    block = config.get("rope_scaling") or config.get("rope_parameters")
    for place in (block, config):
        if isinstance(place, Mapping) and "rope_theta" in place:
            return "rope_theta" if place is config else "rope_parameters.rope_theta", place[
                "rope_theta"
            ]
    return None


@rule("rope.missing", "warning", READ, layout=True)
def missing(pair: Pair) -> Iterator[Fault]:
    """The draft says nothing of rotary positions, so the engine uses theta 10000, while the target has another."""
    target, used = _targets(pair), pair.effective.rope.value
    if target and not any(pair.draft.get(key) for key in KEYS) and target["theta"] != used["theta"]:
        yield Fault(
            subject="rope_theta",
            message=f"rope_theta is missing: the engine uses {used['theta']:g}, the target has {target['theta']:g}",
            evidence={"used": used, "target": target},
            fix="Right if the draft was trained so; else write the theta of its training.",
        )


@rule("rope.differs", "warning", READ, layout=True)
def differs(pair: Pair) -> Iterator[Fault]:
    """The draft's rotary positions are not the target's."""
    target, used = _targets(pair), pair.effective.rope.value
    if target and any(pair.draft.get(key) for key in KEYS) and dict(target) != dict(used):
        yield Fault(
            subject="rope",
            message=f"rope of the draft ({_short(used)}) is not the target's ({_short(target)})",
            evidence={"used": used, "target": target},
            fix="Right if the draft was trained so; else write what it was trained with.",
        )


@rule(
    "rope.eagle-training",
    "warning",
    "EAGLE's training builds its rotary positions with base 10000, whatever the config says",
    layout=True,
)
def eagle_training(pair: Pair) -> Iterator[Fault]:
    """EAGLE's own training ignores rope_theta, so a config that names another than 10000 changes serving alone."""
    theta = pair.effective.rope.value["theta"]
    if pair.dialect.name == "eagle" and theta != EAGLE_THETA:
        yield Fault(
            subject="rope_theta",
            message=f"the engine uses rope_theta {theta:g}; EAGLE's own training uses {EAGLE_THETA:g} whatever the config says",
            evidence={"rope_theta": theta},
            fix='If EAGLE\'s code trained it, write "rope_theta": 10000.',
        )


@rule(
    "target.context-length",
    "warning",
    "configs/model_config.py, _derive_context_length",
    layout=True,
)
def too_short(pair: Pair) -> Iterator[Fault]:
    """The draft's context is shorter than the target's; the engine refuses to start as it is."""
    keys = pair.facts["context_length_keys"]
    whole = dict(pair.reader["config_defaults"])
    defaulted = {"max_position_embeddings": whole["max_position_embeddings"], **pair.draft}
    own = context_length(defaulted, keys, pair.effective.rope.value)
    target = context_length(pair.target_text, keys, _rope(pair.target_text))
    if own and target and own < target:
        yield Fault(
            subject="max_position_embeddings",
            message=f"the draft's context is {own} tokens, the target's {target}: the engine does not start",
            evidence={"draft": own, "target": target},
            fix=f"Serve with context-length {own}, or raise max_position_embeddings if its rope allows, or set"
            " SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1.",
        )


def _rope(config: Config) -> Mapping[str, Any]:
    return rope_of(config, 0.0, size(config, "max_position_embeddings")).value


def _targets(pair: Pair) -> Mapping[str, Any] | None:
    """Return the target's rope, or None when its config leaves theta to a default that is not known here."""
    found = _rope(pair.target_text)
    return found if found["theta"] else None


def _short(rope: Mapping[str, Any]) -> str:
    factor = (rope["scaling"] or {}).get("factor")
    return f"{rope['type'][:20]}, theta {rope['theta']:g}" + (
        f", factor {factor}" if factor else ""
    )
