"""Which of the draft's tokens would the target accept? All start rows of a text at once.

From start row i the draft proposes K tokens. The first step sees rows 0..i of the target's states. Step k sees the same
rows and the chain's own earlier steps, feeds the token drafted before, mapped to the target's vocabulary, and stands at
position i + k - 1: what the engine has in its draft KV cache when it drafts from there (rows of accepted tokens are
computed anew from the target's states after each verify step: eagle_worker_v2.py, _draft_extend_for_decode).
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftproof.accuracy.draft import Draft
from draftproof.accuracy.layer import Layer

KeysValues = tuple[Tensor, Tensor]
ROWS_AT_ONCE = 256


@torch.inference_mode()
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
    """Return bool [R, K]: whether draft token k + 1 of start row ``first_row + r`` is the target's token there.

    states [T, A, Ht] float32 and token_ids [T] of a text; labels: the text and what the target says after it. Start rows
    are first_row .. T - 3: a verify step starts while the token after its row is not the last one. Tokens beyond labels
    count as no match. With all_rows false a chain is left at its first miss, and the rest of its row is false.
    """
    rows = torch.arange(first_row, max(first_row, len(token_ids) - 2))
    length = len(token_ids) - 1
    found = torch.zeros(len(rows), steps, dtype=torch.bool)
    if not len(rows):
        return found
    fused, embedding = draft.fuse(states[:length]), draft.embed(token_ids[1:])
    contexts = _contexts(draft, fused, embedding)
    for chunk in torch.split(rows, ROWS_AT_ONCE):
        at = chunk - first_row
        fed = fused[chunk], embedding[chunk]
        found[at] = _chains(draft, contexts, fed, labels, chunk, steps, all_rows)
    return found


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


def _chains(
    draft: Draft,
    contexts: list[KeysValues],
    fed: tuple[Tensor, Tensor],
    labels: Tensor,
    rows: Tensor,
    steps: int,
    all_rows: bool,
) -> Tensor:
    """Return bool [len(rows), steps]: the chains from these start rows, fed hidden states and embeddings [R, H]."""
    found = torch.zeros(len(rows), steps, dtype=torch.bool)
    alive = torch.arange(len(rows))
    hidden, embedding = fed
    own: list[list[KeysValues]] = [[] for _ in draft.layers]
    for step in range(steps):
        start, positions = rows[alive], rows[alive] + step
        for layer, context, chain in zip(draft.layers, contexts, own, strict=True):
            x = layer.attention_input(embedding, hidden)
            if step:
                chain.append(layer.attention.key_value(x, positions))
            query = layer.attention.query(x, positions)
            hidden = layer.output(hidden, _attend(layer, query, context, start, chain))
        token, hidden = draft.choose(hidden)
        place = start + 2 + step
        known = place < len(labels)
        hit = known & (token == labels[place.clamp(max=len(labels) - 1)])
        found[alive, step] = hit
        if not all_rows:
            alive, hidden, token = alive[hit], hidden[hit], token[hit]
            own = [[(key[hit], value[hit]) for key, value in chain] for chain in own]
            if not len(alive):
                break
        embedding = draft.embed(token)
    return found


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
