"""What the machine checks say, on this machine and on ones that are wrong."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from draftproof.cli import main
from draftproof.preflight import checks

HERE = checks.Experiment(
    engine_name="sglang", engine_version="0.5.23", device="cpu", folder=Path.cwd()
)


def test_this_machine_can_run_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "preflight.json"
    assert main(["preflight", "--device", "cpu", "--json", str(out)]) == 0
    answer = json.loads(out.read_text())
    assert [check["id"] for check in answer["checks"]] == [
        line.split()[1] for line in capsys.readouterr().out.splitlines()
    ]
    assert answer["status"] in {"pass", "warn"}


def test_another_engine_version_is_refused() -> None:
    check = checks.engine_version(replace(HERE, engine_version="0.5.0"))
    assert (check.status, check.evidence) == ("fail", {"found": "0.5.23", "pinned": "0.5.0"})


def test_a_variable_that_fakes_acceptance_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "3")
    check = checks.stray_environment(HERE)
    assert check.status == "fail"
    assert check.fix == "unset SGLANG_SIMULATE_ACC_LEN"
    assert main(["preflight", "--device", "cpu", "--json", str(tmp_path / "p.json")]) == 1
    assert (tmp_path / "p.json").is_file()


def test_a_gpu_experiment_without_a_gpu_is_refused() -> None:
    import pynvml

    try:
        pynvml.nvmlInit()
        pytest.skip("this machine has an NVIDIA driver")
    except pynvml.NVMLError:
        check = checks.gpus(replace(HERE, device="cuda"))
    assert check.status == "fail"
    assert "no NVIDIA driver answers" in check.message


@pytest.mark.parametrize(("found", "status"), [(checks.GIB, "fail"), (2 * checks.GIB, "pass")])
def test_a_limit_is_reached_or_not(found: int, status: str) -> None:
    assert checks.at_least("x", "memory", found, 2 * checks.GIB, "fix").status == status
