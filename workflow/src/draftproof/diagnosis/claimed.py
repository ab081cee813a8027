"""What did the training run claim, and which accept length would that be?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from draftproof.errors import ConfigError

# What a claim of each kind is measured by: trainers feed the target's own tokens at every step (EAGLE and SpecForge acc_i,
# speculators full_acc_i and cond_acc_i), which only the marginal notices.
MEASURED = {
    "marginal": ("teacher_forced", "count"),
    "conditional": ("conditional", "conditional_count"),
    "cumulative": ("cumulative", "cumulative_count"),
}
KINDS = (*MEASURED, "accept_length")
WHERE = "--claimed"


def parse(text: str | None) -> dict[str, Any] | None:
    """Return the claim given as JSON, None for none; raises ConfigError when it is not a claim."""
    try:
        claim = json.loads(text or "null")
    except json.JSONDecodeError as error:
        raise ConfigError(f"not JSON ({error})", WHERE) from None
    if claim is None:
        return None
    example = 'Write {"value": 0.747, "kind": "marginal", "step": 1}.'
    if not isinstance(claim, dict) or claim.get("kind") not in KINDS:
        raise ConfigError(f"kind must be one of {', '.join(KINDS)}", WHERE, example)
    value, step = claim.get("value"), claim.get("step", 1)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"value {value!r} is no number", WHERE, example)
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        raise ConfigError(f"step {step!r} is no draft step (1, 2, ...)", WHERE, example)
    low, high = (1.0, float("inf")) if claim["kind"] == "accept_length" else (0.0, 1.0)
    if not low <= value <= high:
        raise ConfigError(f"value {value} is not between {low:g} and {high:g}", WHERE, example)
    return {"value": float(value), "kind": claim["kind"], "step": step}


def geometric(p: float, steps: int) -> float:
    """Return the accept length when every step accepts with probability p: 1 + p + ... + p^steps."""
    return 1 + sum(p**k for k in range(1, steps + 1))


def assess(claim: Mapping[str, Any], accuracy: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Return the claim with what it implies at `steps` and what was measured offline of the same kind.

    A step's acceptance is taken to hold for every step (cumulative: its step-th root). `implied_in_vocabulary` is the
    accept length if the claim counted only tokens inside the draft's vocabulary, as speculators and Model-Optimizer do;
    `measured_in_vocabulary` is the measurement that counts those only.
    """
    value, kind, step = claim["value"], claim["kind"], claim["step"]
    if kind == "accept_length":
        measured = {
            "implied_accept_length": value,
            "measured_offline": accuracy["walk"][str(steps)]["accept_length"],
            "measured_count": accuracy["samples"],
        }
        return {**claim, "steps": steps, **measured}
    p = value ** (1 / step) if kind == "cumulative" else value
    result = {**claim, "steps": steps, "implied_accept_length": geometric(p, steps)}
    if accuracy["coverage"] < 1:
        result["implied_in_vocabulary"] = geometric(p * accuracy["coverage"], steps)
    row = next((row for row in accuracy["steps"] if row["k"] == step), None)
    return result | measured_as(kind, row)


def measured_as(kind: str, row: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what was measured of a kind at a step, over all tokens and over those in the draft's vocabulary."""
    if row is None:
        return {"measured_offline": None, "measured_count": 0}
    name, counter = MEASURED[kind]
    within = row["in_vocabulary"]
    return {
        "measured_offline": row[name],
        "measured_count": row[counter],
        "measured_in_vocabulary": within[name],
        "measured_in_vocabulary_count": within[counter],
    }


def sentence(claim: Mapping[str, Any], coverage: float) -> str:
    """Return what the claim says, what it implies and what was measured, for a person."""
    name = claim["kind"].replace("_", " ")
    if claim["kind"] == "accept_length":
        return (
            f"Claimed: accept length {claim['value']:.2f}. Measured offline on {claim['measured_count']} samples: "
            f"{claim['measured_offline']:.2f}."
        )
    text = (
        f"Claimed: {name} acceptance {claim['value']:.3f} at step {claim['step']}. If every step were as good, "
        f"the accept length at {claim['steps']} steps would be {claim['implied_accept_length']:.2f}"
    )
    if "implied_in_vocabulary" in claim:
        text += (
            f", or {claim['implied_in_vocabulary']:.2f} if the claim counted only tokens in the draft's vocabulary "
            f"({coverage:.1%} of the target's text)"
        )
    return f"{text}. {measurement(claim)}"


def measurement(claim: Mapping[str, Any]) -> str:
    """Return what was measured of the claim's kind, in words."""
    measured, within = claim["measured_offline"], claim.get("measured_in_vocabulary")
    if measured is None:
        return "This kind was not measured offline at that step."
    forced = ", fed the target's own tokens as in training" if claim["kind"] == "marginal" else ""
    text = f"Measured offline, same kind and step{forced}: {measured:.3f} ({claim['measured_count']} positions)"
    if within is None or within == measured:
        return f"{text}."
    return (
        f"{text}, and {within:.3f} over the target's tokens in the draft's vocabulary"
        f" ({claim['measured_in_vocabulary_count']})."
    )
