"""Rules on the draft's config.json: will the engine accept it at all?"""

from __future__ import annotations

from collections.abc import Iterator

from draftproof.checkpoint.configuration import FLAGS, SIZES, is_size, size
from draftproof.checkpoint.findings import Fault, rule
from draftproof.checkpoint.layout import HEAD
from draftproof.checkpoint.pair import Pair

LLAMA_EAGLE3 = "LlamaForCausalLMEagle3"


@rule("draft.not-eagle3", "error", "models/llama_eagle3.py, LlamaModel.__init__")
def not_eagle3(pair: Pair) -> Iterator[Fault]:
    """The checkpoint is no EAGLE-3 draft: nothing in it merges several hidden states of a target."""
    if pair.dialect.eagle3 or not pair.dialect.flat:
        return
    names = list(pair.weights.tensors)
    yield Fault(
        subject="tensors",
        message="this is no EAGLE-3 draft: it has neither fc.weight nor a hidden_norm in its first layer",
        evidence={"architectures": pair.draft.get("architectures"), "tensors": names[:8]},
        fix="Give the draft's folder, not the target's; EAGLE-1/2 and MTP drafts are of another kind.",
    )


@rule("draft.convert-first", "error", "no reader of speculators' configs in sglang 0.5.23")
def convert_first(pair: Pair) -> Iterator[Fault]:
    """The config is nested as the speculators toolkit writes it; the engine reads flat ones only."""
    if pair.dialect.flat:
        return
    nested = pair.draft.get("transformer_layer_config")
    yield Fault(
        subject="config.json",
        message="the config is in the speculators layout, which the engine does not read",
        evidence={
            "lift": sorted(nested) if isinstance(nested, dict) else [],
            "norm_before_residual": pair.draft.get("norm_before_residual"),
        },
        fix="Lift the keys of transformer_layer_config to the top level, name the architecture"
        f" {LLAMA_EAGLE3} and the model_type llama, and give the layer ids in eagle_config.",
    )


@rule("config.architecture", "error", "models/registry.py; models/*_eagle3.py, EntryClass")
def architecture(pair: Pair) -> Iterator[Fault]:
    """The architecture is none of the engine's EAGLE-3 drafts."""
    if not pair.dialect.flat or not pair.dialect.eagle3 or pair.reader is not None:
        return
    yield Fault(
        subject="architectures",
        message=f"the engine has no EAGLE-3 draft called {pair.effective.architecture.value}",
        evidence={
            "architectures": pair.draft.get("architectures"),
            "known": sorted(pair.facts["draft_architectures"]),
        },
        fix=f'The tensors are those of an EAGLE-3 draft: write "architectures": ["{LLAMA_EAGLE3}"].',
    )


@rule("draft.tensors-unchecked", "warning", "this version of draftproof")
def tensors_unchecked(pair: Pair) -> Iterator[Fault]:
    """The engine reads this architecture, but its tensors are not checked one by one yet."""
    if pair.dialect.flat and pair.reader == "none":
        yield Fault(
            subject="architectures",
            message=f"the tensors of {pair.effective.architecture.value} are not checked by this version",
            fix="Watch the served accept length.",
        )


@rule("config.model-type", "error", "transformers AutoConfig: needs model_type")
def model_type(pair: Pair) -> Iterator[Fault]:
    """model_type is missing, so transformers cannot read the config."""
    if pair.dialect.flat and pair.dialect.eagle3 and not pair.draft.get("model_type"):
        yield Fault(
            subject="model_type",
            message="model_type is missing; the engine cannot read the config without it",
            fix='Write "model_type": "llama".',
        )


@rule("config.not-a-size", "error", "transformers LlamaConfig (strict types)", layout=True)
def not_a_size(pair: Pair) -> Iterator[Fault]:
    """A size is no positive whole number."""
    for key in SIZES:
        value = pair.draft.get(key)
        if value is not None and not is_size(value, key):
            yield Fault(
                subject=key,
                message=f"{key} is {str(value)[:60]!r}, not a positive whole number",
                evidence={key: value},
                fix="Write the number the weights have.",
            )


@rule("config.not-a-flag", "error", "transformers LlamaConfig (strict types)", layout=True)
def not_a_flag(pair: Pair) -> Iterator[Fault]:
    """A switch is neither true nor false."""
    for key in FLAGS:
        value = pair.draft.get(key)
        if value is not None and not isinstance(value, bool):
            yield Fault(
                subject=key,
                message=f"{key} is {str(value)[:60]!r}, not true or false",
                evidence={key: value},
                fix="Write true or false.",
            )


@rule("config.heads", "error", "transformers LlamaConfig.validate_architecture", layout=True)
def heads(pair: Pair) -> Iterator[Fault]:
    """Hidden size and heads do not divide."""
    hidden = pair.effective.hidden_size.value
    count = pair.effective.num_attention_heads.value
    kv = pair.effective.num_key_value_heads.value
    for whole, part, what in (
        (hidden, count, "hidden_size / num_attention_heads"),
        (count, kv, "num_attention_heads / num_key_value_heads"),
    ):
        if whole and part and whole % part:
            yield Fault(
                subject=what,
                message=f"{whole} is no multiple of {part} ({what})",
                evidence={"hidden_size": hidden, "heads": count, "kv_heads": kv},
                fix="Write the numbers the draft was trained with.",
            )


@rule("config.hidden-act", "error", "models/llama.py, LlamaMLP.__init__", layout=True)
def hidden_act(pair: Pair) -> Iterator[Fault]:
    """The activation is one the engine's draft does not have."""
    known = pair.facts["llama"]["hidden_acts"]
    value = pair.draft.get("hidden_act", known[0])
    if value not in known:
        yield Fault(
            subject="hidden_act",
            message=f"the engine's draft has no activation {str(value)[:60]!r}",
            evidence={"hidden_act": value, "known": known},
            fix="Train with silu; the engine knows no other.",
        )


@rule(
    "config.draft-vocab-size",
    "error",
    "models/llama_eagle3.py, LlamaForCausalLMEagle3.__init__",
    layout=True,
)
def draft_vocab_size(pair: Pair) -> Iterator[Fault]:
    """draft_vocab_size is missing; the engine fails on reading it (null is allowed: the target's head is used)."""
    if "draft_vocab_size" in pair.draft:
        return
    head = pair.tensor(HEAD)
    rows = head.shape[0] if head and head.shape else None
    yield Fault(
        subject="draft_vocab_size",
        message="draft_vocab_size is missing; the engine fails without it",
        evidence={"lm_head rows": rows, "vocab_size": pair.effective.vocab_size.value},
        fix=f'Write "draft_vocab_size": {rows}.' if rows else 'Write "draft_vocab_size": null.',
    )


@rule(
    "config.target-hidden-size",
    "error",
    "models/llama_eagle3.py, LlamaModel.__init__ (hasattr, then arithmetic)",
    layout=True,
)
def target_hidden_size(pair: Pair) -> Iterator[Fault]:
    """target_hidden_size is there but null, with which the engine tries to multiply."""
    if "target_hidden_size" in pair.draft and pair.draft["target_hidden_size"] is None:
        yield Fault(
            subject="target_hidden_size",
            message="target_hidden_size is null; the engine multiplies with it and fails",
            fix=f"Remove the key, or write {size(pair.target_text, 'hidden_size')}.",
        )
