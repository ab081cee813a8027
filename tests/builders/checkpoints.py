"""Tiny drafts and targets for the checkpoint stage: numpy alone, milliseconds to write, and every fault by name.

`tiny_models` builds checkpoints that run; these are only read. `checkpoints_faults` maps a finding's id to the smallest
change of a healthy draft that brings it about, `checkpoints_dialects` a writer's name to what makes the draft its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.builders.checkpoints_targets import Headers, llama, write_headers

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
    target_files: dict[str, bytes] = field(default_factory=dict)
    same_folder: bool = False
    pickled: bool = False
    # What to change in the headers of the target's weights before they are written; None: there are no weights.
    target_weights: Callable[[Headers], object] | None = lambda headers: None


def weight(*shape: int) -> Any:
    """Return a float32 matrix as training leaves one, told from others by its shape."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


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
    change: Callable[[Parts], object] = lambda parts: None,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
    target: Mapping[str, Any] | None = None,
) -> tuple[Path, Path]:
    """Write a draft and its target's config; returns both folders. `break_` is an id of `FAULTS`, `change` anything else.

    `config`, `tensors` and `target` replace or add entries; None as a value takes a tensor away.
    """
    parts = Parts(draft_config(), draft_tensors(layer=layer), target_config())
    parts.config |= dict(config or {})
    parts.target |= dict(target or {})
    parts.tensors = {
        k: v for k, v in (parts.tensors | dict(tensors or {})).items() if v is not None
    }
    change(parts)
    if break_ is not None:
        from tests.builders.checkpoints_faults import FAULTS

        FAULTS[break_](parts)
    return write_parts(path, parts)


def write_parts(path: Path, parts: Parts) -> tuple[Path, Path]:
    """Write a draft's and its target's folder; returns both."""
    draft, target = path / "draft", path / "target"
    for folder, content, files in (
        (draft, parts.config, parts.files),
        (target, parts.target, parts.target_files),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(content))
        for name, payload in files.items():
            (folder / name).write_bytes(payload)
    if parts.target_weights is not None:
        headers = llama(parts.target)
        parts.target_weights(headers)
        write_headers(target / "model.safetensors", headers)
    save_file(parts.tensors, draft / "model.safetensors")
    if parts.pickled:
        pickle_weights(draft)
    return draft, draft if parts.same_folder else target


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


def pickle_weights(draft: Path, name: str = "pytorch_model.bin") -> Path:
    """Put a pickled torch file in the place of a draft's safetensors; returns it."""
    import torch
    from safetensors.torch import load_file

    torch.save(load_file(draft / "model.safetensors"), draft / name)
    (draft / "model.safetensors").unlink()
    return draft / name


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
