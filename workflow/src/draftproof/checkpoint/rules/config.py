"""Rules on the draft's config.json: will the engine accept it at all?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from draftproof.checkpoint.configuration import architecture as named_architecture
from draftproof.checkpoint.configuration import size, written_architecture
from draftproof.checkpoint.dialect import OTHERS
from draftproof.checkpoint.effective import derive
from draftproof.checkpoint.findings import Fault, rule
from draftproof.checkpoint.layout import HEAD
from draftproof.checkpoint.pair import Pair

EAGLE3 = "eagle3"


@rule("draft.not-eagle3", "error", "models/llama_eagle3.py, LlamaModel.__init__")
def not_eagle3(pair: Pair) -> Iterator[Fault]:
    """The checkpoint is no EAGLE-3 draft: P-EAGLE, EAGLE-1/2, MTP layers, a whole model, or nothing that is known."""
    if pair.dialect.eagle3 or _same_folder(pair):
        return
    names = list(pair.weights.tensors)
    message, fix = OTHERS[pair.dialect.name]
    yield Fault(
        subject="tensors",
        message=message,
        evidence={"architectures": pair.source.get("architectures"), "tensors": names[:8]},
        fix=fix,
    )


@rule("draft.is-target", "error", "an EAGLE-3 draft is a checkpoint of its own")
def is_target(pair: Pair) -> Iterator[Fault]:
    """Draft and target are the same folder."""
    if _same_folder(pair):
        yield Fault(
            subject="draft",
            message="draft and target are the same folder",
            fix="Give the draft's own folder.",
        )


def _same_folder(pair: Pair) -> bool:
    return pair.draft_path.resolve() == pair.target_path.resolve()


@rule("draft.convert-first", "warning", "models/llama_eagle3.py reads flat configs only")
def convert_first(pair: Pair) -> Iterator[Fault]:
    """As it is, the engine reads the checkpoint otherwise than it was trained, or not at all; `convert` translates it.

    All other findings are on the translated draft.
    """
    if not pair.dialect.eagle3:
        return
    nested = pair.source.get("transformer_layer_config")
    otherwise = _read_otherwise(pair)
    if pair.dialect.name == "speculators" or pair.translation.renames or otherwise:
        yield Fault(
            subject="config.json",
            message=f"the engine does not read this {pair.dialect.name} checkpoint as it was trained",
            evidence={
                "lift": sorted(nested) if isinstance(nested, dict) else [],
                "renamed tensors": dict(list(pair.translation.renames.items())[:40]),
                "read otherwise": otherwise,
            },
            fix="Serve what draftproof convert writes; the other findings are on that.",
        )


def _read_otherwise(pair: Pair) -> list[str]:
    """Return what the engine would make otherwise of the config as it stands, ids of layers above all."""
    if pair.dialect.name != "modelopt":
        return []
    as_it_is = derive(
        pair.engine,
        pair.reader,
        pair.source,
        pair.target,
        pair.weights.tensors,
        pair.effective.algorithm.value,
    )
    pairs = (("boundaries", as_it_is.boundaries, pair.effective.boundaries),)
    return [
        f"{name} {one.value}, not {two.value}" for name, one, two in pairs if one.value != two.value
    ]


@rule("config.architecture", "warning", "models/registry.py; models/*_eagle3.py, EntryClass")
def architecture(pair: Pair) -> Iterator[Fault]:
    """The architecture is none of the engine's EAGLE-3 drafts, though the tensors are, or no list; `convert` writes the right one."""
    known = pair.facts["draft_architectures"]
    named = named_architecture(pair.source)
    if not pair.dialect.eagle3 or pair.dialect.name == "speculators" or named in known:
        return
    right = pair.effective.architecture.value
    alone = named is None and written_architecture(pair.source) is not None
    yield Fault(
        subject="architectures",
        message="architectures is a name alone, of which the engine reads single letters; it must be a list"
        if alone
        else f"the engine has no EAGLE-3 draft called {named}; the tensors are those of {right}",
        evidence={"architectures": pair.source.get("architectures"), "known": sorted(known)},
        fix=f'Serve what draftproof convert writes, or write "architectures": ["{right}"].',
    )


@rule(
    "draft.algorithm",
    "warning",
    "speculative/eagle_worker_v2.py, init_lm_head: with EAGLE fc is passed over and the head replaced",
    layout=True,
)
def algorithm(pair: Pair) -> Iterator[Fault]:
    """The checkpoint calls itself a draft of another algorithm than its tensors are; the engine does not notice."""
    block = pair.source.get("speculators_config")
    labels = {
        "speculators_config.algorithm": block.get("algorithm") if isinstance(block, dict) else None,
        "speculators_model_type": pair.source.get("speculators_model_type"),
    }
    right = pair.effective.algorithm.value
    for key, label in labels.items():
        if label is None or re.sub(r"[^a-z0-9]", "", str(label).lower()) == EAGLE3:
            continue
        yield Fault(
            subject=key,
            message=f"{key} is {str(label)[:60]!r}, but the tensors are an EAGLE-3 draft's; under another algorithm"
            " the engine fails or, without a word, accepts nothing",
            evidence={key: label, "algorithm": right},
            fix=f"Serve it with --speculative-algorithm {right}; if the label is right, these are not its weights.",
        )


@rule("config.layers", "error", "models/kimi_k25_eagle3.py, Eagle3MLAModel.__init__", layout=True)
def layers(pair: Pair) -> Iterator[Fault]:
    """The draft has more layers than the engine's class builds."""
    count, most = pair.effective.num_hidden_layers.value, pair.reader["most_layers"]
    if count and most and count > most:
        yield Fault(
            subject="num_hidden_layers",
            message=f"{pair.effective.architecture.value} builds {most} layer, the config says {count}",
            evidence={"num_hidden_layers": count, "most": most},
            fix="Write the number of layers that the weights have.",
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
    known = pair.reader["hidden_acts"]
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
    if "draft_vocab_size" in pair.draft or not pair.reader["needs_draft_vocab_size"]:
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
    allowed = pair.reader["null_target_hidden_size"]
    if not allowed and pair.draft.get("target_hidden_size", 0) is None:
        yield Fault(
            subject="target_hidden_size",
            message="target_hidden_size is null; the engine multiplies with it and fails",
            fix=f"Remove the key, or write {size(pair.target_text, 'hidden_size')}.",
        )
