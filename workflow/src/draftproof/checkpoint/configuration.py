"""Read config.json files and single keys of them, whatever stands there.

A key of the wrong kind reads as absent here; the rules report it by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftproof.errors import InputError
from draftproof.files import read_json

Config = Mapping[str, Any]
# No model has more; a larger number is a fault, and must not make a rule count that far.
MAX_SIZE = 2**31
MAX_LAYERS = 512
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "target_hidden_size",
    "draft_vocab_size",
    "num_aux_hidden_states",
    "pretraining_tp",
)
FLAGS = (
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "bias",
    "use_cache",
    "fc_norm",
    "use_aux_norm",
    "norm_before_fc",
    "norm_output",
)
FETCH_AGAIN = "Fetch the file again, or write it again as JSON."


def config_file(checkpoint: Path) -> Path:
    """Return where a checkpoint's config.json must be: in its folder, or beside its single file."""
    return (checkpoint if checkpoint.is_dir() else checkpoint.parent) / "config.json"


def read_config(checkpoint: Path, what: str) -> dict[str, Any]:
    """Return a checkpoint's config; raises InputError when it is missing, unreadable or no JSON object."""
    path = config_file(checkpoint)
    if not path.is_file():
        has_params = path.with_name("params.json").is_file()
        raise InputError(
            f"the {what} has no config.json" + (", only a params.json" if has_params else ""),
            str(path.parent),
            "Convert the checkpoint to the Hugging Face layout." if has_params else "Fetch it.",
        )
    return read_object(path, f"{what}'s config")


def read_object(path: Path, what: str) -> dict[str, Any]:
    """Return the JSON object in a file; raises InputError when it holds anything else."""
    try:
        content = read_json(path)
    except ValueError as error:  # a number too long to be one
        raise InputError(f"not readable as JSON ({error})", str(path), FETCH_AGAIN) from None
    if not isinstance(content, dict):
        raise InputError(f"the {what} is no JSON object", str(path), FETCH_AGAIN)
    return content


def is_size(value: object, key: str = "") -> bool:
    """Return whether value is a whole number that a model's size can have."""
    limit = MAX_LAYERS if key in {"num_hidden_layers", "num_aux_hidden_states"} else MAX_SIZE
    return type(value) is int and 0 < value <= limit


def size(config: Config, key: str) -> int | None:
    """Return a positive whole number, or None when the key holds anything else or nothing."""
    value = config.get(key)
    return int(value) if value is not None and is_size(value, key) else None


def number(config: Config, key: str) -> float | None:
    """Return a number, or None when the key holds anything else or nothing."""
    value = config.get(key)
    fits = math.isfinite(value) if type(value) is float else is_size(value)
    return float(value) if value is not None and fits else None


def architecture(config: Config) -> str | None:
    """Return the first of `architectures`, or None when the config names none."""
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


def written_architecture(config: Config) -> str | None:
    """Return the architecture that a config means, also where it stands outside a list, as the engine wants it."""
    alone = config.get("architectures")
    return alone if isinstance(alone, str) else architecture(config)


def configured_dtype(config: Config) -> object:
    """Return what a config gives as dtype, under its new name or else its old one; None when it gives none."""
    new = config.get("dtype")
    return config.get("torch_dtype") if new is None else new


def eagle_config(config: Config) -> Config:
    """Return the nested block ``eagle_config``, empty when there is none."""
    nested = config.get("eagle_config")
    return nested if isinstance(nested, Mapping) else {}


def context_length(config: Config, keys: list[str], rope: Mapping[str, Any]) -> int | None:
    """Return the context length the engine derives: the first key present, times a scaling without original length."""
    scaling = rope.get("scaling") or {}
    stretched = rope.get("type") != "llama3" and "original_max_position_embeddings" not in scaling
    factor = (number(scaling, "factor") or 1.0) if stretched else 1.0
    found = next((size(config, key) for key in keys if size(config, key)), None)
    return None if found is None or not 0 < factor < MAX_SIZE else int(found * factor)
