"""Is the server still well? Its guard, its log and its worker processes, looked at together."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from draftproof.engines import facts
from draftproof.errors import EngineError
from draftproof.serving.engine_log import LogFollower, crash_reason
from draftproof.serving.process import Guarded

LOOK_EVERY_S = 0.5
SETTLE_S = 3.0


class Watch:
    """Raises EngineError with the engine's own reason as soon as the server is known to have failed."""

    def __init__(self, server: Guarded, engine: str, log: Path, owner: Callable[[], None]) -> None:
        self.server = server
        self.log = log
        self.owner = owner
        self.known = facts(engine, "serving")
        self.follower = LogFollower(log, self.known["crash_patterns"])
        self.workers: set[psutil.Process] = set()
        self.complete = False
        self.looked = 0.0

    def check(self) -> None:
        """Look at everything, at most twice a second; raises EngineError, or MachineError when the owner has ended."""
        if time.monotonic() - self.looked < LOOK_EVERY_S:
            return
        self.looked = time.monotonic()
        self.owner()
        code = self.server.ended()
        if code is not None:
            raise self.failure(f"ended with exit status {code}")
        if self.follower.crashed():
            raise self.failure("crashed")
        if gone := self.gone_worker():
            raise self.failure(f"lost its worker process {gone}")

    def gone_worker(self) -> str:
        """Return the pid of a worker (scheduler, detokenizer) that was seen before and is gone, or ""."""
        for worker in self.workers:
            with suppress(psutil.NoSuchProcess):
                if worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
                    continue
            return str(worker.pid)
        if not self.complete:
            self.find_workers()
        return ""

    def ready(self) -> None:
        """Take the workers there are now for all of them: from here on a measurement is not to be disturbed by looking."""
        self.find_workers()
        self.complete = True

    def find_workers(self) -> None:
        """Remember the server's worker processes."""
        for process in self.server.processes():
            with suppress(psutil.Error):
                if any(
                    title in " ".join(process.cmdline()) for title in self.known["worker_titles"]
                ):
                    self.workers.add(process)

    def failure(self, what: str) -> EngineError:
        """Return the error that quotes the engine's reason, once it has had a moment to write it."""
        deadline = time.monotonic() + SETTLE_S
        reason, size = self.reason(), -1
        while self.server.ended() is None and time.monotonic() < deadline:
            time.sleep(0.3)
            if size == (size := self.log.stat().st_size) and reason:
                break  # it has said what it had to say; some parents live on for a minute
            reason = self.reason()
        reason = self.reason()
        said = f": {reason}" if reason else " and said nothing"
        return EngineError(
            f"the engine {what}{said}", f"server {self.server.name}", f"Its log: {self.log}"
        )

    def reason(self) -> str:
        """Return the engine's own words from the log, or "" when there are none."""
        text = self.log.read_text(errors="replace")
        return crash_reason(text, self.known["crash_patterns"], self.known["consequences"])
