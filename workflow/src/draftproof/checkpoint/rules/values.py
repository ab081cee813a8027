"""Rules on the values themselves, read once, in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

from draftproof.checkpoint import layout
from draftproof.checkpoint.findings import Fault, rule
from draftproof.checkpoint.pair import Pair
from draftproof.checkpoint.safetensors_header import Tensor
from draftproof.checkpoint.scan import Scan

# How much larger a matrix may make a vector, as root mean square of its weights times root of its columns. Usual
# initialisations lie between 0.1 and 10 whatever the size, and so do trained matrices.
LEAST_GAIN, MOST_GAIN = 0.01, 100.0
# The smallest number that becomes infinite: the largest of the dtype and half a step.
INFINITE_FROM = {"float16": 65520.0, "bfloat16": (2.0 - 2.0**-8) * 2.0**127}
FLOAT32_INFINITE_FROM = (2.0 - 2.0**-24) * 2.0**127


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
    for name, tensor, result in _used(pair):
        if result.all_zero and name.endswith(".weight"):
            yield Fault(
                subject=name,
                message=f"all values of {name} are zero",
                evidence={"shape": tensor.shape},
                fix="Export the draft again; this tensor was not saved from the trained model.",
            )


@rule("values.constant", "error", "training starts from random matrices and keeps them apart")
def constant(pair: Pair) -> Iterator[Fault]:
    """All values of a matrix are one number, which no training leaves behind; a norm of ones is legal."""
    for name, tensor, result in _matrices(pair):
        if result.constant and not result.all_zero:
            yield Fault(
                subject=name,
                message=f"all values of {name} are {result.largest:g}, sign aside",
                evidence={"shape": tensor.shape, "value without sign": result.largest},
                fix="Export the draft again; this tensor was not saved from the trained model.",
            )


@rule("values.scale", "warning", "a matrix keeps the size of a vector roughly, trained or not")
def scale(pair: Pair) -> Iterator[Fault]:
    """A matrix makes vectors 100 times larger or smaller, as one does that was saved without its scales, or with them twice."""
    for name, tensor, result in _matrices(pair):
        gain = result.rms * sqrt(tensor.shape[1])
        if result.constant or result.not_finite or LEAST_GAIN <= gain <= MOST_GAIN:
            continue
        yield Fault(
            subject=name,
            message=f"the values of {name} are {result.rms:.2g} on the whole: it makes vectors {gain:.2g} times"
            " as large, where trained matrices stay near 1",
            evidence={
                "root mean square": result.rms,
                "largest": result.largest,
                "shape": tensor.shape,
                "gain": gain,
                "usual": [LEAST_GAIN, MOST_GAIN],
            },
            fix="Compare with the training run; if scales of a quantisation belong to it, save it in bfloat16"
            " with them multiplied in.",
        )


@rule(
    "values.range", "error", "configs/model_config.py, _get_and_verify_dtype; load_weights copies"
)
def out_of_range(pair: Pair) -> Iterator[Fault]:
    """Values become infinite in the dtype that the engine makes of the config's (float16 of float32)."""
    dtype = pair.facts["auto_dtypes"].get(pair.effective.dtype.value)
    limit = INFINITE_FROM.get(dtype, FLOAT32_INFINITE_FROM)
    for name, tensor, result in _used(pair):
        if dtype and result.largest >= limit:
            yield Fault(
                subject=name,
                message=f"{name} holds {result.largest:.6g}, which is infinite in {dtype}, the dtype it is served in",
                evidence={
                    "largest": result.largest,
                    "infinite from": limit,
                    "stored": tensor.dtype,
                    "config": pair.effective.dtype.value,
                    "served": dtype,
                },
                fix='Write "torch_dtype": "bfloat16" if the target is served so too, or save the draft'
                " with smaller values."
                if limit < result.largest < INFINITE_FROM["bfloat16"]
                else "Take an earlier step of the training run.",
            )


def _used(pair: Pair) -> Iterator[tuple[str, Tensor, Scan]]:
    """Yield name, tensor and scan of what the engine reads, without what it replaces by the target's."""
    e = pair.effective
    replaced = {layout.EMBEDDING} if e.embedding_source.value == "target" else set()
    if e.head_source.value != "draft":
        replaced.add(layout.HEAD)
    if not pair.dialect.eagle3:
        replaced = set()
    for served, names in pair.names.items():
        for name in names if served not in replaced else []:
            yield name, pair.weights.tensors[name], pair.scans[name]


def _matrices(pair: Pair) -> Iterator[tuple[str, Tensor, Scan]]:
    for name, tensor, result in _used(pair):
        wide = len(tensor.shape) == 2 and min(tensor.shape) > 1
        if wide and name.endswith(".weight") and result.count:
            yield name, tensor, result
