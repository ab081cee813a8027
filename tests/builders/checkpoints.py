"""Tiny drafts and targets for the checkpoint stage: numpy alone, milliseconds to write, and every fault by name.

`tiny_models` builds checkpoints that run; these are only read. `FAULTS` maps a finding's id to the smallest change of a
healthy draft that must bring it about.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

HIDDEN, HEADS, KV_HEADS, INTERMEDIATE, VOCAB, DRAFT_VOCAB, LAYERS = 32, 4, 2, 48, 128, 32, 12
IDS = [1, 5, 8]
IDS_KEY = "eagle_aux_hidden_state_layer_ids"
Tensors = dict[str, Any]


@dataclass
class Parts:
    """A draft before it is written, open to change."""

    config: dict[str, Any]
    tensors: Tensors
    target: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)


def target_config(**changes: Any) -> dict[str, Any]:
    """Return the config of a Llama-type target of 12 layers."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 1024,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    } | changes


def draft_config(**changes: Any) -> dict[str, Any]:
    """Return a config that the engine reads as it is."""
    return (
        target_config()
        | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "num_hidden_layers": 1,
            "head_dim": HIDDEN // HEADS,
            "draft_vocab_size": DRAFT_VOCAB,
            "hidden_act": "silu",
            "torch_dtype": "float32",
            "eagle_config": {"use_aux_hidden_state": True, IDS_KEY: list(IDS)},
        }
        | changes
    )


def draft_tensors(*, hidden: int = HIDDEN, states: int = 3, layer: str = "midlayer") -> Tensors:
    """Return random tensors of the canonical set, with d2t and t2d that agree."""
    random = np.random.default_rng(0)
    size = hidden // HEADS

    def weight(*shape: int) -> Any:
        return random.standard_normal(shape).astype(np.float32)

    kept = np.sort(random.permutation(VOCAB)[:DRAFT_VOCAB])
    mask = np.zeros(VOCAB, dtype=np.bool_)
    mask[kept] = True
    return {
        "fc.weight": weight(hidden, states * hidden),
        f"{layer}.input_layernorm.weight": weight(hidden),
        f"{layer}.hidden_norm.weight": weight(hidden),
        f"{layer}.post_attention_layernorm.weight": weight(hidden),
        f"{layer}.self_attn.q_proj.weight": weight(HEADS * size, 2 * hidden),
        f"{layer}.self_attn.k_proj.weight": weight(KV_HEADS * size, 2 * hidden),
        f"{layer}.self_attn.v_proj.weight": weight(KV_HEADS * size, 2 * hidden),
        f"{layer}.self_attn.o_proj.weight": weight(hidden, HEADS * size),
        f"{layer}.mlp.gate_proj.weight": weight(INTERMEDIATE, hidden),
        f"{layer}.mlp.up_proj.weight": weight(INTERMEDIATE, hidden),
        f"{layer}.mlp.down_proj.weight": weight(hidden, INTERMEDIATE),
        "norm.weight": weight(hidden),
        "lm_head.weight": weight(DRAFT_VOCAB, hidden),
        "d2t": (kept - np.arange(DRAFT_VOCAB)).astype(np.int64),
        "t2d": mask,
    }


def tiny_draft(
    path: Path,
    *,
    layer: str = "midlayer",
    break_: str | None = None,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
    target: Mapping[str, Any] | None = None,
) -> tuple[Path, Path]:
    """Write a draft and its target's config; returns both folders. `break_` is an id of `FAULTS`.

    `config`, `tensors` and `target` replace or add entries; None as a value takes a tensor away.
    """
    parts = Parts(draft_config(), draft_tensors(layer=layer), target_config())
    parts.config |= dict(config or {})
    parts.target |= dict(target or {})
    parts.tensors = {
        k: v for k, v in (parts.tensors | dict(tensors or {})).items() if v is not None
    }
    if break_ is not None:
        FAULTS[break_](parts)
    draft, target_path = path / "draft", path / "target"
    for folder, content in ((draft, parts.config), (target_path, parts.target)):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(content))
    save_file(parts.tensors, draft / "model.safetensors")
    for name, payload in parts.files.items():
        (draft / name).write_bytes(payload)
    return draft, target_path


def write_safetensors(
    path: Path, tensors: Mapping[str, tuple[str, list[int], bytes]], **header: Any
) -> Path:
    """Write a file by hand, for dtypes numpy lacks and headers no library writes; `header` adds or replaces entries."""
    entries: dict[str, Any] = {}
    payload = b""
    for name, (dtype, shape, values) in tensors.items():
        offsets = [len(payload), len(payload) + len(values)]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        payload += values
    return write_raw(path, json.dumps(entries | header).encode(), payload)


def write_raw(path: Path, header: bytes, payload: bytes = b"") -> Path:
    """Write header and payload with a right header length."""
    path.write_bytes(len(header).to_bytes(8, "little") + header + payload)
    return path


def shard(draft: Path) -> Path:
    """Split a draft's weights over two files with an index; returns the index."""
    from safetensors.numpy import load_file

    whole = load_file(draft / "model.safetensors")
    (draft / "model.safetensors").unlink()
    names = sorted(whole)
    weight_map: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: whole[name] for name in part}, draft / file)
        weight_map |= dict.fromkeys(part, file)
    index = draft / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index


def _config(**changes: Any) -> Callable[[Parts], None]:
    return lambda parts: parts.config.update(changes)


def _without(key: str) -> Callable[[Parts], None]:
    return lambda parts: parts.config.pop(key)


def _target(**changes: Any) -> Callable[[Parts], None]:
    return lambda parts: parts.target.update(changes)


def _ids(*ids: Any) -> Callable[[Parts], None]:
    return lambda parts: parts.config["eagle_config"].update({IDS_KEY: list(ids)})


def _add(**tensors: Any) -> Callable[[Parts], None]:
    return lambda parts: parts.tensors.update(
        {name.replace("__", "."): value for name, value in tensors.items()}
    )


def _drop(*names: str) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        for name in names:
            del parts.tensors[name]

    return change


def _both(*changes: Callable[[Parts], None]) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        for one in changes:
            one(parts)

    return change


def _values(name: str, change: Callable[[Any], Any]) -> Callable[[Parts], None]:
    def apply(parts: Parts) -> None:
        parts.tensors[name] = change(parts.tensors[name].copy())

    return apply


def _set(index: Any, value: Any) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array[index] = value
        return array

    return change


def _top_level_ids(parts: Parts) -> None:
    del parts.config["eagle_config"]
    parts.config[IDS_KEY] = [3, 6, 10]


def _unlike_t2d(array: Any) -> Any:
    array[np.flatnonzero(array)[0]] = False
    array[np.flatnonzero(~array)[-1]] = True
    return array


def _nested(parts: Parts) -> None:
    own = {"architectures", "eagle_config", "draft_vocab_size", "model_type"}
    inner = {key: value for key, value in parts.config.items() if key not in own}
    parts.config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": DRAFT_VOCAB,
        "transformer_layer_config": inner,
    }


_ones = np.ones(HIDDEN, dtype=np.float32)
_no_map = _drop("d2t", "t2d")

FAULTS: dict[str, Callable[[Parts], None]] = {
    "boundaries.aux-off": lambda parts: parts.config["eagle_config"].update(
        {"use_aux_hidden_state": False}
    ),
    "boundaries.count": _ids(1, 8),
    "boundaries.default": _without("eagle_config"),
    "boundaries.key-ignored": _top_level_ids,
    "boundaries.not-a-list": lambda parts: parts.config["eagle_config"].update({IDS_KEY: "1,5,8"}),
    "boundaries.order": _ids(8, 1, 5),
    "boundaries.range": _ids(1, 5, 11),
    "boundaries.repeated": _ids(1, 5, 5),
    "config.architecture": _config(architectures=["LlamaForCausalLM"]),
    "config.draft-vocab-size": _without("draft_vocab_size"),
    "config.heads": _both(
        _config(num_key_value_heads=3),
        _add(
            midlayer__self_attn__k_proj__weight=np.ones((24, 64), dtype=np.float32),
            midlayer__self_attn__v_proj__weight=np.ones((24, 64), dtype=np.float32),
        ),
    ),
    "config.hidden-act": _config(hidden_act="gelu"),
    "config.model-type": _without("model_type"),
    "config.not-a-flag": _config(norm_output="no"),
    "config.not-a-size": _config(draft_vocab_size=True),
    "config.target-hidden-size": _config(target_hidden_size=None),
    "draft.convert-first": _nested,
    "draft.not-eagle3": _both(
        _config(architectures=["LlamaForCausalLM"]),
        _drop("fc.weight", "midlayer.hidden_norm.weight"),
    ),
    "draft.tensors-unchecked": _config(architectures=["Eagle3DeepseekV2ForCausalLM"]),
    "embedding.overwritten": _add(embed_tokens__weight=np.ones((VOCAB, HIDDEN), dtype=np.float32)),
    "head.from-target": _both(
        _config(draft_vocab_size=None),
        _no_map,
        _add(lm_head__weight=np.ones((VOCAB, HIDDEN), dtype=np.float32)),
    ),
    "head.tied": _config(tie_word_embeddings=True),
    "meaning.attention-bias": _config(attention_bias=True),
    "meaning.sliding-window": _config(layer_types=["sliding_attention"], sliding_window=2048),
    "norms.before-residual": _config(norm_before_residual=True),
    "norms.flag-missing": _add(input_norm__weight=np.ones(3 * HIDDEN, dtype=np.float32)),
    "norms.input-norm-shape": _both(
        _config(norm_before_fc=True), _add(input_norm__weight=np.ones(HIDDEN, dtype=np.float32))
    ),
    "norms.tensor-missing": _config(fc_norm=True),
    "rope.differs": _target(rope_theta=500000.0),
    "rope.missing": _both(_without("rope_theta"), _target(rope_theta=500000.0)),
    "rope.type": _both(
        _config(rope_scaling={"type": "spiral"}), _target(rope_scaling={"type": "spiral"})
    ),
    "target.architecture": _target(architectures=["MambaForCausalLM"]),
    "target.context-length": _target(max_position_embeddings=4096),
    "target.hidden-size": _target(hidden_size=64),
    "target.sizes": lambda parts: parts.target.pop("num_hidden_layers"),
    "target.vocab-size": _config(vocab_size=VOCAB - 8),
    "tensors.clash": _add(layers__0__mlp__up_proj__weight=np.ones((48, 32), dtype=np.float32)),
    "tensors.dropped": _add(midlayer__self_attn__q_norm__weight=_ones[:8]),
    "tensors.dtype": _values("fc.weight", lambda array: array.astype(np.int8)),
    "tensors.fc-bias": _add(fc__bias=_ones),
    "tensors.missing": _drop("midlayer.mlp.up_proj.weight"),
    "tensors.other-files": lambda parts: parts.files.update({"consolidated.safetensors": b""}),
    "tensors.shape": _values("midlayer.self_attn.q_proj.weight", lambda array: array[:, :HIDDEN]),
    "tensors.unused": _add(verifier_norm__weight=_ones),
    "values.all-zero": _values("midlayer.mlp.down_proj.weight", np.zeros_like),
    "values.not-finite": _values("fc.weight", _set((0, 3), np.nan)),
    "vocab.beyond-target": _both(
        _config(draft_vocab_size=VOCAB, vocab_size=VOCAB),
        _no_map,
        _add(lm_head__weight=np.ones((VOCAB, HIDDEN), dtype=np.float32)),
        _target(vocab_size=VOCAB - 8),
    ),
    "vocab.d2t-absolute": _values("d2t", lambda array: array + np.arange(len(array))),
    "vocab.d2t-ambiguous": _both(
        _drop("t2d"), _values("d2t", lambda array: np.arange(len(array), dtype=np.int64))
    ),
    "vocab.d2t-dtype": _values("d2t", lambda array: array.astype(np.float32)),
    "vocab.d2t-missing": _no_map,
    "vocab.d2t-range": _values("d2t", _set(5, -9)),
    "vocab.d2t-repeats": _both(
        _drop("t2d"), _values("d2t", lambda array: _set(7, array[6] - 1)(array))
    ),
    "vocab.sizes": _values("d2t", lambda array: array[:12]),
    "vocab.t2d-disagrees": _values("t2d", _unlike_t2d),
}
# Findings that go with another one because both are true: the fault has two sides.
COMPANIONS = {
    "vocab.beyond-target": {"target.vocab-size"},
    "boundaries.key-ignored": {"boundaries.default"},
}
