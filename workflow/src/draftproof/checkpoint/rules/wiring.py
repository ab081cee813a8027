"""Rules on which hidden states the draft gets: ids, boundaries, the width of fc."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from draftproof.checkpoint import layout
from draftproof.checkpoint.boundaries import (
    IDS_KEY,
    boundaries_of_ids,
    configured_ids,
    default_boundaries,
    engine_ids,
    layer_count,
    target_architecture,
    target_facts,
)
from draftproof.checkpoint.configuration import Config, eagle_config, size
from draftproof.checkpoint.findings import Fault, rule
from draftproof.checkpoint.pair import Pair
from draftproof.errors import InputError

RESOLVE = "model_executor/model_runner_components/spec_aux_hidden_state.py, _resolve_eagle_aux_hidden_state"
LOOKS_LIKE_IDS = re.compile(r"layers?_?(ids?|ind\w+|idx)$|aux\w*layers?$")
CAPTURE = "models/*.py, set_eagle3_layers_to_capture"


def _named(pair: Pair) -> tuple[list[int], int, bool] | None:
    """Return (a boundary per id, the target's layers, whether ids are given), or None when another rule says why not."""
    try:
        ids = configured_ids(pair.draft)
        architecture, layers = target_architecture(pair.target), layer_count(pair.target)
        if ids is None:
            return list(default_boundaries(pair.engine, architecture, layers)), layers, False
        return boundaries_of_ids(pair.engine, architecture, ids, layers), layers, True
    except InputError:
        return None


@rule("boundaries.not-a-list", "error", RESOLVE, layout=True)
def not_a_list(pair: Pair) -> Iterator[Fault]:
    """The layer ids are no list of whole numbers."""
    try:
        empty = configured_ids(pair.draft) == []
    except InputError as error:
        yield Fault(subject=f"eagle_config.{IDS_KEY}", message=error.what, fix=error.fix)
        return
    if empty:
        yield Fault(
            subject=f"eagle_config.{IDS_KEY}",
            message="the list of layer ids is empty, so the engine captures nothing",
            fix="Remove the key for the engine's defaults, or name the layers.",
        )


@rule("boundaries.aux-off", "error", RESOLVE, layout=True)
def aux_off(pair: Pair) -> Iterator[Fault]:
    """eagle_config switches the hidden states off: the draft gets the target's last state alone."""
    if eagle_config(pair.draft).get("use_aux_hidden_state", True) is False:
        yield Fault(
            subject="eagle_config.use_aux_hidden_state",
            message="use_aux_hidden_state is false: the draft gets the target's last state and fc is passed over",
            fix="Remove the key or write true.",
        )


@rule("boundaries.count", "error", "models/llama_eagle3.py, LlamaModel.__init__ (fc)", layout=True)
def count(pair: Pair) -> Iterator[Fault]:
    """fc is not as wide as the hidden states it will be given."""
    states, state = (
        pair.effective.num_aux_hidden_states.value,
        pair.effective.target_hidden_size.value,
    )
    fc = pair.tensor(layout.FC)
    if fc is None or len(fc.shape) != 2 or not states or not state:
        return
    actual = size(pair.target_text, "hidden_size")
    if actual and actual != state and fc.shape[1] == states * actual:
        return  # target.hidden-size says it
    if fc.shape[1] != states * state:
        fitting = fc.shape[1] / state
        yield Fault(
            subject=layout.FC,
            message=f"fc takes {fc.shape[1]} values ({fitting:g} states of {state}), the config makes {states} states",
            evidence={
                "fc columns": fc.shape[1],
                "states": states,
                "state size": state,
                "boundaries": pair.effective.boundaries.value,
            },
            fix=f"Name as many layers in eagle_config.{IDS_KEY} as the draft was trained with.",
        )
        return
    named = _named(pair)
    if named and named[2] and len(named[0]) not in (0, states):
        yield Fault(
            subject="num_aux_hidden_states",
            message=f"{len(named[0])} layers are named, but num_aux_hidden_states is {states}",
            evidence={"boundaries": named[0], "num_aux_hidden_states": states},
            fix="Remove num_aux_hidden_states or make the two agree.",
        )


@rule("boundaries.range", "error", CAPTURE, layout=True)
def out_of_range(pair: Pair) -> Iterator[Fault]:
    """A boundary is outside the target, so one state fewer would arrive."""
    named = _named(pair)
    if named is None:
        return
    boundaries, layers, given = named
    last = target_facts(pair.engine, target_architecture(pair.target)).get("captures_last", False)
    highest = layers if last else layers - 1
    outside = [b for b in boundaries if not 0 <= b <= highest]
    if outside:
        yield Fault(
            subject=f"eagle_config.{IDS_KEY}",
            message=f"boundaries {outside} are outside the target, which hands out 0 to {highest}"
            + ("" if given else " (the engine's defaults, on a small target)"),
            evidence={
                "boundaries": boundaries,
                "num_hidden_layers": layers,
                "ids": configured_ids(pair.draft),
            },
            fix="An id names the layer whose output is meant; see boundary_rules in engines/sglang/checkpoint.yaml.",
        )


@rule("boundaries.repeated", "error", CAPTURE, layout=True)
def repeated(pair: Pair) -> Iterator[Fault]:
    """A boundary is named twice (or the defaults fall together on a small target); it is captured once."""
    named = _named(pair)
    if named and len(set(named[0])) < len(named[0]):
        yield Fault(
            subject=f"eagle_config.{IDS_KEY}",
            message=f"boundaries {named[0]} repeat; each is captured once, so a state is missing"
            + ("" if named[2] else " (the engine's defaults, on a small target)"),
            evidence={"boundaries": named[0], "num_hidden_layers": named[1]},
            fix=f"Name different layers in eagle_config.{IDS_KEY}.",
        )


@rule(
    "boundaries.order", "warning", "layers/layer_boundary/stage.py, _prepare_attention", layout=True
)
def order(pair: Pair) -> Iterator[Fault]:
    """The ids are not ascending; the states arrive in the order of the layers all the same."""
    named = _named(pair)
    if named is None or named[0] == sorted(named[0]):
        return
    ids = configured_ids(pair.draft) or []
    trick = engine_ids(pair.engine, target_architecture(pair.target), named[0])
    # For some targets an unsorted list is the only way to name the boundaries.
    if ids != trick and named[2]:
        yield Fault(
            subject=f"eagle_config.{IDS_KEY}",
            message=f"the states arrive as boundaries {sorted(named[0])}, whatever the order of the ids",
            evidence={"ids": ids, "captured": sorted(named[0])},
            fix="If the draft was trained with another order, reorder the columns of fc.",
        )


@rule("boundaries.key-ignored", "error", RESOLVE, layout=True)
def key_ignored(pair: Pair) -> Iterator[Fault]:
    """Layer ids stand under a key that the engine does not read for this, and mean something else than what it does."""
    used = pair.effective.boundaries.value
    if used is None or configured_ids(pair.draft) is not None:
        return
    for where, ids in _other_lists(pair.draft).items():
        if sorted(set(ids)) == used:
            continue
        try:
            wanted: Any = engine_ids(pair.engine, target_architecture(pair.target), ids)
        except InputError:
            wanted = "no list of ids says this"
        yield Fault(
            subject=where,
            message=f"the engine does not read {where} {ids}; it uses boundaries {used}",
            evidence={"ids": ids, "used": used, "ids if these are boundaries": wanted},
            fix=f"If the draft was trained on boundaries {ids}, write eagle_config.{IDS_KEY} {wanted}.",
        )


@rule("boundaries.default", "info", RESOLVE, layout=True)
def defaulted(pair: Pair) -> Iterator[Fault]:
    """The draft names no layers, so the engine takes its defaults."""
    named = _named(pair)
    if named and not named[2] and len(set(named[0])) == len(named[0]):
        yield Fault(
            subject=f"eagle_config.{IDS_KEY}",
            message=f"no layers are named: the engine uses its defaults, boundaries {named[0]}",
            evidence={"boundaries": named[0]},
            fix="If the draft was trained on others, name them.",
        )


def _other_lists(config: Config) -> dict[str, list[int]]:
    """Return lists of whole numbers under keys that look like layer ids."""
    found: dict[str, list[int]] = {}
    for block, prefix in ((config, ""), (eagle_config(config), "eagle_config.")):
        for key, value in block.items():
            if (
                LOOKS_LIKE_IDS.search(key)
                and isinstance(value, list)
                and value
                and all(type(i) is int for i in value)
            ):
                found[f"{prefix}{key}"] = value
    return found


@rule(
    "target.hidden-size",
    "error",
    "models/llama_eagle3.py, LlamaModel.__init__ (hidden_size_in)",
    layout=True,
)
def target_hidden_size(pair: Pair) -> Iterator[Fault]:
    """The draft was made for hidden states of another width than this target's."""
    believed = pair.effective.target_hidden_size.value
    actual = size(pair.target_text, "hidden_size")
    if believed and actual and believed != actual:
        key = "target_hidden_size" if "target_hidden_size" in pair.draft else "hidden_size"
        yield Fault(
            subject=key,
            message=f"the draft expects hidden states of {believed} values, the target's have {actual}",
            evidence={key: believed, "target hidden_size": actual},
            fix="Use the target this draft was trained for, or write target_hidden_size if fc fits.",
        )
