"""A result file appears whole or not at all, and is what it says it is."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.errors import InputError
from draftproof.files import (
    digest,
    read_json,
    read_result,
    whole_directory,
    write_result,
    write_text,
)

PREFLIGHT = {
    "schema": "draftproof/preflight/1",
    "status": "pass",
    "device": "cpu",
    "engine": "sglang==0.5.23",
    "checks": [],
}


def test_result_round_trips(tmp_path: Path) -> None:
    write_result(tmp_path / "a/preflight.json", PREFLIGHT)
    assert read_result(tmp_path / "a/preflight.json", "preflight") == PREFLIGHT


def test_a_stage_cannot_write_what_breaks_its_schema(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="status"):
        write_result(tmp_path / "preflight.json", PREFLIGHT | {"status": "perhaps"})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not readable as JSON"),
        ("[1]", "found None"),
        ('{"schema": "draftproof/preflight/2"}', "found 'draftproof/preflight/2'"),
        ('{"schema": "draftproof/preflight/1"}', "'status' is a required property"),
        ("[" * 100_000, "not readable as JSON"),
    ],
)
def test_reading_what_is_no_result_says_what_was_found(
    tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "preflight.json"
    path.write_text(text)
    with pytest.raises(InputError, match=says) as caught:
        read_result(path, "preflight")
    assert str(path) in str(caught.value)


def test_reading_a_missing_file_names_the_cure(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_json(tmp_path / "missing.json")


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new \udcff")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_is_replaced_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for text in ("first", "second"):
        with whole_directory(out) as beside:
            (beside / text).write_text(text)
    assert [path.name for path in out.iterdir()] == ["second"]
    with pytest.raises(RuntimeError), whole_directory(out) as beside:  # noqa: PT012
        (beside / "third").write_text("third")
        raise RuntimeError
    assert [path.name for path in out.iterdir()] == ["second"]
    assert list(tmp_path.iterdir()) == [out]


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.booleans()))
def test_digest_does_not_depend_on_key_order(payload: dict[str, object]) -> None:
    assert digest(payload) == digest(dict(reversed(payload.items())))
    assert digest(payload) == digest(json.loads(json.dumps(payload)))
