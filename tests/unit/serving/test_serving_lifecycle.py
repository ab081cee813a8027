"""Whatever happens to a server, to its user or to its command: the reason is told, and no process stays behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from draftproof.files import read_result
from draftproof.serving.process import Stopped, running, stopped_by_signals
from draftproof.serving.watch import Watch
from tests.builders.fake_engine import TRACEBACK, Script
from tests.builders.results import preflight
from tests.unit.serving.conftest import Serve, eventually

REASON = "AttributeError: 'LlamaConfig' object has no attribute 'draft_vocab_size'"
SLEEP = ["sleep", "600"]
Begin = Callable[..., Serve]


def test_command_runs_on_a_checked_server_and_its_exit_code_is_returned(serve: Begin) -> None:
    check = (
        "import json, sys; sys.exit(7 if 'stopped_at' not in json.load(open(sys.argv[1])) else 1)"
    )
    running = serve(Script(accepted=(1, 2)))
    running.popen.kill()  # only for its folder; the command below needs the path of launch.json
    launch_file = str(running.out / "launch.json")
    running = serve(Script(accepted=(1, 2)), command=[sys.executable, "-c", check, launch_file])
    code, stderr = running.wait()
    assert code == 7, stderr
    launch = read_result(running.out / "launch.json", "launch")
    assert launch["settings"]["speculative_num_steps"] == {"asked": 3, "found": 3}
    assert launch["stopped_at"] >= launch["started_at"]
    assert "FAKE_ENGINE" in launch["environment"]
    assert "TEST_MARK" not in launch["environment"], "only what we set is recorded"
    eventually(lambda: not running.processes(), "nothing left")


def test_a_failed_preflight_starts_nothing_and_is_named(serve: Begin, tmp_path: Path) -> None:
    preflight(tmp_path)
    answer = json.loads((tmp_path / "preflight.json").read_text())
    running = serve(Script(), "--preflight", str(tmp_path / "preflight.json"), command=["true"])
    assert running.wait()[0] == 0
    answer["checks"][0] |= {"status": "fail", "message": "no driver", "fix": "Install one."}
    (tmp_path / "preflight.json").write_text(json.dumps(answer))
    (running.out / "launch.json").unlink()
    running = serve(Script(), "--preflight", str(tmp_path / "preflight.json"), command=["true"])
    code, stderr = running.wait()
    assert code == 1
    assert f"{answer['checks'][0]['id']}: no driver. Install one." in stderr
    assert len(stderr.strip().splitlines()) == 1
    assert not (running.out / "launch.json").exists()


@pytest.mark.parametrize("lingers", [False, True])
def test_early_failure_is_told_in_the_engines_words_within_seconds(
    serve: Begin, lingers: bool
) -> None:
    begun = time.monotonic()
    running = serve(Script(fail_at_start=TRACEBACK, lingers=lingers), command=SLEEP)
    code, stderr = running.wait()
    assert code == 2
    assert REASON in stderr
    assert str(running.out / "server.log") in stderr
    assert "Traceback" not in stderr
    assert time.monotonic() - begun < 45, "before the parent ends by itself, and not at a timeout"
    assert not (running.out / "launch.json").exists()
    assert not running.processes()


def test_scheduler_that_dies_without_a_word_is_noticed(serve: Begin) -> None:
    code, stderr = serve(Script(silent_worker_death=True)).wait()
    assert code == 2
    assert "lost its worker process" in stderr


def test_crash_at_the_first_request_is_told_in_the_engines_words(serve: Begin) -> None:
    code, stderr = serve(Script(crash_at_request=0, lingers=True)).wait()
    assert code == 2
    assert REASON in stderr


def test_crash_during_the_command_stops_the_command(serve: Begin) -> None:
    running = serve(Script(), command=SLEEP, arm="baseline")
    running.wait_until_ready()
    eventually(lambda: any("sleep" in p.name() for p in running.processes()), "command started")
    next(p for p in running.processes() if "sglang::scheduler" in p.cmdline()).kill()
    code, stderr = running.wait()
    assert code == 2
    assert "lost its worker process" in stderr
    assert not running.processes()
    assert "stopped_at" in json.loads((running.out / "launch.json").read_text())


def test_other_settings_than_asked_are_refused(serve: Begin) -> None:
    code, stderr = serve(Script(settings={"speculative_num_steps": 5})).wait()
    assert code == 2
    assert "speculative_num_steps is 5, asked for 3" in stderr


def test_baseline_that_speculates_is_refused(serve: Begin) -> None:
    code, stderr = serve(Script(settings={"speculative_algorithm": "NGRAM"}), arm="baseline").wait()
    assert code == 2
    assert "speculative_algorithm is 'NGRAM', asked for None" in stderr


def test_never_ready_ends_at_the_timeout(serve: Begin) -> None:
    code, stderr = serve(Script(load_s=600), "--ready-timeout", "3").wait()
    assert code == 2
    assert "not ready in time" in stderr
    assert "loading" in stderr, "its last words"


@pytest.mark.parametrize("stubborn", [False, True])
def test_kill_9_of_serve_leaves_nothing(serve: Begin, stubborn: bool) -> None:
    running = serve(Script(stubborn=stubborn), command=SLEEP)
    running.wait_until_ready()
    eventually(lambda: any(p.name() == "sleep" for p in running.processes()), "command started")
    assert len(running.processes()) >= 5  # two guards, the server, its worker, the command
    running.popen.kill()
    eventually(lambda: not running.processes(), "all gone", timeout_s=10)


def test_kill_9_of_the_guard_leaves_nothing(serve: Begin) -> None:
    running = serve(Script())
    running.wait_until_ready()
    guard = next(p for p in running.processes() if any("guard.py" in word for word in p.cmdline()))
    guard.kill()
    code, _ = running.wait()
    assert code == 2
    eventually(
        lambda: not [p for p in running.processes() if "--worker" not in p.cmdline()], "server gone"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_stops_everything_and_gives_the_shells_exit_code(
    serve: Begin, number: signal.Signals
) -> None:
    running = serve(Script(), command=SLEEP)
    running.wait_until_ready()
    running.popen.send_signal(number)
    code, stderr = running.wait()
    assert code == 128 + number
    assert "Traceback" not in stderr
    assert not running.processes()


def test_signal_while_loading_stops_everything(serve: Begin) -> None:
    running = serve(Script(load_s=600))
    eventually(lambda: (running.out / "server.log").exists(), "started")
    running.popen.terminate()
    code, stderr = running.wait()
    assert code == 143, stderr
    assert not running.processes()


def test_death_of_the_owner_stops_everything(serve: Begin) -> None:
    owner = subprocess.Popen(["sleep", "600"])
    running = serve(Script(), "--owner", str(owner.pid), command=SLEEP)
    running.wait_until_ready()
    owner.kill()
    owner.wait()
    code, stderr = running.wait()
    assert code == 2
    assert f"its owner, process {owner.pid}, has ended" in stderr
    assert not running.processes()


def test_owner_that_is_none_is_refused(serve: Begin) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    code, stderr = serve(Script(), "--owner", str(gone.pid)).wait()
    assert code == 2
    assert f"--owner: no process {gone.pid} to watch" in stderr


def test_occupied_port_is_one_line_that_names_the_port_and_the_process(serve: Begin) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, stderr = serve(Script(), "--port", str(port)).wait()
    assert code == 2
    assert (
        f"port {port} is taken by {psutil.Process().name()} (pid {psutil.Process().pid})" in stderr
    )
    assert len(stderr.strip().splitlines()) == 1


def test_without_a_command_it_says_where_it_is_and_stays(serve: Begin) -> None:
    running = serve(Script())
    running.wait_until_ready()
    time.sleep(1)
    assert running.popen.poll() is None
    running.popen.send_signal(signal.SIGINT)
    stdout, _ = running.popen.communicate(timeout=30)
    assert stdout.strip() == read_result(running.out / "launch.json", "launch")["url"]


def test_command_that_cannot_be_run_gives_127(serve: Begin) -> None:
    code, stderr = serve(Script(), command=["/no/such/program"]).wait()
    assert code == 127
    assert "/no/such/program" in stderr


def test_a_worker_that_came_since_the_last_look_is_known_when_the_server_is_ready(
    tmp_path: Path,
) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)', 'sglang' + '::scheduler'])"
    log = tmp_path / "log"
    command = [sys.executable, "-c", code]
    with log.open("wb") as output, running("it", command, grace_s=1, output=output) as server:
        watch = Watch(server, "sglang==0.5.23", log, lambda: None)
        watch.check()  # before the worker is there
        eventually(lambda: len(server.processes()) == 2, "the worker runs")
        watch.ready()
        (worker,) = watch.workers
        worker.kill()
        eventually(lambda: watch.gone_worker() == str(worker.pid), "its loss is noticed")


def test_signal_while_the_program_starts_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def popen(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(real(*arguments, **options))
        os.kill(os.getpid(), signal.SIGTERM)
        return started[-1]

    real = subprocess.Popen
    monkeypatch.setattr("draftproof.serving.process.subprocess.Popen", popen)
    with pytest.raises(Stopped), stopped_by_signals(), running("it", SLEEP, grace_s=1):
        pytest.fail("went on after the signal")
    assert started[0].returncode is not None, "stopped and waited for"
