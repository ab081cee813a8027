"""Splits, limits, digests, and every way a prompt file can be wrong."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from draftproof.errors import ConfigError, InputError
from draftproof.prompts.load import load
from draftproof.prompts.prompt import SPLITS, Prompt, digest, to_jsonl

OWN = {"id": "a", "category": "c", "split": "report", "turns": ["Hi"]}


def own(**changes: object) -> str:
    return json.dumps(OWN | changes)


def messages(*entries: object, **more: object) -> str:
    return json.dumps({"messages": list(entries), **more})


# --- choosing prompts


def test_a_split_is_kept_in_file_order() -> None:
    tune = load("builtin", split="tune")
    assert tune == [p for p in load("builtin") if p.split == "tune"]
    assert len(tune) == 48


def test_a_limit_spreads_evenly_and_a_smaller_one_is_the_start_of_a_larger() -> None:
    sixteen = load("builtin", limit=16)
    assert set(Counter(p.category for p in sixteen).values()) == {2}
    assert load("builtin", limit=5) == sixteen[:5]
    assert len({p.category for p in sixteen[:8]}) == 8
    assert sorted(load("builtin", limit=1000), key=lambda p: p.id) == sorted(
        load("builtin"), key=lambda p: p.id
    )


def test_a_limit_goes_on_when_a_category_is_used_up(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    categories = ["x", "x", "x", "y"]
    file.write_text("\n".join(own(id=i, category=c) for i, c in enumerate(categories)))
    assert [p.id for p in load(file, limit=4)] == ["0", "3", "1", "2"]


def test_a_seed_shuffles_the_same_way_every_time() -> None:
    first = load("builtin", seed=1, limit=16)
    assert first == load("builtin", seed=1, limit=16)
    assert first != load("builtin", seed=2, limit=16)
    assert set(Counter(p.category for p in first).values()) == {2}
    assert [p.id for p in load("builtin", seed=0, limit=3)] == [
        "reasoning-06",
        "extraction-11",
        "writing-02",
    ]


# --- the digest


def test_equal_sets_have_equal_digests_whatever_the_file(tmp_path: Path) -> None:
    lines, listed = tmp_path / "a.jsonl", tmp_path / "b.json"
    lines.write_text(own() + "\n" + own(id="b", turns=["Grüße"]))
    listed.write_text(json.dumps([OWN, OWN | {"id": "b", "turns": ["Grüße"]}], indent=2))
    assert digest(load(lines)) == digest(load(listed))


@pytest.mark.parametrize(
    "change",
    [
        {"id": "z"},
        {"category": "z"},
        {"split": "tune"},
        {"turns": ["Hi", "Hi"]},
        {"turns": ["hi"]},
        {"system": "Be brief."},
    ],
    ids=str,
)
def test_any_change_changes_the_digest(tmp_path: Path, change: dict[str, object]) -> None:
    before, after = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    before.write_text(own())
    after.write_text(own(**change))
    assert digest(load(before)) != digest(load(after))


def test_order_counts_in_the_digest() -> None:
    prompts = load("builtin")
    assert digest(prompts) != digest(reversed(prompts))


# --- what is refused

USER = {"role": "user", "content": "Hi"}
BAD_FILES = [
    pytest.param(b"", "p.jsonl", "no prompts", id="empty"),
    pytest.param(b" \n\n", "p.jsonl", "no prompts", id="blank"),
    pytest.param(b"[]", "p.jsonl", "no prompts", id="empty list"),
    pytest.param(b'\xef\xbb\xbf{}\n{"a": "\xff"}', "p.jsonl:2", "0xff is not UTF-8", id="latin-1"),
    pytest.param(b"\x1f\x8bxx", "p.jsonl", "gzip data is damaged", id="gzip cut short"),
    pytest.param(gzip.compress(own().encode())[:-9], "p.jsonl", "damaged", id="gzip end missing"),
    pytest.param("{}", "p.jsonl:1", "no keys", id="no keys"),
    pytest.param('{"text": 1}', "p.jsonl:1", "'text' is of no known shape", id="unknown"),
    pytest.param(
        json.dumps({"question": "q", "answer": "a", "messages": []}),
        "p.jsonl:1",
        "could be of shape gsm8k or messages",
        id="ambiguous",
    ),
    pytest.param(own() + "\n{", "p.jsonl:2", "not JSON", id="half a line"),
    pytest.param(own() + "\n7", "p.jsonl:2", "found a number", id="not an object"),
    pytest.param(
        "[" + own() + ",\n\n3]", "p.jsonl:3", "found a number", id="not an object in a list"
    ),
    pytest.param("[" + own() + "\n", "p.jsonl:1", "not closed", id="list not closed"),
    pytest.param("[" + own() + "]x", "p.jsonl:1", "more after the end", id="list and more"),
    pytest.param("[" + own() + ",\n]", "p.jsonl:2", "not JSON", id="list with a last comma"),
    pytest.param("[" * 100_000, "p.jsonl:1", "not JSON", id="nested too deeply"),
    pytest.param('{"id": ' + "9" * 5000 + "}", "p.jsonl:1", "not JSON", id="number too long"),
    pytest.param(own() + "\n" + own(), "p.jsonl:2", "id 'a' was used before, at", id="same id"),
    pytest.param(own(id=1) + "\n" + own(id="1"), "p.jsonl:2", "used before", id="same id as text"),
    pytest.param(
        own() + '\n{"id": "b"}', "p.jsonl:2", "no key 'category', found 'id'", id="lost key"
    ),
    pytest.param(own(splt="tune"), "p.jsonl:1", "unknown key 'splt'", id="misspelt key"),
    pytest.param(own(id=True), "p.jsonl:1", "'id' is a boolean", id="id type"),
    pytest.param(own(category=None), "p.jsonl:1", "'category' is null", id="category type"),
    pytest.param(own(split="test"), "p.jsonl:1", "'split' is 'test', expected tune or", id="split"),
    pytest.param(own(split=[]), "p.jsonl:1", "'split' is an empty list", id="split type"),
    pytest.param(own(turns="Hi"), "p.jsonl:1", "'turns' is a string, expected a list", id="turns"),
    pytest.param(own(turns=[]), "p.jsonl:1", "'turns' is an empty list", id="no turns"),
    pytest.param(own(turns=["Hi", 2]), "p.jsonl:1", "turns[1] is a number", id="turn type"),
    pytest.param(own(turns=[" "]), "p.jsonl:1", "turns[0] is blank", id="blank turn"),
    pytest.param(own(turns=["\ud800"]), "p.jsonl:1", "surrogate", id="surrogate"),
    pytest.param(own(system=3), "p.jsonl:1", "'system' is a number", id="system type"),
    pytest.param('{"messages": []}', "p.jsonl:1", "'messages' is an empty list", id="no messages"),
    pytest.param(messages("Hi"), "p.jsonl:1", "messages[0] is a string", id="message type"),
    pytest.param(
        messages(USER, {"role": "tool", "content": "4"}),
        "p.jsonl:1",
        "messages[1] is 'role' 'tool'",
        id="tool",
    ),
    pytest.param(
        messages(USER, {"role": "system", "content": "x"}),
        "p.jsonl:1",
        "messages[1] is a system message",
        id="late system message",
    ),
    pytest.param(
        messages({"role": "assistant", "content": "x"}),
        "p.jsonl:1",
        "no user message",
        id="nobody asks",
    ),
    pytest.param(messages({"role": "user"}), "p.jsonl:1", "content is null", id="no content"),
    pytest.param(
        messages({"role": "user", "content": [{"type": "image_url"}]}),
        "p.jsonl:1",
        "messages[0].content[0] is type 'image_url'",
        id="image",
    ),
    pytest.param(
        messages({"role": "user", "content": []}), "p.jsonl:1", "content is blank", id="no parts"
    ),
    pytest.param(
        json.dumps({"conversations": [{"from": "nobody", "value": "x"}]}),
        "p.jsonl:1",
        "'from' 'nobody', expected 'from' to be one of human",
        id="unknown speaker",
    ),
]


@pytest.mark.parametrize(("content", "where", "what"), BAD_FILES)
def test_a_bad_file_is_refused_with_file_line_and_finding(
    tmp_path: Path, content: str | bytes, where: str, what: str
) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        load(file)
    assert caught.value.where == str(tmp_path / where)
    assert what in caught.value.what
    assert caught.value.fix
    assert "\n" not in str(caught.value)


def test_an_unknown_shape_in_the_file_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"text": "Hi"}')
    with pytest.raises(InputError, match=r"mt-bench \(category, question_id, turns\).*sharegpt"):
        load(file)


def test_a_named_shape_settles_an_ambiguous_file(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps({"question": "q", "answer": "a", "messages": []}))
    assert load(file, shape="gsm8k")[0].turns == ("q",)


@pytest.mark.parametrize(
    ("name", "what"), [("none.jsonl", "no such file"), ("", "directory"), ("a\0b", "null")]
)
def test_a_path_that_cannot_be_read_is_refused(tmp_path: Path, name: str, what: str) -> None:
    with pytest.raises(InputError, match=f"(?i){what}"):
        load(f"{tmp_path}/{name}")


def test_a_split_without_prompts_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(own())
    with pytest.raises(InputError, match=r"no prompts in split tune \(1 in report\)"):
        load(file, split="tune")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [({"shape": "csv"}, "'csv'"), ({"split": "test"}, "'test'"), ({"limit": 0}, "limit 0")],
)
def test_a_wrong_choice_is_a_config_error(arguments: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        load("builtin", **arguments)  # type: ignore[arg-type]


# --- properties

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
prompt_sets = st.lists(
    st.builds(
        Prompt,
        id=text,
        category=text,
        split=st.sampled_from(SPLITS),
        turns=st.lists(text, min_size=1, max_size=3).map(tuple),
        system=st.none() | text,
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda p: p.id,
)
on_one_file = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@given(prompts=prompt_sets)
@on_one_file
def test_what_is_written_loads_back_equal(tmp_path: Path, prompts: list[Prompt]) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(to_jsonl(prompts), encoding="utf-8", newline="")
    loaded = load(file)
    assert loaded == prompts
    assert digest(loaded) == digest(prompts)


def load_or_refuse(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    try:
        prompts = load(file)
    except InputError:
        return
    assert prompts


@given(content=st.binary() | st.binary().map(lambda b: b"\x1f\x8b\x08" + b))
@example(b"[")
@example(b'[{"a": 1} {}]')
@on_one_file
def test_arbitrary_bytes_give_prompts_or_an_input_error(tmp_path: Path, content: bytes) -> None:
    load_or_refuse(tmp_path / "p.jsonl", content)


KEYS = (
    *("id", "category", "turns", "split", "question_id", "question", "answer", "task_id", "prompt"),
    *("conversations", "messages", "from", "value", "role", "content", "type", "text", "system"),
)
words = st.sampled_from(["user", "human", "gpt", "system", "assistant", "tool", "text", "tune", ""])
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(record=st.dictionaries(st.sampled_from(KEYS), anything, min_size=1), listed=st.booleans())
@settings(on_one_file, max_examples=300)
def test_any_json_gives_prompts_or_an_input_error(
    tmp_path: Path, record: dict[str, object], listed: bool
) -> None:
    content = json.dumps([record] if listed else record)
    load_or_refuse(tmp_path / "p.jsonl", content.encode())
