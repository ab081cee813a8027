"""How else may this draft be read? Every reading is a draft, what it is fed, and the config lines that would set it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from draftproof.accuracy.draft import Draft
from draftproof.accuracy.layer import Layer, norm
from draftproof.accuracy.load import absolute_vocabulary, assembled, boundaries_of, own
from draftproof.accuracy.wiring_boundaries import Boundaries, listed
from draftproof.checkpoint.boundaries import IDS_KEY, engine_ids, target_architecture
from draftproof.checkpoint.configuration import eagle_config
from draftproof.checkpoint.effective import rope_of
from draftproof.checkpoint.layout import EMBEDDING
from draftproof.checkpoint.pair import Pair, with_lines
from draftproof.errors import InputError

Lines = Mapping[str, Any]
THETAS = (10_000.0, 500_000.0, 1_000_000.0)


class Pairing(Enum):
    """What stands in one row beside the embedding of token j; the engine puts the state of token j - 1 there."""

    ENGINE = "the state of the token before"
    OWN_STATE = "each token's own state"
    EARLIER_TOKEN = "each state's own token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A draft and what it is fed. `boundaries` stand in the order of fc's columns; `pair` holds the config of this reading.

    `kinds` and `label` say what differs from the configuration, `untold` what the engine cannot be told.
    """

    kinds: tuple[str, ...]
    label: str
    pair: Pair
    draft: Draft
    boundaries: Boundaries
    pairing: Pairing = Pairing.ENGINE
    untold: tuple[str, ...] = ()

    def differs(self, kind: str, label: str, **changes: Any) -> Reading:
        """Return this reading with one more difference."""
        joined = label if not self.kinds else f"{self.label}; {label}"
        return replace(self, kinds=(*self.kinds, kind), label=joined, **changes)

    def told(self, kind: str, label: str, lines: Lines) -> Reading | None:
        """Return this reading with other config lines; None when the engine makes the same of them."""
        pair = with_lines(self.pair, lines)
        if pair.effective == self.pair.effective:
            return None
        d = self.draft
        draft = assembled(pair, d.weights, d.embedding, d.head, d.to_target)
        if isinstance(d.layers[0], ResidualBehindNorm):
            draft = residual_behind_norm(draft)
        return self.differs(kind, label, pair=pair, draft=draft)

    def fed(self, token_ids: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return token ids [T] and states [T, A, Ht] so that row i, which pairs state i and token i + 1, is this reading's.

        Row i always guesses token i + 2:

            ENGINE          state i      token i + 1
            OWN_STATE       state i + 1  token i + 1
            EARLIER_TOKEN   state i      token i
        """
        if self.pairing is Pairing.OWN_STATE:
            return token_ids, torch.cat([states[1:], states[-1:]])
        if self.pairing is Pairing.EARLIER_TOKEN:
            return torch.cat([token_ids[:1], token_ids[:-1]]), states
        return token_ids, states

    def setting(self, original: Lines) -> str:
        """Return the lines of config.json that set this reading, or ``none: `` and why the engine cannot be told."""
        absent = object()
        lines = {k: v for k, v in self.pair.draft.items() if original.get(k, absent) != v}
        if not lines and not self.untold:
            lines = ids_line(self.pair, self.boundaries)
        told = ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in lines.items())
        if not self.untold:
            return told
        return f"none: {'; '.join(self.untold)}" + (f"; and set {told}" if told else "")


def configured_reading(pair: Pair, draft: Draft) -> Reading:
    """Return the reading of the engine as it is configured."""
    return Reading(
        kinds=(), label="configured", pair=pair, draft=draft, boundaries=boundaries_of(pair)
    )


def ids_line(pair: Pair, boundaries: Boundaries) -> dict[str, Any]:
    """Return the config line that makes the engine capture these boundaries; raises InputError when none does."""
    ids = engine_ids(pair.engine, target_architecture(pair.target), boundaries)
    return {"eagle_config": {**eagle_config(pair.draft), IDS_KEY: ids}}


def with_boundaries(base: Reading, boundaries: Boundaries, label: str) -> Reading:
    """Return a reading with other boundaries, ascending."""
    label = f"boundaries {listed(boundaries)}, {label}"
    try:
        pair = with_lines(base.pair, ids_line(base.pair, boundaries))
    except InputError as error:
        untold = (*base.untold, error.what)
        return base.differs("boundaries", label, boundaries=boundaries, untold=untold)
    return base.differs("boundaries", label, boundaries=boundaries, pair=pair)


def with_order(base: Reading, order: Boundaries) -> Reading:
    """Return a reading that feeds fc the same boundaries in another order."""
    why = (
        "the engine feeds boundaries in ascending order whatever the config says;"
        f" move the blocks of fc.weight's columns, which stand for {listed(order)}, into that order"
    )
    label = f"boundaries in the order {listed(order)}"
    return base.differs("order", label, boundaries=order, untold=(*base.untold, why))


def norm_flags(base: Reading) -> Iterator[Reading]:
    """Yield the norms around fc switched, and the residual taken behind the norm."""
    config, now = base.pair.draft, base.draft
    line: Lines = {"norm_before_fc": not now.norm_before_fc}
    if "norm_before_fc" in eagle_config(config):
        line = {"eagle_config": {**eagle_config(config), **line}}
    yield from one(
        base.told("norms", ("no " if now.norm_before_fc else "") + "norm before fc", line)
    )
    line = {"fc_norm": not now.fc_norm}
    if "use_aux_norm" in config:
        line = {**line, "use_aux_norm": not now.fc_norm}
    label = ("no " if now.fc_norm else "") + "norm of each boundary before fc"
    yield from one(base.told("norms", label, line))
    if not isinstance(now.layers[0], ResidualBehindNorm):
        why = (
            "the engine takes the residual before the norm, whatever norm_before_residual says;"
            " train with norm_before_residual false"
        )
        yield base.differs(
            "norms",
            "residual taken behind the norm (norm_before_residual)",
            draft=residual_behind_norm(now),
            untold=(*base.untold, why),
        )


def feedback(base: Reading) -> Iterator[Reading]:
    """Yield the other side of the final norm as what later steps are fed."""
    after = not base.draft.norm_output
    label = f"feedback {'behind' if after else 'before'} the final norm"
    yield from one(base.told("feedback", label, {"norm_output": after}))


def ropes(base: Reading) -> Iterator[Reading]:
    """Yield other bases of the rotary frequencies, and scaling switched."""
    now = base.pair.effective.rope.value
    target = rope_of(
        base.pair.target_text, 10_000.0, base.pair.target_text.get("max_position_embeddings")
    ).value
    labels = {target["theta"]: "the target's rope theta"}
    # hidden_size doubled and head_dim left out: frequencies for a head twice as wide, of which half are used.
    labels.setdefault(now["theta"] ** 0.5, "rope frequencies of a head twice as wide, theta")
    for theta in THETAS:
        labels.setdefault(theta, "rope theta")
    for theta, label in labels.items():
        if abs(theta / now["theta"] - 1) > 0.01:
            lines = rope_lines(base.pair, {**now, "theta": theta})
            yield from one(base.told("rope", f"{label} {theta:g}", lines))
    if now["type"] != "default":
        plain = rope_lines(base.pair, {"type": "default", "theta": now["theta"], "scaling": None})
        yield from one(base.told("rope", "no rope scaling", plain))
    if target["type"] != "default" and (target["type"], target["scaling"]) != (
        now["type"],
        now["scaling"],
    ):
        lines = rope_lines(base.pair, target)
        yield from one(base.told("rope", "the target's rope theta and scaling", lines))


def rope_lines(pair: Pair, rope: Mapping[str, Any]) -> Lines:
    """Return the config lines that set rope {type, theta, scaling}."""
    config = pair.draft
    plain = rope["type"] == "default"
    if plain and not config.get("rope_scaling") and not config.get("rope_parameters"):
        return {"rope_theta": rope["theta"]}
    block = {"rope_type": rope["type"], "rope_theta": rope["theta"], **(rope["scaling"] or {})}
    if "rope_scaling" not in config or plain:
        none = {"rope_scaling": None} if "rope_scaling" in config else {}
        return {"rope_parameters": block, **none}
    return {"rope_scaling": block, "rope_theta": rope["theta"]}


def vocabulary_maps(base: Reading) -> Iterator[Reading]:
    """Yield d2t read as target ids."""
    draft = base.draft
    to_target = absolute_vocabulary(base.pair, len(draft.head), len(draft.embedding))
    if not torch.equal(to_target, draft.to_target):
        yield base.differs(
            "vocabulary-map",
            "d2t read as target ids",
            draft=replace(draft, to_target=to_target),
            untold=(*base.untold, ABSOLUTE_MAP),
        )


ABSOLUTE_MAP = "the engine adds the draft id to every entry of d2t; write d2t[i] = id[i] - i"


def pairings(base: Reading) -> Iterator[Reading]:
    """Yield states and tokens paired one off."""
    for pairing in (Pairing.EARLIER_TOKEN, Pairing.OWN_STATE):
        why = "the engine pairs each state with the token after it; train with that pairing"
        yield base.differs(
            "pairing", f"{pairing.value} in one row", pairing=pairing, untold=(*base.untold, why)
        )


def embeddings(base: Reading) -> Iterator[Reading]:
    """Yield the draft's own embedding in place of the target's."""
    if base.pair.effective.embedding_source.value == "draft":
        return
    found = own(base.pair, EMBEDDING)
    if found.shape == base.draft.embedding.shape and not torch.equal(
        found.float(), base.draft.embedding.float()
    ):
        why = "the engine puts the target's embedding in its place; train with the target's"
        yield base.differs(
            "embedding",
            "the draft's own embedding",
            draft=replace(base.draft, embedding=found),
            untold=(*base.untold, why),
        )


def one(reading: Reading | None) -> Iterator[Reading]:
    """Yield a reading unless it is None."""
    if reading is not None:
        yield reading


class ResidualBehindNorm(Layer):
    """A first layer whose residual stream starts from the normalised hidden state."""

    def output(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Return the residual stream behind the layer, [R, H]."""
        start = norm(residual, self.weights["hidden_norm.weight"], self.eps)
        return Layer.output(self, start, attended)


def residual_behind_norm(draft: Draft) -> Draft:
    """Return the draft with such a first layer."""
    first, *later = draft.layers
    changed_first = ResidualBehindNorm(
        weights=first.weights, attention=first.attention, eps=first.eps, first=True
    )
    return replace(draft, layers=(changed_first, *later))
