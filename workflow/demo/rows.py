"""The training data as batches: shards read in place, conversations of like length side by side."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from draftproof.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One conversation of the target: token_ids [T], generated [T] (bool), states [T, A + 1, H] float16."""

    token_ids: Tensor
    generated: Tensor
    states: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """N conversations padded to T tokens.

    states float32 [N, T, A, H]; final [N, T, H] after the target's final norm; chosen bool [N, T], true
    where the target chose the token; lengths [N].
    """

    token_ids: Tensor
    chosen: Tensor
    states: Tensor
    final: Tensor
    lengths: Tensor

    def starts(self) -> tuple[Tensor, Tensor]:
        """Return (sequence, position) of the rows to draft from, sorted.

        Row i is one where a server drafts: token i + 1 is known and was chosen by the target, and so was
        token i + 2, the first that the draft has to guess.
        """
        both = self.chosen[:, 1:-1] & self.chosen[:, 2:]
        sequence, position = both.nonzero(as_tuple=True)
        return sequence, position


def read_shards(folder: Path) -> list[Recorded]:
    """Return the conversations of all shards, memory-mapped; raises InputError if there are none."""
    recorded: list[Recorded] = []
    for path in sorted(folder.glob("shard-*.safetensors")):
        tensors = load_file(path)
        sizes = tensors["lengths"].tolist()
        parts = [torch.split(tensors[name], sizes) for name in ("token_ids", "generated", "states")]
        for ids, generated, states in zip(*parts, strict=True):
            recorded.append(Recorded(token_ids=ids.long(), generated=generated, states=states))
    if not recorded:
        raise InputError("holds no training data", str(folder), "Make it with demo/generate.py.")
    return recorded


def collate(recorded: Sequence[Recorded]) -> Batch:
    """Pad conversations to one batch."""
    longest = max(len(one.token_ids) for one in recorded)
    depth, width = recorded[0].states.shape[1:]
    token_ids = torch.zeros(len(recorded), longest, dtype=torch.long)
    chosen = torch.zeros(len(recorded), longest, dtype=torch.bool)
    states = torch.zeros(len(recorded), longest, depth, width)
    for index, one in enumerate(recorded):
        size = len(one.token_ids)
        token_ids[index, :size] = one.token_ids
        chosen[index, :size] = one.generated
        states[index, :size] = one.states.float()
    lengths = torch.tensor([len(one.token_ids) for one in recorded])
    return Batch(
        token_ids=token_ids,
        chosen=chosen,
        states=states[:, :, :-1],
        final=states[:, :, -1],
        lengths=lengths,
    )


def batches(
    recorded: Sequence[Recorded],
    rows_per_batch: int,
    pick: random.Random,
    worker: int = 0,
    workers: int = 1,
) -> Iterator[Batch]:
    """Yield one worker's part of an epoch in random order, conversations of like length together.

    A batch has about rows_per_batch tokens that the target chose. All workers get the same number of
    batches.
    """
    order = list(range(len(recorded)))
    pick.shuffle(order)
    groups: list[list[int]] = []
    for begin in range(0, len(order), 128):
        pool = sorted(order[begin : begin + 128], key=lambda i: len(recorded[i].token_ids))
        group: list[int] = []
        rows = 0
        for index in pool:
            group.append(index)
            rows += int(recorded[index].generated.sum())
            if rows >= rows_per_batch:
                groups.append(group)
                group, rows = [], 0
        if group:
            groups.append(group)
    pick.shuffle(groups)
    usable = len(groups) - len(groups) % workers
    for group in groups[worker:usable:workers]:
        yield collate([recorded[index] for index in group])


def draft_vocabulary(recorded: Sequence[Recorded], size: int, vocab_size: int) -> list[int]:
    """Return the `size` token ids that the target chose most often, ascending.

    When the target chose fewer, tokens of the prompts follow, then the lowest ids.
    """
    chosen: Counter[int] = Counter()
    prompted: Counter[int] = Counter()
    for one in recorded:
        chosen.update(one.token_ids[one.generated].tolist())
        prompted.update(one.token_ids[~one.generated].tolist())
    ranked = [token for counts in (chosen, prompted) for token, _ in counts.most_common()]
    unique = dict.fromkeys([*ranked, *range(vocab_size)])
    return sorted(list(unique)[:size])
