"""The rules of the house, read from the imports: who may do what, and what stays light."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from draftproof.cli import COMMANDS
from draftproof.closure import ROOT, imported_modules

MODULES = {path.relative_to(ROOT).as_posix(): path for path in ROOT.rglob("*.py")}
# module: the folders (or files) that may import it
ONLY = {
    "subprocess": {"serving"},
    "httpx": {"benchmark"},
    "mlflow": {"track"},
    "transformers": {"accuracy", "capture"},
    "pynvml": {"preflight"},
    "snakemake": set(),
    "pickle": set(),
}


def imports(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported_modules(ast.parse(path.read_text()))}


@pytest.mark.parametrize("module", ONLY)
def test_only_some_stages_may_import(module: str) -> None:
    users = {name.split("/")[0] for name, path in MODULES.items() if module in imports(path)}
    assert users <= ONLY[module]


def test_the_rules_speak_of_modules_that_exist() -> None:
    used = set().union(*(imports(path) for path in MODULES.values()))
    assert {module for module, users in ONLY.items() if users} <= used


@pytest.mark.parametrize("command", COMMANDS)
def test_help_answers_without_heavy_imports(command: str) -> None:
    heavy = ["torch", "transformers", "mlflow", "pandas", "scipy", "matplotlib"]
    code = (
        "import sys\nfrom draftproof.cli import main\n"
        f"try: main(['{command}', '--help'])\nexcept SystemExit: pass\n"
        f"print([m for m in {heavy} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert f"draftproof {command}" in done.stdout
    assert "example:" in done.stdout


def test_every_schema_is_a_schema_and_is_strict() -> None:
    for path in (ROOT / "schemas").glob("*.json"):
        schema = json.loads(path.read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["additionalProperties"] is False, path.name


def test_modules_stay_small() -> None:
    long = {
        name: n for name, path in MODULES.items() if (n := len(path.read_text().splitlines())) > 350
    }
    assert not long


def test_relative_paths_only_in_committed_text() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    root = ROOT.parents[2]
    for name in listed.stdout.splitlines():
        path = root / "workflow/src/draftproof" / name
        if path.suffix in {".py", ".yaml", ".md", ".json"} and path.is_file():
            assert str(root) not in path.read_text(), name
