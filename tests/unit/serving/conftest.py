"""Run `draftproof serve` as a process of its own on the fake engine, and see what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.builders.fake_engine import Script, environment_of, python_of

SPEC_FLAGS = {
    "speculative-num-steps": 3,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": 4,
}

WELL = Script()


class Serve:
    """One `draftproof serve` process."""

    def __init__(self, folder: Path, popen: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.popen = popen
        self.out = folder / "out"

    def wait(self, timeout_s: float = 120) -> tuple[int, str]:
        """Return (exit code, stderr) once it has ended."""
        _, stderr = self.popen.communicate(timeout=timeout_s)
        return self.popen.returncode, stderr

    def wait_until_ready(self) -> None:
        """Return when launch.json is there."""
        eventually(lambda: (self.out / "launch.json").exists(), "ready")

    def processes(self) -> list[psutil.Process]:
        """Return all living processes of this launch, wherever in the process tree, known by a variable of theirs."""
        return [each for each in psutil.process_iter() if mark_of(each) == str(self.folder)]


def mark_of(process: psutil.Process) -> str:
    """Return the mark that a process has inherited from its test."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return ""
        return process.environ().get("TEST_MARK", "")
    except psutil.Error:
        return ""


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    """Wait until a condition holds; fail when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Serve]]:
    """Return a function that starts `draftproof serve` on a fake engine that follows a script."""
    started: list[Serve] = []
    for model in ("target", "draft"):
        (tmp_path / model).mkdir()
        (tmp_path / model / "config.json").write_text(f'{{"model_type": "{model}"}}')

    def begin(
        script: Script = WELL, *options: str, command: Sequence[str] = (), arm: str = "spec"
    ) -> Serve:
        flags = SPEC_FLAGS if arm == "spec" else {}
        arguments = [
            *("--server", "spec", "--arm", arm, "--device", "cuda", "--engine", "sglang==0.5.23"),
            *("--target", str(tmp_path / "target"), "--draft", str(tmp_path / "draft")),
            *("--flags", json.dumps(flags), "--environment", json.dumps(environment_of(script))),
            *(
                "--out",
                str(tmp_path / "out"),
                "--python",
                str(python_of(tmp_path / "bin")),
                *options,
            ),
            *(["--", *command] if command else []),
        ]
        popen = subprocess.Popen(
            [sys.executable, "-m", "draftproof", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TEST_MARK": str(tmp_path)},
        )
        started.append(Serve(tmp_path, popen))
        return started[-1]

    yield begin
    for each in started:
        left = each.processes()
        for process in left:
            process.kill()
        each.popen.wait()
