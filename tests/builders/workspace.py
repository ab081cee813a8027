"""A copy of the project in a folder of its own, with a small experiment, for runs of the workflow itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
SMALL = {
    "experiment": "small",
    "prompts": {"source": "builtin", "split": "report", "limit": 4},
    "capture": {"max_new_tokens": 24, "dtype": "float32"},
    "accuracy": {"steps": 3},
    "benchmark": {"concurrency": [1, 2], "warmup_requests": 1},
}


@dataclass(frozen=True)
class Workspace:
    """The folder, and how to run things in it."""

    path: Path

    @property
    def results(self) -> Path:
        return self.path / "results" / "small"

    @property
    def environment(self) -> dict[str, str]:
        """The copy's package wins over the installed one; the tools are those of this interpreter."""
        binaries = str(Path(sys.executable).parent)
        return os.environ | {
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(self.path / "workflow/src"),
            "HF_HUB_OFFLINE": "1",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }

    def run(self, *command: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.path,
            env=self.environment,
            timeout=timeout,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )

    def snakemake(self, *arguments: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        return self.run("snakemake", *arguments, timeout=timeout)

    def configure(self, **changes: Any) -> None:
        """Write config.yaml: the default experiment made small, with some top-level keys replaced."""
        config = yaml.safe_load((ROOT / "config.yaml").read_text())
        (self.path / "config.yaml").write_text(yaml.safe_dump(config | SMALL | changes))


def make_workspace(path: Path, **changes: Any) -> Workspace:
    """Copy what git tracks (and new files it does not ignore) into path, with a small experiment."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listing.split("\0")):
        source, copy = ROOT / name, path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            copy.symlink_to(source.readlink())
        elif source.is_file():
            shutil.copy2(source, copy)
    workspace = Workspace(path)
    workspace.configure(**changes)
    return workspace
