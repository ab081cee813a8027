"""Tell a person how far a stage is: a bar on a terminal, sparse lines in a log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")
LINE_EVERY_S = 15.0
log = logging.getLogger(__name__)


def progress(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yield the items while showing `what` and how many are done."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    if sys.stderr.isatty():
        from tqdm import tqdm

        yield from tqdm(items, desc=what, total=total, file=sys.stderr)
        return
    start = last = time.monotonic()
    done = 0
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - last >= LINE_EVERY_S:
            log.info("%s: %s of %s, %.0f s", what, done, total or "?", now - start)
            last = now
    log.info("%s: %s done in %.1f s", what, done, time.monotonic() - start)
