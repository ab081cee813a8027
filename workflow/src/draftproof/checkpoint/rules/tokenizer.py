"""Rules on the draft's tokenizer, where it brings one, against the target's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from draftproof.checkpoint.configuration import config_file
from draftproof.checkpoint.findings import Fault, rule
from draftproof.checkpoint.pair import Pair
from draftproof.errors import InputError
from draftproof.files import read_json


@rule("tokenizer.differs", "warning", "the engine tokenizes with the target's tokenizer alone")
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


def token_ids(checkpoint: Path) -> dict[str, int]:
    """Return {token: id} of a checkpoint's tokenizer.json, empty when there is none or it is of another form."""
    path = config_file(checkpoint).with_name("tokenizer.json")
    try:
        content: Any = read_json(path) if path.is_file() else None
    except (InputError, ValueError):
        return {}
    if not isinstance(content, Mapping):
        return {}
    model = content.get("model")
    listed = model.get("vocab") if isinstance(model, Mapping) else None
    pairs = list(listed.items()) if isinstance(listed, Mapping) else []
    if isinstance(listed, list):  # a unigram model: the place is the id
        pairs = [
            (entry[0], i) for i, entry in enumerate(listed) if isinstance(entry, list) and entry
        ]
    added = content.get("added_tokens")
    for entry in added if isinstance(added, list) else []:
        if isinstance(entry, Mapping):
            pairs.append((entry.get("content"), entry.get("id")))
    return {token: id for token, id in pairs if isinstance(token, str) and type(id) is int}
