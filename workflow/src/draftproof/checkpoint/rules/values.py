"""Rules on the values themselves, read once, in pieces."""

from __future__ import annotations

from collections.abc import Iterator

from draftproof.checkpoint.findings import Fault, rule
from draftproof.checkpoint.pair import Pair


@rule("values.not-finite", "error", "NaN and infinity spread to every logit")
def not_finite(pair: Pair) -> Iterator[Fault]:
    """A tensor holds NaN or infinity."""
    for name, result in pair.scans.items():
        if result.not_finite:
            yield Fault(
                subject=name,
                message=f"{name} holds {result.not_finite} values that are NaN or infinite",
                evidence={"values": result.not_finite, "shape": pair.weights.tensors[name].shape},
                fix="Take an earlier step of the training run.",
            )


@rule("values.all-zero", "error", "a weight of zeros lets nothing through")
def all_zero(pair: Pair) -> Iterator[Fault]:
    """A weight was never filled: all its values are zero."""
    for name, result in pair.scans.items():
        if result.all_zero and name.endswith(".weight"):
            yield Fault(
                subject=name,
                message=f"all values of {name} are zero",
                evidence={"shape": pair.weights.tensors[name].shape},
                fix="Export the draft again; this tensor was not saved from the trained model.",
            )
