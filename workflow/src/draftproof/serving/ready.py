"""Bring a started server to the point where it may be measured, or say why it never gets there."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from draftproof.benchmark.client import Ask, connect
from draftproof.errors import EngineError
from draftproof.serving.plan import Plan
from draftproof.serving.settings import compare_settings
from draftproof.serving.watch import Watch

T = TypeVar("T")
POLL_S = 0.5
LINE_EVERY_S = 15.0
PROBE = Ask(input_ids=[1, 2, 3, 4, 5, 6, 7, 8], max_new_tokens=8, ignore_eos=True)
log = logging.getLogger(__name__)


def wait_until_ready(
    plan: Plan, url: str, watch: Watch, timeout_s: float
) -> dict[str, dict[str, Any]]:
    """Wait for /ready, generate once, compare the settings; return them as asked and found.

    The generation is one real request, as some faults (a draft whose layer does not fit) show only then. Raises
    EngineError as soon as the engine is known to have failed, or after timeout_s seconds.
    """
    started = time.monotonic()
    deadline = started + timeout_s
    told = started
    while not watched(is_ready(url), watch, deadline):
        time.sleep(POLL_S)
        if time.monotonic() - told >= LINE_EVERY_S:
            told = time.monotonic()
            log.info("server %s: not ready after %.0f s", plan.server, told - started)
    error = watched(generate_once(url), watch, deadline)
    if error:
        # A scheduler that dies of the first request takes a moment to say so; its own words are better than ours.
        for _ in range(10):
            watch.check()
            time.sleep(POLL_S)
        raise EngineError(
            f"the first request failed: {error}", f"server {plan.server}", f"Its log: {watch.log}"
        )
    settings = compare_settings(plan, watched(read_info(url), watch, deadline))
    watch.ready()
    return settings


def watched(question: Coroutine[Any, Any, T], watch: Watch, deadline: float) -> T:
    """Return the answer to a question put to the server, unless the server fails, or the time is up, before."""
    answers: list[T] = []
    errors: list[Exception] = []

    def ask() -> None:
        try:
            answers.append(asyncio.run(question))
        except Exception as error:  # noqa: BLE001 - handed to the thread that waits
            errors.append(error)

    # In a thread of its own: a request to an engine whose scheduler has died may wait for ever.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    while thread.is_alive():
        watch.check()
        if time.monotonic() > deadline:
            raise EngineError(
                "not ready in time",
                f"server {watch.server.name}",
                f"Its last words: {watch.reason() or 'none'}. Its log: {watch.log}. Give --ready-timeout more seconds.",
            )
        thread.join(0.1)
    watch.check()
    if errors:
        raise errors[0]
    return answers[0]


async def is_ready(url: str) -> bool:
    """Return whether the server takes requests."""
    async with connect(url, silence_s=5.0) as client:
        return await client.ready()


async def generate_once(url: str) -> str:
    """Run one short request; return "" or what is wrong with its reply."""
    async with connect(url) as client:
        reply = await client.generate(PROBE)
    wanted = PROBE.max_new_tokens
    return reply.error or (
        ""
        if len(reply.output_ids) == wanted
        else f"{len(reply.output_ids)} tokens instead of {wanted}"
    )


async def read_info(url: str) -> dict[str, Any]:
    """Return the settings the server reports."""
    async with connect(url, silence_s=60.0) as client:
        return await client.server_info()
