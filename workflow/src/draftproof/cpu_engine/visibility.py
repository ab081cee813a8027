"""Which cached keys each query of a forward pass may see: computed once per pass, used by every layer.

Positions and KV slots come from `req_to_token` (int32 [requests, positions]), whose row r holds the KV slot of each
token of request r. Two shapes of batch:

`UniformBatch`  every sequence brings the same number of queries (decode, verify, draft extend, draft decode): keys are
                padded to the longest sequence and attended in one call.
`RaggedBatch`   prompts of different length: one call per sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformBatch:
    """B sequences with n queries each and up to L keys each."""

    slots: Tensor
    """int64 [B * L], the KV slot of every key; padding repeats the sequence's own first slot."""
    visible: Tensor
    """bool [B, n, L]."""
    query_positions: Tensor
    """int64 [B, n]."""
    key_positions: Tensor
    """int64 [B, L]."""
    _masks: dict[tuple[int | None, int, torch.dtype], Tensor | None] = field(default_factory=dict)

    def mask(self, window: int | None, repeats: int, dtype: torch.dtype) -> Tensor | None:
        """Return the additive mask [B, 1, repeats * n, L], or None where every key is visible.

        A sliding `window` w also hides keys more than w positions behind the query (SGLang's convention). The n rows
        repeat for every query head that shares a KV head.
        """
        key = (window, repeats, dtype)
        if key not in self._masks:
            mask = self._additive(window, dtype)
            self._masks[key] = None if mask is None else mask.repeat(1, 1, repeats, 1)
        return self._masks[key]

    def _additive(self, window: int | None, dtype: torch.dtype) -> Tensor | None:
        visible = self.visible
        if window is not None:
            behind = self.query_positions.unsqueeze(2) - self.key_positions.unsqueeze(1)
            visible = visible & (behind <= window)
        if bool(visible.all()):
            return None
        mask = torch.zeros(visible.shape, dtype=dtype)
        return mask.masked_fill_(~visible, float("-inf")).unsqueeze(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One sequence of a ragged batch: queries [start, end) of the batch, the last ones of its keys."""

    start: int
    end: int
    slots: Tensor
    """int64 [keys]."""

    @property
    def prefix(self) -> int:
        """Return how many keys come before the first query."""
        return len(self.slots) - (self.end - self.start)

    def mask(self, window: int | None) -> Tensor | None:
        """Return the bool mask [queries, keys], or None where plain causal attention says it all."""
        if window is None and self.prefix == 0:
            return None
        keys = torch.arange(len(self.slots))
        behind = keys[self.prefix :].unsqueeze(1) - keys
        return behind >= 0 if window is None else (behind >= 0) & (behind <= window)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedBatch:
    """Sequences whose queries are packed one after the other."""

    segments: tuple[Segment, ...]


def decode(req_to_token: Tensor, rows: Tensor, seq_lens: Tensor) -> UniformBatch:
    """One query per sequence, its newest token; `seq_lens` [B] counts it."""
    return chain(req_to_token, rows, seq_lens, queries=1)


def chain(req_to_token: Tensor, rows: Tensor, seq_lens: Tensor, *, queries: int) -> UniformBatch:
    """Give the last `queries` tokens of every sequence a causal view; `seq_lens` [B] counts them."""
    lengths = seq_lens.long().unsqueeze(1)
    slots, keys = _slots(req_to_token, rows, lengths)
    positions = lengths - queries + torch.arange(queries)
    return UniformBatch(
        slots=slots,
        visible=keys <= positions.unsqueeze(2),
        query_positions=positions,
        key_positions=keys.expand(len(lengths), -1),
    )


def tree(
    req_to_token: Tensor, rows: Tensor, prefix_lens: Tensor, *, mask: Tensor, positions: Tensor
) -> UniformBatch:
    """Verify a draft tree of n nodes behind every prefix.

    `mask` bool [B, n, n] (node i sees node j), `positions` int64 [B, n] (siblings share one). All nodes see the prefix.
    """
    nodes = mask.shape[1]
    prefix = prefix_lens.long().unsqueeze(1)
    slots, keys = _slots(req_to_token, rows, prefix + nodes)
    node = keys - prefix
    in_tree = (node >= 0) & (node < nodes)
    node = node.clamp(0, nodes - 1)
    seen_nodes = mask.gather(2, node.unsqueeze(1).expand(-1, nodes, -1))
    return UniformBatch(
        slots=slots,
        visible=torch.where(in_tree.unsqueeze(1), seen_nodes, (keys < prefix).unsqueeze(1)),
        query_positions=positions,
        key_positions=torch.where(in_tree, positions.gather(1, node), keys),
    )


def draft_step(
    req_to_token: Tensor, rows: Tensor, prefix_lens: Tensor, *, topk: int, steps: int, step: int
) -> UniformBatch:
    """One query for each of the `topk` branches of every request, at draft step `step` (from 0).

    Branch b of a request with P tokens keeps its draft tokens at positions P + b*steps and up; at step s it sees the
    prefix and its own s + 1 draft tokens. Sequences are ordered request by request, branch by branch.
    """
    prefix = prefix_lens.long().repeat_interleave(topk).unsqueeze(1)
    branch = torch.arange(topk).repeat(len(prefix_lens)).unsqueeze(1)
    lengths = prefix + step + 1
    keys = torch.arange(int(lengths.max()))
    cells = torch.where(keys < prefix, keys, keys + branch * steps)
    slots = req_to_token[
        rows.long().repeat_interleave(topk).unsqueeze(1), _within(cells, lengths, keys)
    ]
    return UniformBatch(
        slots=slots.flatten().long(),
        visible=(keys < lengths).unsqueeze(1),
        query_positions=lengths - 1,
        key_positions=keys.expand(len(lengths), -1),
    )


def extend(
    req_to_token: Tensor, rows: Tensor, seq_lens: Tensor, extend_lens: Tensor
) -> RaggedBatch:
    """Let the last `extend_lens[i]` tokens of every sequence (its prompt, or the new part of it) be the queries."""
    segments = []
    start = 0
    for row, length, queries in zip(
        rows.tolist(), seq_lens.tolist(), extend_lens.tolist(), strict=True
    ):
        slots = req_to_token[row, :length].long()
        segments.append(Segment(start=start, end=start + queries, slots=slots))
        start += queries
    return RaggedBatch(segments=tuple(segments))


def uncached(batch: RaggedBatch) -> RaggedBatch:
    """Return the same sequences with keys [start, end) of the pass itself instead of KV slots.

    Raises NotImplementedError where a sequence has a prefix, as that is in the cache only.
    """
    if any(segment.prefix for segment in batch.segments):
        raise NotImplementedError("uncached attention behind a cached prefix")
    return RaggedBatch(
        segments=tuple(
            Segment(start=s.start, end=s.end, slots=torch.arange(s.start, s.end))
            for s in batch.segments
        )
    )


def _slots(req_to_token: Tensor, rows: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the slots of the first lengths[i] tokens of every row, padded and flat, and the key numbers [L]."""
    keys = torch.arange(int(lengths.max()))
    table = req_to_token[:, : len(keys)].index_select(0, rows.long())
    if int(lengths.min()) < len(keys):
        table = torch.where(keys < lengths, table, table[:, :1])
    return table.flatten().long(), keys


def _within(cells: Tensor, lengths: Tensor, keys: Tensor) -> Tensor:
    """Point the padding behind each sequence at its own first cell."""
    return cells.where(keys < lengths, torch.zeros_like(cells))
