"""What lies beside a checkpoint's weights to make text into tokens: ids, special tokens, stop tokens, chat template.

Draft folders may hold none of it, or anything. What cannot be read is as if it were not there: the engine reads the
target's alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from draftproof.checkpoint.boundaries import text_config
from draftproof.checkpoint.configuration import Config, config_file
from draftproof.errors import InputError
from draftproof.files import read_json

SPECIAL: tuple[str, ...] = ("bos", "eos", "pad")


def token_ids(checkpoint: Path) -> dict[str, int]:
    """Return {token: id} of a checkpoint's tokenizer.json, empty when there is none or it is of another form."""
    content = _object(checkpoint, "tokenizer.json")
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


def special_ids(checkpoint: Path, config: Config, tokens: Mapping[str, int]) -> dict[str, set[int]]:
    """Return the ids of {bos, eos, pad} wherever they are given, as the engine takes those of a target together.

    config.json and generation_config.json give ids, tokenizer_config.json gives tokens. Kinds that are given nowhere
    are left out.
    """
    places: list[Config] = [
        config,
        text_config(config),
        _object(checkpoint, "generation_config.json"),
    ]
    written = _object(checkpoint, "tokenizer_config.json")
    found: dict[str, set[int]] = {}
    for kind in SPECIAL:
        ids = {id for place in places for id in _ids(place.get(f"{kind}_token_id"))}
        token = written.get(f"{kind}_token")
        token = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(token, str) and token in tokens:
            ids.add(tokens[token])
        if ids:
            found[kind] = ids
    return found


def chat_template(checkpoint: Path) -> str | None:
    """Return a checkpoint's default chat template, from where transformers looks first; None when it has none."""
    own = config_file(checkpoint).with_name("chat_template.jinja")
    if own.is_file():
        try:
            return own.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
    for name in ("chat_template.json", "tokenizer_config.json"):
        written = _object(checkpoint, name).get("chat_template")
        if isinstance(written, list):
            written = next(
                (
                    entry.get("template")
                    for entry in written
                    if isinstance(entry, Mapping) and entry.get("name") == "default"
                ),
                None,
            )
        if isinstance(written, str):
            return written
    return None


def _object(checkpoint: Path, name: str) -> Mapping[str, Any]:
    path = config_file(checkpoint).with_name(name)
    try:
        content: Any = read_json(path) if path.is_file() else None
    except (InputError, ValueError):
        return {}
    return content if isinstance(content, Mapping) else {}


def _ids(value: object) -> Iterator[int]:
    for one in value if isinstance(value, list) else [value]:
        if type(one) is int:
            yield one
