"""A stand-in for the engine: a real HTTP server process with SGLang's interface and faults on order.

`python_of(folder)` writes an executable that serving can use as the engine's Python (`draftproof serve --python`): it
answers the question for versions and runs this file in the place of `sglang.launch_server`. What it does is told by the
environment variable FAKE_ENGINE, a JSON object of the fields of Script.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

VOCAB = 1000
STOP_TOKEN = 777
TRACEBACK = """[2026-01-01 00:00:00] Failed to load plugin other
Traceback (most recent call last):
  File "plugins.py", line 80, in load
ModuleNotFoundError: No module named 'other'
[2026-01-01 00:00:01] Scheduler hit an exception: Traceback (most recent call last):
  File "scheduler.py", line 6362, in run_scheduler_process
    scheduler = Scheduler()
AttributeError: 'LlamaConfig' object has no attribute 'draft_vocab_size'

[2026-01-01 00:00:01] Received sigquit from a child process. It usually means the child failed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a fake engine is to do; the default is a well-behaved server without speculation."""

    load_s: float = 0.0
    """Seconds until it is ready."""
    fail_at_start: str = ""
    """Printed in the place of getting ready."""
    crash_at_request: int = -1
    """Number of the /generate request at which the scheduler dies, its traceback in the log."""
    lingers: bool = False
    """After a failure the parent stays alive, as SGLang's does for up to a minute."""
    silent_worker_death: bool = False
    """The scheduler is killed from outside: no word in the log."""
    stubborn: bool = False
    """Neither it nor its scheduler heeds SIGTERM, and the scheduler has a session of its own."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Reported by /server_info in the place of what was asked."""
    accepted: tuple[int, ...] = ()
    """Drafts accepted in one verify step after the other, repeated; empty without speculation."""
    draft_tokens: int = 4
    incremental: bool = False
    event_s: float = 0.0
    cut_request: int = -1
    """Number of the request whose stream breaks off."""
    refuse_request: int = -1
    """Number of the request that is answered with status 500."""
    flush_status: int = 200
    cached_tokens: int = 0
    lost_rows: int = 0
    """Rows of hidden states that are missing, as after a prefill in parts."""
    nulls: bool = False
    """A hidden state that is no number."""
    second_thoughts: int = 0
    """Tokens of a text that it would choose otherwise when it reads it whole."""
    histogram_extra: int = 0
    """Added to a count of the histogram: counters that contradict each other."""


def answer(prompt: Sequence[int], limit: int, stop_token_ids: Sequence[int] = ()) -> list[int]:
    """Return the tokens that this engine answers: counting up from the last of the prompt, stop token included."""
    tokens = [(prompt[-1] + i) % VOCAB for i in range(1, limit + 1)]
    ends = [i for i, token in enumerate(tokens) if token in stop_token_ids]
    return tokens[: ends[0] + 1] if ends else tokens


def python_of(folder: Path) -> Path:
    """Write the executable that stands for the engine's Python, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).resolve()}" "$@"\n')
    path.chmod(0o755)
    return path


def environment_of(script: Script) -> dict[str, str]:
    """Return the variables that make a fake engine do this."""
    return {"FAKE_ENGINE": json.dumps(asdict(script))}


@contextmanager
def fake_engines() -> Iterator[Callable[..., str]]:
    """Give a function (script, target, further arguments) that starts an engine and returns its address when it answers."""
    import httpx  # not here at the top: an engine that starts does without

    from draftproof.serving.port import free_port

    started: list[subprocess.Popen[bytes]] = []

    def begin(script: Script, target: str, *arguments: str) -> str:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, __file__, "-m", "engine", "--model-path", target, *arguments]
        started.append(
            subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(port)],
                env=os.environ | environment_of(script),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        for _ in range(400):
            try:
                httpx.get(f"{url}/ready")
                break
            except httpx.TransportError:
                time.sleep(0.05)
        return url

    yield begin
    for process in started:
        os.killpg(process.pid, 9)
        process.wait()


class Engine(ThreadingHTTPServer):
    """The server, with what its handlers share."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], script: Script, flags: dict[str, str]) -> None:
        super().__init__(address, Handler)
        self.script = script
        self.flags = flags
        self.ready_at = time.monotonic() + script.load_s
        self.numbers = count()

    def info(self) -> dict[str, Any]:
        """Return what /server_info says."""
        asked = {name.replace("-", "_"): number(value) for name, value in self.flags.items()}
        return {"speculative_algorithm": None, **asked, **self.script.settings}

    def fail(self, text: str) -> None:
        """Die of an exception in the scheduler."""
        print(text, flush=True)
        if self.script.lingers:
            time.sleep(60)
        os._exit(1)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Engine
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def reply(self, status: int, payload: object = "") -> None:
        """Send a whole answer."""
        body = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        """Answer /ready and /server_info."""
        if self.path == "/ready":
            self.reply(200 if time.monotonic() >= self.server.ready_at else 503)
        elif self.path == "/server_info":
            self.reply(200, self.server.info())
        else:
            self.reply(404)

    def do_POST(self) -> None:
        """Answer /generate and /flush_cache."""
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        if self.path.startswith("/flush_cache"):
            self.reply(self.server.script.flush_status, "flushed or not")
            return
        if self.path == "/tokenize":
            text = "".join(f"{m['role']}: {m['content']}\n" for m in body["messages"])
            self.reply(200, {"tokens": list(text.encode())})
            return
        if self.path == "/detokenize":
            self.reply(200, {"text": bytes(i % 128 for i in body["tokens"]).decode()})
            return
        number_, script = next(self.server.numbers), self.server.script
        if number_ == script.crash_at_request:
            self.server.fail(TRACEBACK)
        if number_ == script.refuse_request:
            self.reply(500, {"error": "out of luck"})
            return
        if not body.get("stream"):
            ids = self.server.flags["return-aux-hidden-state-layer-ids"].split()
            self.reply(200, read(script, body, width=4 * len(ids)))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i, event in enumerate(events(script, body)):
            if number_ == script.cut_request and i == 1:
                self.close_connection = True
                self.connection.shutdown(2)
                return
            self.chunk(f"data: {json.dumps(event)}\n\n")
            time.sleep(script.event_s)
        self.chunk("data: [DONE]\n\n")
        self.chunk("")

    def chunk(self, text: str) -> None:
        """Send one chunk."""
        self.wfile.write(f"{len(text.encode()):x}\r\n{text}\r\n".encode())
        self.wfile.flush()


def events(script: Script, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of one request: prefill brings one token, each later step its accepted drafts and one more."""
    sampling, prompt = body["sampling_params"], body["input_ids"]
    stops = [] if sampling.get("ignore_eos") else sampling.get("stop_token_ids", [])
    tokens = answer(prompt, sampling["max_new_tokens"], stops)
    finish = {"type": "stop" if tokens[-1] in stops else "length"}
    sent, steps = 1, []
    meta: dict[str, Any] = {"cached_tokens": script.cached_tokens, "prompt_tokens": len(prompt)}
    ids = tokens[:1]
    while True:
        done = sent == len(tokens)
        meta |= {"completion_tokens": sent, "finish_reason": finish if done else None}
        if done and steps:
            histogram = [steps.count(m) for m in range(max(steps) + 1)]
            histogram[0] += script.histogram_extra
            meta |= {
                "spec_verify_ct": len(steps),
                "spec_num_correct_drafts": sum(steps),
                "spec_num_proposed_drafts": len(steps) * (script.draft_tokens - 1),
                "spec_correct_drafts_histogram": histogram,
            }
        yield {"output_ids": ids if script.incremental else tokens[:sent], "meta_info": dict(meta)}
        if done:
            return
        step = 0
        if script.accepted:
            step = script.accepted[len(steps) % len(script.accepted)]
            steps.append(step)
        ids = tokens[sent : sent + step + 1]
        sent += len(ids)


def read(script: Script, body: dict[str, Any], width: int) -> dict[str, Any]:
    """Return the answer to a whole text: state j of token i is i + j / 8, and its own choices are `answer`'s."""
    ids, first = body["input_ids"], body["logprob_start_len"]
    more = answer(ids, body["sampling_params"]["max_new_tokens"])
    rows: list[list[float | None]] = [[i + j / 8 for j in range(width)] for i in ids]
    if script.nulls:
        rows[0][0] = None
    said = [(i + 1) % VOCAB for i in ids[first:-1]]
    for k in range(script.second_thoughts):
        said[k] += 1
    meta = {
        "cached_tokens": script.cached_tokens,
        "input_top_logprobs": [None, *([[-0.5, token, None]] for token in said)],
        "hidden_states": [rows[script.lost_rows :], *([0.0] * width for _ in more[1:])],
    }
    return {"output_ids": more, "meta_info": meta}


def number(text: str) -> object:
    """Return a flag's value as the engine reports it."""
    return int(text) if text.lstrip("-").isdigit() else text


def parse(arguments: Sequence[str]) -> dict[str, str]:
    """Return {flag: value} of a command line."""
    flags, rest = {}, list(arguments)
    while rest:
        name = rest.pop(0).removeprefix("--")
        flags[name] = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
    return flags


def main(arguments: Sequence[str]) -> int:
    """Behave as the engine's Python would."""
    if arguments[0] == "-c":
        print(json.dumps({"python": "3.11", "sglang": "0.5.23"}))
        return 0
    if arguments[0] == "--worker":
        if arguments[1] == "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
        return 0
    told = json.loads(os.environ.get("FAKE_ENGINE", "{}"))
    script = Script(**told | {"accepted": tuple(told.get("accepted", ()))})
    flags = parse(arguments[2:])
    kind = "stubborn" if script.stubborn else "tame"
    worker = subprocess.Popen(
        [sys.executable, __file__, "--worker", kind, "sglang::scheduler"],
        start_new_session=script.stubborn,
    )
    if script.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("loading", flush=True)
    server = Engine((flags["host"], int(flags["port"])), script, flags)
    if script.fail_at_start:
        time.sleep(script.load_s)
        server.fail(script.fail_at_start)
    if script.silent_worker_death:
        server.ready_at += 600
        time.sleep(2)
        worker.kill()
        worker.wait()
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
