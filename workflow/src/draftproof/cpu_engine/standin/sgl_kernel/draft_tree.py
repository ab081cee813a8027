"""Build the draft tree of every request, and walk it greedily with the target's choices.

A tree has `n` nodes: node 0 is the last known token, the others are drafted. A drafted node is named by its number in
the flat list of candidates (`selected`, ascending, so that parents come before children). Step 1 has `topk`
candidates, every later step `topk * topk`: candidate c belongs to the group c // topk. Group 0 hangs off the root;
group g > 0 hangs off candidate `parents[g]`.
"""

from __future__ import annotations

import torch
from torch import Tensor

QLEN_ONLY = (
    1  # sglang TreeMaskMode: one n x n mask per request, the only layout SGLang uses on a CPU
)
ORPHAN = -1


def _node_parents(selected: list[int], parents: list[int], topk: int) -> list[int]:
    """Return the parent node of nodes 1..n-1; ORPHAN where the parent candidate was not selected.

    Orphans occur when scores tie or are not numbers; like SGLang's own kernels, the tree keeps them out of reach.
    """
    node_of = {candidate: node for node, candidate in reversed(list(enumerate(selected, start=1)))}
    groups = (candidate // topk for candidate in selected)
    return [0 if group == 0 else node_of.get(parents[group], ORPHAN) for group in groups]


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill mask, positions and links of every request's tree, in place.

    Shapes for B requests and n nodes: `parent_list` [B, *], `selected_index` [B, n-1], `verified_seq_len` [B],
    `tree_mask` bool [B*n*n] (node i sees j: itself and its ancestors), `positions` [B*n]; `retrive_index` (node to row
    of the batch), `retrive_next_token` (first child) and `retrive_next_sibling`, int64 [B, n], -1 for none.
    """
    if int(tree_mask_mode) != QLEN_ONLY:
        raise NotImplementedError(
            f"sgl_kernel.build_tree_kernel_efficient_cpu: tree mask mode {tree_mask_mode!r} is not "
            "part of draftproof's CPU stand-in"
        )
    batch, n = verified_seq_len.numel(), draft_token_num
    children, siblings, depths, masks = [], [], [], []
    for selected, parents in zip(selected_index.tolist(), parent_list.tolist(), strict=True):
        next_token, next_sibling, level = [-1] * n, [-1] * n, [0] * n
        sees = [[False] * n for _ in range(n)]
        sees[0][0] = True
        parent_of = _node_parents(selected, parents, topk)
        for node, parent in enumerate(parent_of, start=1):
            # An orphan sees the root and itself and counts as a child of the root, but nothing links to it.
            above = max(parent, 0)
            sees[node] = sees[above].copy()
            sees[node][node] = True
            level[node] = level[above] + 1
        for node, parent in reversed(list(enumerate(parent_of, start=1))):
            if parent != ORPHAN:
                next_sibling[node], next_token[parent] = next_token[parent], node
        children.append(next_token)
        siblings.append(next_sibling)
        depths.append(level)
        masks.append(sees)
    tree_mask[: batch * n * n] = torch.tensor(masks, dtype=torch.bool).flatten()
    positions.view(batch, n).copy_(verified_seq_len.unsqueeze(1) + torch.tensor(depths))
    retrive_index.copy_(torch.arange(batch * n).view(batch, n))
    retrive_next_token.copy_(torch.tensor(children))
    retrive_next_sibling.copy_(torch.tensor(siblings))


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Follow the target's choices down every tree, in place.

    From the root, the child that holds the target's choice is accepted, until none does or `accept_index` is full.
    Writes the target's choice at each accepted node to `predicts` [B*n], the accepted rows (root first) to
    `accept_index` [B, longest path] (cells behind stay), and their number without the root to `accept_token_num` [B].
    """
    choices = target_predict.flatten().tolist()
    accepted_counts: list[int] = []
    rows: list[int] = []
    cells: list[int] = []
    width = accept_index.shape[1]
    for request, (tokens, row_of, next_token, next_sibling) in enumerate(
        zip(
            candidates.tolist(),
            retrive_index.tolist(),
            retrive_next_token.tolist(),
            retrive_next_sibling.tolist(),
            strict=True,
        )
    ):
        path = [row_of[0]]
        node = next_token[0]
        while node != -1 and len(path) < width:
            if tokens[node] == choices[path[-1]]:
                path.append(row_of[node])
                node = next_token[node]
            else:
                node = next_sibling[node]
        accepted_counts.append(len(path) - 1)
        cells.extend(range(request * width, request * width + len(path)))
        rows.extend(path)
    accepted = torch.tensor(rows, dtype=torch.long)
    predicts[accepted] = target_predict.flatten()[accepted].to(predicts.dtype)
    accept_index.view(-1)[torch.tensor(cells, dtype=torch.long)] = accepted.to(accept_index.dtype)
    accept_token_num.copy_(torch.tensor(accepted_counts))
