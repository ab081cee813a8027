"""The workflow itself, without a server: planning, reruns, and what it says to a wrong experiment."""

from pathlib import Path

import pytest

from tests.builders.workspace import Workspace, make_workspace

pytestmark = pytest.mark.chain


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return make_workspace(tmp_path_factory.mktemp("workflow"))


def planned(workspace: Workspace, *arguments: str) -> set[str]:
    """The rules a dry run would execute."""
    shown = workspace.snakemake(*arguments, "-n", "--quiet", "rules")
    assert shown.returncode == 0, shown.stdout
    table = shown.stdout.split("Job stats:")[1].splitlines()
    return {
        line.split()[0] for line in table if line.split()[-1:] and line.split()[-1].isdigit()
    } - {"total"}


def test_the_chain_plans_every_stage(workspace: Workspace) -> None:
    stages = {
        "preflight",
        "validate",
        "convert",
        "capture",
        "accuracy",
        "server",
        "diagnosis",
        "report",
        "track",
    }
    assert planned(workspace) == stages | {"demo_target", "all"}


@pytest.mark.parametrize(
    ("target", "last"),
    [
        ("preflight", "preflight"),
        ("checkpoint", "convert"),
        ("capture", "capture"),
        ("accuracy", "accuracy"),
        ("serving", "server"),
        ("benchmark", "server"),
        ("diagnosis", "diagnosis"),
        ("report", "report"),
        ("track", "track"),
    ],
)
def test_each_stage_is_a_target(workspace: Workspace, target: str, last: str) -> None:
    assert last in planned(workspace, target)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"benchmrk": {}},
            "config.yaml: top level: unknown key 'benchmrk'. Did you mean 'benchmark'?",
        ),
        (
            {"accuracy": {"steps": "many"}},
            "config.yaml: accuracy.steps: found 'many', expected integer.",
        ),
        ({"draft": {"path": "no/such"}}, "draft.path: no such directory: no/such."),
        (
            {"engine": {"version": "sglang==0.5.23; touch x", "device": "cpu", "flags": {}}},
            "config.yaml: engine.version: 'sglang==0.5.23; touch x' does not match",
        ),
        ({"container": {"image": "a.sif"}}, "container.image: set, but without Apptainer"),
    ],
)
def test_a_wrong_experiment_is_one_clear_line_and_exit_2(
    tmp_path: Path, changes: dict[str, object], says: str
) -> None:
    workspace = make_workspace(tmp_path, **changes)
    shown = workspace.snakemake("-n")
    assert shown.returncode == 2
    told = [
        line
        for line in shown.stdout.splitlines()
        if not line.startswith("Using workflow specific profile")
    ]
    assert len(told) == 1
    assert told[0].startswith(says)


def test_every_preset_plans(workspace: Workspace) -> None:
    presets = sorted((workspace.path / "workflow/presets").glob("*.yaml"))
    assert presets
    for name in ("models/target", "models/draft"):
        (workspace.path / name).mkdir(parents=True, exist_ok=True)
        (workspace.path / name / "config.json").write_text("{}")
    for preset in presets:
        assert "server" in planned(workspace, "--configfile", str(preset))


def test_snakemake_lint_finds_nothing(workspace: Workspace) -> None:
    shown = workspace.snakemake("--lint")
    assert shown.returncode == 0, shown.stdout
