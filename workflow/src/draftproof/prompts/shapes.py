"""The shapes of prompt files: how each is recognised, and how an object of it becomes a prompt.

Only the user's side is taken (see `Prompt`): the assistant's answers in ShareGPT and messages files,
and the reference answers in the others, are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from draftproof.errors import ConfigError
from draftproof.prompts.prompt import SPLITS, Prompt, Split
from draftproof.prompts.records import Record, kind, listed

Speaker = Literal["user", "target", "system"]

OWN_KEYS = {"id", "category", "split", "turns", "system"}
SHAREGPT_SPEAKERS: dict[str, Speaker] = {
    "human": "user",
    "user": "user",
    "gpt": "target",
    "chatgpt": "target",
    "bing": "target",
    "bard": "target",
    "assistant": "target",
    "system": "system",
}
MESSAGES_SPEAKERS: dict[str, Speaker] = {
    "user": "user",
    "assistant": "target",
    "system": "system",
    "developer": "system",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A file shape; an object that has all of `keys` is taken to be of it."""

    name: str
    keys: frozenset[str]
    parse: Callable[[Record], Prompt]


def find_shape(name: str, first: Record) -> Shape:
    """Return the shape called `name`, or for "auto" the only one whose keys `first` has.

    Raises ConfigError for an unknown name, InputError if no shape or more than one fits.
    """
    if name in SHAPES:
        return SHAPES[name]
    if name != "auto":
        raise ConfigError(
            what=f"unknown prompt shape {name!r}", fix=f"Use one of auto, {', '.join(SHAPES)}."
        )
    fitting = [shape for shape in SHAPES.values() if shape.keys <= first.fields.keys()]
    if len(fitting) == 1:
        return fitting[0]
    found = f"with keys {listed(first.fields)}"
    if fitting:
        raise first.refusal(
            f"the object {found} could be of shape {' or '.join(s.name for s in fitting)}",
            "Name the shape instead of auto.",
        )
    known = "; ".join(f"{s.name} ({', '.join(sorted(s.keys))})" for s in SHAPES.values())
    raise first.refusal(
        f"the object {found} is of no known shape", f"Bring the file into one of: {known}."
    )


def _own(record: Record) -> Prompt:
    unknown = [key for key in record.fields if key not in OWN_KEYS]
    if unknown:
        raise record.refusal(
            f"unknown key {listed(unknown)}", f"Keep to {', '.join(sorted(OWN_KEYS))}."
        )
    return Prompt(
        id=record.identity("id"),
        category=record.text("category"),
        split=_split(record),
        turns=_turns(record),
        system=record.text("system") if "system" in record.fields else None,
    )


def _mt_bench(record: Record) -> Prompt:
    return Prompt(
        id=record.identity("question_id"),
        category=record.text("category"),
        split=_split(record),
        turns=_turns(record),
    )


def _gsm8k(record: Record) -> Prompt:
    return Prompt(
        id=f"gsm8k-{record.number:05d}",
        category="math",
        split=_split(record),
        turns=(record.text("question"),),
    )


def _humaneval(record: Record) -> Prompt:
    # The code goes to the target as it stands: no instruction is added around it.
    return Prompt(
        id=record.identity("task_id"),
        category="coding",
        split=_split(record),
        turns=(record.text("prompt"),),
    )


def _sharegpt(record: Record) -> Prompt:
    return _conversation(record, "sharegpt", "conversations", ("from", "value"), SHAREGPT_SPEAKERS)


def _messages(record: Record) -> Prompt:
    return _conversation(record, "messages", "messages", ("role", "content"), MESSAGES_SPEAKERS)


def _conversation(
    record: Record,
    shape: str,
    key: str,
    names: tuple[str, str],
    speakers: Mapping[str, Speaker],
) -> Prompt:
    role_key, text_key = names
    system: str | None = None
    turns: list[str] = []
    for index, entry in enumerate(record.items(key)):
        place = f"{key}[{index}]"
        role = entry.get(role_key) if isinstance(entry, dict) else None
        speaker = speakers.get(role) if isinstance(role, str) else None
        if not isinstance(entry, dict) or speaker is None:
            found = f"{role_key!r} {role!r}" if isinstance(role, str) else kind(entry)
            raise record.refusal(
                f"{place} is {found}, expected {role_key!r} to be one of {', '.join(speakers)}",
                "Tool calls and other speakers cannot be replayed: remove this conversation.",
            )
        if speaker == "user":
            turns.append(_content(record, entry.get(text_key), f"{place}.{text_key}"))
        elif speaker == "system":
            if index:
                raise record.refusal(
                    f"{place} is a system message, expected one at the start only",
                    "Move it to the start or remove it.",
                )
            system = _content(record, entry.get(text_key), f"{place}.{text_key}")
    if not turns:
        raise record.refusal(f"no user message in {key!r}", "Remove this conversation.")
    return Prompt(
        id=record.identity("id") if "id" in record.fields else f"{shape}-{record.number:05d}",
        category=record.text("category") if "category" in record.fields else "conversation",
        split=_split(record),
        turns=tuple(turns),
        system=system,
    )


def _content(record: Record, value: object, place: str) -> str:
    """Return a message's text; text parts are joined by a space, as SGLang joins them."""
    if not isinstance(value, list):
        return record.checked_text(value, place)
    texts: list[str] = []
    for index, part in enumerate(value):
        if not isinstance(part, dict) or part.get("type") != "text":
            found = f"type {part.get('type')!r}" if isinstance(part, dict) else kind(part)
            raise record.refusal(
                f"{place}[{index}] is {found}, expected a part of type 'text'",
                "Only text can be replayed: remove this conversation.",
            )
        texts.append(record.checked_text(part.get("text"), f"{place}[{index}].text"))
    return record.checked_text(" ".join(texts), place)


def _turns(record: Record) -> tuple[str, ...]:
    turns = record.items("turns")
    return tuple(record.checked_text(turn, f"turns[{i}]") for i, turn in enumerate(turns))


def _split(record: Record) -> Split:
    if "split" not in record.fields:
        return "report"
    value = record.fields["split"]
    for split in SPLITS:
        if value == split:
            return split
    found = repr(value) if isinstance(value, str) else kind(value)
    raise record.refusal(
        f"'split' is {found}, expected {' or '.join(SPLITS)}", "Correct or drop it."
    )


SHAPES: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape(name="builtin", keys=frozenset({"id", "category", "turns"}), parse=_own),
        Shape(
            name="mt-bench", keys=frozenset({"question_id", "category", "turns"}), parse=_mt_bench
        ),
        Shape(name="gsm8k", keys=frozenset({"question", "answer"}), parse=_gsm8k),
        Shape(name="humaneval", keys=frozenset({"task_id", "prompt"}), parse=_humaneval),
        Shape(name="sharegpt", keys=frozenset({"conversations"}), parse=_sharegpt),
        Shape(name="messages", keys=frozenset({"messages"}), parse=_messages),
    )
}
