"""Put load on the server: a closed loop, in which so many users each send their next request when the last has ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from draftproof.benchmark.client import Ask, Client, Reply

LINE_EVERY_S = 15.0
log = logging.getLogger(__name__)


async def closed_loop(
    client: Client, asks: Sequence[Ask], concurrency: int, what: str
) -> list[tuple[float, Reply]]:
    """Send all requests in order, at most `concurrency` at a time; return (start by time.perf_counter, reply) of each, in order.

    Raises ServerGone when nothing answers any more; the other requests are then abandoned.
    """
    answers: dict[int, tuple[float, Reply]] = {}
    waiting = iter(enumerate(asks))

    async def user() -> None:
        for i, ask in waiting:
            start_s = time.perf_counter()
            answers[i] = (start_s, await client.generate(ask))

    users = [asyncio.create_task(user()) for _ in range(min(concurrency, len(asks)))]
    storyteller = asyncio.create_task(tell(answers, len(asks), what))
    try:
        await asyncio.gather(*users)
    finally:
        for task in (*users, storyteller):
            task.cancel()
    return [answers[i] for i in range(len(asks))]


async def tell(answers: dict[int, tuple[float, Reply]], total: int, what: str) -> None:
    """Log how far the load is, every 15 seconds."""
    begun = time.perf_counter()
    while True:
        await asyncio.sleep(LINE_EVERY_S)
        passed = time.perf_counter() - begun
        tokens = sum(len(reply.output_ids) for _, reply in answers.values())
        log.info("%s: %d of %d requests, %.1f tokens/s", what, len(answers), total, tokens / passed)
