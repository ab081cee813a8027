"""Rules on the target, and on the draft against it."""

from __future__ import annotations

from collections.abc import Iterator

from draftproof.checkpoint.boundaries import layer_count, target_architecture, target_facts
from draftproof.checkpoint.configuration import size
from draftproof.checkpoint.findings import Fault, rule
from draftproof.checkpoint.pair import Pair
from draftproof.errors import InputError


@rule(
    "target.architecture",
    "error",
    "model_executor/model_runner_components/attention_backend_setup.py",
)
def architecture(pair: Pair) -> Iterator[Fault]:
    """The engine cannot hand out this target's hidden states."""
    try:
        target_facts(pair.engine, target_architecture(pair.target))
    except InputError as error:
        yield Fault(
            subject="target architectures",
            message=error.what,
            evidence={"architectures": pair.target.get("architectures")},
            fix=error.fix or "Give the target's folder.",
        )


@rule("target.sizes", "error", "needed to resolve boundaries and vocabulary")
def sizes(pair: Pair) -> Iterator[Fault]:
    """The target's config does not say how many layers, values or tokens it has."""
    absent = [k for k in ("hidden_size", "vocab_size") if size(pair.target_text, k) is None]
    try:
        layer_count(pair.target)
    except InputError:
        absent.append("num_hidden_layers")
    if absent:
        yield Fault(
            subject="target config",
            message=f"the target's config gives no usable {', '.join(absent)}",
            evidence={"missing": absent},
            fix="Give the folder of a whole target checkpoint.",
        )


@rule(
    "target.vocab-size",
    "warning",
    "speculative/eagle_worker_v2.py, init_lm_head: the target's embedding is used",
    layout=True,
)
def vocab_size(pair: Pair) -> Iterator[Fault]:
    """The draft was made for a target vocabulary of another size."""
    own, target = pair.effective.vocab_size.value, size(pair.target_text, "vocab_size")
    if own and target and own != target:
        yield Fault(
            subject="vocab_size",
            message=f"the draft's vocab_size is {own}, the target's {target}",
            evidence={"draft": own, "target": target},
            fix="Harmless if only padding differs; else this draft belongs to another target.",
        )
