"""Where a target is put, and where it stops."""

import json
from pathlib import Path

import pytest

from draftproof.capture.stops import configured_stop_ids
from draftproof.capture.target import load_target, placement
from draftproof.errors import MachineError


@pytest.mark.parametrize(
    ("asked", "gpus", "placed"),
    [
        ("auto", 0, "cpu"),
        ("auto", 1, "cuda"),
        ("auto", 8, "auto"),
        ("cpu", 8, "cpu"),
        ("cuda", 8, "cuda"),
    ],
)
def test_a_target_is_spread_only_over_several_gpus(
    monkeypatch: pytest.MonkeyPatch, asked: str, gpus: int, placed: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpus > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    assert placement(asked) == placed


def test_no_gpu_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(MachineError, match="no CUDA device"):
        placement("cuda")


def test_a_target_that_is_spread_answers_as_one_that_is_not(
    pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the only device it can be spread over is the CPU; the dispatch and its hooks are the same."""
    from draftproof.capture.generate import Limits

    limits = Limits(max_new_tokens=4, stop_token_ids=frozenset(), lookahead=1)
    found = []
    for device_map in ("cpu", "auto"):
        monkeypatch.setattr("draftproof.capture.target.placement", lambda _, m=device_map: m)
        target = load_target(pair.target, "float32", "auto")
        found.append(list(target.answers([[5, 6, 7], [8, 9]], [0, 3], limits)))
    for one, other in zip(*found, strict=True):
        assert (one.output_ids, one.mismatches) == (other.output_ids, 0)
        assert one.hidden_states.equal(other.hidden_states)


def test_stop_tokens_are_those_that_transformers_knows(pair) -> None:
    loaded = load_target(pair.target, "float32", "cpu")
    assert configured_stop_ids(pair.target) == set(loaded.stop_token_ids) == {1}


def test_stop_tokens_come_from_every_file(tmp_path: Path) -> None:
    files = {
        "config.json": {"text_config": {"eos_token_id": 5}},
        "generation_config.json": {"eos_token_id": [6, 7]},
        "tokenizer_config.json": {
            "eos_token": {"content": "<end>"},
            "added_tokens_decoder": {"9": {"content": "<end>"}},
        },
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert configured_stop_ids(tmp_path) == {5, 6, 7, 9}
