"""Capture from a server: what its answers become, and which of them are refused (a fake engine; the real one is in integration)."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from draftproof.capture.boundaries import served_boundaries
from draftproof.capture.samples import read_manifest, read_sample
from draftproof.cli import main
from tests.builders.fake_engine import Script, fake_engines
from tests.builders.tiny_models import tiny_draft, tiny_llama_target

WELL = Script()
IDS = [0, 1, 2, 3, 4]
ENGINE = "sglang==0.5.23"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target four numbers wide, with a draft and its validation."""
    folder = tmp_path_factory.mktemp("models")
    target = tiny_llama_target(folder / "target", hidden=4, heads=2, kv_heads=1, vocab=1000)
    draft = tiny_draft(folder / "draft", target, heads=2, kv_heads=1, fit=False)
    command = ["validate", "--draft", str(draft), "--target", str(target)]
    main([*command, "--json", str(folder / "validation.json")])
    prompts = [{"id": "a", "turns": ["x"]}, {"id": "b", "turns": ["hello", "there"]}]
    (folder / "prompts.jsonl").write_text(
        "".join(json.dumps({"category": "math"} | prompt) + "\n" for prompt in prompts)
    )
    return folder


@pytest.fixture
def engine(models: Path, tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Return a function that starts a fake engine and returns its launch.json."""
    target = str(models / "target")
    ids = ("--return-aux-hidden-state-layer-ids", " ".join(map(str, IDS)))
    with fake_engines() as start:

        def begin(script: Script = WELL, **changes: Any) -> Path:
            url = start(script, target, *ids)
            record = {
                "schema": "draftproof/launch/1",
                "server": "capture",
                "arm": "capture",
                "engine": ENGINE,
                "device": "cpu",
                "target": target,
                "draft": None,
                "argv": [],
                "environment": {},
                "digest": "0123456789abcdef",
                "url": url,
                "pid": 1,
                "started_at": "2026-01-01T00:00:00+00:00",
                "ready_s": 1.0,
                "versions": {"sglang": "0.5.23"},
                "settings": {
                    "model_path": {"asked": target, "found": target},
                    "return_aux_hidden_state_layer_ids": {"asked": IDS, "found": IDS},
                },
                "log": "server.log",
            }
            file = tmp_path / "launch.json"
            file.write_text(json.dumps(record | changes))
            return file

        yield begin


def capture(models: Path, launch: Path, out: Path, *more: str) -> int:
    command = ["capture", "--source", "sglang", "--launch", str(launch)]
    command += ["--target", str(models / "target"), "--prompts", str(models / "prompts.jsonl")]
    command += ["--validation", str(models / "validation.json"), "--max-new-tokens", "6"]
    return main([*command, "--out", str(out), *more])


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    lines = [line for line in capsys.readouterr().err.splitlines() if "draftproof:" in line]
    assert len(lines) == 1
    return lines[0]


def test_rows_columns_and_texts_are_the_servers(models: Path, engine, tmp_path: Path) -> None:
    assert capture(models, engine(), tmp_path / "out") == 0
    manifest = read_manifest(tmp_path / "out")
    assert manifest["source"] == "sglang"
    assert manifest["target"]["launch"] == "0123456789abcdef"
    assert manifest["versions"] == {"sglang": "0.5.23"}
    assert manifest["boundaries"] == [0, 1, 2, 3, 4, 5]
    assert manifest["self_check"] == {"tokens": 18, "mismatches": 0}
    embedding = load_file(models / "target" / "model.safetensors")["model.embed_tokens.weight"]
    sample = read_sample(tmp_path / "out", manifest, manifest["samples"][0])
    prompt = list(b"user: x\n")
    assert sample.token_ids.tolist() == prompt + [prompt[-1] + i for i in range(1, 7)]
    assert sample.continuation_ids.tolist() == [prompt[-1] + i for i in range(7, 15)]
    assert torch.equal(sample.hidden_states[:, 0], embedding[sample.token_ids])
    numbers = sample.token_ids[:, None] + torch.arange(20) / 8
    assert torch.equal(sample.hidden_states[:, 1:].flatten(1), numbers)


def test_finished_samples_are_kept(models: Path, engine, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert capture(models, engine(Script(refuse_request=4)), out) == 2
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.safetensors")}
    assert before
    assert capture(models, engine(), out) == 0
    after = {path.name: path.stat().st_mtime_ns for path in out.glob("*.safetensors")}
    assert len(after) == 3
    assert before.items() <= after.items()


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (Script(lost_rows=3), "returned 11 rows of 20 numbers for 14 tokens of 20"),
        (Script(lost_rows=3, cached_tokens=3), "(3 tokens came from its cache)"),
        (Script(nulls=True), "hidden_states is not finite (NaN or infinity) in 1 of 14 rows"),
        (Script(refuse_request=1), "500"),
        (Script(cut_request=0), "a request failed"),
        (Script(second_thoughts=1), "repeats only 15 of 18 of its own tokens"),
    ],
)
def test_answers_that_cannot_be_believed_are_refused(
    models: Path, engine, tmp_path: Path, capsys, script: Script, says: str
) -> None:
    assert capture(models, engine(script), tmp_path / "out", "--batch", "1") == 2
    assert says in one_line(capsys)
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"arm": "baseline"}, "is of the arm baseline"),
        ({"stopped_at": "2026-01-01"}, "has stopped (2026-01-01)"),
        ({"target": "other"}, "serves other, not"),
        ({"settings": {"model_path": {"asked": "x", "found": "x"}}}, "another server answers"),
    ],
)
def test_other_servers_are_refused(
    models: Path, engine, tmp_path: Path, capsys, changes: dict[str, Any], says: str
) -> None:
    assert capture(models, engine(**changes), tmp_path / "out") == 2
    assert says in one_line(capsys)


def test_a_server_without_the_drafts_boundaries_is_refused(
    models: Path, engine, tmp_path: Path, capsys
) -> None:
    settings = {
        "model_path": {"asked": "", "found": str(models / "target")},
        "return_aux_hidden_state_layer_ids": {"asked": [1, 2], "found": [1, 2]},
    }
    assert capture(models, engine(settings=settings), tmp_path / "out") == 2
    assert "hands out boundaries [2, 3], the draft reads 4 too" in one_line(capsys)


def test_states_are_stored_in_a_dtype_that_holds_them(
    models: Path, engine, tmp_path: Path, capsys
) -> None:
    launch = engine()
    assert capture(models, launch, tmp_path / "out", "--dtype", "bfloat16") == 2
    assert "the server's states are not bfloat16 numbers" in one_line(capsys)
    assert capture(models, launch, tmp_path / "out", "--dtype", "float32") == 0


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--source", "sglang"], "needs --launch FILE"),
        (["--source", "sglang", "--launch", "x", "--device", "cpu"], "--device: has no meaning"),
        (["--launch", "x"], "--launch: has no meaning with --source huggingface"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    models: Path, tmp_path: Path, capsys, more: list[str], says: str
) -> None:
    command = ["capture", "--target", str(models / "target"), "--out", str(tmp_path)]
    assert main([*command, "--validation", str(models / "validation.json"), *more]) == 2
    assert says in one_line(capsys)


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("LlamaForCausalLM", [1, 2, 3, 4, 5]),
        ("DeepseekV3ForCausalLM", [0, 1, 2, 3, 4, 5]),
        ("GptOssForCausalLM", [1, 2, 3, 4, 5]),
    ],
)
def test_the_engine_is_asked_for_what_its_ids_can_say(
    architecture: str, expected: list[int]
) -> None:
    validation = {"engine": ENGINE, "effective": {"boundaries": {"value": [2, 4, 5]}}}
    assert served_boundaries(validation, ENGINE, architecture, 6, "v") == expected


@pytest.mark.parametrize(
    ("arm", "more", "says"),
    [
        ("capture", [], "arm capture needs --validation FILE"),
        ("baseline", ["--validation", "x"], "--validation: is for the arm capture"),
    ],
)
def test_serve_takes_the_validation_for_the_arm_capture_alone(
    models: Path, tmp_path: Path, capsys, arm: str, more: list[str], says: str
) -> None:
    command = ["serve", "--server", "it", "--arm", arm, "--device", "cpu", "--out", str(tmp_path)]
    assert main([*command, "--target", str(models / "target"), *more]) == 2
    assert says in one_line(capsys)
