"""Run a program under the guard, look at it, stop it; and notice when we ourselves are to stop."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any

import psutil

from draftproof.errors import ConfigError, MachineError
from draftproof.serving import guard

log = logging.getLogger(__name__)
GUARD_EXTRA_S = guard.KILL_S + 5.0
Handler = Callable[[int, FrameType | None], Any] | int | None
STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Stopped(BaseException):
    """A signal asked this command to stop; exit code 128 + its number, as a shell has it.

    Like KeyboardInterrupt no Exception, so that logging and others who catch those do not swallow it.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


@dataclass(slots=True)
class Guarded:
    """A program running under the guard (draftproof.serving.guard)."""

    name: str
    grace_s: float
    popen: subprocess.Popen[bytes]
    control: int = field(repr=False)

    @property
    def pid(self) -> int:
        """Pid of the guard; the program and all it starts are below it, and it ends after all of them."""
        return self.popen.pid

    def ended(self) -> int | None:
        """Return the program's exit status (128 + n after signal n), or None while it runs."""
        return self.popen.poll()

    def processes(self) -> list[psutil.Process]:
        """Return the living processes below the guard."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def stop(self) -> int:
        """End the program and everything below it within a bounded time; safe to repeat. Return its exit status."""
        if self.control >= 0:
            with suppress(BrokenPipeError):
                os.write(self.control, b"s")
            os.close(self.control)
            self.control = -1
        try:
            return self.popen.wait(self.grace_s + GUARD_EXTRA_S)
        except subprocess.TimeoutExpired:
            left = self.processes()
            log.error("%s: %d processes survive SIGKILL (%s)", self.name, len(left), left)
            self.popen.kill()
            return self.popen.wait()


@contextmanager
def running(
    name: str,
    command: Sequence[str],
    *,
    grace_s: float,
    environment: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
) -> Iterator[Guarded]:
    """Run a command under the guard inside the block; its stdout and stderr go to `output`, or to ours when it is None."""
    readable, writable = os.pipe()
    # A stop signal between the fork and the try below would leave the guard to end alone, after us. (Blocking it would not
    # do: any other thread, of a C library for instance, may take it, and Python's handler runs here all the same.)
    held: list[int] = []
    before = {n: signal.signal(n, lambda number, _: held.append(number)) for n in STOP_SIGNALS}
    try:
        popen = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                str(Path(guard.__file__)),
                str(readable),
                str(grace_s),
                *command,
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            env=None if environment is None else dict(environment),
            pass_fds=[readable],
            start_new_session=True,
        )
    except OSError:
        os.close(writable)
        restore(before)
        raise
    finally:
        os.close(readable)
    program = Guarded(name, grace_s, popen, writable)
    try:
        restore(before)
        for number in held[:1]:
            signal.raise_signal(number)
        yield program
    finally:
        program.stop()


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raise Stopped at the first SIGTERM, SIGHUP or SIGINT inside the block; later ones do not disturb the clean-up."""

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        restore(before)


def restore(handlers: Mapping[signal.Signals, Handler]) -> None:
    """Set the handlers of signals."""
    for number, handler in handlers.items():
        signal.signal(number, handler)


def owner_watch(pid: int | None) -> Callable[[], None]:
    """Return a check that raises MachineError once process `pid` has ended; it looks at most once a second.

    Raises ConfigError when there is no such process to begin with.
    """
    if pid is None:
        return lambda: None
    try:
        owner = psutil.Process(pid)
        # In a container, $PPID is Apptainer's own parent process, which outlives the job's shell.
        if owner.name().startswith("Apptainer"):
            owner = owner.parent() or owner
        owner.create_time()
    except psutil.NoSuchProcess:
        raise ConfigError(
            f"no process {pid} to watch", "--owner", "Leave --owner out to run on your own."
        ) from None
    looked = time.monotonic()

    def check() -> None:
        nonlocal looked
        if time.monotonic() - looked < 1.0:
            return
        looked = time.monotonic()
        # is_running compares the start time too, so a pid used again does not count; a zombie has ended.
        if not owner.is_running() or owner.status() == psutil.STATUS_ZOMBIE:
            raise MachineError(
                f"its owner, process {pid}, has ended", "serve", "The server was stopped."
            )

    return check
