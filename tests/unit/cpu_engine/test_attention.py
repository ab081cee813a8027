"""The attention modes against a reference that looks at one query and one head at a time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from draftproof.cpu_engine import visibility
from draftproof.cpu_engine.attention import attend_ragged, attend_uniform
from draftproof.cpu_engine.visibility import RaggedBatch, UniformBatch

LENGTHS = ([5], [4, 4], [1, 9, 6], [7, 2, 3, 12, 1, 8, 8, 5])


@dataclass
class Cache:
    """A paged KV cache in which no slot is where one would guess."""

    table: Tensor
    keys: Tensor
    values: Tensor
    query_heads: int

    @classmethod
    def random(
        cls, *, query_heads: int = 4, kv_heads: int = 2, key_size: int = 8, value_size: int = 8
    ) -> Cache:
        generator = torch.Generator().manual_seed(1)
        rows, width = 10, 40
        table = torch.randperm(rows * width, generator=generator).to(torch.int32).view(rows, width)
        keys = torch.randn(rows * width, kv_heads, key_size, generator=generator)
        values = torch.randn(rows * width, kv_heads, value_size, generator=generator)
        return cls(table, keys, values, query_heads)

    def queries(self, count: int) -> Tensor:
        generator = torch.Generator().manual_seed(count)
        return torch.randn(count, self.query_heads, self.keys.shape[2], generator=generator)

    def reference(
        self, queries: Tensor, seen: list[list[tuple[int, int]]], scale: float = 0.3
    ) -> Tensor:
        """Attend each query to the table cells (row, column) it is said to see."""
        outputs = []
        group = self.query_heads // self.keys.shape[1]
        for query, cells in zip(queries, seen, strict=True):
            slots = [int(self.table[cell]) for cell in cells]
            heads = []
            for head in range(self.query_heads):
                keys = self.keys[slots, head // group]
                weights = torch.softmax(keys @ query[head] * scale, dim=0)
                heads.append(weights @ self.values[slots, head // group])
            outputs.append(torch.cat(heads))
        return torch.stack(outputs)

    def uniform(self, queries: Tensor, batch: UniformBatch, window: int | None = None) -> Tensor:
        return attend_uniform(queries, self.keys, self.values, batch, scale=0.3, window=window)

    def ragged(self, queries: Tensor, batch: RaggedBatch, window: int | None = None) -> Tensor:
        return attend_ragged(queries, self.keys, self.values, batch, scale=0.3, window=window)


def span(row: int, start: int, end: int) -> list[tuple[int, int]]:
    return [(row, column) for column in range(start, end)]


def rows_for(lengths: list[int]) -> Tensor:
    return torch.arange(9, 9 - len(lengths), -1)


CACHES = {
    "grouped heads": Cache.random(),
    "one head each": Cache.random(kv_heads=4),
    "latent": Cache.random(kv_heads=1, key_size=12, value_size=9),
}
same = pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES.keys())
lengths_of = pytest.mark.parametrize("lengths", LENGTHS, ids=str)


@same
@lengths_of
def test_decode_sees_all_tokens(cache: Cache, lengths: list[int]) -> None:
    rows = rows_for(lengths)
    batch = visibility.decode(cache.table, rows, torch.tensor(lengths))
    queries = cache.queries(len(lengths))
    seen = [span(row, 0, length) for row, length in zip(rows.tolist(), lengths, strict=True)]
    torch.testing.assert_close(cache.uniform(queries, batch), cache.reference(queries, seen))


@same
@lengths_of
@pytest.mark.parametrize("queries_each", [1, 4])
def test_a_chain_is_causal(cache: Cache, lengths: list[int], queries_each: int) -> None:
    rows = rows_for(lengths)
    after = torch.tensor(lengths) + queries_each
    batch = visibility.chain(cache.table, rows, after, queries=queries_each)
    queries = cache.queries(len(lengths) * queries_each)
    seen = [
        span(row, 0, length + number + 1)
        for row, length in zip(rows.tolist(), lengths, strict=True)
        for number in range(queries_each)
    ]
    torch.testing.assert_close(cache.uniform(queries, batch), cache.reference(queries, seen))


TREE = {0: (0,), 1: (0, 1), 2: (0, 2), 3: (0, 1, 3), 4: (0, 1, 4)}  # node: itself and its ancestors
OTHER = {0: (0,), 1: (0, 1), 2: (0, 1, 2), 3: (0, 1, 2, 3), 4: (0, 4)}


def tree_batch(
    cache: Cache, lengths: list[int]
) -> tuple[UniformBatch, list[dict[int, tuple[int, ...]]]]:
    trees = [TREE if number % 2 == 0 else OTHER for number in range(len(lengths))]
    mask = torch.zeros(len(lengths), 5, 5, dtype=torch.bool)
    positions = torch.zeros(len(lengths), 5, dtype=torch.int64)
    for number, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
        for node, seen in tree.items():
            mask[number, node, list(seen)] = True
            positions[number, node] = length + len(seen) - 1
    batch = visibility.tree(
        cache.table, rows_for(lengths), torch.tensor(lengths), mask=mask, positions=positions
    )
    return batch, trees


@same
@lengths_of
def test_a_tree_node_sees_the_prefix_and_its_ancestors(cache: Cache, lengths: list[int]) -> None:
    batch, trees = tree_batch(cache, lengths)
    queries = cache.queries(5 * len(lengths))
    seen = [
        span(row, 0, length) + [(row, length + other) for other in tree[node]]
        for row, length, tree in zip(rows_for(lengths).tolist(), lengths, trees, strict=True)
        for node in range(5)
    ]
    torch.testing.assert_close(cache.uniform(queries, batch), cache.reference(queries, seen))


@lengths_of
def test_a_window_counts_positions_not_tree_nodes(lengths: list[int]) -> None:
    cache, window = CACHES["grouped heads"], 2
    batch, trees = tree_batch(cache, lengths)
    queries = cache.queries(5 * len(lengths))
    seen = []
    for row, length, tree in zip(rows_for(lengths).tolist(), lengths, trees, strict=True):
        position = {node: length + len(ancestors) - 1 for node, ancestors in tree.items()}
        for node in range(5):
            first = position[node] - window
            cells = span(row, max(first, 0), length)
            seen.append(cells + [(row, length + n) for n in tree[node] if position[n] >= first])
    torch.testing.assert_close(
        cache.uniform(queries, batch, window), cache.reference(queries, seen)
    )


@same
@lengths_of
@pytest.mark.parametrize(("topk", "steps"), [(1, 4), (3, 3)])
def test_a_draft_branch_sees_the_prefix_and_its_own_tokens(
    cache: Cache, lengths: list[int], topk: int, steps: int
) -> None:
    rows = rows_for(lengths)
    for step in range(steps - 1):
        batch = visibility.draft_step(
            cache.table, rows, torch.tensor(lengths), topk=topk, steps=steps, step=step
        )
        queries = cache.queries(len(lengths) * topk)
        seen = [
            span(row, 0, length)
            + span(row, length + branch * steps, length + branch * steps + step + 1)
            for row, length in zip(rows.tolist(), lengths, strict=True)
            for branch in range(topk)
        ]
        torch.testing.assert_close(cache.uniform(queries, batch), cache.reference(queries, seen))


@same
@pytest.mark.parametrize("window", [None, 3])
def test_a_prompt_continues_what_is_cached(cache: Cache, window: int | None) -> None:
    rows, prefixes, news = [3, 8, 0], [0, 6, 2], [5, 1, 4]
    after = torch.tensor(prefixes) + torch.tensor(news)
    batch = visibility.extend(cache.table, torch.tensor(rows), after, torch.tensor(news))
    queries = cache.queries(sum(news))
    seen = [
        span(row, 0 if window is None else max(position - window, 0), position + 1)
        for row, prefix, new in zip(rows, prefixes, news, strict=True)
        for position in range(prefix, prefix + new)
    ]
    torch.testing.assert_close(cache.ragged(queries, batch, window), cache.reference(queries, seen))


def test_a_prompt_can_be_attended_without_the_cache() -> None:
    cache, news = CACHES["latent"], [5, 1, 4]
    batch = visibility.extend(
        cache.table, torch.tensor([3, 8, 0]), torch.tensor(news), torch.tensor(news)
    )
    queries = cache.queries(10)
    in_order = torch.cat([cache.table[row, :new] for row, new in zip([3, 8, 0], news, strict=True)])
    output = attend_ragged(
        queries,
        cache.keys[in_order.long()],
        cache.values[in_order.long()],
        visibility.uncached(batch),
        scale=0.3,
    )
    torch.testing.assert_close(output, cache.ragged(queries, batch))


def test_uncached_attention_behind_a_prefix_is_refused() -> None:
    cache = CACHES["latent"]
    batch = visibility.extend(cache.table, torch.tensor([3]), torch.tensor([7]), torch.tensor([5]))
    with pytest.raises(NotImplementedError, match="behind a cached prefix"):
        visibility.uncached(batch)


def test_padding_never_touches_slots_of_others() -> None:
    """A slot outside the sequence may hold anything, NaN included."""
    cache = Cache.random()
    own = torch.cat([cache.table[9, :2], cache.table[8, :12]]).long()
    poisoned = torch.full_like(cache.keys, float("nan"))
    poisoned[own] = cache.keys[own]
    batch = visibility.decode(cache.table, torch.tensor([9, 8]), torch.tensor([2, 12]))
    output = attend_uniform(cache.queries(2), poisoned, cache.values, batch, scale=0.3)
    assert output.isfinite().all()


def test_a_cache_of_another_type_is_read_in_the_queries_type() -> None:
    cache = Cache.random()
    batch = visibility.decode(cache.table, torch.tensor([9]), torch.tensor([6]))
    queries = cache.queries(1)
    half = attend_uniform(
        queries, cache.keys.to(torch.bfloat16), cache.values.to(torch.bfloat16), batch, scale=0.3
    )
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, cache.uniform(queries, batch), atol=0.05, rtol=0.05)
