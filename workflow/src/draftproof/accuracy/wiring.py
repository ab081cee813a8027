"""Which reading of the draft do its weights fit? What the scan writes: every wiring's score, and whether one is better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.accuracy.bootstrap import Bootstrap, Counts, Ratio, quantiles
from draftproof.accuracy.scores import accept_ratio, one_more
from draftproof.accuracy.wiring_boundaries import listed

# Steps of the scan: enough to tell wirings apart, at a bounded cost.
STEPS = 3
# Intervals from fewer samples are too narrow to accuse a wiring.
MIN_SAMPLES = 8
# Accepted drafts per verify step. A smaller gain is not worth a changed wiring, however sure it is.
MIN_GAIN = 0.03
LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """A wiring walked over all samples: what differs, the config line that sets it, a histogram per sample."""

    kinds: tuple[str, ...]
    label: str
    boundaries: tuple[int, ...]
    setting: str
    histograms: Sequence[Sequence[int]]

    @property
    def ratio(self) -> Ratio:
        """Accepted drafts per verify step."""
        return accept_ratio(self.histograms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """A wiring tried on some samples: start rows, and how many first drafts were the target's."""

    kinds: tuple[str, ...]
    label: str
    boundaries: tuple[int, ...]
    hits: int
    rows: int
    walked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a scan saw: walked[0] is the wiring all others are variants of; `fault` says why it is not the configured one.

    `best` is the last one that was clearly better than the one before it.
    """

    fault: str | None
    walked: list[Walked]
    screened: list[Screened]
    not_tried: list[dict[str, str]]
    best: Walked


class Judge:
    """Compares wirings on the same samples, drawn again together."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self._bootstrap = Bootstrap(samples)

    def values(self, walked: Walked | None) -> Counts:
        """Return accepted drafts per verify step in each draw; zeros for a wiring that no server can run."""
        none = Ratio([0] * self.samples, [1] * self.samples)
        return self._bootstrap.values(none if walked is None else walked.ratio)

    def difference(self, one: Walked, other: Walked | None, alternatives: int) -> list[float]:
        """Return the paired interval of a difference, widened for the number of alternatives tried (Bonferroni).

        The bootstrap's spread times a quantile of Student's t: so far out, 10 000 draws of few samples have no tail.
        """
        from scipy.stats import t

        middle = (one.ratio.value or 0.0) - (0.0 if other is None else other.ratio.value or 0.0)
        freedom = max(1, self.samples - 1)
        spread = float((self.values(one) - self.values(other)).std())
        spread *= math.sqrt(self.samples / freedom)
        reach = float(t.ppf(1 - (1 - LEVEL) / (2 * max(1, alternatives)), freedom)) * spread
        return [middle - reach, middle + reach]

    def clear(self, better: Walked, than: Walked | None, alternatives: int) -> bool:
        """Return whether one wiring is better than another beyond chance and by enough to matter.

        `than` None is a wiring that no server can run.
        """
        gain = (better.ratio.value or 0.0) - (0.0 if than is None else than.ratio.value or 0.0)
        if gain < MIN_GAIN or self.samples < least_samples(alternatives):
            return False
        return self.difference(better, than, alternatives)[0] > 0

    def tied(self, one: Walked, other: Walked) -> bool:
        """Return whether two wirings differ by no more than chance."""
        low, high = self.difference(one, other, 1)
        return low <= 0 <= high


def least_samples(alternatives: int) -> int:
    """Return how many samples can accuse a wiring at all.

    With n samples, all differences have one sign by chance once in 2^n; no interval from drawing them again sees that.
    """
    return max(MIN_SAMPLES, math.ceil(math.log2(2 * max(1, alternatives) / (1 - LEVEL))))


def wiring(found: Found, judge: Judge, steps: int) -> dict[str, Any]:
    """Return the content of wiring.json."""
    own = None if found.fault else found.walked[0]
    alternatives = len(found.screened) + (own is None)
    entries = [entry(each, own, judge, alternatives) for each in found.walked]
    significant = found.best is not own and judge.clear(found.best, own, alternatives)
    # Nothing clearly better: the longest walk is shown; ties go to the configured wiring, which is first.
    chosen = found.best if significant else max(found.walked, key=lambda w: w.ratio.value or 0.0)
    best = entries[found.walked.index(chosen)]
    ties = [w.label for w in found.walked if rivals(w, chosen, own) and judge.tied(w, chosen)]
    answer = {
        "schema": "draftproof/wiring/2",
        "steps": steps,
        "samples": judge.samples,
        "configured": None if own is None else entries[0],
        "fault": found.fault,
        "candidates": entries,
        "screened": [screened_entry(each) for each in found.screened],
        "not_tried": found.not_tried,
        "alternatives": alternatives,
        "best": best,
        "significant": significant,
        "ties": ties if significant else [],
    }
    return answer | {"message": message(answer)}


def rivals(walked: Walked, best: Walked, own: Walked | None) -> bool:
    """Return whether a wiring is neither the best, nor the configured one, nor the best with one more difference."""
    return walked not in (own, best) and not walked.label.startswith(f"{best.label};")


def entry(walked: Walked, own: Walked | None, judge: Judge, alternatives: int) -> dict[str, Any]:
    """Return one of ``candidates``; differences are from the configured wiring, or from no accepted draft at all."""
    values, ratio = judge.values(walked), walked.ratio.value or 0.0
    differences = values - judge.values(own)
    return {
        "kinds": list(walked.kinds),
        "boundaries": list(walked.boundaries),
        "label": walked.label,
        "setting": walked.setting,
        "accept_length": 1 + ratio,
        "ci95": one_more(quantiles(values, LEVEL)),
        "difference": ratio - (0.0 if own is None else own.ratio.value or 0.0),
        "difference_ci95": quantiles(differences, LEVEL),
        "difference_adjusted": judge.difference(walked, own, alternatives),
    }


def screened_entry(each: Screened) -> dict[str, Any]:
    """Return one of ``screened``."""
    return {
        "kinds": list(each.kinds),
        "boundaries": list(each.boundaries),
        "label": each.label,
        "first_step": each.hits / each.rows if each.rows else 0.0,
        "count": each.rows,
        "walked": each.walked,
    }


def message(answer: Mapping[str, Any]) -> str:
    """Return the scan's finding as one sentence."""
    own, best, samples = answer["configured"], answer["best"], answer["samples"]
    tried = answer["alternatives"]
    low, high = best["ci95"]
    if own is None:
        sure = "" if answer["significant"] else f", which {samples} samples do not prove"
        return (
            f"As configured the draft cannot be computed: {answer['fault']}. With {best['label']} it reaches accept length"
            f" {best['accept_length']:.2f} ({low:.2f} to {high:.2f}, {samples} samples){sure}; {cure(best['setting'])}."
        )
    lengths = f"{best['accept_length']:.2f} against {own['accept_length']:.2f}"
    configured = f"the configured wiring, boundaries {listed(own['boundaries'])}"
    if answer["significant"]:
        low, high = best["difference_ci95"]
        return (
            f"The draft fits {best['label']} better than {configured}: accept length {lengths}"
            f" (difference {low:.2f} to {high:.2f}, {samples} samples, {tried} alternatives tried); {cure(best['setting'])}.{other_fits(answer['ties'])}"
        )
    if len(answer["candidates"]) == 1:
        return f"No other wiring could be compared with {configured}."
    if best is answer["candidates"][0]:
        return f"The draft fits {configured}, best of {tried + 1} wirings."
    few = f", and {samples} samples are too few to tell" if samples < least_samples(tried) else ""
    return (
        f"No wiring is clearly better than {configured}: {best['label']} reaches {lengths},"
        f" the best of {tried} alternatives, within chance{few}."
    )


def other_fits(ties: Sequence[str]) -> str:
    """Return a sentence on the wirings that cannot be told from the best, or nothing."""
    if not ties:
        return ""
    return f" Too few samples to tell it from {' or '.join(ties[:3])}" + (
        f" and {len(ties) - 3} more." if len(ties) > 3 else "."
    )


def cure(setting: str) -> str:
    """Return what to do with a setting, which says ``none: why`` when the engine has no such setting."""
    if setting.startswith("none:"):
        return f"no setting does that: {setting.removeprefix('none:').strip().rstrip('.')}"
    return f"set {setting} in config.json"
