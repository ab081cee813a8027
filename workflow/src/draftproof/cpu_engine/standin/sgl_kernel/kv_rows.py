"""Move the accepted tokens' rows inside the KV buffers of all layers.

SGLang hands over raw addresses (`data_ptrs`) and row sizes in bytes (`strides`), one pair per buffer.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor


def copy_all_layer_kv_cache_cpu(
    data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor
) -> None:
    """Copy row `src_loc[i]` to row `tgt_loc[i]` in every buffer, as if all rows were read before any was written.

    Source and target rows overlap when an accepted path is moved to the front of its own tree.
    """
    moved = tgt_loc != src_loc
    source, target = src_loc[moved].long(), tgt_loc[moved].long()
    if not len(source):
        return
    rows = 1 + int(torch.maximum(source.max(), target.max()))
    for address, row_bytes in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (rows * row_bytes)).from_address(address)
        unit = torch.int64 if row_bytes % 8 == 0 else torch.uint8  # wide units copy faster
        buffer = torch.frombuffer(memory, dtype=unit).view(rows, -1)
        # index_select copies, so a source row may be overwritten by the write that follows.
        buffer.index_copy_(0, target, buffer.index_select(0, source))
