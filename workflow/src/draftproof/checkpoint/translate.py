"""What the engine must be given so that it computes what the writer of a draft trained.

Each writer's checkpoint is turned into a config that the engine reads and, where its names differ, into other names.
Values are taken over, rewritten or left out, each with a reason; what cannot be said is left to the rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftproof.checkpoint.boundaries import (
    IDS_KEY,
    engine_ids,
    layer_count,
    target_architecture,
    trainers_boundaries,
)
from draftproof.checkpoint.configuration import Config, architecture, eagle_config
from draftproof.checkpoint.dialect import Dialect
from draftproof.checkpoint.safetensors_header import Tensor
from draftproof.errors import InputError

LLAMA, MLA = "LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"
OWN, NESTED = "draft's config.json", "transformer_layer_config of the draft's config.json"
# Keys that say who wrote the file and not how the draft computes.
LABELS = {
    "architectures",
    "auto_map",
    "has_no_defaults_at_init",
    "model_type",
    "speculators_config",
    "speculators_model_type",
    "speculators_version",
    "transformer_layer_config",
    "transformers_version",
    "_name_or_path",
}
# Config words for the dtypes a draft's weights are stored in; its map and mask are none of them.
FLOATS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
READ_NESTED = (IDS_KEY, "use_aux_hidden_state", "norm_before_fc")
LATER_LAYER_NORM = re.compile(r"((?:model\.)?layers\.(?:[1-9]\d*)\.)input_layernorm\.weight")
NUMBERED = re.compile(r"((?:model\.)?)midlayer\.(\d+)\.")


@dataclass(kw_only=True)
class Translation:
    """The ``config`` to serve, ``origins`` of its keys, ``renames`` {name in the file: name to serve}, ``left_out``."""

    config: dict[str, Any]
    origins: dict[str, str]
    renames: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def write(self, key: str, value: Any, origin: str) -> None:
        """Set a key and say why."""
        if key not in self.config or self.config[key] != value:
            self.config[key], self.origins[key] = value, origin

    def leave_out(self, key: str, reason: str) -> None:
        """Take a key away and say why."""
        if key in self.config:
            del self.config[key], self.origins[key]
            self.left_out[key] = reason


def translate(
    engine: str,
    dialect: Dialect,
    draft: Config,
    target: Config,
    tensors: Mapping[str, Tensor],
    known: Collection[str],
) -> Translation:
    """Return what to serve for a draft; `known` are the architectures of EAGLE-3 drafts that the engine has.

    A checkpoint that is no EAGLE-3 draft comes back as it is. Sources: eagle3_format.md of this project's references.
    """
    made = Translation(config=dict(draft), origins=dict.fromkeys(draft, OWN))
    if not dialect.eagle3:
        return made
    writers: dict[str, Callable[[], None]] = {
        "speculators": lambda: _speculators(made, engine, draft, target, tensors),
        "modelopt": lambda: _modelopt(made, engine, draft, target),
        "specforge": lambda: _specforge(made),
    }
    if dialect.name in writers:
        writers[dialect.name]()
    if architecture(made.config) not in known:
        latent = any(".kv_a_proj_with_mqa." in name for name in tensors)
        made.write("architectures", [MLA if latent else LLAMA], "the tensors' layout")
        made.write("model_type", "deepseek_v3" if latent else "llama", "the tensors' layout")
    made.renames = _renames(dialect, tensors, architecture(made.config) == MLA)
    return made


def _speculators(
    made: Translation, engine: str, draft: Config, target: Config, tensors: Mapping[str, Tensor]
) -> None:
    """Lift the nested block; ids are boundaries (speculators models/eagle3, vLLM eagle_config)."""
    inner = draft.get("transformer_layer_config")
    inner = inner if isinstance(inner, Mapping) else {}
    made.config = {key: value for key, value in inner.items() if key not in LABELS}
    made.origins = dict.fromkeys(made.config, NESTED)
    for key, value in draft.items():
        if key not in LABELS and key != IDS_KEY:
            made.config[key], made.origins[key] = value, OWN
    made.left_out = {key: "says who wrote it" for key in draft if key in LABELS}
    # The writer computes without tying whatever the copied block of the target says.
    made.write("tie_word_embeddings", False, "speculators never ties embedding and head")
    if made.config.get("target_hidden_size", 0) is None:
        made.leave_out("target_hidden_size", "null, with which the engine would multiply")
    if made.config.get("torch_dtype") is None and made.config.get("dtype") is None:
        made.leave_out("dtype", "null")
    stored = _stored_dtype(tensors)
    if stored and (made.config.get("dtype") or made.config.get("torch_dtype")) != stored:
        # Before 0.7 the trainer computed in float32, saved bfloat16 and wrote the former into the config; of float32
        # the engine makes float16, which cannot be multiplied with a bfloat16 target's states.
        made.leave_out("torch_dtype", "the weights are stored otherwise")
        made.write("dtype", stored, "how the weights are stored")
    ids = draft.get(IDS_KEY)
    _name_boundaries(made, engine, target, ids, 0, "speculators")


def _stored_dtype(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the one dtype of the weights as a config says it, or None where they have several or another."""
    kinds = {tensor.dtype for tensor in tensors.values()} & FLOATS.keys()
    return FLOATS[kinds.pop()] if len(kinds) == 1 else None


def _modelopt(made: Translation, engine: str, draft: Config, target: Config) -> None:
    """Rebuild eagle_config with what is read; ids are layer outputs (Model-Optimizer hf_eagle.py)."""
    nested = dict(eagle_config(draft))
    ids = nested.pop(IDS_KEY, None)
    kept = {key: nested[key] for key in READ_NESTED if key in nested}
    for key in nested.keys() - kept.keys():
        made.left_out[f"eagle_config.{key}"] = "not read by the engine"
    made.config["eagle_config"] = kept
    made.origins["eagle_config"] = f"{OWN}, what the engine reads of it"
    _name_boundaries(made, engine, target, ids or None, 1, "Model-Optimizer")


def _specforge(made: Translation) -> None:
    if made.config.get("norm_output") is True:
        made.leave_out(
            "norm_output",
            "SpecForge means the norm before the head and feeds back the state before it;"
            " the engine would feed back the state behind it",
        )


def _name_boundaries(
    made: Translation, engine: str, target: Config, ids: Any, shift: int, writer: str
) -> None:
    """Write the engine's ids for a writer's, or for the writer's default; `shift`: boundary = id + shift.

    A list that is none stays, and a target that the engine cannot use leaves the key out: rules report both.
    """
    nested = dict(eagle_config(made.config))
    origin = f"ids {ids} of {writer}"
    try:
        if ids is None:
            boundaries: Sequence[int] = trainers_boundaries(layer_count(target))
            origin = f"default of {writer}"
        elif isinstance(ids, list) and all(type(number) is int for number in ids):
            boundaries = [number + shift for number in ids]
        else:
            nested[IDS_KEY] = ids
            raise InputError("is no list of whole numbers", IDS_KEY)
        nested[IDS_KEY] = engine_ids(engine, target_architecture(target), boundaries)
        origin += f", boundaries {sorted(set(boundaries))} of this target"
    except InputError as error:
        origin += f", not translated: {error.what}"
    made.config["eagle_config"] = {"use_aux_hidden_state": True} | nested
    made.origins["eagle_config"] = origin


def _renames(dialect: Dialect, tensors: Collection[str], latent: bool) -> dict[str, str]:
    """Return {name in the file: name the engine reads the same values under}, only where they must differ."""
    new: dict[str, str] = {}
    for name in tensors:
        served = name
        if dialect.name == "modelopt":
            served = NUMBERED.sub(r"\1layers.\2.", served)
        if dialect.name in {"modelopt", "speculators"}:
            # Plain layers norm their input; the engine's later layers do so under another name.
            other = LATER_LAYER_NORM.sub(r"\1hidden_norm.weight", served)
            served = served if other in tensors else other
        if latent:
            served = served.removeprefix("model.")
        if served not in tensors and served not in new.values():
            new[name] = served
    return new
