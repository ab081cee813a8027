"""A real SGLang server on the CPU engine, for integration tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from draftproof.cpu_engine import SERVER_FLAGS, server_environment

STARTUP_S = 600  # twenty seconds on two free cores, minutes on crowded ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server."""

    url: str
    log: Path

    def generate(self, input_ids: Sequence[int], new_tokens: int) -> dict[str, Any]:
        """Return the greedy answer to one prompt, of exactly `new_tokens` tokens."""
        body = {
            "input_ids": list(input_ids),
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": new_tokens,
                "ignore_eos": True,
            },
        }
        response = httpx.post(f"{self.url}/generate", json=body, timeout=120)
        response.raise_for_status()
        answer: dict[str, Any] = response.json()
        return answer

    def generate_together(
        self, prompts: Sequence[Sequence[int]], new_tokens: Sequence[int]
    ) -> list[dict[str, Any]]:
        """Return the answers to prompts that are all in flight at once."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(self.generate, prompts, new_tokens))


@contextmanager
def running_server(target: Path, folder: Path, *flags: str) -> Iterator[Server]:
    """Start a server for `target` with more `flags`, wait until it answers, and kill its process group at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    server = Server(url=f"http://127.0.0.1:{port}", log=folder / "server.log")
    command = [
        *(sys.executable, "-m", "sglang.launch_server", "--model-path", str(target)),
        *("--host", "127.0.0.1", "--port", str(port), *SERVER_FLAGS),
        *("--max-total-tokens", "8192", "--max-running-requests", "16"),
        *flags,
    ]
    with server.log.open("wb") as log:
        process = subprocess.Popen(
            command,
            env=server_environment(os.environ) | {"OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_ready(server, process)
        yield server
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def draft_flags(draft: Path, *, steps: int, topk: int = 1, nodes: int | None = None) -> list[str]:
    """Return the flags of an EAGLE-3 server; `nodes` (draft tokens, root included) defaults to a chain's."""
    return [
        *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(draft)),
        *("--speculative-num-steps", str(steps), "--speculative-eagle-topk", str(topk)),
        *("--speculative-num-draft-tokens", str(nodes or steps + 1)),
    ]


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + STARTUP_S
    while time.monotonic() < deadline:
        # A crashed scheduler leaves its parent alive for up to a minute, so the log is watched as well.
        text = server.log.read_text(errors="replace")
        if process.poll() is not None or "Traceback (most recent call last)" in text:
            raise AssertionError(f"the server died; {server.log}:\n{text[-6000:]}")
        try:
            if httpx.get(f"{server.url}/health", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.3)
    raise AssertionError(f"no answer within {STARTUP_S} s; {server.log}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
