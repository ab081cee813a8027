"""Run one command so that nothing of it outlives its user: a small process between `serve` and what it starts.

Run as a script (``python -I -S guard.py CONTROL GRACE_S PROGRAM ARGUMENT ...``); standard library only, so that
it is up in milliseconds. The guard is a child subreaper: whatever the program starts, even in a session of its
own, stays below the guard in the process tree. It stops the program when a byte is written to the pipe CONTROL, or
when it gets SIGTERM or SIGINT itself: SIGTERM to the program, GRACE_S seconds to end by itself, SIGKILL to every process
below the guard. When CONTROL is closed without a byte, its user is dead (the kernel closes the pipe even after
SIGKILL), and the same happens with 3 seconds. The same clean-up follows when the program ends by its own. The
guard's exit status is the program's (128 + n after signal n), and it exits only when no process is left below it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType

POLL_S = 0.1
KILL_S = 10.0
ORPHAN_GRACE_S = 3.0
CANNOT_RUN = 127
HANDLED = (signal.SIGTERM, signal.SIGINT)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def descendants(root: int) -> list[int]:
    """Return the pids of all living processes below root, from /proc."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # pid (command) state ppid ...; the command may hold spaces and brackets.
            state, parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if state != b"Z":
            children[int(parent)].append(int(entry.name))
    found, todo = [], [root]
    while todo:
        below = children[todo.pop()]
        found += below
        todo += below
    return found


def reap(program: int) -> tuple[bool, int | None]:
    """Collect ended children; return (whether any child is left, exit code of the program if it was among them)."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False, code
        if pid == 0:
            return True, code
        if pid == program:
            code = os.waitstatus_to_exitcode(status)


def kill_rest(program: int) -> int | None:
    """SIGKILL everything below this process until nothing is left; return the program's code if it was there."""
    code = None
    deadline = time.monotonic() + KILL_S
    while time.monotonic() < deadline:
        for pid in descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        any_left, ended = reap(program)
        code = code if ended is None else ended
        if not any_left:
            break
        time.sleep(0.02)
    return code


def start(command: list[str], libc: ctypes.CDLL) -> int:
    """Start the program in a session of its own; it gets SIGKILL if the guard itself is killed."""
    guard = os.getpid()
    # Blocked until the program has its own handling: a signal sent to it at once must neither be lost nor be handled by us.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid
    try:
        os.setsid()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in (*HANDLED, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if os.getppid() == guard:
            os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(CANNOT_RUN)


def main(control: int, grace_s: float, command: list[str]) -> int:
    """Run the command until it ends or is to stop; return its exit status for a shell."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    stop = False

    def ask_to_stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stop
        stop = True

    for number in HANDLED:
        signal.signal(number, ask_to_stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.set_inheritable(control, False)
    program = start(command, libc)

    code: int | None = None
    deadline = None
    while code is None and (deadline is None or time.monotonic() < deadline):
        if deadline is None:
            readable, _, _ = select.select([control], [], [], POLL_S)
            if readable:
                stop = True
                if not os.read(control, 1):
                    grace_s = min(grace_s, ORPHAN_GRACE_S)
        else:
            time.sleep(POLL_S)
        if stop and deadline is None:
            deadline = time.monotonic() + grace_s
            os.kill(program, signal.SIGTERM)
        _, code = reap(program)
    killed = kill_rest(program)
    code = killed if code is None else code
    if code is None:
        return 1
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
