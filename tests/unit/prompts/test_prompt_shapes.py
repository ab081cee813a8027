"""Each shape of local file, loaded from a small file."""

import gzip
import json
from pathlib import Path

import pytest

from draftproof.prompts.load import load
from draftproof.prompts.prompt import Prompt

MT_BENCH = {"question_id": 81, "category": "trips", "turns": ["Plan it.", "Shorter."]}
GSM8K = {"question": "How many pears are left?", "answer": "Two. #### 2"}
HUMANEVAL = {
    "task_id": "Own/0",
    "prompt": "def f(x):\n",
    "entry_point": "f",
    "canonical_solution": "    return x\n",
    "test": "def check(f):\n    pass\n",
}
SHAREGPT = {
    "id": "a_0",
    "conversations": [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "Hello"},
        {"from": "gpt", "value": "Hi, what can I do?"},
        {"from": "human", "value": "Sing"},
    ],
}
MESSAGES = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "you"}],
        },
        {"role": "assistant", "content": None},
        {"role": "user", "content": "Sing"},
    ]
}

SHAPES = [
    pytest.param(
        "mt-bench",
        MT_BENCH,
        Prompt(id="81", category="trips", split="report", turns=("Plan it.", "Shorter.")),
        id="mt-bench",
    ),
    pytest.param(
        "gsm8k",
        GSM8K,
        Prompt(
            id="gsm8k-00001", category="math", split="report", turns=("How many pears are left?",)
        ),
        id="gsm8k",
    ),
    pytest.param(
        "humaneval",
        HUMANEVAL,
        Prompt(id="Own/0", category="coding", split="report", turns=("def f(x):\n",)),
        id="humaneval",
    ),
    pytest.param(
        "sharegpt",
        SHAREGPT,
        Prompt(
            id="a_0",
            category="conversation",
            split="report",
            turns=("Hello", "Sing"),
            system="Be brief.",
        ),
        id="sharegpt",
    ),
    pytest.param(
        "messages",
        MESSAGES,
        Prompt(
            id="messages-00001",
            category="conversation",
            split="report",
            turns=("Hello you", "Sing"),
            system="Be brief.",
        ),
        id="messages",
    ),
]


@pytest.mark.parametrize(("shape", "record", "expected"), SHAPES)
def test_shape_is_recognised_and_gives_the_users_side(
    tmp_path: Path, shape: str, record: dict[str, object], expected: Prompt
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps(record) + "\n")
    assert load(file) == [expected]
    assert load(str(file), shape=shape) == [expected]


@pytest.mark.parametrize(("shape", "record", "expected"), SHAPES)
def test_a_json_list_and_gzip_load_like_lines(
    tmp_path: Path, shape: str, record: dict[str, object], expected: Prompt
) -> None:
    listed = tmp_path / "prompts.json"
    listed.write_text(json.dumps([record], indent=1))
    zipped = tmp_path / "prompts.jsonl.gz"
    zipped.write_bytes(gzip.compress(json.dumps(record).encode()))
    assert load(listed, shape=shape) == load(zipped, shape=shape) == [expected]


def test_split_category_and_id_of_a_messages_file_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    extra = {"id": "m1", "category": "support", "split": "tune"}
    file.write_text(json.dumps(MESSAGES | extra))
    (prompt,) = load(file, split="tune")
    assert (prompt.id, prompt.category, prompt.split) == ("m1", "support", "tune")


def test_blank_lines_a_byte_order_mark_and_line_separators_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "g.jsonl"
    text = json.dumps({"question": "a\u2028b", "answer": ""}, ensure_ascii=False)
    file.write_bytes(("\ufeff\r\n" + text + "\r\n\r\n").encode())
    assert [p.turns for p in load(file)] == [("a\u2028b",)]


def test_a_conversation_that_starts_with_an_answer_replays_its_user_turns(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    talk = [{"from": "gpt", "value": "..."}, {"from": "human", "value": "Go on"}]
    file.write_text(json.dumps({"id": "x", "conversations": talk}))
    assert load(file)[0].turns == ("Go on",)
