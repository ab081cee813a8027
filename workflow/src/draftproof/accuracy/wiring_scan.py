"""The scan: every alternative's first draft token on some samples, the whole walk for the few that guess best.

When an alternative is clearly better than the wiring before it, the others are tried again on top of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from draftproof.accuracy import wiring_readings as readings
from draftproof.accuracy.acceptance import matches
from draftproof.accuracy.walk import walk
from draftproof.accuracy.wiring import Found, Judge, Screened, Walked
from draftproof.accuracy.wiring_boundaries import other_boundaries, other_orders, ranges
from draftproof.accuracy.wiring_readings import Reading
from draftproof.capture.samples import Sample
from draftproof.checkpoint.boundaries import default_boundaries, layer_count, target_architecture
from draftproof.errors import InputError

SCREEN_SAMPLES = 8
SURVIVORS, SURVIVORS_OF_A_KIND = 6, 3
ROUNDS = 3
MAKERS: dict[str, Callable[[Reading], Iterator[Reading]]] = {
    "vocabulary-map": readings.vocabulary_maps,
    "norms": readings.norm_flags,
    "feedback": readings.feedback,
    "rope": readings.ropes,
    "pairing": readings.pairings,
    "embedding": readings.embeddings,
}
# What later steps are fed cannot show in the first.
UNSEEN_AT_FIRST = {"feedback"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The samples of a scan, read again for each pass: all, or some spread over them. `stored`: boundaries of axis 1."""

    read: Callable[[int | None], Iterator[Sample]]
    stored: Sequence[int]
    steps: int
    original: readings.Lines


def scan(
    base: Reading, histograms: Sequence[Sequence[int]], fault: str | None, samples: Samples
) -> tuple[Found, Judge]:
    """Return what was found; histograms [sample] are the walks of `base`, the configured reading unless `fault` is given."""
    best, best_reading = walked_of(base, histograms, samples), base
    judge = Judge(len(histograms))
    found = [best]
    screened: list[Screened] = []
    skipped: dict[str, str] = {}
    for _ in range(ROUNDS):
        others, missing = alternatives(best_reading, samples.stored)
        skipped |= {kind: reason for kind, reason in missing.items() if not screened}
        chosen, seen = screen(others, samples)
        screened += seen
        rivals = walk_all(chosen, samples)
        found += sorted(rivals, key=lambda rival: -(rival.ratio.value or 0.0))
        rivals = [rival for rival in rivals if judge.clear(rival, best, len(screened))]
        if not rivals:
            break
        best = likeliest(rivals, judge)
        best_reading = next(each for each in chosen if each.label == best.label)
    not_tried = [{"kind": kind, "reason": reason} for kind, reason in skipped.items()]
    return Found(
        fault=fault, walked=found, screened=screened, not_tried=not_tried, best=best
    ), judge


def alternatives(base: Reading, stored: Sequence[int]) -> tuple[list[Reading], dict[str, str]]:
    """Return the readings that differ from `base` in one thing, and {kind: why it could not be tried}."""
    pair, found, skipped = base.pair, list[Reading](), dict[str, str]()
    layers = layer_count(pair.target)
    default = default_boundaries(pair.engine, target_architecture(pair.target), layers)
    if "order" not in base.kinds:
        others = other_boundaries(base.boundaries, default, stored)
        found += [readings.with_boundaries(base, b, label) for b, label in others.items()]
        found += [readings.with_order(base, order) for order in other_orders(base.boundaries)]
    if missing := sorted(set(range(layers)) - set(stored)):
        skipped["boundaries"] = f"the capture holds no boundaries {ranges(missing)}"
    for kind, make in MAKERS.items():
        if kind in base.kinds and kind != "norms":
            continue
        try:
            for reading in make(base):
                found.append(reading)
        except InputError as error:
            skipped[kind] = error.what
    return found, skipped


def screen(others: Sequence[Reading], samples: Samples) -> tuple[list[Reading], list[Screened]]:
    """Return the readings worth a whole walk, in their order, and how each guesses the first token of every start row."""
    hits, rows = [0] * len(others), 0
    for sample in samples.read(SCREEN_SAMPLES):
        for number, reading in enumerate(others):
            found = match_reading(reading, sample, samples.stored, 1)
            hits[number] += int(found.sum())
        rows += len(found) if others else 0
    order = sorted(range(len(others)), key=lambda number: -hits[number])
    chosen = survivors([others[number].kinds[-1] for number in order])
    chosen = {order[place] for place in chosen}
    seen = [
        Screened(
            kinds=each.kinds,
            label=each.label,
            boundaries=each.boundaries,
            hits=hits[number],
            rows=rows,
            walked=number in chosen,
        )
        for number, each in enumerate(others)
    ]
    return [each for number, each in enumerate(others) if number in chosen], seen


def survivors(kinds: Sequence[str]) -> set[int]:
    """Return the places of those to walk; kinds are those of all readings, best first.

    Few of each kind, as near values of one setting guess alike, and all of a kind that the first step cannot show.
    """
    chosen, taken = set[int](), Counter[str]()
    for place, kind in enumerate(kinds):
        if kind in UNSEEN_AT_FIRST:
            chosen.add(place)
        elif taken[kind] < SURVIVORS_OF_A_KIND and taken.total() < SURVIVORS:
            taken[kind] += 1
            chosen.add(place)
    return chosen


def likeliest(rivals: Sequence[Walked], judge: Judge) -> Walked:
    """Return the best of wirings in the order of likely faults, or the first of its kind that chance could put behind it."""
    top = max(rivals, key=lambda rival: rival.ratio.value or 0.0)
    return next(
        each
        for each in rivals
        if each is top or (each.kinds == top.kinds and judge.tied(each, top))
    )


def walk_all(chosen: Sequence[Reading], samples: Samples) -> list[Walked]:
    """Return the readings walked over all samples, in the same order."""
    histograms: list[list[list[int]]] = [[] for _ in chosen]
    for sample in samples.read(None) if chosen else ():
        for reading, own in zip(chosen, histograms, strict=True):
            found = match_reading(reading, sample, samples.stored, samples.steps)
            own.append(walk(found.numpy(), steps=[samples.steps])[0])
    return [walked_of(r, h, samples) for r, h in zip(chosen, histograms, strict=True)]


def walked_of(reading: Reading, histograms: Sequence[Sequence[int]], samples: Samples) -> Walked:
    """Return a reading with its walks."""
    return Walked(
        kinds=reading.kinds,
        label=reading.label,
        boundaries=reading.boundaries,
        setting=reading.setting(samples.original),
        histograms=histograms,
    )


def match_reading(reading: Reading, sample: Sample, stored: Sequence[int], steps: int) -> Any:
    """Return the match matrix bool [R, K] of one sample as this reading sees it, each row up to its first miss."""
    columns = [stored.index(boundary) for boundary in reading.boundaries]
    states = sample.hidden_states[:, columns].float()
    token_ids, states = reading.fed(sample.token_ids, states)
    return matches(
        reading.draft,
        states,
        token_ids,
        torch.cat([sample.token_ids, sample.continuation_ids]),
        sample.prompt_tokens - 1,
        steps,
        all_rows=False,
    )
