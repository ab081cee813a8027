"""Which of the draft's tokens would the target accept? All start rows of a text at once.

From start row i the draft proposes K tokens. The first step sees rows 0..i of the target's states. Step k sees the same
rows and the chain's own earlier steps, feeds the token drafted before, mapped to the target's vocabulary, and stands at
position i + k - 1: what the engine has in its draft KV cache when it drafts from there (rows of accepted tokens are
computed anew from the target's states after each verify step: eagle_worker_v2.py, _draft_extend_for_decode).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftproof.accuracy.draft import Draft
from draftproof.accuracy.layer import Layer

KeysValues = tuple[Tensor, Tensor]
ROWS_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What all chains and trees of a text have in common: the rows of its tokens but the last.

    fused and embedding [T - 1, H]; contexts: each layer's keys and values, in the draft KV cache before any drafting;
    labels: the text and what the target says after it; start [R]: the start rows, first_row .. T - 3, as a verify step
    starts while the token after its row is not the last one.
    """

    draft: Draft
    fused: Tensor
    embedding: Tensor
    contexts: list[KeysValues]
    labels: Tensor
    start: Tensor

    def pieces(self, most: int) -> list[Tensor]:
        """Return the numbers of the start rows in pieces of at most so many."""
        count = len(self.start)
        return [torch.arange(first, min(first + most, count)) for first in range(0, count, most)]

    def said(self, rows: Tensor, step: int) -> Tensor:
        """Return the target's token [R] that step `step` (from 0) from these rows guesses; -1 where it is unknown."""
        place = rows + 2 + step
        known = place < len(self.labels)
        return torch.where(known, self.labels[place.clamp(max=len(self.labels) - 1)], -1)


@torch.inference_mode()
def prepare(
    draft: Draft, states: Tensor, token_ids: Tensor, labels: Tensor, first_row: int
) -> Rows:
    """Return the rows of a text, from its states [T, A, Ht] float32 and token_ids [T]."""
    start = torch.arange(first_row, max(first_row, len(token_ids) - 2))
    length = len(token_ids) - 1 if len(start) else 0
    fused, embedding = draft.fuse(states[:length]), draft.embed(token_ids[1 : length + 1])
    contexts = _contexts(draft, fused, embedding) if length else []
    return Rows(
        draft=draft,
        fused=fused,
        embedding=embedding,
        contexts=contexts,
        labels=labels,
        start=start,
    )


def matches(
    draft: Draft,
    states: Tensor,
    token_ids: Tensor,
    labels: Tensor,
    first_row: int,
    steps: int,
    *,
    all_rows: bool = True,
) -> Tensor:
    """Return `chain_matches` of one text: see `prepare` and there."""
    rows = prepare(draft, states, token_ids, labels, first_row)
    return chain_matches(rows, steps, all_rows=all_rows)


@torch.inference_mode()
def chain_matches(rows: Rows, steps: int, *, all_rows: bool = True) -> Tensor:
    """Return bool [R, K]: whether draft token k + 1 of each start row is the target's token there.

    Tokens beyond the labels count as no match. With all_rows false a chain is left at its first miss, and the rest of its
    row is false.
    """
    found = torch.zeros(len(rows.start), steps, dtype=torch.bool)
    for at in rows.pieces(ROWS_AT_ONCE):
        found[at] = _chains(rows, rows.start[at], steps, all_rows)
    return found


@torch.inference_mode()
def both_matches(rows: Rows, steps: int) -> tuple[Tensor, Tensor]:
    """Return `chain_matches` of all rows, and the same with every step fed the target's own token: bool [R, K] each.

    What is fed differs from a row's first miss on: there its chain splits in two.
    """
    found = torch.zeros(2, len(rows.start), steps, dtype=torch.bool)
    for at in rows.pieces(ROWS_AT_ONCE):
        found[:, at] = _split_chains(rows, rows.start[at], steps)
    return found[0], found[1]


def _contexts(draft: Draft, fused: Tensor, embedding: Tensor) -> list[KeysValues]:
    """Return each layer's keys and values of the text's rows: what is in the draft KV cache before any chain."""
    everything = torch.arange(len(fused))
    contexts = []
    hidden = fused
    for layer in draft.layers:
        x = layer.attention_input(embedding, hidden)
        contexts.append(layer.attention.key_value(x, everything))
        if layer is not draft.layers[-1]:
            pieces = [
                _attend(layer, layer.attention.query(x[rows], rows), contexts[-1], rows, [])
                for rows in torch.split(everything, ROWS_AT_ONCE)
            ]
            hidden = layer.output(hidden, torch.cat(pieces))
    return contexts


def _chains(rows: Rows, start: Tensor, steps: int, all_rows: bool) -> Tensor:
    """Return bool [len(start), steps]: the chains from these start rows."""
    draft = rows.draft
    found = torch.zeros(len(start), steps, dtype=torch.bool)
    alive = torch.arange(len(start))
    hidden, embedding = rows.fused[start], rows.embedding[start]
    own: list[list[KeysValues]] = [[] for _ in draft.layers]
    for step in range(steps):
        output = advance(rows, start[alive], step, hidden, embedding, own)
        token, hidden = draft.choose(output)
        hit = token == rows.said(start[alive], step)
        found[alive, step] = hit
        if not all_rows:
            alive, hidden, token = alive[hit], hidden[hit], token[hit]
            own = kept(own, hit)
            if not len(alive):
                break
        embedding = draft.embed(token)
    return found


def _split_chains(rows: Rows, start: Tensor, steps: int) -> Tensor:
    """Return bool [2, len(start), steps]: the chains from these start rows fed their own tokens, and the target's.

    Queries are [free or unsplit chains of all rows, then the forced chains of rows that have missed].
    """
    draft, count = rows.draft, len(start)
    found = torch.zeros(2, count, steps, dtype=torch.bool)
    row = torch.arange(count)
    hidden, embedding = rows.fused[start], rows.embedding[start]
    own: list[list[KeysValues]] = [[] for _ in draft.layers]
    for step in range(steps):
        output = advance(rows, start[row], step, hidden, embedding, own)
        token, hidden = draft.choose(output)
        said = rows.said(start[row], step)
        hit = token == said
        found[:, :, step] = hit[:count]
        found[1, row[count:], step] = hit[count:]
        split = torch.ones(count, dtype=torch.bool).index_fill(0, row[count:], False) & ~hit[:count]
        token[count:] = said[count:].clamp(min=0)
        again = torch.cat([torch.arange(len(row)), split.nonzero()[:, 0]])
        token = torch.cat([token, said[:count][split].clamp(min=0)])
        row, hidden, own = row[again], hidden[again], kept(own, again)
        embedding = draft.embed(token)
    return found


def advance(
    rows: Rows,
    start: Tensor,
    step: int,
    hidden: Tensor,
    embedding: Tensor,
    own: list[list[KeysValues]],
) -> Tensor:
    """Return the last layer's output [Q, H] at draft step `step` (from 0) of queries with these start rows [Q].

    Each query sees the context up to its start row and its own keys and values of the steps so far; those of this step are
    appended, but for step 0, whose row is in the context.
    """
    positions = start + step
    for layer, context, before in zip(rows.draft.layers, rows.contexts, own, strict=True):
        x = layer.attention_input(embedding, hidden)
        if step:
            before.append(layer.attention.key_value(x, positions))
        query = layer.attention.query(x, positions)
        hidden = layer.output(hidden, _attend(layer, query, context, start, before))
    return hidden


def kept(own: list[list[KeysValues]], queries: Tensor) -> list[list[KeysValues]]:
    """Return the keys and values of some of the queries."""
    return [[(key[queries], value[queries]) for key, value in chain] for chain in own]


def _attend(
    layer: Layer, query: Tensor, context: KeysValues, rows: Tensor, own: list[KeysValues]
) -> Tensor:
    """Return [R, heads * d]: each query [R, heads, d] over context rows 0..its start row, and its own chain.

    context: keys and values [T, kv, d]; own: keys and values [R, kv, d] of the chain's steps so far.
    """
    keys, values = context
    count, kv = len(query), keys.shape[1]
    last = int(rows.max()) + 1
    grouped = query.view(count, kv, -1, keys.shape[2]).permute(1, 2, 0, 3)  # [kv, group, R, d]
    before = grouped @ keys[:last].permute(1, 2, 0)[:, None]  # [kv, group, R, last]
    before = before.masked_fill(torch.arange(last) > rows[:, None], float("-inf"))
    chain = [(grouped * key.transpose(0, 1)[:, None]).sum(-1, keepdim=True) for key, _ in own]
    weights = (torch.cat([before, *chain], dim=-1) * layer.attention.scale).softmax(-1)
    mixed = weights[..., :last] @ values[:last].transpose(0, 1)[:, None]
    for number, (_, value) in enumerate(own):
        mixed = mixed + weights[..., last + number, None] * value.transpose(0, 1)[:, None]
    flat: Tensor = mixed.permute(2, 0, 1, 3).reshape(count, -1)
    return flat
