"""Attention over the paged KV cache with torch's scaled_dot_product_attention.

Queries are [tokens, query heads, head size]; KV buffers [slots, KV heads, head size]. The value's head size may differ
from the key's (multi-head latent attention), and so may their dtype from the query's.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from draftproof.cpu_engine.visibility import RaggedBatch, UniformBatch


def attend_uniform(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    batch: UniformBatch,
    *,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Attend all sequences of a uniform batch in one padded call; returns [tokens, query heads * value head size]."""
    sequences, queries, _ = batch.visible.shape
    heads, size = keys.shape[1], query.shape[2]
    group = query.shape[1] // heads
    # Query heads that share a KV head become rows of one head: keys and values are not copied for each of them.
    rows = query.view(sequences, queries, heads, group, size).permute(0, 2, 3, 1, 4)
    output = scaled_dot_product_attention(
        rows.reshape(sequences, heads, group * queries, size),
        _gather(keys, batch.slots, sequences, query.dtype),
        _gather(values, batch.slots, sequences, query.dtype),
        attn_mask=batch.mask(window, group, query.dtype),
        scale=scale,
    )
    output = output.view(sequences, heads, group, queries, -1).permute(0, 3, 1, 2, 4)
    return output.reshape(len(query), -1)


def attend_ragged(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    batch: RaggedBatch,
    *,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Attend a ragged batch, sequence by sequence; returns [tokens, query heads * value head size]."""
    outputs = []
    for segment in batch.segments:
        mask = segment.mask(window)
        output = scaled_dot_product_attention(
            query[segment.start : segment.end].transpose(0, 1).unsqueeze(0),
            _gather(keys, segment.slots, 1, query.dtype),
            _gather(values, segment.slots, 1, query.dtype),
            attn_mask=mask,
            is_causal=mask is None,
            scale=scale,
            enable_gqa=query.shape[1] != keys.shape[1],
        )
        outputs.append(output.squeeze(0).transpose(0, 1))
    return torch.cat(outputs).flatten(1)


def _gather(buffer: Tensor, slots: Tensor, sequences: int, dtype: torch.dtype) -> Tensor:
    """Return the rows of `slots` as [sequences, heads, keys, head size]; index_select beats indexing several times."""
    rows = buffer.index_select(0, slots).to(dtype)
    return rows.view(sequences, -1, *buffer.shape[1:]).transpose(1, 2)
