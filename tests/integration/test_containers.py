"""The containers profile plans the chain, and a rule of it really runs inside an image built from its definition."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.workspace import ROOT, make_workspace
from tests.integration.test_workflow import planned

PROFILE = ("--workflow-profile", "workflow/profiles/containers")
HAS_APPTAINER = shutil.which("apptainer") is not None
needs_apptainer = pytest.mark.skipif(
    not HAS_APPTAINER,
    reason="no apptainer on PATH (Debian 12: containers/install-apptainer-debian12.sh PREFIX)",
)


@pytest.fixture
def apptainer_to_plan_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snakemake asks Apptainer for its version even in a dry run; answer it where there is none."""
    if HAS_APPTAINER:
        return
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho apptainer version 1.4.5\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.chain
@pytest.mark.usefixtures("apptainer_to_plan_with")
def test_the_containers_profile_plans_the_whole_chain(tmp_path: Path) -> None:
    image = tmp_path / "draftproof-cpu-0123456789ab.sif"
    image.touch()
    workspace = make_workspace(tmp_path / "work", container={"image": str(image)})
    rules = planned(workspace, *PROFILE)
    assert {"preflight", "validate", "capture", "accuracy", "server", "report", "track"} <= rules


def build(*arguments: str) -> str:
    """Run containers/build.py; return the path of the image that it names."""
    done = subprocess.run(
        [sys.executable, "containers/build.py", "cpu", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Build the CPU image of the checkout as it is, on a Debian made here unless DRAFTPROOF_BASE is one."""
    base = os.environ.get("DRAFTPROOF_BASE")
    if base is None:
        if shutil.which("debootstrap") is None or os.geteuid() != 0:
            pytest.skip("makes its base with debootstrap, as root; or set DRAFTPROOF_BASE")
        base = str(tmp_path_factory.mktemp("base") / "debian")
        subprocess.run([ROOT / "containers/debian-base.sh", base], check=True)
    there_before = (path := ROOT / build("--base", base, "--name-only")).exists()
    assert ROOT / build("--base", base) == path
    yield path
    if not there_before:
        path.unlink()


def inside(image: Path, *command: str) -> str:
    command = ("apptainer", "exec", "--cleanenv", str(image), *command)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.container
@pytest.mark.slow
@needs_apptainer
class TestImage:
    def test_it_holds_what_the_lock_pins_and_nothing_else(self, image: Path) -> None:
        listing = inside(image, "cat", "/opt/draftproof/freeze.txt").splitlines()
        installed = {line for line in listing if "==" in line}
        locked = {line.split(" --hash")[0] for line in (ROOT / "requirements.lock").open()}
        # The last two come with Python's venv.
        assert {line.split("==")[0] for line in installed - locked} == {"pip", "setuptools"}
        assert len(installed) > 20

    def test_its_labels_say_what_it_was_made_from(self, image: Path) -> None:
        labels = inside(image, "cat", "/.singularity.d/labels.json")
        found = json.loads(labels)
        assert found["draftproof.digest"] in image.name
        assert len(found["org.opencontainers.image.revision"].split("-")[0]) == 40
        assert found["org.opencontainers.image.base.name"]

    def test_a_rule_of_the_chain_runs_in_it(self, image: Path, tmp_path: Path) -> None:
        workspace = make_workspace(tmp_path, container={"image": str(image)})
        # Nothing of this checkout is in reach of the rule: the profile keeps PYTHONPATH out.
        shown = workspace.snakemake(*PROFILE, "--", "preflight")
        assert shown.returncode == 0, shown.stdout[-3000:]
        assert f"Activating singularity image {image}" in shown.stdout
        checks = json.loads((workspace.results / "preflight.json").read_text())["checks"]
        (python,) = (check for check in checks if check["id"] == "machine.python")
        there = inside(image, "python", "-c", "import platform; print(platform.python_version())")
        assert python["message"] == f"Python {there.strip()}"
        assert there.strip() != platform.python_version(), "says nothing: the host has the same"
