"""Reading a local file into JSON objects that know their line, and refusing what is wrong in them."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from draftproof.errors import InputError

GZIP_MAGIC = b"\x1f\x8b"
JSON_BLANK = " \t\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One JSON object of a file; `where` is `file:line`, `number` counts the objects from 1."""

    fields: dict[str, object]
    where: str
    number: int

    def refusal(self, what: str, fix: str) -> InputError:
        """Return the error that says what is wrong with this object."""
        return InputError(what=what, where=self.where, fix=fix)

    def value(self, key: str) -> object:
        """Return the value of `key`, which must be there."""
        if key not in self.fields:
            raise self.refusal(f"no key {key!r}, found {listed(self.fields)}", f"Add {key!r}.")
        return self.fields[key]

    def text(self, key: str) -> str:
        """Return the text at `key`: a string that is not blank."""
        return self.checked_text(self.value(key), repr(key))

    def identity(self, key: str) -> str:
        """Return the text or whole number at `key`, as text."""
        value = self.value(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return self.text(key)

    def items(self, key: str) -> list[object]:
        """Return the list at `key`, which must not be empty."""
        value = self.value(key)
        if not isinstance(value, list) or not value:
            raise self.refusal(
                f"{key!r} is {kind(value)}, expected a list with at least one entry",
                f"Fill {key!r}.",
            )
        return value

    def checked_text(self, value: object, name: str) -> str:
        """Return `value` if it is usable text; `name` is how a message calls it."""
        if not isinstance(value, str):
            raise self.refusal(f"{name} is {kind(value)}, expected a string", "Correct the value.")
        if not value.strip():
            raise self.refusal(f"{name} is blank", "Write some text, or remove this entry.")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise self.refusal(
                f"{name} holds half of a surrogate pair, which is not text",
                "Correct the \\u escape.",
            ) from None
        return value


def read_records(path: Path) -> Iterator[Record]:
    """Yield the objects of a JSONL file or of one JSON list, gzipped or not.

    Raises InputError for a file that cannot be read, is not UTF-8, holds no object, or has a line
    that is not a JSON object.
    """
    text = _read_text(path)
    pieces = _list_entries(text, path) if text.lstrip(JSON_BLANK)[:1] == "[" else _lines(text, path)
    number = 0
    for line, value in pieces:
        where = f"{path}:{line}"
        if not isinstance(value, dict):
            raise InputError(
                what=f"found {kind(value)}, expected a JSON object",
                where=where,
                fix="Write one JSON object per line, or one JSON list of objects.",
            )
        number += 1
        yield Record(fields=value, where=where, number=number)
    if not number:
        raise InputError(what="the file holds no prompts", where=str(path), fix="Add one per line.")


def listed(keys: Iterable[str]) -> str:
    """Return the keys of an object for a message, the first dozen only."""
    names = [repr(key) for key in keys]
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return (", ".join(names[:12]) + more) or "no keys"


def kind(value: object) -> str:
    """Name a JSON value's type in plain words."""
    if value is None:
        return "null"
    if isinstance(value, list) and not value:
        return "an empty list"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "an object")


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
        if data.startswith(GZIP_MAGIC):
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # error.object, not data: a byte order mark was cut off before offsets were counted.
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(
            what=f"byte 0x{error.object[error.start]:02x} is not UTF-8",
            where=f"{path}:{line}",
            fix="Save the file as UTF-8.",
        ) from None
    except FileNotFoundError:
        raise InputError(
            what="no such file", where=str(path), fix="Give a local file, or 'builtin'."
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(
            what="the gzip data is damaged", where=str(path), fix="Fetch the file again."
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            what=f"cannot be read ({reason})", where=ascii(str(path)), fix="Give a readable file."
        ) from None


def _lines(text: str, path: Path) -> Iterator[tuple[int, object]]:
    # Not splitlines(): JSON strings may hold U+2028 and its like as they are.
    for line, content in enumerate(text.split("\n"), start=1):
        if content.strip(JSON_BLANK):
            try:
                value = json.loads(content)
            except (ValueError, RecursionError) as error:
                raise _not_json(f"{path}:{line}", error) from None
            yield line, value


def _list_entries(text: str, path: Path) -> Iterator[tuple[int, object]]:
    """Yield (line, entry) of a JSON list, decoding entry by entry so that each knows its line."""
    decoder = json.JSONDecoder()
    position, line, counted = _skip(text, text.index("[") + 1), 1, 0
    closed = text[position : position + 1] == "]"
    while not closed:
        line += text.count("\n", counted, position)
        counted = position
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise _not_json(f"{path}:{line}", error) from None
        yield line, value
        position = _skip(text, end)
        mark = text[position : position + 1]
        closed = mark == "]"
        if not closed:
            if mark != ",":
                raise _not_json(
                    f"{path}:{line}", ValueError("the list is not closed after this entry")
                )
            position = _skip(text, position + 1)
    if text[position + 1 :].strip(JSON_BLANK):
        raise _not_json(f"{path}:{line}", ValueError("there is more after the end of the list"))


def _skip(text: str, position: int) -> int:
    while text[position : position + 1] and text[position] in JSON_BLANK:
        position += 1
    return position


def _not_json(where: str, error: Exception) -> InputError:
    reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
    return InputError(
        what=f"not JSON ({reason})",
        where=where,
        fix="Write one JSON object per line, or one JSON list of objects.",
    )
