"""Which KV slots a request writes: reads and writes of the request-to-token table.

`req_to_token` is int32 [requests, positions]; every function fills its output tensor in place. Requests of different
length are packed one after the other.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _packed_cells(rows: Tensor, start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Return row and column of the table cells [start_i, end_i) of each request i, packed."""
    lengths = (end - start).long()
    ends = lengths.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    columns = torch.arange(total) + (start.long() - (ends - lengths)).repeat_interleave(lengths)
    return rows.long().repeat_interleave(lengths), columns


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Copy the `topk * num_steps` slots behind each request's tokens into `out_cache_loc`, request by request."""
    width = topk * num_steps
    columns = seq_lens.long().unsqueeze(1) + torch.arange(width)
    slots = req_to_token[req_pool_indices.long().unsqueeze(1), columns]
    out_cache_loc[: slots.numel()] = slots.flatten()


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Copy the slots at positions [start, end) of each request into `out_cache_loc`, packed; the rest stays."""
    rows, columns = _packed_cells(req_pool_indices, start_offset, end_offset)
    out_cache_loc[: len(rows)] = req_to_token[rows, columns]


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Write the packed slots of `out_cache_loc` to positions [start, end) of each request (the inverse copy)."""
    rows, columns = _packed_cells(req_pool_indices, start_offset, end_offset)
    req_to_token[rows, columns] = out_cache_loc[: len(rows)].to(req_to_token.dtype)


def fill_accept_out_cache_loc_cpu(
    accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor
) -> None:
    """Pack the slots of the accepted nodes to the front; `accept_index` holds -1 where nothing was accepted."""
    accepted = accept_index.flatten()
    accepted = accepted[accepted >= 0].long()
    accept_out_cache_loc[: len(accepted)] = out_cache_loc[accepted]
