"""The answer in one or two sentences, from the compared figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from draftproof.diagnosis.outputs import different_from_baseline
from draftproof.diagnosis.speed import BOUND_SLACK

GUESSES_NOTHING = 1.05
"""Below this accept length hardly any draft token is accepted."""


def verdict(
    acceptance: Mapping[str, Any],
    outputs: Mapping[str, Any],
    speed: Sequence[Mapping[str, Any]],
    wiring: Mapping[str, Any],
    exact: bool,
) -> str:
    """Return the verdict. `exact`: the server computes in float32, where every output must be identical."""
    sentences = [draft_sentence(acceptance, wiring), speed_sentence(speed, acceptance["server"])]
    different = different_from_baseline(outputs)
    if different and exact:
        sentences.append(
            f"It is not lossless: {different} of {outputs['requests']} outputs differ from the baseline's."
        )
    return " ".join(sentences)


def two(first: float, second: float) -> tuple[str, str]:
    """Return both with two decimals, or with three when only the third tells them apart."""
    for decimals in (2, 3):
        pair = f"{first:.{decimals}f}", f"{second:.{decimals}f}"
        if pair[0] != pair[1]:
            return pair
    return f"{first:.2f}", f"{second:.2f}"


def boundaries(values: Iterable[int]) -> str:
    """Return boundaries as text: ``(0, 3, 31)``."""
    return f"({', '.join(map(str, values))})"


def draft_sentence(acceptance: Mapping[str, Any], wiring: Mapping[str, Any]) -> str:
    """Return what is right or wrong with the draft and with how the engine reads it."""
    offline, served = two(
        acceptance["offline"]["accept_length"], acceptance["served"]["accept_length"]
    )
    figures = f"offline {offline}, served {served} ({acceptance['requests']} requests)"
    if wiring["significant"]:
        best, configured = wiring["best"], wiring["configured"]
        better, now = two(best["accept_length"], configured["accept_length"])
        text = (
            f"The draft is wired wrong: its weights fit {best['label']}, accept length {better} offline, not the "
            f"configured boundaries {boundaries(configured['boundaries'])}, {now} ({wiring['samples']} samples)"
        )
        return f"{text}; {cure(best['setting'])}. Measured as wired: {figures}."
    if acceptance["agreement"] == "not-comparable":
        return f"Served accept length is {served} with a tree, {offline} offline with a chain ({acceptance['requests']} requests)."
    if acceptance["agreement"] == "differ":
        return f"The engine does not read the draft as it was evaluated: {figures}."
    if acceptance["agreement"] == "undecided":
        return f"The draft is probably wired right: {figures}, a difference within the noise."
    if acceptance["offline"]["accept_length"] < GUESSES_NOTHING:
        return f"The engine reads the draft as it was evaluated, but the draft guesses almost nothing: {figures}."
    return f"The draft is wired right: {figures}."


def cure(setting: str) -> str:
    """Return what to do with the line of the wiring scan, which says `none: why` when the engine has no such setting."""
    if setting.startswith("none:"):
        return f"the engine cannot be told so ({setting.removeprefix('none:').strip().rstrip('.')})"
    return f"set {setting.rstrip('.')} in the draft's config.json"


def speed_sentence(speed: Sequence[Mapping[str, Any]], server: str) -> str:
    """Return whether it pays, by concurrency, for one server."""
    rows = [row for row in speed if row["server"] == server]
    if not rows:
        return "Speed was not compared: no valid baseline at the same concurrency."
    impossible = [row for row in rows if faster_than_possible(row)]
    rows = [row for row in rows if not faster_than_possible(row)]
    groups = [
        (words, [row for row in rows if row["outcome"] == name])
        for name, words in (
            ("pays", "pays"),
            ("does-not-pay", "does not pay"),
            ("undecided", "is undecided"),
        )
    ]
    said = [f"{words} at concurrency {loads(group)}" for words, group in groups if group]
    sentences = [f"On this machine it {'; it '.join(said)}."] if said else []
    if impossible:
        claims = " and ".join(
            f"{row['concurrency']} ({row['speedup']:.2f} times as fast at accept length {row['accept_length']:.2f})"
            for row in impossible
        )
        sentences.append(f"The speed is not believable at concurrency {claims}: measure again.")
    return " ".join(sentences)


def faster_than_possible(row: Mapping[str, Any]) -> bool:
    """Return whether a speedup is above the accept length, its bound when a verify step costs no more than a plain one."""
    return bool(row["speedup"] > BOUND_SLACK * row["accept_length"])


def loads(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the concurrencies with the figures that decide: break-even, and the speedup where it is not lost."""
    parts: list[str] = []
    for row in rows:
        low, high = row["speedup_ci95"]
        speedup = {
            "pays": f", {row['speedup']:.2f} times as fast",
            "undecided": f", {low:.2f} to {high:.2f} times as fast",
        }.get(row["outcome"], "")
        parts.append(
            f"{row['concurrency']} (break-even {row['break_even_accept_length']:.2f}{speedup})"
        )
    return " and ".join(parts)
