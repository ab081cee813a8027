"""Start a server, see it ready, write down what it is, and stop it: the life of one launch."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from draftproof.engines import facts
from draftproof.files import write_result
from draftproof.serving.identity import installed_versions, launch_digest
from draftproof.serving.plan import Plan, server_environment
from draftproof.serving.port import HOST
from draftproof.serving.process import Guarded, running
from draftproof.serving.ready import wait_until_ready
from draftproof.serving.watch import Watch

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Launch:
    """A server that runs."""

    server: Guarded
    watch: Watch
    record: dict[str, Any]
    """The content of launch.json."""
    file: Path


def now() -> str:
    """Return the time as text, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def launched(
    plan: Plan,
    *,
    out: Path,
    port: int,
    python: str,
    owner: Callable[[], None],
    ready_timeout_s: float,
) -> Iterator[Launch]:
    """Run the server inside the block; launch.json exists from readiness on, and is completed when the server has stopped.

    Raises EngineError when the server does not get ready, and MachineError when the engine is not installed as asked.
    """
    file, log_file = out / "launch.json", out / "server.log"
    out.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)  # an earlier launch: its server is no more
    versions = installed_versions(python, plan.engine)
    environment, changed = server_environment(plan)
    command = plan.command(python, port)
    url = f"http://{HOST}:{port}"
    record: dict[str, Any] = {
        "schema": "draftproof/launch/1",
        "server": plan.server,
        "arm": plan.arm,
        "engine": plan.engine,
        "device": plan.device,
        "target": str(plan.target),
        "draft": None if plan.draft is None else str(plan.draft),
        "argv": command,
        "environment": changed,
        "digest": launch_digest(plan, versions),
        "url": url,
        "versions": versions,
        "log": str(log_file),
        "started_at": now(),
    }
    begun = time.monotonic()
    grace_s = float(facts(plan.engine, "serving")["stop_grace_s"])
    with (
        log_file.open("wb") as output,
        running(
            plan.server, command, grace_s=grace_s, environment=environment, output=output
        ) as server,
    ):
        try:
            log.info("server %s: starting on %s, log %s", plan.server, url, log_file)
            watch = Watch(server, plan.engine, log_file, owner)
            settings = wait_until_ready(plan, url, watch, ready_timeout_s)
            record |= {
                "pid": server.pid,
                "ready_s": round(time.monotonic() - begun, 3),
                "settings": settings,
            }
            write_result(file, record)
            log.info("server %s: ready after %.1f s", plan.server, record["ready_s"])
            yield Launch(server=server, watch=watch, record=record, file=file)
        finally:
            asked = time.monotonic()
            code = server.stop()
            log.info("server %s: stopped in %.1f s", plan.server, time.monotonic() - asked)
            if file.exists():
                write_result(file, {**record, "stopped_at": now(), "exit_status": code})


def run_command(launch: Launch, command: list[str], grace_s: float) -> int:
    """Run a command while the server is up and return its exit code.

    Raises EngineError, after stopping the command, when the server fails before or together with it.
    """
    with running(command[0], command, grace_s=grace_s, environment=os.environ) as program:
        while (code := program.ended()) is None:
            launch.watch.check()
            time.sleep(0.1)
    if code:
        # Its failure may be the server's: look once more before believing the messenger.
        time.sleep(1.0)
    launch.watch.looked = 0.0
    launch.watch.check()
    return code


def wait_for_signal(launch: Launch) -> None:
    """Keep the server up until a signal comes; raises EngineError when it fails before."""
    while True:
        launch.watch.check()
        time.sleep(0.2)
