"""Which hidden states the engine takes from the target: its layer ids turned into boundaries, and back.

Boundary b is the residual stream entering layer b (Hugging Face ``hidden_states[b]`` for b < N). What an id means to
the engine depends on the target's family; the families stand in engines/<engine>/checkpoint.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftproof.checkpoint.configuration import architecture, size
from draftproof.engines import facts
from draftproof.errors import InputError

IDS_KEY = "eagle_aux_hidden_state_layer_ids"
# Where multimodal configs keep the language model's own settings.
TEXT_CONFIG_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a target's config that describes its language model."""
    while nested := [config[k] for k in TEXT_CONFIG_KEYS if isinstance(config.get(k), Mapping)]:
        config = nested[0]
    return config


def layer_count(target_config: Mapping[str, Any]) -> int:
    """Return the target's number of layers; raises InputError when its config does not say."""
    count = size(text_config(target_config), "num_hidden_layers")
    if count is None:
        raise InputError("num_hidden_layers is missing or no number of layers", "target config")
    return count


def target_architecture(target_config: Mapping[str, Any]) -> str:
    """Return the target's architecture; raises InputError when its config names none."""
    name = architecture(target_config)
    if name is None:
        raise InputError("the key architectures is missing or empty", "target config")
    return name


def target_facts(engine: str, target: str) -> Mapping[str, Any]:
    """Return what the engine does for this target: rule, default_shift, captures_last, source.

    Raises InputError when the engine cannot hand out this target's hidden states.
    """
    known: Mapping[str, Mapping[str, Any]] = facts(engine, "checkpoint")["targets"]
    if target not in known:
        raise InputError(
            f"{engine} captures no hidden states for EAGLE-3 from the target architecture {target}",
            "target config",
            "Use a target of a supported architecture: see targets in engines/sglang/checkpoint.yaml.",
        )
    return known[target]


def boundaries_of_ids(
    engine: str, architecture: str, ids: Sequence[int], num_layers: int
) -> list[int]:
    """Return the boundary that each id means to the engine, in the order of the ids, out of range or not."""
    rule = target_facts(engine, architecture)["rule"]
    match rule:
        case "plus_one":
            shift = 1
        case "deepseek":
            shift = 1 if ids and ids[0] == 1 else 0
        case "gpt_oss":
            shift = 0 if ids and max(ids) == num_layers else 1
        case _:
            raise ValueError(f"unknown boundary rule {rule!r} for {architecture}")
    return [number + shift for number in ids]


def engine_ids(engine: str, target_architecture: str, boundaries: Sequence[int]) -> list[int]:
    """Return the ids for ``eagle_config`` that make the engine capture these boundaries.

    Raises InputError when no list of ids can say it.
    """
    wanted = sorted(set(boundaries))
    if target_facts(engine, target_architecture)["rule"] != "deepseek":
        return [boundary - 1 for boundary in wanted]
    # A list that starts with 1 would be shifted. Its order is free, so another id goes first.
    if wanted[:1] == [1]:
        if len(wanted) == 1:
            raise InputError("boundary 1 alone cannot be expressed for this target", "boundaries")
        return [*wanted[1:], 1]
    return wanted


def default_boundaries(engine: str, target_architecture: str, num_layers: int) -> tuple[int, ...]:
    """Return the boundaries the engine uses when the draft names none: 2, N//2, N-3 for most targets.

    On a small target they can repeat or leave the range; the engine does not check.
    """
    shift = int(target_facts(engine, target_architecture).get("default_shift", 0))
    terms: Sequence[Mapping[str, float]] = facts(engine, "checkpoint")["default_boundaries"]
    return tuple(int(num_layers * term["times"]) + int(term["plus"]) + shift for term in terms)


def trainers_boundaries(num_layers: int) -> tuple[int, ...]:
    """Return what every trainer captures when nobody says otherwise: eagle3_format.md 4.3."""
    return (2, num_layers // 2, num_layers - 3)


def configured_ids(draft_config: Mapping[str, Any]) -> list[int] | None:
    """Return the ids the engine reads from the draft's config, or None where it falls back to its defaults.

    Only the list inside ``eagle_config`` counts. Raises InputError when it is no list of whole numbers.
    """
    nested = draft_config.get("eagle_config")
    ids = nested.get(IDS_KEY) if isinstance(nested, Mapping) else None
    if ids is None:
        return None
    if not isinstance(ids, list) or any(type(number) is not int for number in ids):
        raise InputError(
            f"eagle_config.{IDS_KEY} is no list of whole numbers",
            "draft config",
            "Write [1, 14, 26].",
        )
    return ids


def engine_boundaries(
    engine: str, target_config: Mapping[str, Any], draft_config: Mapping[str, Any]
) -> tuple[tuple[int, ...], str]:
    """Return the boundaries the engine captures, ascending, and their origin: ``explicit`` or ``default``.

    A boundary named twice is captured once. Boundaries outside the target stay in the list: the checkpoint's rules
    report them. Raises InputError for a target or a draft config that the engine cannot use.
    """
    architecture, layers = target_architecture(target_config), layer_count(target_config)
    ids = configured_ids(draft_config)
    if ids is None:
        return tuple(sorted(set(default_boundaries(engine, architecture, layers)))), "default"
    return tuple(sorted(set(boundaries_of_ids(engine, architecture, ids, layers)))), "explicit"
