"""A prompt, its own JSONL form, and the digest of a set."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

Split = Literal["tune", "report"]
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The user's side of one conversation.

    `turns` are the user's messages in order. They are replayed one after the other, each answered by
    the target itself: answers that a file holds are never used, because a draft is judged on what
    this target says, not on what another model once said.
    """

    id: str
    category: str
    split: Split
    turns: tuple[str, ...]
    system: str | None = None


def to_record(prompt: Prompt) -> dict[str, object]:
    """Return the JSON object that stands for `prompt` in the project's own shape."""
    record: dict[str, object] = {
        "id": prompt.id,
        "category": prompt.category,
        "split": prompt.split,
        "turns": list(prompt.turns),
    }
    if prompt.system is not None:
        record["system"] = prompt.system
    return record


def to_jsonl(prompts: Iterable[Prompt]) -> str:
    """Return the set in the project's own shape, one JSON object per line."""
    return "".join(json.dumps(to_record(p), ensure_ascii=False) + "\n" for p in prompts)


def digest(prompts: Iterable[Prompt]) -> str:
    """Return the SHA-256 (hex) of the set: equal for equal prompts in equal order, whatever file held them."""
    canonical = json.dumps(
        [to_record(p) for p in prompts], sort_keys=True, separators=(",", ":"), ensure_ascii=True
    )
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()
