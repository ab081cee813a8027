"""What did the training run claim, and which accept length would that be?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from draftproof.errors import ConfigError

KINDS = ("marginal", "conditional", "cumulative", "accept_length")
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
    accept length if the claim counted only tokens inside the draft's vocabulary.
    """
    value, kind, step = claim["value"], claim["kind"], claim["step"]
    if kind == "accept_length":
        implied, measured, count = (
            value,
            accuracy["walk"][str(steps)]["accept_length"],
            accuracy["samples"],
        )
    else:
        p = value ** (1 / step) if kind == "cumulative" else value
        implied = geometric(p, steps)
        row = next((row for row in accuracy["steps"] if row["k"] == step), None)
        measured = None if row is None else row[kind]
        count = 0 if row is None else row["count"]
    result: dict[str, Any] = {
        **claim,
        "steps": steps,
        "implied_accept_length": implied,
        "measured_offline": measured,
        "measured_count": count,
    }
    coverage = accuracy["coverage"]
    if kind != "accept_length" and coverage < 1:
        result["implied_in_vocabulary"] = geometric(p * coverage, steps)
    return result


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
    measured = claim["measured_offline"]
    return f"{text}. " + (
        "This kind was not measured offline at that step."
        if measured is None
        else f"Measured offline, same kind and step: {measured:.3f} ({claim['measured_count']} positions)."
    )
