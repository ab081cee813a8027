"""The SLURM profile plans the chain, and where a controller answers, a rule of it runs as a job."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.builders.workspace import make_workspace
from tests.integration.test_containers import apptainer_to_plan_with
from tests.integration.test_workflow import planned

__all__ = ["apptainer_to_plan_with"]

PROFILE = ("--workflow-profile", "workflow/profiles/slurm")


def controller_answers() -> bool:
    if shutil.which("sbatch") is None:
        return False
    asked = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True, check=False)
    return asked.returncode == 0 and bool(asked.stdout.strip())


@pytest.mark.chain
@pytest.mark.usefixtures("apptainer_to_plan_with")
def test_the_slurm_profile_plans_the_whole_chain(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "work")
    rules = planned(workspace, *PROFILE)
    assert {"preflight", "validate", "capture", "accuracy", "server", "report", "track"} <= rules


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.skipif(not controller_answers(), reason="no SLURM controller answers")
@pytest.mark.usefixtures("apptainer_to_plan_with")
def test_a_rule_of_the_chain_runs_as_a_job(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "work")
    small = ("--cores", "1", "--default-resources", "mem_mb=1000", "runtime=10")
    quick = (
        "--slurm-init-seconds-before-status-checks",
        "3",
        "--seconds-between-status-checks",
        "2",
    )
    shown = workspace.snakemake(*PROFILE, *small, *quick, "--", "preflight", timeout=300)
    assert shown.returncode == 0, shown.stdout[-3000:]
    assert "has been submitted with SLURM jobid" in shown.stdout
    assert (workspace.results / "preflight.json").is_file()
