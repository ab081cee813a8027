"""Who wrote this draft? Recognised by tensors and config, not by what the config calls itself."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from draftproof.checkpoint.configuration import Config, eagle_config

SPECULATORS_KEYS = ("speculators_model_type", "speculators_config", "transformer_layer_config")
# Model-Optimizer writes its whole training config into eagle_config; nobody reads these.
MODELOPT_KEYS = {"use_input_layernorm_in_first_layer", "use_mtp_layernorm", "parallel_draft_step"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """``name`` of the writer. ``eagle3``: its tensors are an EAGLE-3 draft's. ``flat``: its config is at top level."""

    name: str
    eagle3: bool
    flat: bool


def recognise(config: Config, tensors: Collection[str], known_architecture: bool) -> Dialect:
    """Return the dialect: sglang, eagle, specforge, speculators, modelopt or unknown."""
    names = {name.removeprefix("model.") for name in tensors}
    midlayer = any(name.startswith("midlayer.") for name in names)
    first_layer = midlayer or any(name.startswith("layers.0.") for name in names)
    # Only EAGLE-3 merges several hidden states (fc) and normalises them beside the embedding (hidden_norm).
    marks = (
        any(name.startswith("fc.") for name in names),
        any(name.endswith(".hidden_norm.weight") for name in names),
    )
    eagle3 = known_architecture or (first_layer and any(marks))
    if any(key in config for key in SPECULATORS_KEYS):
        name = "speculators"
    elif not eagle3:
        name = "unknown"
    elif MODELOPT_KEYS & set(eagle_config(config)):
        name = "modelopt"
    elif not known_architecture:
        name = "eagle" if midlayer else "unknown"
    elif midlayer and {"d2t", "t2d"} <= names and "transformers_version" in config:
        name = "specforge"
    else:
        name = "sglang"
    return Dialect(name=name, eagle3=eagle3, flat=name != "speculators")
