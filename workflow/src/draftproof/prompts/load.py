"""Loading a prompt set: read, recognise the shape, pick the split, spread a limit over categories."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from itertools import chain, zip_longest
from pathlib import Path

from draftproof.errors import ConfigError, InputError
from draftproof.prompts.prompt import SPLITS, Prompt
from draftproof.prompts.records import read_records
from draftproof.prompts.shapes import Shape, find_shape

BUILTIN = "builtin"
BUILTIN_FILE = Path(__file__).with_name("builtin.jsonl")


def load(
    source: str | Path,
    *,
    shape: str = "auto",
    split: str | None = None,
    limit: int | None = None,
    seed: int | None = None,
) -> list[Prompt]:
    """Return the prompts of `source`: "builtin", or a local file in one of `shapes.SHAPES`.

    Prompts of a file that names no split belong to `report`. `split` keeps one split. `limit` takes
    at most so many, one category after the other in turn, so that a smaller limit gives the start of
    a larger one; `seed` shuffles first, the same way everywhere.

    Raises ConfigError for an unknown shape or split or a limit below 1; InputError, with file and
    line, for everything that is wrong with the file.
    """
    if split is not None and split not in SPLITS:
        raise ConfigError(what=f"unknown split {split!r}", fix=f"Use {' or '.join(SPLITS)}.")
    if limit is not None and limit < 1:
        raise ConfigError(what=f"prompt limit {limit} leaves no prompt", fix="Use 1 or more.")
    path = BUILTIN_FILE if source == BUILTIN else Path(source)
    every = _read(path, shape)
    prompts = [p for p in every if split is None or p.split == split]
    if not prompts:
        held = ", ".join(f"{n} in {name}" for name, n in Counter(p.split for p in every).items())
        raise InputError(
            what=f"no prompts in split {split} ({held})",
            where=str(path),
            fix=f'Mark some with "split": "{split}", or use the other split.',
        )
    if seed is not None:
        prompts.sort(key=lambda p: hashlib.sha256(f"{seed}/{p.id}".encode()).digest())
    return prompts if limit is None else _spread(prompts)[:limit]


def _read(path: Path, shape_name: str) -> list[Prompt]:
    prompts: list[Prompt] = []
    seen: dict[str, str] = {}
    shape: Shape | None = None
    for record in read_records(path):
        shape = shape or find_shape(shape_name, record)
        prompt = shape.parse(record)
        if prompt.id in seen:
            raise record.refusal(
                f"id {prompt.id!r} was used before, at {seen[prompt.id]}", "Give each its own id."
            )
        seen[prompt.id] = record.where
        prompts.append(prompt)
    return prompts


def _spread(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Order round robin over categories, which take turns in the order of their first prompt."""
    by_category: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    rounds = zip_longest(*by_category.values())
    return [prompt for prompt in chain.from_iterable(rounds) if prompt is not None]
