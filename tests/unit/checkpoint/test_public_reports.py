"""Faults that people reported in public (reference bug_reports.md, part V): each gives its finding and no other error."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftproof.checkpoint.pair import read_pair
from draftproof.checkpoint.validate import validation
from draftproof.errors import InputError
from tests.builders.checkpoints import (
    DRAFT_VOCAB,
    IDS_KEY,
    LAYERS,
    VOCAB,
    Parts,
    draft_tensors,
    shard,
    tiny_draft,
    weight,
)
from tests.builders.checkpoints_dialects import eagle, speculators
from tests.builders.checkpoints_faults import FAULTS

ENGINE = "sglang==0.5.23"
Change = Callable[[Parts], object]


def validate(paths: tuple[Path, Path]) -> dict[str, Any]:
    return validation(read_pair(*paths, ENGINE))


def config(**changes: Any) -> Change:
    return lambda parts: parts.config.update(changes)


def v01(parts: Parts) -> None:
    """The map is in a file beside the weights."""
    del parts.tensors["d2t"], parts.tensors["t2d"]
    parts.files["eagle_meta.pt"] = b"\x80\x04."


def d2t(place: int, offset: int) -> Change:
    def change(parts: Parts) -> None:
        parts.tensors["d2t"] = parts.tensors["d2t"].copy()
        parts.tensors["d2t"][place] = offset

    return change


def v10(parts: Parts) -> None:
    """A draft narrower than its target, with its own embedding: legal."""
    parts.config |= {"hidden_size": 48, "head_dim": 12, "target_hidden_size": 64}
    parts.target["hidden_size"] = 64
    parts.tensors = draft_tensors(hidden=48) | {
        "fc.weight": weight(48, 192),
        "embed_tokens.weight": weight(VOCAB, 48),
    }


def v10_without_embedding(parts: Parts) -> None:
    v10(parts)
    del parts.tensors["embed_tokens.weight"]


def v12(parts: Parts) -> None:
    parts.config |= {"hidden_size": 40, "num_attention_heads": 8, "num_key_value_heads": 8}
    del parts.config["head_dim"]
    parts.target["hidden_size"] = 40
    parts.tensors = draft_tensors(hidden=40) | {
        f"midlayer.self_attn.{name}_proj.weight": weight(*((40, 64) if name == "o" else (64, 80)))
        for name in "qkvo"
    }


def v17(parts: Parts) -> None:
    parts.config["rope_scaling"] = {"type": "yarn-of-mine", "factor": 4.0}


def v22_by_hand(parts: Parts) -> None:
    """The missing key was added, the nested block was left."""
    speculators(parts)
    parts.config["model_type"] = "llama"


def v38(parts: Parts) -> None:
    parts.config |= {"sliding_window": 4096, "layer_types": ["sliding_attention"] * LAYERS}


def v39(parts: Parts) -> None:
    names = {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "x_vl"}
    parts.target = names | {
        "text_config": {k: v for k, v in parts.target.items() if k not in names}
    }


FOUND: dict[str, tuple[Change, str | None]] = {
    "V01": (v01, "vocab.d2t-missing"),
    "V05 negative": (d2t(5, -9), "vocab.d2t-range"),
    "V05 too large": (d2t(-1, VOCAB), "vocab.d2t-range"),
    "V06": (FAULTS["vocab.sizes"], "vocab.sizes"),
    "V07 zero": (config(draft_vocab_size=0), "config.not-a-size"),
    "V07 negative": (config(draft_vocab_size=-1), "config.not-a-size"),
    "V07 float": (config(draft_vocab_size=4.0), "config.not-a-size"),
    "V07 bool": (config(draft_vocab_size=True), "config.not-a-size"),
    "V10": (v10, None),
    "V10 without its embedding": (v10_without_embedding, "tensors.missing"),
    "V11": (lambda parts: parts.target.update(hidden_size=64), "target.hidden-size"),
    "V12": (v12, "tensors.shape"),
    "V14": (FAULTS["config.draft-vocab-size"], "config.draft-vocab-size"),
    "V15": (config(tie_word_embeddings=True), "head.tied"),
    "V17": (v17, "rope.type"),
    "V18": (
        lambda parts: parts.target.update(max_position_embeddings=4096),
        "target.context-length",
    ),
    "V22": (speculators, "draft.convert-first"),
    "V22 by hand": (v22_by_hand, "draft.convert-first"),
    "V25": (eagle, "config.architecture"),
    "V26 without the switch": (FAULTS["tensors.fc-bias"], "tensors.fc-bias"),
    "V26 without the tensor": (config(bias=True), "tensors.fc-bias"),
    "V38": (v38, "config.layer-types"),
    "V39": (v39, None),
    "V41": (FAULTS["draft.is-target"], "draft.is-target"),
    "V42": (FAULTS["tokenizer.differs"], "tokenizer.differs"),
}


@pytest.mark.parametrize("report", FOUND)
def test_a_reported_fault_gives_its_finding(tmp_path: Path, report: str) -> None:
    change, id = FOUND[report]
    found = validate(tiny_draft(tmp_path, change=change))["findings"]
    errors = {finding["id"] for finding in found if finding["severity"] == "error"}
    assert errors <= {id}
    assert id is None or id in {finding["id"] for finding in found}


def test_v14_and_v12_name_the_value_to_write(tmp_path: Path) -> None:
    found = validate(tiny_draft(tmp_path / "a", change=FOUND["V14"][0]))["findings"]
    assert found[0]["fix"] == f'Write "draft_vocab_size": {DRAFT_VOCAB}.'
    found = validate(tiny_draft(tmp_path / "b", change=FOUND["V12"][0]))["findings"]
    assert "head_dim is missing" in found[0]["fix"]


def test_v22_lists_the_fields_to_lift(tmp_path: Path) -> None:
    found = validate(tiny_draft(tmp_path, change=speculators))["findings"]
    lift = next(f for f in found if f["id"] == "draft.convert-first")["evidence"]["lift"]
    assert {"hidden_size", "intermediate_size", "model_type", "rope_theta"} <= set(lift)


def test_v23_two_conventions_denote_the_same_layers(tmp_path: Path) -> None:
    def written(parts: Parts) -> None:
        speculators(parts)
        parts.config[IDS_KEY] = [3, 6, 10]

    def engine(parts: Parts) -> None:
        parts.config["eagle_config"][IDS_KEY] = [2, 5, 9]

    one, two = (
        validate(tiny_draft(tmp_path / change.__name__, change=change))["effective"]["boundaries"]
        for change in (written, engine)
    )
    assert one["value"] == two["value"] == [3, 6, 10]


def cut(count: int | None) -> Callable[[Path], object]:
    def change(draft: Path) -> None:
        file = draft / "model.safetensors"
        raw = file.read_bytes()
        file.write_bytes(raw[:count] if count else raw + bytes(16))

    return change


def weights(payload: bytes) -> Callable[[Path], object]:
    return lambda draft: (draft / "model.safetensors").write_bytes(payload)


def framed(header: str, payload: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header.encode() + payload


ENTRY = '"fc.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'


def only(name: str) -> Callable[[Path], object]:
    return lambda draft: (draft / "model.safetensors").rename(draft / name)


def mistral(draft: Path) -> None:
    (draft / "config.json").rename(draft / "params.json")
    only("consolidated.safetensors")(draft)


def one_shard(draft: Path) -> None:
    shard(draft)
    (draft / "model-00002-of-00002.safetensors").unlink()


def wrong_shard(draft: Path) -> None:
    index = shard(draft)
    content = json.loads(index.read_text())
    other = {f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}
    content["weight_map"]["fc.weight"] = (other - {content["weight_map"]["fc.weight"]}).pop()
    index.write_text(json.dumps(content))


UNREADABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "V24": (mistral, "only a params.json"),
    "V27": (only("pytorch_model.bin"), "nothing in it was executed"),
    "V28 4 bytes": (cut(4), "too short"),
    "V28 mid-header": (cut(60), "cut off inside its header"),
    "V28 last 10 bytes": (cut(-10), "is cut off"),
    "V29": (weights(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "Git-LFS"),
    "V29 page": (weights(b"<!DOCTYPE html><html></html>"), "HTML page"),
    "V30": (weights(framed("{" + ENTRY + "," + ENTRY + "}", bytes(4))), "'fc.weight' twice"),
    "V32": (
        weights(framed("{" + ENTRY.replace("[1]", "[1000,1000]") + "}", bytes(4))),
        "needs 4000000",
    ),
    "V33": (cut(None), "16 bytes behind the last tensor"),
    "V35": (weights(framed('{"__metadata__":{"format":"pt"}}')), "holds no tensor"),
    "V36 missing": (one_shard, "which is missing"),
    "V36 stale": (wrong_shard, "it does not"),
}


@pytest.mark.parametrize("report", UNREADABLE)
def test_a_reported_file_is_named_with_the_reason(tmp_path: Path, report: str) -> None:
    draft, target = tiny_draft(tmp_path)
    change, message = UNREADABLE[report]
    change(draft)
    with pytest.raises(InputError) as caught:
        validate((draft, target))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_v36_a_consolidated_file_beside_the_shards(tmp_path: Path) -> None:
    draft, target = tiny_draft(tmp_path)
    whole = (draft / "model.safetensors").read_bytes()
    shard(draft)
    (draft / "consolidated.safetensors").write_bytes(whole)
    found = validate((draft, target))["findings"]
    assert [finding["id"] for finding in found] == ["tensors.other-files"]


def test_legal_oddities_pass(tmp_path: Path) -> None:
    """Header in another order than the values, empty metadata, padding."""
    draft, target = tiny_draft(tmp_path)
    file = draft / "model.safetensors"
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    entries = dict(reversed(json.loads(raw[8 : 8 + length]).items()))
    for metadata in ({}, {"__metadata__": {}}, {"__metadata__": {"format": "pt"}}):
        file.write_bytes(framed(json.dumps(entries | metadata) + "     ", raw[8 + length :]))
        assert validate((draft, target))["findings"] == []
