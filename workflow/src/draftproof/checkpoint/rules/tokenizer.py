"""Rules on what the draft's folder says of text and tokens, against the target's, by which alone the engine goes."""

from __future__ import annotations

from collections.abc import Iterator

from draftproof.checkpoint.findings import Fault, rule
from draftproof.checkpoint.pair import Pair
from draftproof.checkpoint.rules.vocabulary import read_map
from draftproof.checkpoint.tokenizer_files import chat_template, special_ids, token_ids

ALONE = "the engine tokenizes with the target's tokenizer alone"
STOPS = "configs/model_config.py, _get_hf_eos_token_id (of the target alone)"

# LlamaConfig writes these ids into every draft's config, whatever the target has (transformers configuration_llama.py).
UNASKED = {"bos_token_id": 1, "eos_token_id": 2}


@rule("tokenizer.differs", "warning", ALONE)
def differs(pair: Pair) -> Iterator[Fault]:
    """The draft's folder holds a tokenizer that gives tokens of the target other ids."""
    own, target = token_ids(pair.draft_path), token_ids(pair.target_path)
    other = {t: [own[t], target[t]] for t in own.keys() & target.keys() if own[t] != target[t]}
    if other:
        yield Fault(
            subject="tokenizer.json",
            message=f"{len(other)} tokens have other ids in the draft's tokenizer than in the target's",
            evidence={"[draft id, target id]": dict(sorted(other.items())[:8])},
            fix="Use the target whose tokenizer the draft was trained with.",
        )


@rule("tokenizer.stop-tokens", "warning", STOPS)
def stop_tokens(pair: Pair) -> Iterator[Fault]:
    """The draft's files end a text with other tokens than the target does; it may have been trained on other texts.

    The engine stops by the target's tokens alone, so nothing but acceptance near the end can suffer.
    """
    own, target = _special(pair)
    other = own.get("eos", set()) - target.get("eos", set())
    if other and "eos" in target:
        yield Fault(
            subject="eos_token_id",
            message=f"the draft's files end a text with {sorted(other)}, the target with {sorted(target['eos'])};"
            " the engine goes by the target's",
            evidence={"draft": sorted(own["eos"]), "target": sorted(target["eos"])},
            fix="Nothing to do if the key was only copied; else the draft was trained for another target or on"
            " texts with another chat template.",
        )


@rule("tokenizer.special-tokens", "info", ALONE)
def special_tokens(pair: Pair) -> Iterator[Fault]:
    """The draft's files give another id to the start of a text or to padding; the engine reads neither of a draft."""
    own, target = _special(pair)
    other: dict[str, dict[str, list[int]]] = {
        kind: {"draft": sorted(own[kind]), "target": sorted(target[kind])}
        for kind in ("bos", "pad")
        if own.get(kind, set()) - target.get(kind, set()) and kind in target
    }
    if other:
        yield Fault(
            subject=f"{next(iter(other))}_token_id",
            message=f"the draft's files have other ids for {' and '.join(other)} than the target",
            evidence=other,
            fix="Nothing to do: the engine goes by the target's. It may tell that the config was copied.",
        )


@rule("tokenizer.chat-template", "warning", "the engine renders with the target's template alone")
def template(pair: Pair) -> Iterator[Fault]:
    """The draft's folder holds another chat template than the target's, so it may have been trained on other texts."""
    own, target = chat_template(pair.draft_path), chat_template(pair.target_path)
    if own is not None and target is not None and own.split() != target.split():
        yield Fault(
            subject="chat_template",
            message="the draft's chat template is not the target's, which is the one that the engine renders with",
            evidence={"draft": own[:200], "target": target[:200]},
            fix="If the draft was trained with its own, serve with --chat-template and that file, or train on the"
            " target's; acceptance is lower on texts unlike those of training.",
        )


@rule(
    "vocab.no-stop-token",
    "info",
    "speculative/eagle_worker_v2.py: drafts are ids of the map alone",
    layout=True,
)
def no_stop_token(pair: Pair) -> Iterator[Fault]:
    """None of the target's stop tokens is in the draft vocabulary, so the last step of every text is rejected."""
    found, stops = read_map(pair), _special(pair)[1].get("eos", set())
    if found is None or not stops or found.absolute or found.outside:
        return
    if not stops & set(found.resolved.tolist()):
        yield Fault(
            subject="d2t",
            message=f"the draft can never propose a token that ends a text ({sorted(stops)})",
            evidence={"stop ids": sorted(stops), "draft ids": len(found.resolved)},
            fix="Costs a step per text. Count these tokens when the draft vocabulary is chosen.",
        )


def _special(pair: Pair) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    """Return the special ids of draft and target; what a draft's config says unasked is not counted."""
    said = {key: value for key, value in pair.draft.items() if UNASKED.get(key) != value}
    own = special_ids(pair.draft_path, said, token_ids(pair.draft_path))
    return own, special_ids(pair.target_path, pair.target, token_ids(pair.target_path))
