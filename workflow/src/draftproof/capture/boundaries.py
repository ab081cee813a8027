"""Which boundaries a capture stores: what the draft reads, and what its wiring may be confused with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftproof.checkpoint.boundaries import default_boundaries, engine_ids
from draftproof.engines import facts
from draftproof.errors import InputError


def stored_boundaries(
    validation: Mapping[str, Any], architecture: str, num_layers: int, where: str
) -> list[int]:
    """Return the boundaries to store, ascending, of a target with `num_layers` layers.

    The draft's effective ones, each of them one lower and one higher, the engine's defaults, and 0 (the embedding): with
    these the wiring scan can compare. Raises InputError when the draft's own are unknown or outside the target.
    """
    effective = validation["effective"]["boundaries"]
    own = effective["value"]
    if not isinstance(own, list) or not own:
        raise InputError(
            "does not say which boundaries the draft reads" + _because(effective.get("note")),
            where,
            "Correct the draft's config and run draftproof validate again.",
        )
    if outside := [b for b in own if not 0 <= b < num_layers]:
        raise InputError(
            f"the draft reads boundary {outside[0]}; a capture has 0 to {num_layers - 1} of this target",
            where,
            "Correct eagle_config.eagle_aux_hidden_state_layer_ids in the draft's config.",
        )
    wanted = {0, *own, *(b - 1 for b in own), *(b + 1 for b in own)}
    wanted |= set(default_boundaries(validation["engine"], architecture, num_layers))
    return sorted(b for b in wanted if 0 <= b < num_layers)


def served_boundaries(
    validation: Mapping[str, Any], engine: str, architecture: str, num_layers: int, where: str
) -> list[int]:
    """Return those of the stored boundaries that the engine itself hands out: all, but 0 where its ids cannot say it."""
    smallest = facts(engine, "serving")["capture"]["smallest_id"]
    embedding = min(engine_ids(engine, architecture, [0])) >= smallest
    wanted = stored_boundaries(validation, architecture, num_layers, where)
    return [b for b in wanted if b or embedding]


def _because(note: str | None) -> str:
    return f" ({note})" if note else ""
