"""The training prompts of the demo draft: templates filled with a seed, kept apart from the held-out set.

`templates.yaml` holds templates and word pools for the eight categories of the held-out prompts. The
held-out prompts themselves (the package's built-in set) must never be trained on: `check_apart` refuses a
training prompt that equals one or shares most of its wording.

Example: python workflow/demo/prompts.py --count 20 --seed 1
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import draftproof
from draftproof.errors import DraftproofError, InputError

TEMPLATES = Path(__file__).with_name("templates.yaml")
HELD_OUT = Path(draftproof.__file__).parent / "prompts" / "builtin.jsonl"

FOLLOW_UP_SHARE = 0.15
# A prompt shares too much with another when this part of the shorter one's word groups is in both.
GROUP_WORDS = 4
OVERLAP_LIMIT = 0.5

_SLOT = re.compile(r"\{([a-z_]+?1?)([2-9]?)\}")
_INTEGERS = {
    "small": range(2, 10),
    "number": range(10, 61),
    "hundred": range(100, 901),
    "percent": range(5, 95, 5),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPrompt:
    """One conversation to generate: user turns only; the target writes the answers."""

    id: str
    category: str
    turns: tuple[str, ...]


@cache
def _material() -> dict[str, Any]:
    material: dict[str, Any] = yaml.safe_load(TEMPLATES.read_text(encoding="utf-8"))
    return material


def categories() -> list[str]:
    """Return the names of the categories, in the file's order."""
    return list(_material()["categories"])


def _fill(template: str, pick: random.Random, chosen: dict[str, str]) -> str:
    """Replace the slots; a slot that occurs twice gets one value, numbered slots get different ones."""

    def value(match: re.Match[str]) -> str:
        pool, slot = match.group(1), match.group(1) + match.group(2)
        if pool not in _INTEGERS and pool not in _material()["pools"]:
            return match.group()  # braces of code, not a slot
        if slot not in chosen:
            options = _INTEGERS.get(pool) or _material()["pools"][pool]
            taken = {text for key, text in chosen.items() if key.rstrip("23456789") == pool}
            free = [text for text in map(str, options) if text not in taken]
            chosen[slot] = pick.choice(free)
            # A value may hold slots itself (a passage with names).
            chosen[slot] = _SLOT.sub(value, chosen[slot])
        return chosen[slot]

    return _SLOT.sub(value, template)


def _endless(pick: random.Random) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (category, turns) for ever, the categories in turn, templates of a category in turn."""
    material = _material()["categories"]
    decks: dict[str, list[str]] = {name: [] for name in material}
    while True:
        for name, content in material.items():
            if not decks[name]:
                decks[name] = pick.sample(content["templates"], len(content["templates"]))
            chosen: dict[str, str] = {}
            turns = [_fill(decks[name].pop(), pick, chosen)]
            if pick.random() < FOLLOW_UP_SHARE:
                turns.append(_fill(pick.choice(content["follow_ups"]), pick, chosen))
            yield name, tuple(turns)


def training_prompts(count: int, seed: int) -> list[TrainingPrompt]:
    """Return count different conversations; the same seed gives the same list, and a prefix of a longer one."""
    prompts: list[TrainingPrompt] = []
    seen: set[str] = set()
    misses = 0
    for category, turns in _endless(random.Random(seed)):
        if len(prompts) >= count:
            break
        key = normalised(turns[0])
        if key in seen:
            misses += 1
            if misses > 20 * count + 1000:
                raise InputError(
                    f"only {len(prompts)} different prompts of {count} found", str(TEMPLATES)
                )
            continue
        seen.add(key)
        prompts.append(
            TrainingPrompt(id=f"train-{len(prompts):05d}", category=category, turns=turns)
        )
    return prompts


def normalised(text: str) -> str:
    """Return the text's words in lower case, without punctuation."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


def word_groups(text: str) -> frozenset[tuple[str, ...]]:
    """Return the groups of GROUP_WORDS neighbouring words; a shorter text is one group."""
    words = normalised(text).split()
    size = min(GROUP_WORDS, len(words))
    return frozenset(tuple(words[i : i + size]) for i in range(len(words) - size + 1))


def held_out_turns(path: Path = HELD_OUT) -> list[str]:
    """Return every turn of the held-out prompts, of both splits; raises InputError if unreadable."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [turn for line in lines if line.strip() for turn in json.loads(line)["turns"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"the held-out prompts are not readable ({error})", str(path)) from None


def overlap(left: frozenset[tuple[str, ...]], right: frozenset[tuple[str, ...]]) -> float:
    """Return the part of the smaller set's word groups that the other has too, 0 to 1."""
    smaller = min(len(left), len(right))
    return len(left & right) / smaller if smaller else 0.0


def too_close(
    prompts: Iterable[TrainingPrompt], held_out: Sequence[str]
) -> list[tuple[TrainingPrompt, str]]:
    """Return the pairs (training prompt, held-out turn) that are equal or share most of their wording."""
    apart = [(text, normalised(text), word_groups(text)) for text in held_out]
    found = []
    for prompt in prompts:
        # A follow-up is a stock phrase ("Make it shorter."): equality is what counts there.
        groups = word_groups(prompt.turns[0])
        words = {normalised(turn) for turn in prompt.turns}
        for text, other_words, other_groups in apart:
            if other_words in words or overlap(groups, other_groups) > OVERLAP_LIMIT:
                found.append((prompt, text))
    return found


def check_apart(prompts: Iterable[TrainingPrompt], path: Path = HELD_OUT) -> None:
    """Raise InputError, naming the first pair, if a training prompt resembles a held-out one."""
    if pairs := too_close(prompts, held_out_turns(path)):
        prompt, text = pairs[0]
        raise InputError(
            f"{len(pairs)} training prompts resemble held-out ones, e.g. {prompt.turns[0]!r} and {text!r}",
            str(TEMPLATES),
            "Change the template.",
        )


def main(arguments: list[str] | None = None) -> int:
    """Print prompts as JSON lines; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    try:
        prompts = training_prompts(options.count, options.seed)
        check_apart(prompts)
    except DraftproofError as error:
        print(error, file=sys.stderr)
        return 2
    for prompt in prompts:
        record = {"id": prompt.id, "category": prompt.category, "turns": prompt.turns}
        print(json.dumps(record, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
