"""Results told to a real MLflow on sqlite: whole, once, replaced when changed, rebuilt when deleted."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftproof.cli import main
from draftproof.errors import InputError
from draftproof.files import schema_faults
from draftproof.track.stages import LARGEST_ARTIFACT_BYTES, Stage, headline, name_for, stages
from draftproof.track.sync import Sync
from tests.builders.results import Truth, change_json, write_results

NAMES = {
    "1-preflight",
    "2-checkpoint",
    "3-capture",
    "4-accuracy",
    "5-serving/baseline",
    "5-serving/spec",
    "6-benchmark/baseline-c1",
    "6-benchmark/spec-c1",
    "7-diagnosis",
    "8-report",
}


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One database for all tests, as its schema takes seconds to create; each test has an experiment of its own."""
    return tmp_path_factory.mktemp("mlflow") / "mlflow.db"


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "demo"
    write_results(folder, Truth(requests=8, concurrency=(1,)))
    assert main(["diagnose", "--results", str(folder)]) == 0
    assert main(["report", "--results", str(folder)]) == 0
    return folder


@pytest.fixture
def results(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "demo"))


@pytest.fixture
def track(
    database: Path, results: Path, request: pytest.FixtureRequest
) -> Callable[..., dict[str, Any]]:
    """Track the results in the test's own MLflow experiment; return track.json."""

    def call(*arguments: str) -> dict[str, Any]:
        command = ["track", "--results", str(results), "--uri", f"sqlite:///{database}"]
        assert main([*command, "--experiment", request.node.name, *arguments]) == 0
        answer = json.loads((results / "track.json").read_text())
        assert not schema_faults(answer, "track")
        return answer

    return call


@pytest.fixture
def client(database: Path) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{database}")


def children(client: Any, answer: dict[str, Any]) -> dict[str, Any]:
    parent = answer["parent"]["run_id"]
    runs = client.search_runs([answer["experiment_id"]])
    return {
        run.info.run_name: run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent
    }


def artifacts(client: Any, run_id: str, folder: str = "") -> set[str]:
    found = set()
    for each in client.list_artifacts(run_id, folder or None):
        found |= artifacts(client, run_id, each.path) if each.is_dir else {each.path}
    return found


def test_everything_is_told_once(
    track: Callable[..., Any], client: Any, results: Path, database: Path
) -> None:
    answer = track()
    assert set(answer["runs"]) == NAMES
    runs = children(client, answer)
    assert set(runs) == NAMES
    assert {run.info.status for run in runs.values()} == {"FINISHED"}

    cell = json.loads((results / "benchmark/spec-c1/cell.json").read_text())
    spec = runs["6-benchmark/spec-c1"].data
    assert spec.metrics["spec/accept_length"] == pytest.approx(cell["spec"]["accept_length"], 1e-5)
    assert spec.params["arm"] == "spec"
    assert runs["2-checkpoint"].data.params["effective/boundaries"] == "[2,15,27]"
    accuracy_id = runs["4-accuracy"].info.run_id
    history = client.get_metric_history(accuracy_id, "acceptance/cumulative")
    assert [each.step for each in history] == [1, 2, 3, 4, 5]
    assert artifacts(client, accuracy_id) == {
        "accuracy/accuracy.json",
        "accuracy/wiring.json",
        "logs/accuracy.log",
    }
    assert "benchmark/spec-c1/requests.parquet" in artifacts(
        client, runs["6-benchmark/spec-c1"].info.run_id
    )
    all_files = {name for run in runs.values() for name in artifacts(client, run.info.run_id)}
    assert not [name for name in all_files if name.endswith(".safetensors")]

    parent = client.get_run(answer["parent"]["run_id"])
    assert parent.info.run_name == "demo"
    verdict = json.loads((results / "diagnosis.json").read_text())["verdict"]
    assert parent.data.tags["mlflow.note.content"].startswith(verdict)
    assert artifacts(client, parent.info.run_id) == {"diagnosis.md", "report.html"}
    assert parent.info.artifact_uri.startswith((database.parent / "artifacts").as_uri())

    assert track() == answer
    assert len(client.search_runs([answer["experiment_id"]])) == len(NAMES) + 1


def test_only_what_changed_is_replaced(
    track: Callable[..., Any], client: Any, results: Path
) -> None:
    before = track()
    change_json(results / "benchmark/spec-c1/cell.json", wall_s=99.0)
    after = track()
    changed = {name for name in NAMES if before["runs"][name] != after["runs"][name]}
    assert changed == {"6-benchmark/spec-c1"}
    assert before["parent"] == after["parent"]
    old = client.get_run(before["runs"]["6-benchmark/spec-c1"]["run_id"])
    assert old.info.lifecycle_stage == "deleted"
    assert (
        old.data.tags["draftproof.superseded_by"] == after["runs"]["6-benchmark/spec-c1"]["run_id"]
    )
    assert set(children(client, after)) == NAMES


def test_a_half_written_run_is_swept(
    track: Callable[..., Any], client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_files = Sync.keep_files

    def killed(self: Sync, run_id: str, files: Any) -> None:
        if "accuracy/accuracy.json" in files:
            raise KeyboardInterrupt
        keep_files(self, run_id, files)

    with monkeypatch.context() as patch:
        patch.setattr(Sync, "keep_files", killed)
        with pytest.raises(AssertionError):
            track()
    answer = track()
    runs = client.search_runs([answer["experiment_id"]])
    names = [run.info.run_name for run in runs]
    assert sorted(names) == sorted([*NAMES, "demo"])
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_a_cell_that_is_gone_leaves(track: Callable[..., Any], client: Any, results: Path) -> None:
    track()
    file = results / "benchmark/spec.json"
    shutil.copytree(results / "benchmark/spec-c1", results / "benchmark/spec-c2")
    cells = json.loads(file.read_text())["cells"]
    change_json(file, cells=[cells[0] | {"cell": "spec-c2"}])
    assert set(children(client, track())) == NAMES - {"6-benchmark/spec-c1"} | {
        "6-benchmark/spec-c2"
    }


def test_a_part_of_the_chain(
    track: Callable[..., Any], client: Any, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("benchmark", "report"):
        shutil.rmtree(results / name)
    for name in ("diagnosis.json", "diagnosis.md", "serving/spec/launch.json"):
        (results / name).unlink()
    with pytest.raises(AssertionError):
        track()
    assert "nothing of the stage" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError):
        track("--partial")  # succeeds, but must not say in track.json that all was tracked
    experiment = client.get_experiment_by_name("test_a_part_of_the_chain").experiment_id
    every = client.search_runs([experiment])
    (parent,) = [run for run in every if "mlflow.parentRunId" not in run.data.tags]
    runs = {run.info.run_name: run for run in every}
    assert runs["5-serving/spec"].info.status == "FAILED"
    assert runs["4-accuracy"].info.status == "FINISHED"
    assert parent.info.status == "FAILED"
    assert "7-diagnosis" not in runs


@pytest.mark.parametrize(
    ("broken", "lost"),
    [
        ("benchmark/baseline-c1/cell.json", "6-benchmark/baseline-c1"),
        ("checkpoint/validation.json", "2-checkpoint"),
        ("diagnosis.json", "7-diagnosis"),
    ],
)
def test_a_result_that_cannot_be_read_does_not_hide_the_others(
    results: Path, broken: str, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = {stage.name for stage in stages(results, partial=True) if stage.finished}
    (results / broken).write_text("{")
    after = {stage.name for stage in stages(results, partial=True) if stage.finished}
    headline(results, partial=True)
    assert before - after == {lost}
    assert broken in caplog.text
    with pytest.raises(InputError, match=broken):
        stages(results, partial=False)


def test_another_draft_makes_another_parent_and_keeps_equal_children(
    track: Callable[..., Any], client: Any, results: Path
) -> None:
    before = track()
    file = results / "checkpoint/validation.json"
    draft = json.loads(file.read_text())["draft"]
    change_json(file, draft=draft | {"sha256": "f" * 64})
    after = track()
    assert before["parent"]["run_id"] != after["parent"]["run_id"]
    assert before["runs"]["4-accuracy"] == after["runs"]["4-accuracy"]
    assert set(children(client, after)) == NAMES


def test_no_secret_reaches_mlflow(
    track: Callable[..., Any], client: Any, results: Path, tmp_path: Path
) -> None:
    (results / "serving/spec/server.log").write_text("server_args: api_key='hunter22', port=1\n")
    launch = json.loads((results / "serving/spec/launch.json").read_text())
    change_json(
        results / "serving/spec/launch.json",
        argv=[*launch["argv"], "--api-key", "hunter22"],
        settings=launch["settings"] | {"mirror": {"asked": None, "found": "https://u:hunter22@h"}},
    )
    answer = track()
    run_id = answer["runs"]["5-serving/spec"]["run_id"]
    place = Path(client.download_artifacts(run_id, "serving/spec", str(tmp_path)))
    kept = [file.read_text() for file in place.iterdir()]
    assert len(kept) == 2
    assert not [text for text in kept if "hunter22" in text]
    assert "hunter22" not in json.dumps(client.get_run(run_id).data.params)


def test_an_unreachable_server_is_one_line_and_leaves_the_results(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(results.rglob("*"))
    uri = "http://ann:pw@127.0.0.1:9"
    assert main(["track", "--results", str(results), "--uri", uri, "--experiment", "x"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "no MLflow answers" in lines[0]
    assert "pw" not in lines[0]
    assert sorted(results.rglob("*")) == before


def test_a_deleted_database_is_rebuilt(results: Path, tmp_path: Path) -> None:
    database = tmp_path / "new/mlflow.db"
    command = ["track", "--results", str(results), "--uri", f"sqlite:///{database}"]
    for _ in range(2):
        assert main([*command, "--experiment", "rebuilt"]) == 0
        assert set(json.loads((results / "track.json").read_text())["runs"]) == NAMES
        shutil.rmtree(database.parent)


def test_names_and_values_are_ones_mlflow_takes(tmp_path: Path) -> None:
    from draftproof.track.describe import Described

    assert name_for("a@b=c/[d]") == "a_b_c/_d_"
    told = Described(
        params={"long": "x" * 9000},
        metrics=[
            ("nan", float("nan"), 0),
            ("inf", float("inf"), 0),
            ("none", None, 0),
            ("x", 1 / 3, 2),
        ],
    )
    stage = Stage(name="s", files={}, told=told)
    assert stage.metrics == [("x", 0.333333, 2)]
    assert len(stage.params["long"]) == 500


def test_a_huge_file_is_not_an_artifact(results: Path) -> None:
    with (results / "serving/spec/server.log").open("w") as log:
        log.truncate(LARGEST_ARTIFACT_BYTES + 1)
    stage = next(each for each in stages(results, partial=False) if each.name == "5-serving/spec")
    assert set(stage.files) == {"serving/spec/launch.json"}
