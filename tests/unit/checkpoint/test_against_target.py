"""What draft and target say of text and of tensor parallelism, where they may differ and where not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftproof.checkpoint.pair import read_pair
from draftproof.checkpoint.validate import validation
from tests.builders.checkpoints import VOCAB, Parts, tiny_draft

ENGINE = "sglang==0.5.23"
TOKENS = {"<s>": 0, "</s>": 1, "<eot>": 2, "<pad>": 3}


def findings(path: Path, change: Callable[[Parts], object]) -> dict[str, dict[str, Any]]:
    found = validation(read_pair(*tiny_draft(path, change=change), ENGINE))["findings"]
    return {finding["id"]: finding for finding in found}


def files(parts: Parts, side: str, **contents: Any) -> None:
    place = parts.files if side == "draft" else parts.target_files
    for name, content in contents.items():
        place[f"{name}.json"] = json.dumps(content).encode()


def test_a_draft_may_name_one_of_several_stop_tokens(tmp_path: Path) -> None:
    def change(parts: Parts) -> None:
        parts.config["eos_token_id"] = 1
        files(parts, "target", generation_config={"eos_token_id": [1, *range(4, VOCAB)]})

    assert findings(tmp_path, change) == {}


def test_stop_tokens_are_found_wherever_they_stand(tmp_path: Path) -> None:
    def change(parts: Parts) -> None:
        tokenizer = {"model": {"vocab": TOKENS}}
        files(parts, "draft", tokenizer=tokenizer, tokenizer_config={"eos_token": "</s>"})
        files(
            parts,
            "target",
            tokenizer=tokenizer,
            tokenizer_config={"eos_token": {"content": "<eot>"}},
        )
        parts.target["text_config"] = {"eos_token_id": list(range(4, VOCAB))} | parts.target

    found = findings(tmp_path, change)
    assert set(found) == {"tokenizer.stop-tokens"}
    assert found["tokenizer.stop-tokens"]["evidence"]["draft"] == [1]


def test_unsaid_tokens_are_no_difference(tmp_path: Path) -> None:
    def change(parts: Parts) -> None:
        parts.config |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

    assert findings(tmp_path, change) == {}


def test_ids_that_every_llama_config_holds_say_nothing(tmp_path: Path) -> None:
    def change(parts: Parts) -> None:
        parts.config |= {"bos_token_id": 1, "eos_token_id": 2}
        parts.target |= {"bos_token_id": 3, "eos_token_id": list(range(4, VOCAB))}

    assert findings(tmp_path, change) == {}


@pytest.mark.parametrize("broken", [b"{", b"[]", b"\xff", b'{"eos_token_id": {"a": 1}}'])
def test_files_that_cannot_be_read_are_as_if_not_there(tmp_path: Path, broken: bytes) -> None:
    names = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")

    def change(parts: Parts) -> None:
        parts.files |= dict.fromkeys((*names, "chat_template.jinja"), broken)
        parts.target_files |= dict.fromkeys(names, broken)

    assert findings(tmp_path, change) == {}


def _jinja(parts: Parts) -> None:
    parts.files["chat_template.jinja"] = b"{{ a }}"


def _written(template: Any) -> Callable[[Parts], None]:
    return lambda parts: files(parts, "draft", tokenizer_config={"chat_template": template})


@pytest.mark.parametrize(
    ("own", "differs"),
    [
        (_jinja, False),
        (_written("{{ a }}\r\n"), False),
        (_written([{"name": "tool", "template": "t"}, {"name": "default", "template": "{{ a }}"}]), False),
        (_written([{"name": "default", "template": "{{ b }}"}]), True),
        (_written("{{ b }}"), True),
        (_written(None), False),
        (_written([3]), False),
        (lambda parts: None, False),
    ],
)  # fmt: skip
def test_chat_templates(tmp_path: Path, own: Callable[[Parts], None], differs: bool) -> None:
    def change(parts: Parts) -> None:
        own(parts)
        parts.target_files["chat_template.jinja"] = b"{{ a }}\n"

    assert set(findings(tmp_path, change)) == ({"tokenizer.chat-template"} if differs else set())


@pytest.mark.parametrize(
    ("own", "target", "pieces"),
    [
        (VOCAB, VOCAB + 1, True),
        (VOCAB, VOCAB + 64, True),
        (VOCAB - 8, VOCAB, False),
        (VOCAB - 63, VOCAB, False),
        (VOCAB, VOCAB, False),
    ],
)
def test_pieces_of_the_embedding(tmp_path: Path, own: int, target: int, pieces: bool) -> None:
    def change(parts: Parts) -> None:
        parts.config["vocab_size"], parts.target["vocab_size"] = own, target

    found = findings(tmp_path, change)
    assert ("parallel.embedding-pieces" in found) == pieces


def test_an_embedding_of_its_own_is_cut_as_the_draft_says(tmp_path: Path) -> None:
    def change(parts: Parts) -> None:
        parts.config["target_hidden_size"] = parts.target["hidden_size"] = 64
        parts.target["vocab_size"] = 4 * VOCAB

    assert "parallel.embedding-pieces" not in findings(tmp_path, change)


@pytest.mark.parametrize(
    ("target", "alone"),
    [
        ({"num_attention_heads": 4, "num_key_value_heads": 4}, None),
        ({"num_attention_heads": 16, "num_key_value_heads": 2}, [8, 16]),
        ({"num_attention_heads": 12, "num_key_value_heads": 4, "intermediate_size": 47}, None),
        ({"num_attention_heads": 6, "num_key_value_heads": 3}, [3, 6]),
    ],
)
def test_numbers_of_gpus(tmp_path: Path, target: dict[str, int], alone: list[int] | None) -> None:
    found = findings(tmp_path, lambda parts: parts.target.update(target))
    evidence = found.get("parallel.draft-indivisible", {}).get("evidence", {})
    assert evidence.get("target alone") == alone


@pytest.mark.parametrize(
    ("own", "target", "differs"),
    [
        ("bfloat16", "bfloat16", False),
        ("float32", "float16", False),
        ("float32", "bfloat16", True),
        ("float16", "bfloat16", True),
        ("bfloat16", "float32", False),
        (None, "bfloat16", True),
        ("bfloat16", None, False),
    ],
)
def test_dtypes_of_both(tmp_path: Path, own: str | None, target: str | None, differs: bool) -> None:
    def change(parts: Parts) -> None:
        parts.config["torch_dtype"], parts.target["dtype"] = own, target

    assert set(findings(tmp_path, change)) == ({"config.dtype-differs"} if differs else set())


@pytest.mark.parametrize("label", ["eagle3", "EAGLE-3", "eagle_3"])
def test_a_label_that_says_eagle3_is_right(tmp_path: Path, label: str) -> None:
    def change(parts: Parts) -> None:
        from tests.builders.checkpoints_dialects import speculators

        speculators(parts)
        parts.config["speculators_model_type"] = label

    assert "draft.algorithm" not in findings(tmp_path, change)
