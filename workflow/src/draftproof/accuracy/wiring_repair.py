"""A draft that cannot be computed as configured: is there a near reading that can?"""

from __future__ import annotations

from collections.abc import Iterator

from draftproof.accuracy.load import absolute_vocabulary, load_draft
from draftproof.accuracy.wiring_readings import (
    ABSOLUTE_MAP,
    Lines,
    Reading,
    configured_reading,
)
from draftproof.checkpoint.pair import Pair, with_lines
from draftproof.errors import InputError


def repaired(pair: Pair) -> Iterator[Reading]:
    """Yield the readings next to the configuration that can be computed: sizes of the tensors, d2t as target ids."""
    sizes = sizes_of_tensors(pair)
    for lines, absolute in ((sizes, False), ({}, True), (sizes, True)):
        if not lines and not absolute:
            continue
        try:
            right = with_lines(pair, lines)
            draft = load_draft(right, absolute_vocabulary if absolute else None)
            reading = configured_reading(right, draft)
        except InputError:
            continue
        if lines:
            said = " and ".join(f"{key} {value}" for key, value in lines.items())
            reading = reading.differs("sizes", f"the sizes of its tensors ({said})")
        if absolute:
            reading = reading.differs(
                "vocabulary-map", "d2t read as target ids", untold=(ABSOLUTE_MAP,)
            )
        yield reading


def sizes_of_tensors(pair: Pair) -> Lines:
    """Return hidden_size and head_dim where the tensors have others than the config; empty where they agree.

    A config whose hidden_size was doubled for the rotary module, or that leaves out head_dim, leads to such a draft.
    """
    effective = pair.effective
    heads = effective.num_attention_heads.value
    last_norm = pair.tensor("norm.weight")
    query = pair.tensor("layers.0.self_attn.q_proj.weight")
    if last_norm is None or query is None or len(last_norm.shape) != 1 or len(query.shape) != 2:
        return {}
    if not heads or query.shape[0] % heads:
        return {}
    found = {"hidden_size": last_norm.shape[0], "head_dim": query.shape[0] // heads}
    now = {"hidden_size": effective.hidden_size.value, "head_dim": effective.head_dim.value}
    return {key: value for key, value in found.items() if value != now[key]}
