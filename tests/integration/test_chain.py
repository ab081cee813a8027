"""The whole chain with the real target, draft, SGLang and MLflow; then reruns, a killed run, a broken draft."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.builders.workspace import Workspace, make_workspace
from tests.integration.test_workflow import planned

pytestmark = [pytest.mark.chain, pytest.mark.engine]


def read(path: Path) -> dict[str, object]:
    return json.loads(path.read_text())


def servers_of(workspace: Workspace) -> list[psutil.Process]:
    """Every live process that was started in the workspace, whatever its parent is now."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()) == workspace.path:
                found.append(process)
    return found


def wait_for(condition, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace in which the chain has run to its end."""
    workspace = make_workspace(tmp_path_factory.mktemp("chain"))
    shown = workspace.snakemake(timeout=1400)
    assert shown.returncode == 0, shown.stdout[-5000:]
    return workspace


ANSWERS = [
    "preflight.json",
    "checkpoint/validation.json",
    "checkpoint/draft/config.json",
    "checkpoint/draft/model.safetensors",
    "checkpoint/draft/conversion.json",
    "capture/manifest.json",
    "accuracy/accuracy.json",
    "accuracy/wiring.json",
    "serving/baseline/launch.json",
    "serving/baseline/server.log",
    "serving/spec/launch.json",
    "serving/spec/server.log",
    "benchmark/baseline-c1/cell.json",
    "benchmark/baseline-c1/requests.parquet",
    "benchmark/baseline-c2/cell.json",
    "benchmark/spec-c1/cell.json",
    "benchmark/spec-c2/cell.json",
    "benchmark/baseline.json",
    "benchmark/spec.json",
    "diagnosis.json",
    "diagnosis.md",
    "report/report.html",
    "track.json",
]


@pytest.mark.slow
@pytest.mark.timeout(4000)
def test_the_miswired_demo_names_the_line_that_the_corrected_run_confirms(tmp_path: Path) -> None:
    prompts = {"source": "builtin", "split": "report", "limit": 16}
    capture = {"max_new_tokens": 48, "dtype": "float32"}
    workspace = make_workspace(tmp_path, prompts=prompts, capture=capture)
    done = workspace.run("make", "INSTALLED=", "demo-miswired", timeout=3600)
    assert done.returncode == 0, done.stdout[-5000:]
    wrong, right = (
        read(workspace.path / "results" / name / "diagnosis.json")
        for name in ("demo-miswired", "demo-corrected")
    )
    line = '"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 14, 26]'
    assert wrong["verdict"].startswith(
        "The draft is wired wrong: its weights fit boundaries (2, 15, 27)"
    )
    assert line in wrong["verdict"]
    assert right["verdict"].startswith("The draft is wired right")
    assert (
        right["acceptance"]["served"]["accept_length"]
        > wrong["acceptance"]["served"]["accept_length"] + 0.5
    )


def test_every_stage_leaves_its_answer(finished: Workspace) -> None:
    missing = [name for name in ANSWERS if not (finished.results / name).is_file()]
    assert not missing


def test_greedy_text_is_the_same_everywhere(finished: Workspace) -> None:
    outputs = read(finished.results / "diagnosis.json")["outputs"]
    assert outputs["requests"] > 0
    assert (
        outputs["identical_to_baseline"] == outputs["identical_to_capture"] == outputs["requests"]
    )


def test_served_acceptance_is_what_was_predicted(finished: Workspace) -> None:
    acceptance = read(finished.results / "diagnosis.json")["acceptance"]
    assert acceptance["served"]["accept_length"] > 1.1
    assert abs(acceptance["difference_ratio"]) <= 0.01
    assert acceptance["total_variation"] <= 0.02


def test_a_second_run_does_nothing(finished: Workspace) -> None:
    before = read(finished.results / "track.json")
    shown = finished.snakemake()
    assert shown.returncode == 0
    assert "Nothing to be done" in shown.stdout
    assert read(finished.results / "track.json") == before


def test_tracking_again_makes_no_second_run(finished: Workspace) -> None:
    import mlflow

    before = read(finished.results / "track.json")
    uri = f"sqlite:///{finished.path}/results/mlflow/mlflow.db"
    client = mlflow.MlflowClient(uri)
    count = len(client.search_runs([before["experiment_id"]]))
    assert finished.snakemake("--forcerun", "track").returncode == 0
    assert read(finished.results / "track.json") == before
    assert len(client.search_runs([before["experiment_id"]])) == count > 8


@pytest.mark.parametrize(
    ("module", "reruns", "keeps"),
    [
        (
            "benchmark/command.py",
            {"server", "diagnosis", "report", "track"},
            {"validate", "capture", "accuracy"},
        ),
        (
            "accuracy/command.py",
            {"accuracy", "diagnosis", "report", "track"},
            {"validate", "capture", "server"},
        ),
        (
            "report/command.py",
            {"report", "track"},
            {"validate", "capture", "accuracy", "server", "diagnosis"},
        ),
    ],
)
def test_a_changed_module_reruns_only_what_uses_it(
    finished: Workspace, module: str, reruns: set[str], keeps: set[str]
) -> None:
    path = finished.path / "workflow/src/draftproof" / module
    text = path.read_text()
    try:
        path.write_text(text + "\nCHANGED = True\n")
        rules = planned(finished)
    finally:
        path.write_text(text)
    assert reruns <= rules
    assert not keeps & rules


def stopped_while_measuring(workspace: Workspace, how: str) -> None:
    """Run the benchmark, and stop Snakemake in the middle of the last cell."""
    log = workspace.path / f"{how}.log"
    with log.open("w") as stream:
        run = subprocess.Popen(
            ["snakemake", "benchmark"],
            cwd=workspace.path,
            env=workspace.environment,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        wait_for(lambda: "spec-c2" in log.read_text(), 500, "the unfinished cell to be measured")
        if how == "interrupt":
            os.killpg(run.pid, signal.SIGINT)
        else:
            run.kill()
        run.wait(60)
        wait_for(lambda: not servers_of(workspace), 30, "every process of the run to end")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)


def test_a_stopped_run_leaves_no_process_and_the_next_one_finishes(finished: Workspace) -> None:
    (finished.results / "benchmark/spec.json").unlink()
    (finished.results / "benchmark/spec-c2/cell.json").unlink()
    kept = finished.results / "benchmark/spec-c1/cell.json"
    text = kept.read_text()
    stopped_while_measuring(finished, "interrupt")
    assert not (finished.results / "benchmark/spec.json").exists()
    stopped_while_measuring(finished, "kill")
    assert not (finished.results / "benchmark/spec.json").exists()
    assert finished.snakemake("--unlock").returncode == 0
    assert finished.snakemake("benchmark").returncode == 0
    assert (finished.results / "benchmark/spec.json").is_file()
    assert kept.read_text() == text


def test_a_draft_that_fails_validation_stops_the_chain_with_the_reason(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    config = workspace.path / "workflow/demo/draft/config.json"
    draft = json.loads(config.read_text())
    del draft["draft_vocab_size"]
    config.write_text(json.dumps(draft))
    shown = workspace.snakemake("checkpoint")
    assert shown.returncode == 1
    assert "draft_vocab_size" in shown.stdout
    assert read(workspace.results / "checkpoint/validation.json")["status"] == "fail"
    assert not (workspace.results / "checkpoint/draft").exists()
