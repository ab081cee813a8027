"""Rules on the target, and on the draft against it."""

from __future__ import annotations

from collections.abc import Iterator

from draftproof.checkpoint import target_layout
from draftproof.checkpoint.boundaries import layer_count, target_architecture, target_facts
from draftproof.checkpoint.configuration import size
from draftproof.checkpoint.findings import Fault, rule
from draftproof.checkpoint.pair import Pair
from draftproof.checkpoint.weights import Weights
from draftproof.errors import InputError

# Endings of tensors that mean nothing without a quantisation in the config, and dtypes that no plain weight has.
QUANTISED = (".weight_packed", ".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".qweight")
PLAIN_DTYPES = {"F64", "F32", "F16", "BF16"}
FETCH = "Fetch the target again; config.json and weights are not of one checkpoint."


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


@rule("target.not-checked", "info", "validate needs of the target its config alone")
def not_checked(pair: Pair) -> Iterator[Fault]:
    """The target's weights are not here, so they were not checked."""
    if pair.target_weights is None:
        yield Fault(
            subject="target weights",
            message=f"no *.safetensors in {pair.target_path}: the target's weights were not checked",
            fix="Nothing, or validate again where the whole target is.",
        )


@rule("target.unreadable", "error", "model_loader/weight_utils.py, safetensors_weights_iterator")
def unreadable(pair: Pair) -> Iterator[Fault]:
    """The target's weights are not whole: a shard is missing, cut off, or a pointer to it."""
    problem = pair.target_weights
    if isinstance(problem, InputError):
        yield Fault(
            subject="target weights",
            message=f"{problem.where}: {problem.what}",
            evidence={"file": problem.where},
            fix=problem.fix or "Fetch the target's weights again.",
        )


@rule(
    "target.tensors-missing",
    "error",
    "models/llama.py and models/deepseek_v2.py: load_weights checks not that every parameter was filled",
)
def tensors_missing(pair: Pair) -> Iterator[Fault]:
    """The target's weights lack tensors that its config promises; the engine would compute with random values."""
    absent = pair.target_comparison.missing
    if absent:
        many = "at least " if len(absent) >= target_layout.LISTED else ""
        yield Fault(
            subject=absent[0],
            message=f"the target lacks {many}{len(absent)} tensors of those its config promises, {absent[0]} first",
            evidence={"missing": absent[: target_layout.LISTED]},
            fix=FETCH,
        )


@rule(
    "target.tensor-shape",
    "error",
    "layers/vocab_parallel_embedding.py and layers/linear.py, weight_loader",
)
def tensor_shape(pair: Pair) -> Iterator[Fault]:
    """A tensor of the target has not the shape that its config asks for."""
    wrong = pair.target_comparison.wrong
    if wrong:
        first, (found, wanted) = next(iter(wrong.items()))
        yield Fault(
            subject=first,
            message=f"the target's {first} has shape {list(found)}, its config asks for {list(wanted)}"
            + (f" ({len(wrong)} tensors so)" if len(wrong) > 1 else ""),
            evidence={
                "tensors": {n: {"found": f, "expected": w} for n, (f, w) in wrong.items()},
            },
            fix=FETCH,
        )


@rule(
    "target.layers-beyond",
    "warning",
    "models/llama.py and models/deepseek_v2.py, load_weights: names without a parameter are skipped",
)
def layers_beyond(pair: Pair) -> Iterator[Fault]:
    """The target's weights have more layers than its config says; the engine leaves them out."""
    weights, count = pair.target_weights, size(pair.target_text, "num_hidden_layers")
    if not isinstance(weights, Weights) or count is None:
        return
    prefix = target_layout.prefix_of(weights.tensors)
    # Layers that predict further tokens stand behind the others.
    if prefix is None or pair.target_text.get("num_nextn_predict_layers"):
        return
    start = f"{target_layout.layers_prefix(weights.tensors, prefix)}{count}."
    extra = next((name for name in weights.tensors if name.startswith(start)), None)
    if extra is not None:
        yield Fault(
            subject=extra,
            message=f"the target's weights have a layer {count}, its config says {count} layers (0 to {count - 1})",
            evidence={"num_hidden_layers": count, "tensor": extra},
            fix="Right for extra (MTP) layers; else correct num_hidden_layers.",
        )


@rule(
    "target.quantisation-unknown",
    "error",
    "configs/model_config.py, _verify_quantization; layers/quantization/__init__.py",
)
def quantisation_unknown(pair: Pair) -> Iterator[Fault]:
    """The target is quantised by a method that the engine does not know."""
    how = pair.target_quantisation
    if how is not None and how.method not in pair.facts["quantisation_methods"]:
        yield Fault(
            subject=how.place,
            message=f"{how.place} names the quantisation method {how.method[:80]!r}, which {pair.engine} does not know",
            evidence={"method": how.method, "known": list(pair.facts["quantisation_methods"])},
            fix="Use a checkpoint quantised by a method that the engine knows.",
        )


@rule(
    "target.quantisation-unsaid",
    "error",
    "configs/model_config.py, _parse_quant_hf_config: without it the engine takes the weights as they are",
)
def quantisation_unsaid(pair: Pair) -> Iterator[Fault]:
    """The target's tensors are quantised, and its config does not say so."""
    if pair.target_quantisation is not None or not isinstance(pair.target_weights, Weights):
        return
    for tensor in pair.target_weights.tensors.values():
        odd = tensor.dtype not in PLAIN_DTYPES and tensor.name.endswith("_proj.weight")
        if odd or tensor.name.endswith(QUANTISED):
            yield Fault(
                subject=tensor.name,
                message=f"the target's {tensor.name} ({tensor.dtype}) is quantised, and its config has no"
                " quantization_config",
                evidence={"tensor": tensor.name, "dtype": tensor.dtype},
                fix="Take config.json from the checkpoint that these weights are of.",
            )
            return


@rule(
    "target.quantisation-scales",
    "error",
    "layers/quantization: each method's create_weights asks for scales",
)
def quantisation_scales(pair: Pair) -> Iterator[Fault]:
    """The target's config names a quantisation, and its tensors have none of its scales or packed values."""
    how, weights = pair.target_quantisation, pair.target_weights
    if how is None or not isinstance(weights, Weights):
        return
    endings = tuple(pair.facts["quantisation_methods"].get(how.method, ()))
    if endings and not any(name.endswith(endings) for name in weights.tensors):
        yield Fault(
            subject=how.place,
            message=f"{how.place} says {how.method}, and no tensor of the target ends in {' or '.join(endings)}",
            evidence={"method": how.method, "endings": list(endings)},
            fix=FETCH,
        )
