"""`draftproof validate` and `draftproof convert` as a person calls them."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from draftproof.cli import main
from draftproof.files import read_result, sha256
from tests.builders.checkpoints import IDS_KEY, shard, tiny_draft


def validate(draft: Path, target: Path, file: Path) -> int:
    return main(["validate", "--draft", str(draft), "--target", str(target), "--json", str(file)])


def convert(draft: Path, target: Path, file: Path, out: Path, *more: str) -> int:
    paths = {"--draft": draft, "--target": target, "--validation": file, "--out": out}
    return main(["convert", *(str(word) for pair in paths.items() for word in pair), *more])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_healthy_draft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "validation.json"
    assert validate(*tiny_draft(tmp_path), file) == 0
    answer = read_result(file, "validation")
    assert answer["status"] == "pass"
    assert answer["effective"]["boundaries"] == {"value": [2, 6, 9], "origin": "explicit"}
    assert answer["effective"]["rope"]["value"] == {
        "type": "default",
        "theta": 10000.0,
        "scaling": None,
    }
    assert capsys.readouterr().out.endswith("pass: 0 errors, 0 warnings\n")


def test_what_no_terminal_can_show_is_shown_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = tiny_draft(tmp_path, config={"rope_scaling": {"type": "a\ud800\nb"}})
    assert validate(*paths, tmp_path / "validation.json") == 1
    assert r"type a\ud800 b, theta" in capsys.readouterr().out


def test_a_warning_is_no_refusal(tmp_path: Path) -> None:
    paths, file = tiny_draft(tmp_path, break_="rope.differs"), tmp_path / "validation.json"
    assert validate(*paths, file) == 0
    assert read_result(file, "validation")["status"] == "warn"
    assert convert(*paths, file, tmp_path / "out") == 0


def test_an_error_is_a_no_and_stands_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft, target = tiny_draft(
        tmp_path, break_="vocab.d2t-absolute", config={"layer_types": ["sliding_attention"]}
    )
    file = tmp_path / "validation.json"
    assert validate(draft, target, file) == 1
    shown = capsys.readouterr().out
    assert shown.index("ERROR vocab.d2t-absolute") < shown.index("WARN  meaning.sliding-window")
    assert "Write d2t[i] = id[i] - i." in shown
    assert shown.endswith("fail: 1 errors, 1 warnings\n")
    assert convert(draft, target, file, tmp_path / "out") == 1
    refusal = capsys.readouterr().out
    assert refusal.startswith("refused: vocab.d2t-absolute: d2t holds target ids")
    assert str(file) in refusal
    assert refusal.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_config_in_place_of_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft, target = tiny_draft(tmp_path)
    assert validate(draft / "config.json", target, tmp_path / "v.json") == 2
    line = capsys.readouterr().err
    assert "neither a folder nor a safetensors file" in line
    assert f"Give the folder: --draft {draft}" in line


def test_a_hundred_thousand_layer_ids_are_told_in_a_few_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = {IDS_KEY: list(range(100_000))}
    file = tmp_path / "v.json"
    assert validate(*tiny_draft(tmp_path, config={"eagle_config": ids}), file) == 1
    shown = capsys.readouterr().out
    assert "(100000 in all)" in shown
    assert shown.count("\n") < 60
    found = read_result(file, "validation")["findings"]
    assert all(len(json.dumps(finding)) < 10_000 for finding in found)


def test_an_absurd_number_is_told_shortly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "v.json"
    assert validate(*tiny_draft(tmp_path, config={"draft_vocab_size": 10**4000}), file) == 1
    assert len(capsys.readouterr().out) < 3000
    evidence = read_result(file, "validation")["findings"][0]["evidence"]
    assert evidence["draft_vocab_size"] == "10000000000000000000... (4001 digits)"


def test_the_help_states_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["validate", "--help"])
    shown = capsys.readouterr().out
    assert all(f"\n  {code}  " in shown for code in (0, 1, 2))


UNREADABLE: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "no draft": (lambda d, t: d.rename(d.with_name("away")), "the draft does not exist"),
    "no target": (lambda d, t: t.rename(t.with_name("away")), "the target does not exist"),
    "no config": (lambda d, t: (d / "config.json").unlink(), "no config.json"),
    "bad config": (lambda d, t: (d / "config.json").write_text("{"), "not readable as JSON"),
    "long number": (
        lambda d, t: (t / "config.json").write_text('{"a": ' + "9" * 5000 + "}"),
        "not readable as JSON",
    ),
    "a list": (lambda d, t: (d / "config.json").write_text("[]"), "no JSON object"),
    "no weights": (lambda d, t: (d / "model.safetensors").unlink(), "no *.safetensors file"),
    "cut weights": (
        lambda d, t: (d / "model.safetensors").write_bytes(
            (d / "model.safetensors").read_bytes()[:-10]
        ),
        "is cut off",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, name: str) -> None:
    draft, target = tiny_draft(tmp_path)
    change, message = UNREADABLE[name]
    change(draft, target)
    command = ["validate", "--draft", str(draft), "--target", str(target)]
    done = subprocess.run(
        [sys.executable, "-m", "draftproof", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.rstrip()[-1] == "."
    assert done.stderr.count("\n") == 1


def test_an_engine_without_facts(tmp_path: Path) -> None:
    draft, target = tiny_draft(tmp_path)
    command = ["validate", "--draft", str(draft), "--target", str(target)]
    assert main([*command, "--engine", "sglang==0.4.0"]) == 2


def test_conversion_takes_the_draft_over(tmp_path: Path) -> None:
    draft, target = tiny_draft(tmp_path)
    file, out = tmp_path / "validation.json", tmp_path / "results" / "draft"
    assert validate(draft, target, file) == 0
    out.mkdir(parents=True)  # as Snakemake leaves it
    assert convert(draft, target, file, out) == 0
    record = read_result(out / "conversion.json", "conversion")
    assert json.loads((out / "config.json").read_text()) == json.loads(
        (draft / "config.json").read_text()
    )
    assert (out / "model.safetensors").read_bytes() == (draft / "model.safetensors").read_bytes()
    assert (out / "model.safetensors").stat().st_ino == (draft / "model.safetensors").stat().st_ino
    assert (out / "config.json").stat().st_ino != (draft / "config.json").stat().st_ino
    assert record["files"] == {
        name: sha256(out / name) for name in ("config.json", "model.safetensors")
    }
    assert record["tensors"] == {"copied": 15, "renamed": {}, "dropped": []}
    before = contents(out)
    assert convert(draft, target, file, out) == 0
    assert contents(out) == before
    assert [path.name for path in out.parent.iterdir()] == ["draft"]
    # What is served validates like what was given.
    again = tmp_path / "again.json"
    assert validate(out, target, again) == 0
    assert (
        read_result(again, "validation")["effective"]
        == read_result(file, "validation")["effective"]
    )


def test_conversion_of_shards(tmp_path: Path) -> None:
    draft, target = tiny_draft(tmp_path)
    shard(draft)
    file, out = tmp_path / "validation.json", tmp_path / "out"
    assert validate(draft, target, file) == 0
    assert convert(draft, target, file, out) == 0
    assert {path.name for path in out.iterdir()} == {
        *(path.name for path in draft.iterdir()),
        "conversion.json",
    }


def test_conversion_wants_the_validation_of_this_draft(tmp_path: Path) -> None:
    draft, target = tiny_draft(tmp_path)
    file, out = tmp_path / "validation.json", tmp_path / "out"
    assert convert(draft, target, file, out) == 2
    assert validate(draft, target, file) == 0
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(config | {"norm_before_residual": True}))
    assert convert(draft, target, file, out) == 2
    assert not out.exists()


@pytest.mark.parametrize("place", ["draft", "target", ".", "notes"])
def test_conversion_takes_nothing_away(tmp_path: Path, place: str) -> None:
    draft, target = tiny_draft(tmp_path)
    file = tmp_path / "validation.json"
    assert validate(draft, target, file) == 0
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "important.txt").write_text("keep")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert convert(draft, target, file, tmp_path / place) == 2
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
