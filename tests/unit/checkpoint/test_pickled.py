"""Pickled drafts: read through weights-only loading alone, and nothing in them is ever executed."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from draftproof.checkpoint.pair import read_pair
from draftproof.checkpoint.pickled import Scratch
from draftproof.checkpoint.validate import validation
from draftproof.checkpoint.weights import open_weights
from draftproof.cli import main
from draftproof.errors import InputError
from tests.builders.checkpoints import pickle_weights, tiny_draft

ENGINE = "sglang==0.5.23"


class Trap:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.mark,))


def save(content: object, path: Path, **options: Any) -> None:
    torch.save(content, path, **options)


TRAPS: dict[str, Callable[[Trap, Path], object]] = {
    "bare": lambda trap, path: path.write_bytes(pickle.dumps(trap)),
    "bare, old protocol": lambda trap, path: path.write_bytes(pickle.dumps(trap, protocol=2)),
    "beside a tensor": lambda trap, path: save({"fc.weight": torch.ones(2), "x": trap}, path),
    "of before torch 1.6": lambda trap, path: save(
        {"x": trap}, path, _use_new_zipfile_serialization=False
    ),
}


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "draft.pth", "last.ckpt"])
@pytest.mark.parametrize("kind", TRAPS)
def test_nothing_in_a_trapped_file_is_executed(
    tmp_path: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    draft, target = tiny_draft(tmp_path)
    file, mark = tmp_path / "validation.json", tmp_path / "opened"
    paths = ["--draft", str(draft), "--target", str(target)]
    assert main(["validate", *paths, "--json", str(file)]) == 0
    (draft / "model.safetensors").unlink()
    TRAPS[kind](Trap(mark), draft / name)
    capsys.readouterr()
    assert main(["validate", *paths]) == 2
    converted = ["--validation", str(file), "--out", str(tmp_path / "out")]
    assert main(["convert", *paths, *converted]) == 2
    assert main(["validate", "--draft", str(draft / name), "--target", str(target)]) == 2
    lines = capsys.readouterr().err.splitlines()
    read = name.endswith((".bin", ".pt"))
    said = "nothing in it was executed" if read else "was not opened"
    assert [said in line and name in line for line in lines] == [True] * 3
    assert not mark.exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", TRAPS)
def test_the_traps_would_spring(tmp_path: Path, kind: str) -> None:
    mark, file = tmp_path / "opened", tmp_path / "model.bin"
    TRAPS[kind](Trap(mark), file)
    if kind.startswith("bare"):
        pickle.loads(file.read_bytes())
    else:
        torch.load(file, weights_only=False)
    assert mark.exists()


def test_a_pickled_draft_is_the_same_draft(tmp_path: Path) -> None:
    draft, target = tiny_draft(tmp_path)
    plain = validation(read_pair(draft, target, ENGINE))
    whole = load_file(draft / "model.safetensors")
    for name, options in {
        "pytorch_model.bin": {},
        "model.pt": {},
        "old.bin": {"_use_new_zipfile_serialization": False},
    }.items():
        again = shutil.copytree(draft, tmp_path / name.replace(".", "-"))
        (again / "model.safetensors").unlink()
        save(whole, again / name, **options)
        answer = validation(read_pair(again, target, ENGINE))
        assert answer["effective"] == plain["effective"]
        assert [finding["id"] for finding in answer["findings"]] == ["draft.pickled"]
        assert answer["status"] == "pass"
        alone = validation(read_pair(again / name, target, ENGINE))
        assert alone["draft"]["sha256"] == answer["draft"]["sha256"]


def test_conversion_writes_safetensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draft, target = tiny_draft(tmp_path)
    whole = load_file(draft / "model.safetensors")
    # Kinds of tensors that do not lie in the file as safetensors wants them.
    changed = whole | {
        "fc.weight": whole["fc.weight"].T.contiguous().T,
        "midlayer.mlp.gate_proj.weight": whole["midlayer.mlp.gate_proj.weight"].bfloat16(),
        "midlayer.mlp.up_proj.weight": torch.nn.Parameter(whole["midlayer.mlp.up_proj.weight"]),
        "midlayer.hidden_norm.weight": whole["norm.weight"],
    }
    (draft / "model.safetensors").unlink()
    save(changed, draft / "pytorch_model.bin")
    file, out = tmp_path / "validation.json", tmp_path / "out"
    paths = ["--draft", str(draft), "--target", str(target)]
    assert main(["validate", *paths, "--json", str(file)]) == 0
    assert main(["convert", *paths, "--validation", str(file), "--out", str(out)]) == 0
    assert "pickled files became safetensors" in capsys.readouterr().out
    names = {path.name for path in out.iterdir()}
    assert names == {"config.json", "conversion.json", "model.safetensors"}
    written = load_file(out / "model.safetensors")
    assert written.keys() == changed.keys()
    for name, tensor in changed.items():
        assert written[name].dtype == tensor.dtype
        assert torch.equal(written[name], tensor.detach()), name


def shards(draft: Path) -> Path:
    """Split a draft over two pickled files with an index; returns the index."""
    whole = load_file(draft / "model.safetensors")
    (draft / "model.safetensors").unlink()
    names, weight_map = sorted(whole), {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"pytorch_model-{number:05}-of-00002.bin"
        save({name: whole[name] for name in part}, draft / file)
        weight_map |= dict.fromkeys(part, file)
    index = draft / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index


def test_pickled_shards_read_as_one(tmp_path: Path) -> None:
    draft, target = tiny_draft(tmp_path)
    whole = set(open_weights(draft).tensors)
    index = shards(draft)
    save({"step": 1}, draft / "training_args.bin")
    assert set(read_pair(draft, target, ENGINE).weights.tensors) == whole
    content = json.loads(index.read_text())
    content["weight_map"]["d2t"] = "pytorch_model-00002-of-00002.bin"
    index.write_text(json.dumps(content))
    with pytest.raises(InputError, match="holds 'd2t'; it does not"):
        read_pair(draft, target, ENGINE)
    content["weight_map"]["d2t"] = "training_args.bin"  # which the engine does not read
    index.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"'training_args\.bin' holds 'd2t'; it does not"):
        read_pair(draft, target, ENGINE)
    (draft / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(InputError, match="which is missing"):
        read_pair(draft, target, ENGINE)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "a list": (lambda path: save([torch.ones(2)], path), "holds list, not a map"),
    "empty": (lambda path: save({}, path), "not a map of tensors"),
    "a training state": (
        lambda path: save({"model": {"fc.weight": torch.ones(2)}, "step": 3}, path),
        "holds 'model', a dict",
    ),
    "a sparse tensor": (
        lambda path: save({"a": torch.eye(2).to_sparse()}, path),
        "holds 'a', a sparse_coo tensor",
    ),
    "no values": (lambda path: save({"a": torch.ones(2, device="meta")}, path), "on meta"),
    "a bomb": (
        lambda path: save({"a": torch.zeros(1).expand(1 << 20, 1 << 20)}, path),
        "claims tensors of 4398046511104",
    ),
    "cut off": (
        lambda path: (
            save({"a": torch.ones(4096)}, path),
            path.write_bytes(path.read_bytes()[:-300]),
        ),
        "weights-only loading refuses it",
    ),
    "zeros": (lambda path: path.write_bytes(bytes(100)), "weights-only loading refuses it"),
    "nothing": (lambda path: path.write_bytes(b""), "weights-only loading refuses it"),
    "LFS pointer": (
        lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"),
        "Git-LFS pointer",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_map_of_tensors_is_one_line(tmp_path: Path, name: str) -> None:
    draft, target = tiny_draft(tmp_path)
    write, message = BAD[name]
    write(pickle_weights(draft))
    with pytest.raises(InputError, match=message) as caught:
        read_pair(draft, target, ENGINE)
    assert "\n" not in str(caught.value)


def test_without_the_wish_no_pickle_is_opened(tmp_path: Path) -> None:
    draft, _ = tiny_draft(tmp_path)
    pickle_weights(draft)
    with pytest.raises(InputError, match="was not opened"):
        open_weights(draft)


def test_safetensors_go_first(tmp_path: Path) -> None:
    draft, target = tiny_draft(tmp_path)
    mark = tmp_path / "opened"
    (draft / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(mark)))
    assert not read_pair(draft, target, ENGINE).weights.pickled
    assert not mark.exists()


def test_what_was_read_goes_away_with_its_reader() -> None:
    scratch = Scratch()
    path = scratch.path
    (path / "model.safetensors").write_bytes(b"")
    del scratch
    assert not path.exists()
