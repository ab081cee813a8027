import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftproof.capture.samples import file_name, read_manifest, read_sample
from draftproof.cli import main
from draftproof.errors import InputError


@pytest.fixture(scope="module")
def captured(pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("captured") / "capture"
    assert pair.capture(out) == 0
    return out


def test_every_turn_is_a_sample_in_the_order_of_the_prompts(pair, captured: Path) -> None:
    manifest = read_manifest(captured)
    assert [s["id"] for s in manifest["samples"]] == ["one", "two.1", "two.2", "three/x"]
    assert manifest["boundaries"] == [0, 1, 2, 3, 4, 5]
    assert manifest["self_check"]["mismatches"] == 0
    assert manifest["prompts"]["count"] == 3
    for entry in manifest["samples"]:
        sample = read_sample(captured, manifest, entry)
        assert sample.hidden_states.shape == (len(sample.token_ids), 6, 64)
        assert entry["output_tokens"] == 12
        assert len(sample.continuation_ids) == manifest["lookahead_tokens"]


def test_the_second_turn_follows_the_targets_own_answer(pair, captured: Path) -> None:
    from transformers import AutoTokenizer

    manifest = read_manifest(captured)
    first, second = (read_sample(captured, manifest, manifest["samples"][n]) for n in (1, 2))
    tokenizer = AutoTokenizer.from_pretrained(pair.target)
    answer = tokenizer.decode(first.token_ids[first.prompt_tokens :], skip_special_tokens=True)
    prompt = tokenizer.decode(second.token_ids[: second.prompt_tokens])
    assert prompt == f"user: Write.\nassistant: {answer}\nuser: Shorter, please.\nassistant: "


def test_finished_samples_are_kept_and_stale_ones_removed(
    pair, captured: Path, tmp_path: Path
) -> None:
    out = tmp_path / "capture"
    shutil.copytree(captured, out)
    (out / "manifest.json").unlink()
    lost = out / file_name("two.1")
    lost.unlink()
    (out / "gone.safetensors").write_bytes(b"")
    (out / ".writing.killed").mkdir()
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.safetensors")}
    assert pair.capture(out) == 0
    after = {path.name: path.stat().st_mtime_ns for path in out.glob("*.safetensors")}
    changed = {name for name in after if before.get(name) != after[name]}
    assert changed == {lost.name}
    assert "gone.safetensors" not in after
    assert not (out / ".writing.killed").exists()
    assert read_manifest(out) == read_manifest(captured)


def test_other_settings_make_every_sample_anew(pair, captured: Path, tmp_path: Path) -> None:
    out = tmp_path / "capture"
    shutil.copytree(captured, out)
    assert pair.capture(out, "--max-new-tokens", "7") == 0
    assert {s["output_tokens"] for s in read_manifest(out)["samples"]} == {7}


def test_the_batch_size_changes_no_token(pair, captured: Path, tmp_path: Path) -> None:
    assert pair.capture(tmp_path / "alone", "--batch", "1") == 0
    for path in captured.glob("*.safetensors"):
        ours, other = load_file(path), load_file(tmp_path / "alone" / path.name)
        assert torch.equal(ours["token_ids"], other["token_ids"])
        assert torch.equal(ours["continuation_ids"], other["continuation_ids"])


def test_half_precision_states_are_stored_in_it(pair, tmp_path: Path) -> None:
    assert pair.capture(tmp_path, "--dtype", "bfloat16", "--limit", "1") == 0
    states = load_file(tmp_path / "one.safetensors")["hidden_states"]
    assert states.dtype == torch.bfloat16


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    lines = [line for line in capsys.readouterr().err.splitlines() if "draftproof:" in line]
    assert len(lines) == 1
    return lines[0]


def test_a_missing_target_is_one_line(pair, tmp_path: Path, capsys) -> None:
    assert pair.capture(tmp_path, "--target", str(tmp_path / "none")) == 2
    assert "the target directory does not exist" in one_line(capsys)


def test_a_target_that_transformers_cannot_load_is_one_line(pair, tmp_path: Path, capsys) -> None:
    target = tmp_path / "target"
    shutil.copytree(pair.target, target)
    weights = target / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert pair.capture(tmp_path / "out", "--target", str(target)) == 2
    assert "cut off" in one_line(capsys)


def test_a_validation_of_another_kind_is_one_line(pair, tmp_path: Path, capsys) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"schema": "draftproof/wiring/1"}))
    assert pair.capture(tmp_path, "--validation", str(other)) == 2
    assert "draftproof/validation/1" in one_line(capsys)


def test_boundaries_outside_the_target_are_refused(pair, tmp_path: Path, capsys) -> None:
    validation = json.loads(pair.validation.read_text())
    validation["effective"]["boundaries"]["value"] = [2, 4, 6]
    changed = tmp_path / "validation.json"
    changed.write_text(json.dumps(validation))
    assert pair.capture(tmp_path, "--validation", str(changed)) == 2
    assert "boundary 6" in one_line(capsys)


def test_weights_that_are_not_numbers_are_refused(pair, tmp_path: Path, capsys) -> None:
    target = tmp_path / "target"
    shutil.copytree(pair.target, target)
    tensors = load_file(target / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][0, 0] = float("nan")
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    assert pair.capture(tmp_path / "out", "--target", str(target)) == 2
    assert "not finite" in one_line(capsys)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_prompt_too_long_for_the_target_is_refused(pair, tmp_path: Path, capsys) -> None:
    assert pair.capture(tmp_path, "--max-new-tokens", "1000") == 2
    assert "the target has 1024" in one_line(capsys)


def test_no_chat_template_is_refused(pair, tmp_path: Path, capsys) -> None:
    target = tmp_path / "target"
    shutil.copytree(pair.target, target)
    settings = json.loads((target / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (target / "tokenizer_config.json").write_text(json.dumps(settings))
    assert pair.capture(tmp_path / "out", "--target", str(target)) == 2
    assert "no chat template" in one_line(capsys)


@pytest.mark.parametrize("flag", ["--max-new-tokens", "--batch"])
def test_no_token_and_no_batch_are_refused(pair, tmp_path: Path, capsys, flag: str) -> None:
    assert pair.capture(tmp_path, flag, "0") == 2
    assert flag in one_line(capsys)


def test_samples_that_do_not_fit_the_manifest_are_refused(captured: Path, tmp_path: Path) -> None:
    manifest = read_manifest(captured)
    entry = dict(manifest["samples"][0])
    with pytest.raises(InputError, match="missing"):
        read_sample(tmp_path, manifest, entry)
    tensors = load_file(captured / entry["file"])

    def stored(**changes) -> dict:
        from draftproof.files import sha256

        save_file({**tensors, **changes}, tmp_path / entry["file"])
        return entry | {"sha256": sha256(tmp_path / entry["file"])}

    whole = stored()
    read_sample(tmp_path, manifest, whole)
    with pytest.raises(InputError, match="not the file"):
        read_sample(tmp_path, manifest, entry | {"sha256": "0" * 64})
    states = tensors["hidden_states"]
    with pytest.raises(InputError, match="one row per token"):
        read_sample(tmp_path, manifest, stored(hidden_states=states[:-1].clone()))
    broken = states.clone()
    broken[0, 0, 0] = float("inf")
    with pytest.raises(InputError, match="not finite"):
        read_sample(tmp_path, manifest, stored(hidden_states=broken))


def test_file_names_hold_any_id() -> None:
    assert file_name("writing-02.1") == "writing-02.1.safetensors"
    assert "/" not in file_name("../etc/passwd")
    assert len(file_name("ü" * 500)) < 200
    assert file_name("a" * 500) != file_name("a" * 501)


def test_help_shows_an_example(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["capture", "--help"])
    assert "example:" in capsys.readouterr().out
