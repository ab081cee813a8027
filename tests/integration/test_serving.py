"""`draftproof serve` on the real engine: its own reason when a draft is broken, its own settings, and nothing left of its tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from draftproof.files import read_result
from tests.builders.tiny_models import tiny_draft, tiny_llama_target

pytestmark = pytest.mark.engine

FLAGS = {"max-total-tokens": 4096, "max-running-requests": 8}
CHAIN = {"speculative-num-steps": 3, "speculative-eagle-topk": 1, "speculative-num-draft-tokens": 4}
START_S = 800  # fifteen seconds on two free cores
Serve = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    target = tiny_llama_target(folder / "target")
    tiny_draft(folder / "draft", target, fit=False)
    broken = tiny_draft(folder / "broken", target, fit=False) / "config.json"
    config = json.loads(broken.read_text())
    del config["draft_vocab_size"]
    broken.write_text(json.dumps(config))
    return folder


@pytest.fixture
def serve(models: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts `draftproof serve` with a draft and a command."""
    started: list[subprocess.Popen[str]] = []

    def begin(draft: str, *command: str) -> subprocess.Popen[str]:
        arguments = [
            *("--server", "spec", "--arm", "spec", "--device", "cpu", "--out", str(tmp_path)),
            *("--target", str(models / "target"), "--draft", str(models / draft)),
            *("--flags", json.dumps(FLAGS | CHAIN), "--environment", '{"OMP_NUM_THREADS": "1"}'),
            *("--", *command),
        ]
        program = [sys.executable, "-m", "draftproof", "serve"]
        started.append(subprocess.Popen([*program, *arguments], stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for each in started:
        each.terminate()
        each.communicate()


def test_broken_draft_fails_with_the_engines_reason_within_seconds(
    serve: Serve, tmp_path: Path
) -> None:
    running = serve("broken", "sleep", "600")
    _, stderr = running.communicate(timeout=START_S)
    ended = time.time()
    assert running.returncode == 2
    assert "AttributeError: 'LlamaConfig' object has no attribute 'draft_vocab_size'" in stderr
    assert str(tmp_path / "server.log") in stderr
    assert ended - (tmp_path / "server.log").stat().st_mtime < 10, "seconds after the crash"
    assert not (tmp_path / "launch.json").exists()


def test_settings_are_read_back_and_kill_9_leaves_no_process_of_the_real_tree(
    serve: Serve, tmp_path: Path
) -> None:
    running = serve("draft", "sleep", "600")
    deadline = time.monotonic() + START_S
    while not (tmp_path / "launch.json").exists() and time.monotonic() < deadline:
        assert running.poll() is None, running.communicate()[1]
        time.sleep(0.5)
    launch = read_result(tmp_path / "launch.json", "launch")
    found = {name: pair["found"] for name, pair in launch["settings"].items()}
    assert found["speculative_algorithm"] == "EAGLE3"
    assert found["speculative_num_steps"] == 3
    assert found["speculative_eagle_topk"] == 1
    assert found["speculative_num_draft_tokens"] == 4
    assert found["dtype"] == "float32"
    assert launch["versions"]["sglang"] == "0.5.23"

    tree = psutil.Process(running.pid).children(recursive=True)
    titles = [" ".join(process.cmdline()) for process in tree]
    for part in (
        "guard.py",
        "launch_server",
        "sglang::scheduler",
        "sglang::detokenizer",
        "sleep 600",
    ):
        assert any(part in title for title in titles), (part, titles)
    os.kill(running.pid, 9)
    gone, alive = psutil.wait_procs(tree, timeout=20)
    assert not alive, [process.name() for process in alive]
    assert len(gone) == len(tree)
