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
    answers = [(0.0, Reply()) for _ in asks]
    waiting = iter(enumerate(asks))

    async def user() -> None:
        for i, ask in waiting:
            reply = answers[i][1]
            answers[i] = (time.perf_counter(), reply)
            await client.generate(ask, reply)

    users = [asyncio.create_task(user()) for _ in range(min(concurrency, len(asks)))]
    storyteller = asyncio.create_task(tell(answers, what))
    try:
        await asyncio.gather(*users)
    finally:
        for task in (*users, storyteller):
            task.cancel()
    return answers


async def tell(answers: Sequence[tuple[float, Reply]], what: str) -> None:
    """Log how far the load is, every 15 seconds."""
    begun = time.perf_counter()
    while True:
        await asyncio.sleep(LINE_EVERY_S)
        ended = sum(reply.end_s > 0 for _, reply in answers)
        tokens = sum(len(reply.output_ids) for _, reply in answers)
        speed = tokens / (time.perf_counter() - begun)
        log.info("%s: %d of %d requests, %.1f tokens/s", what, ended, len(answers), speed)
