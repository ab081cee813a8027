"""Rules on names, shapes and dtypes of the draft's tensors."""

from __future__ import annotations

from collections.abc import Iterator

from draftproof.checkpoint import layout
from draftproof.checkpoint.findings import Fault, rule
from draftproof.checkpoint.pair import Pair

LOADER = "models/llama_eagle3.py, LlamaForCausalLMEagle3.load_weights"
# Copies of the target's head and norm that speculators saved at times; only its training uses them.
TARGETS_OWN = {"verifier_lm_head.weight", "verifier_norm.weight"}
PLAIN_DTYPES = {"F64", "F32", "F16", "BF16"}


@rule(
    "tensors.missing",
    "error",
    f"{LOADER}: nothing checks that every parameter was filled",
    layout=True,
)
def missing(pair: Pair) -> Iterator[Fault]:
    """The engine builds parameters that the checkpoint does not fill: they stay random, norms stay ones."""
    absent = [name for name in layout.required(pair.effective) if name not in pair.names]
    if absent:
        yield Fault(
            subject=absent[0],
            message=f"{len(absent)} tensors the engine needs are missing and would stay at random values",
            evidence={"missing": absent[:40]},
            fix="Export the whole draft; names may start with midlayer. or layers.0.",
        )


@rule("tensors.clash", "error", LOADER, layout=True)
def clash(pair: Pair) -> Iterator[Fault]:
    """Two tensors are the same parameter to the engine; the last one read wins."""
    for name, sources in pair.names.items():
        if len(sources) > 1:
            yield Fault(
                subject=name,
                message=f"{' and '.join(sources[:4])} are one parameter to the engine",
                evidence={"tensors": sources},
                fix="Keep one of them.",
            )


@rule("tensors.dropped", "error", f"{LOADER}: names without a parameter are skipped", layout=True)
def dropped(pair: Pair) -> Iterator[Fault]:
    """Tensors that take part in the trained computation, and for which the engine has no place."""
    lost = [name for name in pair.names if _takes_part(pair, name)]
    if lost:
        yield Fault(
            subject=lost[0],
            message=f"{len(lost)} trained tensors (biases or norms) have no place in the engine's draft and are dropped",
            evidence={"tensors": lost},
            fix="The engine's draft cannot compute with them: train a draft without them.",
        )


@rule("tensors.unused", "warning", f"{LOADER}: names without a parameter are skipped", layout=True)
def unused(pair: Pair) -> Iterator[Fault]:
    """Tensors of a name the engine does not know; it skips them."""
    known = {
        layout.MAP,
        layout.MASK,
        *layout.required(pair.effective),
        *layout.optional(pair.effective),
    }
    extra = [
        source
        for name, sources in pair.names.items()
        if name not in known
        and not name.startswith(layout.NORMS_BEHIND_FLAGS)
        and not _takes_part(pair, name)
        and not (pair.dialect.name == "speculators" and name in TARGETS_OWN)
        for source in sources
    ]
    if extra:
        yield Fault(
            subject=extra[0],
            message=f"{len(extra)} tensors are unknown to the engine, which skips them without a word",
            evidence={"tensors": extra[:40]},
            fix="Make sure the draft was not trained with them, then leave them out.",
        )


@rule(
    "tensors.shape",
    "error",
    "models/llama_eagle3.py, LlamaDecoderLayer.__init__ (q, k, v see 2 x hidden_size)",
    layout=True,
)
def shape(pair: Pair) -> Iterator[Fault]:
    """A tensor's shape is not the one the config asks for.

    The columns of fc and the rows of the head have rules of their own.
    """
    e = pair.effective
    wanted = layout.optional(e) | layout.required(e)
    wanted[layout.FC] = (e.hidden_size.value, None)
    wanted[layout.HEAD] = (None, e.hidden_size.value)
    wanted.pop("input_norm.weight", None)
    wrong = {
        name: {"found": list(tensor.shape), "expected": list(shape)}
        for name, shape in wanted.items()
        if (tensor := pair.tensor(name)) and not layout.fits(tensor.shape, shape)
    }
    if not wrong:
        return
    first, sizes = next(iter(wrong.items()))
    heads_only = all(".self_attn." in name for name in wrong)
    by_default = heads_only and e.head_dim.origin == "default"
    yield Fault(
        subject=first,
        message=f"{first} has shape {sizes['found']}, the config asks for {sizes['expected']}"
        + (f" ({len(wrong)} tensors in all)" if len(wrong) > 1 else ""),
        evidence={"tensors": wrong, "head_dim": e.head_dim.value},
        fix="head_dim is missing from the config: write what the weights have."
        if by_default
        else "Make config.json say what the weights have.",
    )


@rule(
    "tensors.dtype",
    "error",
    "model_loader/weight_utils.py, default_weight_loader (copies values, no scales)",
    layout=True,
)
def dtype(pair: Pair) -> Iterator[Fault]:
    """Weights are stored in a dtype that means nothing without scales, and the config names no quantisation."""
    if pair.draft.get("quantization_config") is not None:
        return
    odd = {
        name: tensor.dtype
        for name in (*layout.required(pair.effective), *layout.optional(pair.effective))
        if (tensor := pair.tensor(name)) and tensor.dtype not in PLAIN_DTYPES
    }
    if odd:
        first, stored = next(iter(odd.items()))
        yield Fault(
            subject=first,
            message=f"{first} is stored as {stored}, without a quantization_config that explains it",
            evidence={"tensors": odd},
            fix="Save the draft in bfloat16, or with its quantisation in config.json.",
        )


@rule("tensors.fc-bias", "error", "models/llama_eagle3.py, LlamaModel.__init__ (bias)", layout=True)
def fc_bias(pair: Pair) -> Iterator[Fault]:
    """fc.bias and the config's switch `bias` do not go together."""
    has, asked = "fc.bias" in pair.names, bool(pair.draft.get("bias"))
    if has != asked:
        yield Fault(
            subject="fc.bias",
            message="fc.bias is dropped: the config does not say bias"
            if has
            else "the config says bias, but there is no fc.bias: it would stay at random values",
            evidence={"bias": pair.draft.get("bias"), "fc.bias": has},
            fix='Write "bias": true.' if has else 'Write "bias": false.',
        )


@rule(
    "tensors.other-files",
    "warning",
    "model_loader/weight_utils.py, filter_duplicate_safetensors_files",
)
def other_files(pair: Pair) -> Iterator[Fault]:
    """Weight files lie in the folder that the engine does not read."""
    if pair.weights.ignored_files:
        yield Fault(
            subject=pair.weights.ignored_files[0],
            message="weight files beside the checkpoint's own are not read",
            evidence={"files": list(pair.weights.ignored_files)},
            fix="Remove them, or the index that leaves them out.",
        )


def _takes_part(pair: Pair, name: str) -> bool:
    """Return whether a tensor took part in training and the engine's class has no place for it."""
    if name.startswith("input_norm.") and not pair.reader["norm_before_fc"]:
        return True
    return layout.DROPPED_COMPUTATION.fullmatch(name) is not None
