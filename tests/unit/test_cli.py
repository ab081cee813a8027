"""Bad usage and bad input: one line, the right exit code, never a traceback."""

from pathlib import Path

import pytest

from draftproof.cli import main
from draftproof.errors import InputError


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["accurracy"], "invalid choice: 'accurracy'"),
        (["preflight"], "the following arguments are required: --device"),
        (["preflight", "--device", "cpu", "--engine", "vllm==1"], "unknown engine 'vllm'"),
        (
            ["preflight", "--device", "cpu", "--engine", "sglang==0.4.0"],
            "no facts for sglang version '0.4.0'. Known versions:",
        ),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert len(shown.err.strip().splitlines()) == 1
    assert shown.out == ""


def test_an_error_says_where_what_and_fix() -> None:
    assert (
        str(InputError("truncated", "a.safetensors", "Copy it again."))
        == "a.safetensors: truncated. Copy it again."
    )
    assert str(InputError("truncated.")) == "truncated."


def test_a_place_that_cannot_be_written_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "preflight.json"
    assert main(["--log", str(out), "preflight", "--device", "cpu"]) == 2
    shown = capsys.readouterr().err.strip()
    assert shown.endswith("Check the path and its permissions.")
    assert len(shown.splitlines()) == 1
