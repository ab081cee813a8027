"""Find a free loopback port, and say who holds one that is not free."""

from __future__ import annotations

import socket
from contextlib import suppress

import psutil

from draftproof.errors import MachineError

HOST = "127.0.0.1"


def free_port() -> int:
    """Return a loopback TCP port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def holder(port: int) -> str:
    """Name the process that listens on a port, e.g. ``python (pid 7)``; empty when it is not ours to see."""
    with suppress(psutil.Error, PermissionError):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,)
            if listens and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return ""


def require_free(port: int) -> int:
    """Return the port if it can be bound on loopback; raises MachineError naming who holds it."""
    with socket.socket() as probe:
        # As the server itself does it: a connection of the last minute in TIME_WAIT is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            who = holder(port)
            raise MachineError(
                f"port {port} is taken by {who}"
                if who
                else f"port {port} cannot be used ({error.strerror})",
                f"{HOST}:{port}",
                "Stop it, give another port, or leave the port out to take a free one.",
            ) from None
    return port
