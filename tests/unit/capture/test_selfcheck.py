"""A capture that is not what it says is refused in one line, with the reason; a sound one passes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftproof.capture.samples import read_manifest
from draftproof.capture.selfcheck import check_capture, chosen, recognise
from draftproof.cli import main
from draftproof.errors import InputError
from draftproof.files import sha256
from tests.builders.tiny_models import tiny_llama_target

Change = Callable[[dict[str, Tensor]], None]


@pytest.fixture(scope="module")
def normed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target whose final norm has a gain that matters."""
    folder = tmp_path_factory.mktemp("normed")
    target = tiny_llama_target(folder / "target")
    tensors = load_file(target / "model.safetensors")
    torch.manual_seed(4)
    tensors["model.norm.weight"] = torch.rand(64) * 2 + 0.2
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


@pytest.fixture(scope="module")
def captured(pair: Any, normed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("captured") / "capture"
    assert pair.capture(out, "--target", str(normed)) == 0
    return out


@pytest.fixture
def changed(captured: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a copy of the capture with every sample, and the manifest, changed."""

    def change(tensors: Change, **manifest: object) -> Path:
        out = tmp_path / "changed"
        shutil.copytree(captured, out)
        content = read_manifest(out) | manifest
        for entry in content["samples"]:
            held = load_file(out / entry["file"])
            tensors(held)
            save_file(held, out / entry["file"])
            entry["sha256"] = sha256(out / entry["file"])
        (out / "manifest.json").write_text(json.dumps(content))
        return out

    return change


def untouched(_tensors: dict[str, Tensor]) -> None:
    pass


def before_the_norm(target: Path, *, gain_less_one: bool = False) -> Change:
    """Turn states behind the norm into states before it, each row with a size of its own."""
    gain = load_file(target / "model.safetensors")["model.norm.weight"]

    def change(tensors: dict[str, Tensor]) -> None:
        rows = tensors["last_hidden_state"] / (gain + gain_less_one)
        tensors["last_hidden_state"] = rows * torch.linspace(2, 9, len(rows))[:, None]

    return change


def refused(capture: Path, target: Path) -> str:
    with pytest.raises(InputError) as caught:
        check_capture(capture, read_manifest(capture), target)
    return str(caught.value)


def test_a_capture_passes_and_says_its_convention(captured: Path, normed: Path) -> None:
    manifest = read_manifest(captured)
    assert manifest["last_state"] == "post_norm"
    check_capture(captured, manifest, normed)


def test_states_before_the_norm_pass_when_the_manifest_says_so(changed, normed: Path) -> None:
    out = changed(before_the_norm(normed), last_state="pre_norm")
    check_capture(out, read_manifest(out), normed)


@pytest.mark.parametrize("said", ["pre_norm", "post_norm"])
def test_the_wrong_side_of_the_norm_is_refused(changed, normed: Path, said: str) -> None:
    change = before_the_norm(normed) if said == "post_norm" else untouched
    found, wrong = ("after", "before") if said == "pre_norm" else ("before", "after")
    line = refused(changed(change, last_state=said), normed)
    assert f"is from {found} the target's final norm, but is said to be from {wrong} it" in line
    assert "--last-state" in line


def test_a_norm_that_stores_its_gain_less_one_is_understood(normed: Path) -> None:
    gain = load_file(normed / "model.safetensors")["model.norm.weight"]
    torch.manual_seed(0)
    rows = torch.randn(20, 64) * torch.linspace(2, 9, 20)[:, None]
    unit = rows / rows.square().mean(-1, keepdim=True).sqrt()
    assert recognise(unit * gain, gain) == "post_norm"
    assert recognise(unit * (1 + gain), gain) == "post_norm"
    assert recognise((unit * gain).bfloat16().float(), gain) == "post_norm"
    assert recognise(rows, gain) == "pre_norm"


def test_another_target_is_refused(captured: Path, normed: Path, tmp_path: Path) -> None:
    other = tiny_llama_target(tmp_path / "other", seed=1)
    shutil.copy(normed / "model.safetensors", tmp_path / "norm.safetensors")
    tensors = load_file(other / "model.safetensors")
    tensors["model.norm.weight"] = load_file(normed / "model.safetensors")["model.norm.weight"]
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    line = refused(captured, other)
    assert "of its 48 output tokens, through the target's head" in line
    assert "states of another target" in line


def test_another_vocabulary_is_refused(changed, normed: Path) -> None:
    def shifted(tensors: dict[str, Tensor]) -> None:
        tensors["token_ids"] = (tensors["token_ids"] + 1) % 256

    assert "another vocabulary" in refused(changed(shifted), normed)


def test_a_larger_vocabulary_is_refused(changed, normed: Path) -> None:
    def outside(tensors: dict[str, Tensor]) -> None:
        tensors["token_ids"][-1] = 256

    assert "holds token 256" in refused(changed(outside), normed)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rows_that_are_not_numbers_are_refused(changed, normed: Path, value: float) -> None:
    def broken(tensors: dict[str, Tensor]) -> None:
        tensors["last_hidden_state"][3, 5] = value

    line = refused(changed(broken), normed)
    assert "last_hidden_state is not finite (NaN or infinity) in 1 of " in line


def test_missing_rows_are_refused(changed, normed: Path) -> None:
    def cut(tensors: dict[str, Tensor]) -> None:
        tensors["last_hidden_state"] = tensors["last_hidden_state"][1:].clone()

    assert "one row per token" in refused(changed(cut), normed)


def test_rows_shifted_by_one_are_refused(changed, normed: Path) -> None:
    def shifted(tensors: dict[str, Tensor]) -> None:
        tensors["last_hidden_state"] = tensors["last_hidden_state"].roll(1, 0)

    assert "output tokens" in refused(changed(shifted), normed)


def test_states_in_half_precision_pass(changed, normed: Path) -> None:
    def rounded(tensors: dict[str, Tensor]) -> None:
        tensors["last_hidden_state"] = tensors["last_hidden_state"].bfloat16()

    out = changed(rounded)
    check_capture(out, read_manifest(out), normed)


def test_without_last_states_a_warning_says_so(changed, normed, caplog) -> None:
    out = changed(lambda tensors: tensors.pop("last_hidden_state"))
    manifest = read_manifest(out)
    del manifest["last_state"]
    check_capture(out, manifest, normed)
    assert "holds no last states" in caplog.text


def test_accuracy_refuses_before_it_scores(changed, pair: Any, normed: Path, capsys) -> None:
    out = changed(untouched, last_state="pre_norm")
    command = ["accuracy", "--draft", str(pair.draft), "--target", str(normed)]
    assert main([*command, "--samples", str(out), "--steps", "2"]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "draftproof:" in line]
    assert len(lines) == 1
    assert "final norm" in lines[0]


def test_a_choice_within_the_rounding_counts() -> None:
    head = torch.eye(4)
    rows = torch.tensor([[1.0, 1.0 + 1e-6, 0, 0], [1.0, 1.1, 0, 0]])
    wanted = torch.tensor([0, 0])
    assert chosen(rows, wanted, head, 1e-5).tolist() == [True, False]
    assert chosen(rows, wanted, head, 0.0).tolist() == [False, False]
