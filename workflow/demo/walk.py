"""What a server would accept: the draft's chains on the target's own greedy text, without a server.

From every row the draft proposes K tokens, feeding its own; the walk starts at the last prompt row,
accepts the matching prefix m and jumps m + 1 rows, as SGLang's verify does (greedy, topk 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from draft_model import Draft, Rows
from rows import Batch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """histogram[m]: verify steps with exactly m accepted drafts."""

    histogram: tuple[int, ...]

    @property
    def verify_steps(self) -> int:
        """Return the number of verify steps."""
        return sum(self.histogram)

    @property
    def accept_length(self) -> float:
        """Return 1 + accepted drafts / verify steps, pooled."""
        accepted = sum(m * steps for m, steps in enumerate(self.histogram))
        return 1 + accepted / max(1, self.verify_steps)

    @property
    def cumulative(self) -> tuple[float, ...]:
        """Return, for step k from 1, the share of verify steps that accept at least k drafts."""
        steps = max(1, self.verify_steps)
        return tuple(sum(self.histogram[k:]) / steps for k in range(1, len(self.histogram)))


@torch.no_grad()
def matches(
    draft: Draft, batch: Batch, embedding: Tensor, to_target: Tensor, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (sequence, position, matched drafts 0..steps) of every row of the batch to draft from.

    embedding [V, H] is the target's; to_target [draft_vocab] maps draft ids to target ids.
    """
    sequence, position = batch.starts()
    following = embedding[batch.token_ids.roll(-1, 1)]
    fused, context = draft.context(batch.states, following)
    rows = Rows(sequence, position, context)
    matched = torch.zeros(len(sequence), dtype=torch.long)
    alive = torch.arange(len(sequence))
    hidden, token = fused[sequence, position], batch.token_ids[sequence, position + 1]
    for number in range(steps):
        hidden = draft.step(rows, hidden, embedding[token], number)
        token = to_target[draft.logits(hidden).argmax(-1)]
        at = rows.position + 2 + number
        inside = at < batch.lengths[rows.sequence]
        at = at.clamp(max=batch.token_ids.shape[1] - 1)
        hit = inside & batch.chosen[rows.sequence, at]
        hit &= token == batch.token_ids[rows.sequence, at]
        alive, hidden, token, rows = alive[hit], hidden[hit], token[hit], rows.keep(hit)
        matched[alive] += 1
        if not len(alive):
            break
    return sequence, position, matched


def walk(
    draft: Draft, batches: Iterable[Batch], embedding: Tensor, to_target: Tensor, steps: int
) -> Acceptance:
    """Return the histogram of accepted drafts over all answers of the batches."""
    histogram = [0] * (steps + 1)
    for batch in batches:
        found = zip(
            *(t.tolist() for t in matches(draft, batch, embedding, to_target, steps)), strict=True
        )
        table = {(sequence, position): m for sequence, position, m in found}
        for sequence, position in table:
            if batch.chosen[sequence, position]:
                continue  # not the last row of a prompt
            row = position
            while (sequence, row) in table:
                histogram[table[sequence, row]] += 1
                row += table[sequence, row] + 1
    return Acceptance(histogram=tuple(histogram))
