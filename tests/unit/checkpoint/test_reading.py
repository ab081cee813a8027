"""Files that are broken, half there or not what they seem: one line each, and never a pickle opened."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from draftproof.checkpoint import safetensors_header
from draftproof.checkpoint.pair import read_pair
from draftproof.checkpoint.safetensors_header import read_header
from draftproof.checkpoint.validate import validation
from draftproof.checkpoint.weights import open_weights, read_array
from draftproof.errors import InputError
from tests.builders.checkpoints import shard, tiny_draft, write_raw, write_safetensors

ENGINE = "sglang==0.5.23"
VALUES = np.arange(6, dtype="<f4").tobytes()
GOOD = {"a": ("F32", [2, 3], VALUES), "b": ("F32", [6], VALUES)}


def entry(dtype: str = "F32", shape: object = (6,), offsets: object = (0, 24)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def header(**entries: object) -> Callable[[Path], object]:
    text = json.dumps(entries, separators=(",", ":"))
    return lambda path: write_raw(path, text.encode(), VALUES)


def edited(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        write_safetensors(path, GOOD)
        path.write_bytes(change(path.read_bytes()))

    return write


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "4 bytes": (edited(lambda data: data[:4]), "too short"),
    "mid-header": (edited(lambda data: data[:60]), "cut off inside its header"),
    "last 10 bytes": (edited(lambda data: data[:-10]), r"is cut off: \d+ bytes of \d+"),
    "appended": (edited(lambda data: data + bytes(16)), "16 bytes behind the last tensor"),
    "LFS pointer": (
        lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        "Git-LFS pointer",
    ),
    "HTML": (lambda path: path.write_text("<!DOCTYPE html><html></html>"), "HTML page"),
    "zip": (lambda path: path.write_bytes(b"PK\x03\x04" + bytes(60)), "zip archive"),
    "huge header": (lambda path: path.write_bytes(b"\xff" * 64), "announce a header"),
    "not JSON": (lambda path: write_raw(path, b"{]"), "header is not JSON"),
    "not UTF-8": (lambda path: write_raw(path, b'{"\xff": 1}'), "header is not JSON"),
    "nested": (lambda path: write_raw(path, b"[" * 100_000), "header is not JSON"),
    "long number": (lambda path: write_raw(path, b'{"a": ' + b"9" * 5000 + b"}"), "not JSON"),
    "a list": (lambda path: write_raw(path, b"[]"), "no JSON object"),
    "metadata": (header(__metadata__={"a": 1}, a=entry()), "__metadata__"),
    "twice": (
        lambda path: write_raw(
            path,
            b'{"a":{"dtype":"F32","shape":[6],"data_offsets":[0,24]},'
            b'"a":{"dtype":"F32","shape":[6],"data_offsets":[0,24]}}',
            VALUES,
        ),
        "'a' twice",
    ),
    "metadata twice": (
        lambda path: write_raw(
            path,
            b'{"__metadata__":{"a":"1","a":"2"},"a":{"dtype":"F32","shape":[6],"data_offsets":[0,24]}}',
            VALUES,
        ),
        "'a' twice",
    ),
    "metadata like a tensor": (header(a=entry(), __metadata__=entry()), "__metadata__"),
    "a brace too many": (
        lambda path: write_raw(
            path,
            b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"b":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}}',
            VALUES,
        ),
        "header is not JSON",
    ),
    "text behind": (
        lambda path: write_raw(
            path, b'{"a":{"dtype":"F32","shape":[6],"data_offsets":[0,24]}}x', VALUES
        ),
        "header is not JSON",
    ),
    "no brace at the end": (
        lambda path: write_raw(
            path, b'{"a":{"dtype":"F32","shape":[6],"data_offsets":[0,24]}]', VALUES
        ),
        "header is not JSON",
    ),
    "leading zeros": (
        lambda path: write_raw(
            path, b'{"a":{"dtype":"F32","shape":[06],"data_offsets":[0,24]}}', VALUES
        ),
        "header is not JSON",
    ),
    "a line in a name": (
        lambda path: write_raw(
            path, b'{"a\n":{"dtype":"F32","shape":[6],"data_offsets":[0,24]}}', VALUES
        ),
        "header is not JSON",
    ),
    "unknown dtype": (header(a=entry("F31")), "unknown dtype 'F31'"),
    "unhashable dtype": (header(a={**entry(), "dtype": ["F32"]}), "unknown dtype"),
    "shape": (header(a=entry(shape=[-6])), "not a list of sizes"),
    "bool shape": (header(a=entry(shape=[True])), "not a list of sizes"),
    "offsets": (header(a=entry(offsets=[24, 0])), "holds -24 bytes"),
    "three offsets": (header(a=entry(offsets=[0, 1, 2])), "not \\[begin, end\\]"),
    "extra key": (header(a={**entry(), "x": 1}), "exactly dtype"),
    "too big a shape": (header(a=entry(shape=[1000, 1000])), "holds 24 bytes, but F32"),
    "absurd shape": (header(a=entry(shape=[2**62] * 50)), "holds 24 bytes, but F32"),
    "gap": (
        header(a=entry(shape=[2], offsets=[0, 8]), b=entry(shape=[2], offsets=[16, 24])),
        "gap",
    ),
    "overlap": (
        header(a=entry(shape=[4], offsets=[0, 16]), b=entry(shape=[3], offsets=[12, 24])),
        "overlap of 4 bytes between 'a' and 'b'",
    ),
    "gap at the start": (header(a=entry(shape=[2], offsets=[16, 24])), "gap of 16 bytes"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("usual", [True, False])
def test_a_broken_file_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, usual: bool
) -> None:
    if not usual:
        monkeypatch.setattr(safetensors_header, "_usual", lambda *_: None)
    write, message = BROKEN[name]
    path = tmp_path / "model.safetensors"
    write(path)
    with pytest.raises(InputError, match=message) as caught:
        read_header(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_legal_oddities_pass(tmp_path: Path) -> None:
    entries = {
        "z": entry(shape=[2], offsets=[16, 24]),
        "__metadata__": {},
        "empty": entry(shape=[0, 5], offsets=[0, 0]),
        "a": entry(shape=[4], offsets=[0, 16]),
        "scalar": entry(dtype="F64", shape=[], offsets=[24, 32]),
    }
    path = write_raw(
        tmp_path / "m.safetensors", json.dumps(entries).encode() + b"   ", VALUES + bytes(8)
    )
    tensors = read_header(path)
    assert list(tensors) == ["z", "empty", "a", "scalar"]
    assert read_array(tensors["z"]).tolist() == [4.0, 5.0]
    assert read_array(tensors["scalar"]).tolist() == 0.0


def test_what_the_library_writes_is_read_the_usual_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {
        "b": np.zeros((2, 3), dtype=np.float32),
        "é {}:,": np.zeros((), dtype=np.int64),
        "empty": np.zeros((0, 5), dtype=np.float16),
        "a": np.zeros(7, dtype=np.bool_),
    }
    paths = [tmp_path / f"{number}.safetensors" for number in range(3)]
    for path, metadata in zip(
        paths, ({}, None, {"format": "pt", "x": '{"a":1},"b":'}), strict=True
    ):
        save_file(arrays, path, metadata=metadata)
    with monkeypatch.context() as patch:
        patch.setattr(safetensors_header, "_usual", lambda *_: None)
        parsed = [read_header(path) for path in paths]
    monkeypatch.setattr(safetensors_header, "_parse", lambda *_: pytest.fail("parsed"))
    for path, expected in zip(paths, parsed, strict=True):
        usual = read_header(path)
        assert list(usual.items()) == list(expected.items())
        assert {t.name: (t.shape, t.end - t.begin) for t in usual.values()} == {
            name: (array.shape, array.nbytes) for name, array in arrays.items()
        }


def test_no_tensor_at_all(tmp_path: Path) -> None:
    write_raw(tmp_path / "model.safetensors", b'{"__metadata__": {"format": "pt"}}')
    with pytest.raises(InputError, match="holds no tensor"):
        open_weights(tmp_path)


def test_shards_read_as_one(tmp_path: Path) -> None:
    draft, _ = tiny_draft(tmp_path)
    whole = set(open_weights(draft).tensors)
    index = shard(draft)
    weights = open_weights(draft)
    assert set(weights.tensors) == whole
    assert weights.index == index
    assert len(weights.files) == 2
    index.unlink()
    assert set(open_weights(draft).tensors) == whole


def test_a_single_file_is_a_checkpoint(tmp_path: Path) -> None:
    draft, target = tiny_draft(tmp_path)
    alone = validation(read_pair(draft / "model.safetensors", target, ENGINE))
    folder = validation(read_pair(draft, target, ENGINE))
    assert alone["draft"]["sha256"] == folder["draft"]["sha256"]


def _remap(draft: Path, **changes: str | None) -> None:
    index = draft / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    for name, file in changes.items():
        content["weight_map"].pop(name, None)
        if file is not None:
            content["weight_map"][name] = file
    index.write_text(json.dumps(content))


INDEX_FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing shard": (
        lambda d: (d / "model-00002-of-00002.safetensors").unlink(),
        "names model-00002-of-00002.safetensors, which is missing",
    ),
    "wrong shard": (lambda d: _remap(d, d2t="model-00002-of-00002.safetensors"), "holds 'd2t'"),
    "unlisted": (lambda d: _remap(d, d2t=None), "does not name the tensor 'd2t'"),
    "outside": (lambda d: _remap(d, d2t="../model.safetensors"), "no safetensors file beside it"),
    "too long": (lambda d: _remap(d, d2t="x" * 300 + ".safetensors"), "no safetensors file beside"),
    "no map": (
        lambda d: (d / "model.safetensors.index.json").write_text('{"metadata": {}}'),
        "no weight_map",
    ),
    "not JSON": (lambda d: (d / "model.safetensors.index.json").write_text("{"), "not readable"),
}


@pytest.mark.parametrize("name", INDEX_FAULTS)
def test_an_index_that_lies(tmp_path: Path, name: str) -> None:
    draft, _ = tiny_draft(tmp_path)
    shard(draft)
    change, message = INDEX_FAULTS[name]
    change(draft)
    with pytest.raises(InputError, match=message):
        open_weights(draft)


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    draft, _ = tiny_draft(tmp_path)
    shutil.copy(draft / "model.safetensors", draft / "other.safetensors")
    with pytest.raises(InputError, match=r"is in model\.safetensors too"):
        open_weights(draft)


def test_a_config_of_another_layout(tmp_path: Path) -> None:
    draft, target = tiny_draft(tmp_path)
    (draft / "config.json").rename(draft / "params.json")
    with pytest.raises(InputError, match=r"only a params\.json"):
        read_pair(draft, target, ENGINE)


# --- whatever the bytes: a finding, or one line

OPTIONS = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def _answers(draft: Path, target: Path) -> None:
    line = ""
    try:
        validation(read_pair(draft, target, ENGINE))
    except InputError as error:
        line = str(error)
    assert "\n" not in line


@OPTIONS
@given(data=st.data())
def test_flipped_and_cut_weights(tmp_path: Path, data: st.DataObject) -> None:
    draft, target = tiny_draft(tmp_path)
    path = draft / "model.safetensors"
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        # The header is the interesting part, but not the only one.
        last = data.draw(st.sampled_from([8, 1600, len(raw) - 1]))
        raw[data.draw(st.integers(0, last))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw[: data.draw(st.sampled_from([len(raw), len(raw) // 2, 1000, 7]))])
    _answers(draft, target)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@OPTIONS
@given(data=st.data())
def test_any_value_under_any_key_of_the_configs(tmp_path: Path, data: st.DataObject) -> None:
    draft, target = tiny_draft(tmp_path)
    path = data.draw(st.sampled_from([draft, target])) / "config.json"
    config = json.loads(path.read_text())
    more = ["rope_scaling", "rope_parameters", "norm_before_fc", "fc_norm", "target_hidden_size"]
    more += [
        "layer_types",
        "text_config",
        "eagle_aux_hidden_state_layer_ids",
        "transformer_layer_config",
    ]
    for key in data.draw(st.lists(st.sampled_from([*config, *more]), min_size=1, max_size=3)):
        config[key] = data.draw(JSON)
    path.write_text(json.dumps(config))
    _answers(draft, target)


@OPTIONS
@given(data=st.data())
def test_any_value_inside_the_nested_blocks(tmp_path: Path, data: st.DataObject) -> None:
    block = data.draw(st.sampled_from(["eagle_config", "rope_scaling", "rope_parameters"]))
    keys = ["eagle_aux_hidden_state_layer_ids", "use_aux_hidden_state", "norm_before_fc"]
    keys += ["rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings"]
    nested = data.draw(st.dictionaries(st.sampled_from(keys), JSON, max_size=4))
    draft, target = tiny_draft(tmp_path, config={block: nested})
    _answers(draft, target)
