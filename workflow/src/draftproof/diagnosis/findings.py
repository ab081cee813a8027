"""What to look at, and what to do about it: one finding per cause, with a stable id.

wiring.wrong-boundaries       the weights fit other boundaries than the configured ones
wiring.wrong-order            they fit the boundaries in another order than the engine's
wiring.wrong-norms            they fit other norms around fc, or another residual
wiring.wrong-feedback         they fit the other side of the final norm as what later steps are fed
wiring.wrong-rope             they fit other rotary frequencies
wiring.wrong-vocabulary-map   d2t holds target ids, not offsets
wiring.wrong-pairing          they fit states and tokens paired one off
wiring.wrong-embedding        they fit the draft's own embedding, which the engine replaces
acceptance.served-differs     the engine accepts another number of drafts than the walk predicts
acceptance.undecided          they differ by more than the tolerance, within the noise
acceptance.tree               a tree was served that was not scored
acceptance.guesses-nothing    hardly any draft token is accepted, offline and served
acceptance.other-prompts      some requests were only walked, or only served
outputs.not-lossless          speculation changes the text
outputs.engine-differs        the engine's plain text differs from Hugging Face's
speed.does-not-pay, speed.undecided, speed.impossible, speed.no-baseline
benchmark.invalid-cell        a cell was left out
claimed.not-reached           the claim is above what was measured of the same kind
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from draftproof.diagnosis.outputs import different_from_baseline
from draftproof.diagnosis.results import Cell
from draftproof.diagnosis.verdict import GUESSES_NOTHING, boundaries, cure, faster_than_possible

Finding = dict[str, Any]
CLAIM_SLACK = 0.02


def finding(
    identity: str, severity: str, subject: str, message: str, fix: str = "", **evidence: Any
) -> Finding:
    """Return one finding."""
    return {
        "id": identity,
        "severity": severity,
        "subject": subject,
        "message": message,
        "evidence": evidence,
        "fix": fix,
    }


def wiring_findings(wiring: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what the wiring scan says against the configured wiring, by the first and strongest difference."""
    if wiring["significant"]:
        best, configured = wiring["best"], wiring["configured"]
        yield finding(
            f"wiring.wrong-{best['kinds'][0]}",
            "error",
            "wiring",
            f"accept length is {best['accept_length']:.3f} with {best['label']}, "
            f"and {configured['accept_length']:.3f} as configured, with boundaries {boundaries(configured['boundaries'])}",
            f"{(todo := cure(best['setting']))[0].upper()}{todo[1:]}.",
            samples=wiring["samples"],
            difference=best["difference"],
            difference_ci95=best["difference_ci95"],
        )


def acceptance_findings(acceptance: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what the comparison of offline and served acceptance says."""
    offline, served = acceptance["offline"], acceptance["served"]
    figures = {
        "offline": offline["accept_length"],
        "served": served["accept_length"],
        "requests": acceptance["requests"],
        "difference_ci95": acceptance["difference_ci95"],
        "total_variation": acceptance["total_variation"],
    }
    text = (
        f"served accept length {served['accept_length']:.3f} is {acceptance['difference_ratio']:+.1%} "
        f"from the offline {offline['accept_length']:.3f} ({acceptance['requests']} requests)"
    )
    if acceptance["agreement"] == "differ":
        yield finding(
            "acceptance.served-differs",
            "error",
            acceptance["cell"],
            f"{text}: the engine does not compute what the walk computes",
            "Compare the effective model with the training code: boundaries, norms, rope, vocabulary map, dtype.",
            **figures,
        )
    elif acceptance["agreement"] == "undecided":
        yield finding(
            "acceptance.undecided",
            "warning",
            acceptance["cell"],
            f"{text}, within the noise of so few requests",
            "Raise prompts.limit.",
            **figures,
        )
    elif acceptance["agreement"] == "not-comparable":
        yield finding(
            "acceptance.tree",
            "info",
            acceptance["cell"],
            "a tree was served (topk > 1) that was not scored; a chain of as many steps is no prediction of it",
            "Run the stage `accuracy` again with the server's --tree STEPS,TOPK,TOKENS.",
            **figures,
        )
    if max(figures["offline"], figures["served"]) < GUESSES_NOTHING:
        yield finding(
            "acceptance.guesses-nothing",
            "error",
            "draft",
            "hardly any draft token is accepted, offline and served",
            "The weights do not fit this target or this wiring: check what the draft was trained on.",
            **figures,
        )
    if acceptance["unpaired"]:
        yield finding(
            "acceptance.other-prompts",
            "warning",
            acceptance["cell"],
            f"{acceptance['unpaired']} samples were only walked or only served; they are left out",
            "Run `accuracy` and `benchmark` on the same capture.",
        )


def output_findings(outputs: Mapping[str, Any], exact: bool) -> Iterator[Finding]:
    """Yield whether text changed; an error in float32, where only a bug can change it."""
    severity = "error" if exact else "warning"
    why = (
        "Look at the first divergences: in float32 they come from a wrong mask, position or cache, not from rounding."
        if exact
        else "In low precision near ties may fall otherwise; compare with float32, or with two baselines."
    )
    different = different_from_baseline(outputs)
    if different:
        yield finding(
            "outputs.not-lossless",
            severity,
            "outputs",
            f"{different} of {outputs['requests']} outputs with speculation differ from the baseline's",
            why,
            first=first_divergence(outputs, "baseline"),
        )
    for row in outputs["cells"]:
        other = row["requests"] - row["identical_to_capture"]
        if row["arm"] == "baseline" and other:
            yield finding(
                "outputs.engine-differs",
                severity,
                row["cell"],
                f"{other} of {row['requests']} outputs without speculation differ from the capture's (Hugging Face)",
                why,
                first=first_divergence(outputs, "capture"),
            )


def first_divergence(outputs: Mapping[str, Any], against: str) -> dict[str, Any]:
    """Return the earliest divergence from the capture, or from any baseline cell."""
    rows = [
        row
        for row in outputs["divergences"]
        if (row["against"] == "capture") == (against == "capture")
    ]
    return min(rows, key=lambda row: row["position"], default={})


def speed_findings(speed: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield where speculation does not pay, and what cannot be true."""
    if not speed:
        yield finding(
            "speed.no-baseline",
            "warning",
            "speed",
            "no valid baseline cell at the concurrency of a valid speculative one",
            "Run the stage `benchmark` again for both arms.",
        )
    for row in speed:
        subject = f"{row['server']} at concurrency {row['concurrency']}"
        low, high = row["speedup_ci95"]
        interval = f"{row['speedup']:.2f} times as fast ({low:.2f} to {high:.2f}, {row['requests']} requests)"
        if faster_than_possible(row):
            yield finding(
                "speed.impossible",
                "error",
                subject,
                f"{interval}, more than its accept length {row['accept_length']:.2f} allows: the baseline is too slow",
                "Delete the cells of both servers in benchmark/ and measure again, alone on the machine, with equal flags.",
            )
        if row["outcome"] == "does-not-pay":
            yield finding(
                "speed.does-not-pay",
                "info",
                subject,
                f"{interval}: accept length {row['accept_length']:.2f}, break-even {row['break_even_accept_length']:.2f}",
                "A better draft, fewer steps, or a cheaper iteration.",
            )
        elif row["outcome"] == "undecided":
            yield finding(
                "speed.undecided", "info", subject, interval, "Measure more prompts or launches."
            )


def benchmark_findings(cells: Sequence[Cell]) -> Iterator[Finding]:
    """Yield the cells whose figures are not used, with the benchmark's own reasons."""
    for cell in cells:
        if not cell.valid:
            yield finding(
                "benchmark.invalid-cell",
                "warning",
                cell.name,
                f"left out: {'; '.join(cell.data['reasons']) or 'marked invalid'}",
                "Run the stage `benchmark` again; an invalid cell is measured anew.",
            )


def claimed_findings(claim: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Yield whether the claim was reached by the measurement of the same kind."""
    if claim and claim["measured_offline"] is not None:
        short = claim["value"] - claim["measured_offline"]
        if short > CLAIM_SLACK * claim["value"]:
            yield finding(
                "claimed.not-reached",
                "warning",
                "claimed",
                f"claimed {claim['kind']} {claim['value']:.3f}, measured {claim['measured_offline']:.3f} of the same kind",
                "Ask what the claim counted: teacher forcing, only tokens in the draft's vocabulary, other prompts?",
                count=claim["measured_count"],
            )
