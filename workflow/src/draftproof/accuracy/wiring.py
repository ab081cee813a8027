"""Which boundaries fit the draft's weights? The same walk with other boundaries fed to the same draft."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.accuracy.bootstrap import Bootstrap, quantiles
from draftproof.accuracy.scores import accept_ratio, one_more
from draftproof.checkpoint.boundaries import IDS_KEY, default_boundaries, engine_ids
from draftproof.errors import InputError

# Steps of the scan: enough to tell wirings apart, at a bounded cost.
STEPS = 3
# Intervals from fewer samples are too narrow to accuse a wiring.
MIN_SAMPLES = 8
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Candidate:
    """A wiring to try."""

    label: str
    boundaries: tuple[int, ...]


def candidates(
    configured: tuple[int, ...],
    engine: str,
    architecture: str,
    num_layers: int,
    stored: Sequence[int],
) -> list[Candidate]:
    """Return the wirings to compare, the configured one first: as many boundaries each, all stored, no two equal."""
    tried = [
        Candidate("configured", configured),
        Candidate("engine default", default_boundaries(engine, architecture, num_layers)),
        Candidate("one higher", tuple(b + 1 for b in configured)),
        Candidate("one lower", tuple(b - 1 for b in configured)),
        Candidate("embedding included", (0, *configured[:-1])),
    ]
    found: dict[tuple[int, ...], Candidate] = {}
    for candidate in tried:
        boundaries = candidate.boundaries
        distinct = tuple(sorted(set(boundaries))) == boundaries
        if distinct and len(boundaries) == len(configured) and set(boundaries) <= set(stored):
            found.setdefault(boundaries, candidate)
    return list(found.values())


def setting(engine: str, architecture: str, boundaries: Sequence[int]) -> str:
    """Return the line of the draft's config.json that makes the engine capture these boundaries."""
    try:
        ids = engine_ids(engine, architecture, boundaries)
    except InputError as error:
        return f"none: {error}"
    return f'"eagle_config": {json.dumps({IDS_KEY: ids})}'


def wiring(
    tried: Sequence[Candidate],
    histograms: Sequence[Sequence[Sequence[int]]],
    bootstrap: Bootstrap,
    settings: Sequence[str],
    steps: int,
) -> dict[str, Any]:
    """Return the content of wiring.json; histograms[c][s] is candidate c's on sample s, the configured one first.

    The best alternative counts as significantly better when the paired interval of its difference, widened for the
    number of alternatives (Bonferroni), lies above 0, on at least 8 samples.
    """
    ratios = [accept_ratio(of_candidate) for of_candidate in histograms]
    drawn = [bootstrap.values(ratio) for ratio in ratios]
    alternatives = max(1, len(tried) - 1)
    entries: list[dict[str, Any]] = []
    for candidate, ratio, values, line in zip(tried, ratios, drawn, settings, strict=True):
        differences = values - drawn[0]
        entries.append(
            {
                "boundaries": list(candidate.boundaries),
                "label": candidate.label,
                "setting": line,
                "accept_length": 1 + (ratio.value or 0.0),
                "ci95": one_more(quantiles(values, LEVEL)),
                "difference": (ratio.value or 0.0) - (ratios[0].value or 0.0),
                "difference_ci95": quantiles(differences, LEVEL),
                "difference_adjusted": quantiles(differences, 1 - (1 - LEVEL) / alternatives),
            }
        )
    samples = len(histograms[0])
    # Ties go to the configured wiring, which is first.
    best = max(entries, key=lambda entry: entry["accept_length"])
    clear = best is not entries[0] and best["difference_adjusted"][0] > 0
    significant = clear and samples >= MIN_SAMPLES
    return {
        "schema": "draftproof/wiring/1",
        "steps": steps,
        "samples": samples,
        "configured": entries[0],
        "candidates": entries,
        "best": best,
        "significant": significant,
        "message": message(entries, best, significant, samples),
    }


def message(
    entries: Sequence[dict[str, Any]], best: dict[str, Any], significant: bool, samples: int
) -> str:
    """Return the scan's finding as one sentence."""
    own = entries[0]
    lengths = f"{best['accept_length']:.2f} against {own['accept_length']:.2f}"
    if significant:
        return (
            f"The draft fits boundaries {best['boundaries']} ({best['label']}) better than the configured"
            f" {own['boundaries']}: accept length {lengths}; set {best['setting']}."
        )
    if len(entries) == 1:
        return f"No other wiring could be compared with the configured {own['boundaries']}."
    if best is own:
        return f"The configured boundaries {own['boundaries']} fit best of {len(entries)} wirings."
    few = f", and {samples} samples are too few to tell" if samples < MIN_SAMPLES else ""
    return (
        f"No wiring is clearly better than the configured {own['boundaries']}:"
        f" {best['boundaries']} reaches {lengths}, within chance{few}."
    )
