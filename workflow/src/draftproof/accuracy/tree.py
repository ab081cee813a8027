"""How many drafts of a tree would the target accept? Trees as SGLang 0.5.23 drafts, cuts and verifies them greedily.

Of a tree (steps, topk, draft tokens), step 1 proposes the `topk` most probable tokens. Each later step continues the
`topk` most probable branches so far by `topk` tokens each; a branch's score is the product of its probabilities. Of all
candidates, the draft tokens - 1 of the highest score are kept, and the root. Verification follows the target's own tokens
down the kept nodes. Candidates are numbered as they are drafted:

    step 1   0 .. topk - 1
    step i   from topk + (i - 2) * topk ** 2: the topk of slot 0, then those of slot 1, and so on

A slot is a place among the branches being continued. The engine orders the branches anew at every step, by score, but not
their keys and values: a branch sees those that were drafted in its own slot, be they its ancestors' or not, while the
hidden state fed to it is its parent's. So does this module.
Sources: speculative/spec_utils.py (select_top_k_tokens), speculative/eagle_utils.py (organize_draft_results),
kernels/ops/speculative/cache_locs.py (generate_draft_decode_kv_indices: slot b reads seq_len + b * steps and on).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftproof.accuracy import acceptance
from draftproof.accuracy.acceptance import KeysValues, Rows, advance, kept
from draftproof.errors import ConfigError

NOWHERE = -1


@dataclass(frozen=True, slots=True, order=True)
class Tree:
    """A drafting shape; `tokens` counts the root, as the engine's draft tokens do."""

    steps: int
    topk: int
    tokens: int

    @property
    def name(self) -> str:
        """Return ``steps,topk,tokens``."""
        return f"{self.steps},{self.topk},{self.tokens}"

    @property
    def candidates(self) -> int:
        """Return how many tokens are drafted."""
        return self.topk + (self.steps - 1) * self.topk**2


def parse(text: str) -> Tree:
    """Return the tree written ``STEPS,TOPK,TOKENS``; raises ConfigError for what no server would draft."""
    where, example = "--tree", "Write for example 5,4,8."
    try:
        steps, topk, tokens = map(int, text.split(","))
    except ValueError:
        raise ConfigError(f"{text!r} is not STEPS,TOPK,TOKENS", where, example) from None
    tree = Tree(steps, topk, tokens)
    if steps < 1 or topk < 2:
        raise ConfigError(
            f"{text!r} is no tree: it takes 1 step and topk 2 at least; chains are scored anyway",
            where,
            example,
        )
    if not 2 <= tokens <= tree.candidates + 1:
        raise ConfigError(
            f"{text!r} drafts {tree.candidates} tokens, so 2 to {tree.candidates + 1} draft tokens can be kept",
            where,
            example,
        )
    return tree


def check_width(trees: Sequence[Tree], draft_vocab: int) -> None:
    """Raise ConfigError when a tree's topk is more than the draft has tokens."""
    if wide := [tree for tree in trees if tree.topk > draft_vocab]:
        raise ConfigError(
            f"{wide[0].name!r} takes the best {wide[0].topk} of {draft_vocab} draft tokens",
            "--tree",
        )


@torch.inference_mode()
def accepted(rows: Rows, trees: Sequence[Tree]) -> dict[Tree, Tensor]:
    """Return int64 [R] for each tree: how many drafts the target accepts from each start row.

    Trees of the same topk share their candidates, whatever their steps and draft tokens.
    """
    found = {tree: torch.zeros(len(rows.start), dtype=torch.long) for tree in trees}
    for topk in sorted({tree.topk for tree in trees}):
        same = [tree for tree in trees if tree.topk == topk]
        steps = max(tree.steps for tree in same)
        for at in rows.pieces(max(1, acceptance.ROWS_AT_ONCE // topk)):
            drafted = _draft(rows, rows.start[at], topk, steps)
            for tree in same:
                found[tree][at] = drafted.accepted(tree)
    return found


@dataclass(frozen=True, slots=True)
class Candidates:
    """Of R start rows: the scores of all candidates [R, n], and the target's text among them.

    path [R, steps]: the candidate that continues the target's text at each step, NOWHERE where there is none.
    """

    scores: Tensor
    path: Tensor

    def accepted(self, tree: Tree) -> Tensor:
        """Return the length [R] of the target's text among the nodes that a tree keeps.

        A node whose parent was not kept (equal scores) is out of reach, as in the engine.
        """
        best = self.scores[:, : tree.candidates].topk(tree.tokens - 1, dim=-1).indices
        path = self.path[:, : tree.steps]
        return (path[:, :, None] == best[:, None, :]).any(-1).cumprod(1).sum(1)


@dataclass(slots=True, kw_only=True)
class Branches:
    """The branches being continued, of the A rows that are not decided yet.

    rows [A]: their numbers; score and token [A, topk] by slot; hidden [A * topk, H] is fed to the slots next; own: each
    layer's keys and values by slot and step; slot [A]: where the target's text goes on, NOWHERE when it is lost; deepest
    [A]: the score of its last candidate, above 1 when it has none.
    """

    rows: Tensor
    score: Tensor
    token: Tensor
    hidden: Tensor
    own: list[list[KeysValues]]
    slot: Tensor
    deepest: Tensor

    def keep_undecided(self) -> None:
        """Drop the rows where later steps cannot change what is accepted.

        Those are where the text is lost, and no later candidate can reach the score of one of its nodes and push it out.
        """
        going = (self.slot != NOWHERE) | (self.score[:, 0] >= self.deepest)
        if bool(going.all()):
            return
        queries = going.repeat_interleave(self.score.shape[1])
        self.rows, self.score, self.token = self.rows[going], self.score[going], self.token[going]
        self.slot, self.deepest = self.slot[going], self.deepest[going]
        self.hidden, self.own = self.hidden[queries], kept(self.own, queries)


def _draft(rows: Rows, start: Tensor, topk: int, steps: int) -> Candidates:
    """Return the candidates of these start rows [R]."""
    found = Candidates(
        torch.full((len(start), Tree(steps, topk, 2).candidates), -1.0),
        torch.full((len(start), steps), NOWHERE),
    )
    branches = _first(rows, start, topk, found)
    for step in range(1, steps):
        branches.keep_undecided()
        if not len(branches.rows):
            break
        _continue(rows, start[branches.rows], step, branches, found)
    return found


def _first(rows: Rows, start: Tensor, topk: int, found: Candidates) -> Branches:
    """Draft the first step of all rows: slot b continues candidate b."""
    own: list[list[KeysValues]] = [[] for _ in rows.draft.layers]
    output = advance(rows, start, 0, rows.fused[start], rows.embedding[start], own)
    score, token, fed = _propose(rows, output, topk)
    child = _place(token == rows.said(start, 0)[:, None])
    found.scores[:, :topk], found.path[:, 0] = score, child
    return Branches(
        rows=torch.arange(len(start)),
        score=score,
        token=token,
        hidden=fed.repeat_interleave(topk, dim=0),
        own=own,
        slot=child,
        deepest=_score_at(score, child, torch.full((len(start),), 2.0)),
    )


def _continue(rows: Rows, start: Tensor, step: int, branches: Branches, found: Candidates) -> None:
    """Draft one more step from every slot of these rows [A], and choose the branches that go on."""
    count, topk = branches.score.shape
    output = advance(
        rows,
        start.repeat_interleave(topk),
        step,
        branches.hidden,
        rows.draft.embed(branches.token.flatten()),
        branches.own,
    )
    probability, token, fed = _propose(rows, output, topk)
    score = (branches.score[:, :, None] * probability.view(count, topk, topk)).flatten(1)
    token = token.view(count, topk * topk)
    slots = torch.arange(topk).repeat_interleave(topk)
    right = (token == rows.said(start, step)[:, None]) & (slots == branches.slot[:, None])
    child = _place(right)
    number = topk + (step - 1) * topk**2
    found.scores[branches.rows, number : number + topk**2] = score
    found.path[branches.rows, step] = torch.where(child == NOWHERE, NOWHERE, number + child)
    branches.deepest = _score_at(score, child, branches.deepest)
    branches.score, best = score.topk(topk, dim=-1)
    branches.slot = _place((best == child[:, None]) & (child != NOWHERE)[:, None])
    branches.token = token.gather(1, best)
    parent = best // topk + topk * torch.arange(count)[:, None]
    branches.hidden = fed[parent.flatten()]


def _propose(rows: Rows, output: Tensor, topk: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the most probable tokens of each query: probability and target id [Q, topk], and the state fed back [Q, H]."""
    logits, fed = rows.draft.judge(output)
    probability, ids = logits.softmax(-1).topk(topk, dim=-1)
    return probability, rows.draft.to_target[ids], fed


def _place(found: Tensor) -> Tensor:
    """Return the first true column of each row [R, n], NOWHERE where there is none."""
    order = torch.arange(found.shape[1], 0, -1)
    best = (found * order).amax(dim=1)
    return torch.where(best > 0, found.shape[1] - best, NOWHERE)


def _score_at(score: Tensor, child: Tensor, otherwise: Tensor) -> Tensor:
    """Return each row's score [R, n] in column child [R], `otherwise` where that is NOWHERE."""
    found = score.gather(1, child.clamp(min=0)[:, None])[:, 0]
    return torch.where(child == NOWHERE, otherwise, found)
