"""Every rule fires on its smallest broken draft, alone; healthy drafts of every shape pass."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftproof.checkpoint import rules
from draftproof.checkpoint.findings import RULES, SEVERITIES
from draftproof.checkpoint.pair import read_pair
from draftproof.checkpoint.validate import validation
from draftproof.files import schema_faults
from tests.builders import tiny_models
from tests.builders.checkpoints import (
    DRAFT_VOCAB,
    HIDDEN,
    IDS_KEY,
    VOCAB,
    tiny_draft,
    weight,
    write_safetensors,
)
from tests.builders.checkpoints_faults import COMPANIONS, FAULTS

ENGINE = "sglang==0.5.23"
assert rules


def validate(paths: tuple[Path, Path]) -> dict[str, Any]:
    answer = validation(read_pair(*paths, ENGINE))
    assert not schema_faults(answer, "validation")
    return answer


def ids(answer: dict[str, Any]) -> set[str]:
    return {finding["id"] for finding in answer["findings"]}


def test_every_rule_has_a_fault_and_every_fault_a_rule() -> None:
    assert set(RULES) == set(FAULTS)


@pytest.mark.parametrize("id", sorted(FAULTS))
def test_a_fault_gives_its_finding_and_no_other(tmp_path: Path, id: str) -> None:
    answer = validate(tiny_draft(tmp_path, break_=id))
    assert ids(answer) == {id} | COMPANIONS.get(id, set())
    status = {"error": "fail", "warning": "warn", "info": "pass"}
    worst = answer["findings"][0]
    assert worst["severity"] == max(
        (RULES[found].severity for found in ids(answer)), key=lambda s: -SEVERITIES.index(s)
    )
    assert answer["status"] == status[worst["severity"]]
    assert worst["message"]
    assert worst["fix"]


@pytest.mark.parametrize("id", sorted(RULES))
def test_a_rule_says_what_it_means_and_where_from(id: str) -> None:
    assert RULES[id].meaning.endswith((".", ")"))
    assert RULES[id].source


HEALTHY: dict[str, dict[str, Any]] = {
    "specforge names": {},
    "layers.0 names": {"layer": "layers.0"},
    "model. in front": {"layer": "model.layers.0"},
    "without t2d": {"tensors": {"t2d": None}},
    "rope in the new layout": {
        "config": {"rope_theta": None, "rope_parameters": {"rope_theta": 10000.0}}
    },
    "whole vocabulary, identity d2t": {
        "config": {"draft_vocab_size": VOCAB},
        "tensors": {
            "lm_head.weight": weight(VOCAB, HIDDEN),
            "d2t": np.zeros(VOCAB, dtype=np.int64),
            "t2d": np.ones(VOCAB, dtype=np.bool_),
        },
    },
    "whole vocabulary, the target's head": {
        "config": {"draft_vocab_size": None},
        "tensors": {"lm_head.weight": None, "d2t": None, "t2d": None},
    },
    "int32 map": {"tensors": {"d2t": np.arange(0, DRAFT_VOCAB, dtype=np.int32) // 2, "t2d": None}},
    "norm before fc": {
        "config": {"norm_before_fc": True},
        "tensors": {"input_norm.weight": np.ones(3 * HIDDEN, dtype=np.float32)},
    },
    "a norm per state, by its old names": {
        "config": {"use_aux_norm": True},
        "tensors": {
            f"aux_norm_{name}.weight": np.ones(HIDDEN, dtype=np.float32)
            for name in ("low", "mid", "high")
        },
    },
    "two states": {
        "config": {"eagle_config": {IDS_KEY: [1, 8]}},
        "tensors": {"fc.weight": weight(HIDDEN, 2 * HIDDEN)},
    },
    "the embedding as a state": {"config": {"eagle_config": {IDS_KEY: [-1, 2, 5]}}},
    "a wider target": {
        "config": {"target_hidden_size": 64},
        "target": {"hidden_size": 64},
        "tensors": {
            "fc.weight": weight(HIDDEN, 192),
            "embed_tokens.weight": weight(VOCAB, HIDDEN),
        },
    },
    "a multimodal target": {
        "target": {
            "architectures": ["KimiK25ForConditionalGeneration"],
            "text_config": {
                "num_hidden_layers": 12,
                "hidden_size": HIDDEN,
                "vocab_size": VOCAB,
                "max_position_embeddings": 1024,
            },
        },
    },
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_draft_passes(tmp_path: Path, name: str) -> None:
    answer = validate(tiny_draft(tmp_path, **HEALTHY[name]))
    assert [f["message"] for f in answer["findings"]] == []
    assert answer["status"] == "pass"


@pytest.mark.parametrize("value", [0, -1, 4.0, True, "32"])
def test_a_size_that_is_none(tmp_path: Path, value: object) -> None:
    answer = validate(tiny_draft(tmp_path, config={"draft_vocab_size": value}))
    assert ids(answer) == {"config.not-a-size"}


def test_resolved_ids_at_both_ends(tmp_path: Path) -> None:
    d2t = np.zeros(DRAFT_VOCAB, dtype=np.int64)
    d2t[-1] = VOCAB
    answer = validate(tiny_draft(tmp_path, tensors={"d2t": d2t, "t2d": None}))
    assert ids(answer) == {"vocab.d2t-range"}
    d2t[-1] = np.iinfo(np.int64).max  # wraps around to a legal id
    answer = validate(tiny_draft(tmp_path, tensors={"d2t": d2t, "t2d": None}))
    assert ids(answer) == {"vocab.d2t-range"}


def test_absolute_ids_without_t2d_are_told_by_their_overflow(tmp_path: Path) -> None:
    absolute = np.arange(VOCAB - DRAFT_VOCAB, VOCAB)
    answer = validate(tiny_draft(tmp_path, tensors={"d2t": absolute, "t2d": None}))
    assert ids(answer) == {"vocab.d2t-absolute"}


def test_vocabulary_sizes_are_reported_together(tmp_path: Path) -> None:
    answer = validate(tiny_draft(tmp_path, break_="vocab.sizes"))
    assert answer["findings"][0]["evidence"] == {
        "draft_vocab_size": 32,
        "lm_head rows": 32,
        "d2t length": 12,
        "t2d ones": 32,
        "t2d length": 128,
    }


def test_a_missing_head_dim_is_named(tmp_path: Path) -> None:
    paths = tiny_draft(
        tmp_path,
        config={"head_dim": None},
        tensors={
            f"midlayer.self_attn.{name}.weight": weight(*shape)
            for name, shape in {
                "q_proj": (64, 64),
                "k_proj": (32, 64),
                "v_proj": (32, 64),
                "o_proj": (32, 64),
            }.items()
        },
    )
    answer = validate(paths)
    assert ids(answer) == {"tensors.shape"}
    assert "head_dim is missing" in answer["findings"][0]["fix"]


def test_defaults_that_fall_together_on_a_small_target(tmp_path: Path) -> None:
    paths = tiny_draft(tmp_path, config={"eagle_config": {}}, target={"num_hidden_layers": 5})
    assert ids(validate(paths)) == {"boundaries.repeated"}


def test_the_line_that_fixes_ids_at_the_top_level(tmp_path: Path) -> None:
    answer = validate(tiny_draft(tmp_path, break_="boundaries.key-ignored"))
    assert f"eagle_config.{IDS_KEY} [2, 5, 9]" in answer["findings"][0]["fix"]


def test_ids_at_the_top_level_that_say_the_default_are_fine(tmp_path: Path) -> None:
    paths = tiny_draft(tmp_path, config={"eagle_config": None, IDS_KEY: [2, 6, 9]})
    assert ids(validate(paths)) == {"boundaries.default"}


@pytest.mark.parametrize(
    ("bits", "found"),
    [
        (0x7F80, "values.not-finite"),
        (0xFFC1, "values.not-finite"),
        (0x0000, "values.all-zero"),
        (0x8000, "values.all-zero"),
        (0x7F7F, "values.range"),
        (0x3F80, None),
    ],
)
def test_bfloat16_values(tmp_path: Path, bits: int, found: str | None) -> None:
    draft, target = tiny_draft(tmp_path, tensors={"norm.weight": None})
    values = np.full(HIDDEN, bits, dtype="<u2").tobytes()
    write_safetensors(draft / "norm.safetensors", {"norm.weight": ("BF16", [HIDDEN], values)})
    assert ids(validate((draft, target))) == ({found} if found else set())


def test_dialects(tmp_path: Path) -> None:
    def dialect(name: str, **arguments: Any) -> str:
        return str(validate(tiny_draft(tmp_path / name, **arguments))["dialect"])

    assert dialect("a") == "sglang"
    assert dialect("b", config={"transformers_version": "5.19.0"}) == "specforge"
    assert dialect("c", break_="config.architecture") == "eagle"
    assert dialect("d", break_="draft.convert-first") == "speculators"
    assert dialect("e", break_="draft.not-eagle3") == "unknown"
    modelopt = {"eagle_config": {"use_mtp_layernorm": False, IDS_KEY: [1, 5, 8]}}
    assert dialect("f", layer="layers.0", config=modelopt) == "modelopt"


@pytest.mark.parametrize("family", ["llama", "deepseek"])
def test_drafts_that_the_engine_serves_pass(tmp_path: Path, family: str) -> None:
    build = {"llama": tiny_models.tiny_llama_target, "deepseek": tiny_models.tiny_deepseek_target}
    target = build[family](tmp_path / "target")
    draft = tiny_models.tiny_draft(tmp_path / "draft", target, fit=False)
    answer = validate((draft, target))
    assert answer["status"] == ("pass" if family == "llama" else "warn")
    assert ids(answer) == (set() if family == "llama" else {"rope.differs"})
    assert answer["effective"]["boundaries"] == {"value": [2, 4, 5], "origin": "explicit"}
