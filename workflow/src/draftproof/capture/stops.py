"""Where a target stops, read from its files alone: the end-of-text ids of generation_config, config and tokenizer together.

This is what SGLang 0.5.23 stops at (configs/model_config.py _get_hf_eos_token_id, managers/schedule_batch.py
_check_token_based_finish).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftproof.checkpoint.boundaries import text_config
from draftproof.checkpoint.configuration import read_config
from draftproof.checkpoint.tokenizer_files import token_ids
from draftproof.files import read_json


def configured_stop_ids(target: Path) -> frozenset[int]:
    """Return the ids at which the target in this folder stops."""
    config = read_config(target, "target")
    found: set[int] = set()
    for holder in (config, text_config(config), _object(target / "generation_config.json")):
        ids = holder.get("eos_token_id")
        found |= {ids} if isinstance(ids, int) else set(ids or ())
    return frozenset(found | tokenizer_end(target))


def tokenizer_end(target: Path) -> set[int]:
    """Return the id of the tokenizer's end-of-text token, empty where its files do not say."""
    settings = _object(target / "tokenizer_config.json")
    end = settings.get("eos_token")
    text = end.get("content") if isinstance(end, Mapping) else end
    added = {
        str(entry.get("content")): int(number)
        for number, entry in (settings.get("added_tokens_decoder") or {}).items()
    }
    tokens = added | token_ids(target)
    return {tokens[text]} if text in tokens else set()


def _object(path: Path) -> Mapping[str, Any]:
    found = read_json(path) if path.is_file() else {}
    return found if isinstance(found, Mapping) else {}
