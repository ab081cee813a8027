"""The client's reading of a stream, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from draftproof.benchmark.client import Reply
from draftproof.errors import EngineError


def event(ids: list[int], count: int) -> dict[str, Any]:
    return {"output_ids": ids, "meta_info": {"completion_tokens": count, "finish_reason": None}}


def test_cumulative_and_incremental_events_give_the_same_reply() -> None:
    cumulative, incremental = Reply(), Reply()
    for i, (all_ids, new) in enumerate([([7], [7]), ([7, 7, 9], [7, 9]), ([7, 7, 9, 9], [9])]):
        cumulative.take(event(all_ids, len(all_ids)), float(i))
        incremental.take(event(new, len(all_ids)), float(i))
    assert cumulative == incremental
    assert cumulative.output_ids == [7, 7, 9, 9]
    assert cumulative.tokens == [1, 2, 1]


def test_event_without_new_tokens_carries_no_time() -> None:
    reply = Reply()
    reply.take(event([1], 1), 0.0)
    reply.take(event([1], 1), 1.0)
    assert reply.times_s == [0.0]


def test_ids_that_do_not_add_up_are_an_error() -> None:
    reply = Reply()
    reply.take(event([1, 2], 2), 0.0)
    with pytest.raises(EngineError, match="completion_tokens is 5"):
        reply.take(event([3], 5), 1.0)


def test_error_event_is_an_error_in_the_engines_words() -> None:
    with pytest.raises(EngineError, match="out of memory"):
        Reply().take({"error": {"message": "out of memory"}}, 0.0)
