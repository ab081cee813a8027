"""The stand-in's draft trees: random trees, drafted the way SGLang drafts them, against walks node by node."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
QLEN_ONLY = 1


@dataclass
class Drafted:
    """What the draft hands over, and the parent node of every node, from an independent bookkeeping."""

    parent_list: Tensor
    selected: Tensor
    parent_of: list[list[int]]
    """Per request: the parent node of each node; -1 for the root."""


def drafted(seed: int, batch: int, topk: int, steps: int, nodes: int) -> Drafted:
    """Draft random trees as SGLang does: keep the topk best of each step, then the nodes - 1 best of all."""
    generator = torch.Generator().manual_seed(seed)
    parent_lists, selections, parents = [], [], []
    for _ in range(batch):
        # A candidate is (score, the candidate it continues or None for the root), in SGLang's flat order.
        candidates: list[tuple[float, int | None]] = []
        best: list[int] = []
        # parent_list[g] is the candidate that group g continues; group 0 continues the root.
        parent_list = [-1]
        for step in range(steps):
            first = len(candidates)
            for origin in best if step else [None]:
                score = candidates[origin][0] if origin is not None else 1.0
                shares = torch.rand(topk, generator=generator).mul(0.9).add(0.05)
                candidates += [(score * float(share), origin) for share in shares]
            best = sorted(range(first, len(candidates)), key=lambda c: -candidates[c][0])[:topk]
            parent_list += best
        ranked = sorted(range(len(candidates)), key=lambda c: -candidates[c][0])
        chosen = sorted(ranked[: nodes - 1])
        node_of = {candidate: node for node, candidate in enumerate(chosen, start=1)}
        origins = [candidates[candidate][1] for candidate in chosen]
        parents.append([-1, *(0 if o is None else node_of[o] for o in origins)])
        selections.append(chosen)
        parent_lists.append(parent_list[: len(parent_list) - topk] if steps > 1 else [])
    return Drafted(torch.tensor(parent_lists), torch.tensor(selections), parents)


@dataclass
class Built:
    mask: Tensor
    positions: Tensor
    index: Tensor
    child: Tensor
    sibling: Tensor


def build(
    sgl_kernel: ModuleType,
    parent_list: Tensor,
    selected: Tensor,
    seq_lens: Tensor,
    topk: int,
    steps: int,
    mode: int = QLEN_ONLY,
) -> Built:
    batch, nodes = selected.shape[0], selected.shape[1] + 1
    mask = torch.full((batch * nodes * nodes,), True)
    positions = torch.empty(batch * nodes, dtype=torch.int64)
    links = torch.full((3, batch, nodes), -1)
    sgl_kernel.build_tree_kernel_efficient_cpu(
        parent_list, selected, seq_lens, mask, positions, *links, topk, steps, nodes, mode
    )
    return Built(mask.view(batch, nodes, nodes), positions.view(batch, nodes), *links)


SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.integers(0, 10**6))


def _nodes(topk: int, steps: int, seed: int) -> int:
    if topk == 1:
        return steps + 1
    candidates = topk + (steps - 1) * topk * topk
    return 2 + seed % min(candidates, 12)


@QUICK
@given(SHAPES)
def test_every_node_sees_its_ancestors_and_no_other_node(
    sgl_kernel: ModuleType, shape: tuple[int, int, int, int]
) -> None:
    topk, steps, batch, seed = shape
    draft = drafted(seed, batch, topk, steps, _nodes(topk, steps, seed))
    seq_lens = torch.arange(5, 5 + 7 * batch, 7)
    tree = build(sgl_kernel, draft.parent_list, draft.selected, seq_lens, topk, steps)
    for request, parent_of in enumerate(draft.parent_of):
        for node in range(len(parent_of)):
            ancestors = {node}
            while parent_of[min(ancestors)] != -1 and min(ancestors) != 0:
                ancestors.add(parent_of[min(ancestors)])
            seen = set(tree.mask[request, node].nonzero().flatten().tolist())
            assert seen == ancestors
            assert tree.positions[request, node] == seq_lens[request] + len(ancestors) - 1


@QUICK
@given(SHAPES)
def test_child_and_sibling_links_list_the_children_in_order(
    sgl_kernel: ModuleType, shape: tuple[int, int, int, int]
) -> None:
    topk, steps, batch, seed = shape
    draft = drafted(seed, batch, topk, steps, _nodes(topk, steps, seed))
    tree = build(
        sgl_kernel, draft.parent_list, draft.selected, torch.full((batch,), 9), topk, steps
    )
    for request, parent_of in enumerate(draft.parent_of):
        nodes = len(parent_of)
        assert tree.index[request].tolist() == [request * nodes + node for node in range(nodes)]
        for node in range(nodes):
            linked, child = [], int(tree.child[request, node])
            while child != -1:
                linked.append(child)
                child = int(tree.sibling[request, child])
            assert linked == [other for other in range(nodes) if parent_of[other] == node]


def test_a_chain_as_sglang_hands_it_over(sgl_kernel: ModuleType) -> None:
    parents, selected = torch.tensor([[-1, 0, 1]]), torch.tensor([[0, 1, 2]])
    tree = build(sgl_kernel, parents, selected, torch.tensor([7]), 1, 3)
    assert torch.equal(tree.mask[0], torch.ones(4, 4, dtype=torch.bool).tril())
    assert tree.positions.tolist() == [[7, 8, 9, 10]]
    assert tree.child.tolist() == [[1, 2, 3, -1]]
    assert tree.sibling.tolist() == [[-1] * 4]


def test_a_node_without_its_parent_is_out_of_reach(sgl_kernel: ModuleType) -> None:
    """Tied or broken scores can select a candidate without the one that it continues."""
    parents = torch.tensor([[-1, 0, 1]])  # topk 2: groups 1 and 2 continue candidates 0 and 1
    selected = torch.tensor([[0, 2, 4]])  # candidate 4 continues candidate 1, which is not there
    tree = build(sgl_kernel, parents, selected, torch.tensor([10]), 2, 2)
    assert tree.child.tolist() == [[1, 2, -1, -1]]
    assert tree.sibling.tolist() == [[-1] * 4]
    assert tree.mask[0, 3].tolist() == [True, False, False, True]
    assert tree.positions.tolist() == [[10, 11, 12, 11]]


def test_other_mask_layouts_are_refused(sgl_kernel: ModuleType) -> None:
    with pytest.raises(NotImplementedError, match="tree mask mode 0"):
        build(
            sgl_kernel, torch.tensor([[-1]]), torch.tensor([[0]]), torch.tensor([1]), 1, 1, mode=0
        )


@QUICK
@given(SHAPES, st.integers(2, 5), st.integers(1, 6))
def test_the_accepted_path_is_the_one_a_greedy_reader_takes(
    sgl_kernel: ModuleType, shape: tuple[int, int, int, int], vocab: int, width: int
) -> None:
    topk, steps, batch, seed = shape
    draft = drafted(seed, batch, topk, steps, _nodes(topk, steps, seed))
    nodes = len(draft.parent_of[0])
    tree = build(
        sgl_kernel, draft.parent_list, draft.selected, torch.full((batch,), 9), topk, steps
    )
    generator = torch.Generator().manual_seed(seed + 1)
    tokens = torch.randint(vocab, (batch, nodes), generator=generator)
    choice = torch.randint(vocab, (batch, nodes), generator=generator)
    predicts = torch.zeros(batch * nodes, dtype=torch.int32)
    accept_index = torch.full((batch, width), -1, dtype=torch.int32)
    accepted = torch.empty(batch, dtype=torch.int32)
    sgl_kernel.verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accepted,
        candidates=tokens,
        retrive_index=tree.index,
        retrive_next_token=tree.child,
        retrive_next_sibling=tree.sibling,
        target_predict=choice,
    )
    expected_predicts = [0] * (batch * nodes)
    for request, parent_of in enumerate(draft.parent_of):
        path = [0]
        while len(path) < width:
            children = [node for node in range(nodes) if parent_of[node] == path[-1]]
            matching = [n for n in children if tokens[request, n] == choice[request, path[-1]]]
            if not matching:
                break
            path.append(matching[0])
        rows = [request * nodes + node for node in path]
        assert accept_index[request].tolist() == rows + [-1] * (width - len(rows))
        assert accepted[request] == len(path) - 1
        for row, node in zip(rows, path, strict=True):
            expected_predicts[row] = int(choice[request, node])
    assert predicts.tolist() == expected_predicts
