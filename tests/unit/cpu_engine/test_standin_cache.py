"""The stand-in's table, KV and token functions against loops over single elements."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
UNTOUCHED = -7


def table(rows: int = 6, width: int = 40) -> Tensor:
    """A request-to-token table in which every cell is different."""
    return torch.arange(100, 100 + rows * width, dtype=torch.int32).view(rows, width)


@st.composite
def spans(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Rows with a span of positions each; empty spans and empty batches included."""
    rows = draw(st.lists(st.integers(0, 5), max_size=6, unique=True))
    starts = [draw(st.integers(0, 30)) for _ in rows]
    ends = [start + draw(st.integers(0, 9)) for start in starts]
    return rows, starts, ends


def ints(values: list[int], dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


@QUICK
@given(batch=spans(), dtype=st.sampled_from([torch.int32, torch.int64]))
def test_extend_slots_are_each_requests_span_packed(
    sgl_kernel: ModuleType, batch: tuple[list[int], list[int], list[int]], dtype: torch.dtype
) -> None:
    rows, starts, ends = batch
    cells = table()
    expected = [
        int(cells[row, position])
        for row, start, end in zip(rows, starts, ends, strict=True)
        for position in range(start, end)
    ]
    out = torch.full((len(expected) + 3,), UNTOUCHED, dtype=torch.int64)
    sgl_kernel.assign_extend_cache_locs_cpu(
        ints(rows), cells, ints(starts, dtype), ints(ends, dtype), out, cells.shape[1]
    )
    assert out.tolist() == [*expected, *[UNTOUCHED] * 3]


@QUICK
@given(batch=spans())
def test_the_token_table_receives_exactly_the_packed_slots(
    sgl_kernel: ModuleType, batch: tuple[list[int], list[int], list[int]]
) -> None:
    rows, starts, ends = batch
    cells = table()
    expected = cells.clone()
    slots = list(range(5000, 5000 + sum(ends) - sum(starts)))
    given_slots = iter(slots)
    for row, start, end in zip(rows, starts, ends, strict=True):
        for position in range(start, end):
            expected[row, position] = next(given_slots)
    sgl_kernel.assign_req_to_token_pool_cpu(
        ints(rows), cells, ints(starts), ints(ends), ints(slots), cells.shape[1]
    )
    assert torch.equal(cells, expected)


@pytest.mark.parametrize(("topk", "steps"), [(1, 1), (1, 3), (4, 3), (2, 5)])
def test_draft_slots_follow_each_requests_tokens(
    sgl_kernel: ModuleType, topk: int, steps: int
) -> None:
    cells, rows, lengths = table(), [4, 0, 2], [3, 17, 0]
    out = torch.full((3 * topk * steps,), UNTOUCHED, dtype=torch.int64)
    sgl_kernel.assign_draft_cache_locs_contiguous_cpu(
        ints(rows), cells, ints(lengths), out, cells.shape[1], topk, steps
    )
    expected = [
        int(cells[row, length + offset])
        for row, length in zip(rows, lengths, strict=True)
        for offset in range(topk * steps)
    ]
    assert out.tolist() == expected


@QUICK
@given(
    accepted=st.lists(st.lists(st.integers(-1, 11), min_size=4, max_size=4), min_size=1, max_size=5)
)
def test_accepted_slots_are_packed_and_the_unaccepted_skipped(
    sgl_kernel: ModuleType, accepted: list[list[int]]
) -> None:
    slots = torch.arange(70, 82)
    out = torch.full((4 * len(accepted),), UNTOUCHED, dtype=torch.int64)
    sgl_kernel.fill_accept_out_cache_loc_cpu(torch.tensor(accepted, dtype=torch.int32), slots, out)
    kept = [int(slots[node]) for row in accepted for node in row if node != -1]
    assert out.tolist() == kept + [UNTOUCHED] * (len(out) - len(kept))


class TestKvRows:
    def move(
        self, sgl_kernel: ModuleType, buffers: list[Tensor], target: list[int], source: list[int]
    ) -> None:
        sgl_kernel.copy_all_layer_kv_cache_cpu(
            torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64),
            torch.tensor([buffer.stride(0) * buffer.itemsize for buffer in buffers]),
            ints(target),
            ints(source),
        )

    def buffers(self) -> list[Tensor]:
        """Rows of different size and type, as keys and values of several layers are."""
        generator = torch.Generator().manual_seed(0)
        return [
            torch.randn(20, 2, 8, generator=generator),
            torch.randn(20, 3, 5, generator=generator).to(torch.bfloat16),
            torch.randn(20, 1, 7, generator=generator).to(torch.float64),
        ]

    @QUICK
    @given(
        st.data(),
    )
    def test_all_rows_are_read_before_any_is_written(
        self, sgl_kernel: ModuleType, data: st.DataObject
    ) -> None:
        target = data.draw(st.lists(st.integers(0, 19), max_size=12, unique=True))
        source = data.draw(st.lists(st.integers(0, 19), min_size=len(target), max_size=len(target)))
        buffers = self.buffers()
        before = [buffer.clone() for buffer in buffers]
        self.move(sgl_kernel, buffers, target, source)
        for buffer, old in zip(buffers, before, strict=True):
            for row in range(20):
                origin = source[target.index(row)] if row in target else row
                assert torch.equal(buffer[row], old[origin])

    def test_an_accepted_path_moves_to_the_front_of_its_own_tree(
        self, sgl_kernel: ModuleType
    ) -> None:
        buffers = self.buffers()
        before = [buffer.clone() for buffer in buffers]
        self.move(sgl_kernel, buffers, [5, 6, 7], [5, 7, 9])
        for buffer, old in zip(buffers, before, strict=True):
            assert torch.equal(buffer[5:8], old[[5, 7, 9]])
            assert torch.equal(buffer[8:], old[8:])

    def test_padding_that_moves_row_zero_onto_itself_changes_nothing(
        self, sgl_kernel: ModuleType
    ) -> None:
        buffers = self.buffers()
        before = [buffer.clone() for buffer in buffers]
        self.move(sgl_kernel, buffers, [0, 0, 0], [0, 0, 0])
        assert all(map(torch.equal, buffers, before))


class TestTokens:
    def rotate(self, sgl_kernel: ModuleType, select: list[int] | None) -> list[int]:
        ids = torch.arange(10)
        sgl_kernel.rotate_input_ids_cpu(
            ids,
            ints([0, 4, 4, 5]),
            ints([4, 0, 1, 5]),
            ints([100, 101, 102, 103]),
            None if select is None else ints(select),
        )
        return ids.tolist()

    def test_ids_shift_left_and_the_new_token_comes_last(self, sgl_kernel: ModuleType) -> None:
        # Request 1 is empty: its token must not land anywhere.
        assert self.rotate(sgl_kernel, None) == [1, 2, 3, 100, 102, 6, 7, 8, 9, 103]

    def test_the_new_token_goes_where_it_is_told(self, sgl_kernel: ModuleType) -> None:
        assert self.rotate(sgl_kernel, [1, 0, 4, 7]) == [1, 100, 3, 3, 102, 6, 7, 103, 9, 9]

    def test_the_bonus_token_is_the_last_accepted_one(self, sgl_kernel: ModuleType) -> None:
        tokens = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]], dtype=torch.int32)
        bonus = torch.zeros(3, dtype=torch.int32)
        sgl_kernel.fill_bonus_tokens_cpu(tokens, ints([1, 4, 2], torch.int32), bonus, 4)
        assert bonus.tolist() == [1, 8, 10]


def test_any_other_function_can_be_imported_but_not_called(sgl_kernel: ModuleType) -> None:
    function = sgl_kernel.merge_state_v2
    with pytest.raises(NotImplementedError, match=r"sgl_kernel\.merge_state_v2 is not part"):
        function(1, key=2)


def test_the_stand_in_registers_no_operators(sgl_kernel: ModuleType) -> None:
    """SGLang takes the presence of this operator for an AMX build."""
    assert sgl_kernel.__all__
    assert not hasattr(torch.ops.sgl_kernel, "convert_weight_packed")
