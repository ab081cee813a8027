"""Token ids between a verify step and the next draft step."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    new_tokens: Tensor,
    select_index: Tensor | None = None,
) -> None:
    """Shift each request's packed ids left by one and put its new token at the end, in place.

    `select_index`, where given, holds the flat position of the new token instead of the request's last one.
    """
    starts, lengths = extend_start_loc.tolist(), extend_seq_lens.tolist()
    for request, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        if length <= 0:
            continue
        end = start + length
        input_ids[start : end - 1] = input_ids[start + 1 : end].clone()
        last = end - 1 if select_index is None else int(select_index[request])
        input_ids[last] = new_tokens[request]


def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    """Write each request's last accepted token (the bonus token of the verify step) into `bonus_tokens`.

    `accept_tokens` holds `accept_stride` ids per request, `accept_lens` counts the bonus token.
    """
    rows = torch.arange(len(accept_lens)) * accept_stride
    bonus_tokens.copy_(accept_tokens.flatten()[rows + accept_lens.long() - 1])
