"""Write the trained draft as a checkpoint folder: bfloat16 weights, config, provenance."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from draft_model import Draft, Shape
from held_out import BOUNDARIES, MAX_NEW_TOKENS
from prompts import HELD_OUT
from rows import Batch, Recorded
from safetensors.torch import save_file
from torch import Tensor
from walk import Acceptance, walk

from draftproof.files import sha256, whole_directory, write_text

if TYPE_CHECKING:
    from train import Course, Frozen, Recipe

KEPT = ("README.md",)  # written by hand, carried over when the folder is made anew
SOURCES = (
    "templates.yaml",
    "prompts.py",
    "rollout.py",
    "generate.py",
    "rows.py",
    "draft_model.py",
    "train.py",
)


def config(shape: Shape, target: Any, boundaries: Sequence[int] = BOUNDARIES) -> dict[str, Any]:
    """Return config.json of the draft; `target` is the target's transformers config."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": target.max_position_embeddings,
        "vocab_size": target.vocab_size,
        "draft_vocab_size": shape.draft_vocab,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": target.bos_token_id,
        "eos_token_id": target.eos_token_id,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "norm_output": False,
        "eagle_config": {
            # SGLang names layer outputs: boundary - 1.
            "eagle_aux_hidden_state_layer_ids": [boundary - 1 for boundary in boundaries],
            "use_aux_hidden_state": True,
        },
    }


def tensors(draft: Draft, to_target: Tensor, vocab_size: int) -> dict[str, Tensor]:
    """Return the checkpoint's tensors: weights in bfloat16, `d2t` as offsets, `t2d` as a mask."""
    state = {
        name: weight.detach().to(torch.bfloat16).contiguous()
        for name, weight in draft.state_dict().items()
    }
    member = torch.zeros(vocab_size, dtype=torch.bool)
    member[to_target] = True
    return state | {"d2t": to_target - torch.arange(len(to_target)), "t2d": member}


def _figures(found: Acceptance) -> dict[str, Any]:
    return {
        "steps": len(found.histogram) - 1,
        "accept_length": round(found.accept_length, 4),
        "verify_steps": found.verify_steps,
        "histogram": list(found.histogram),
        "cumulative": [round(share, 4) for share in found.cumulative],
    }


def data_summary(recorded: Sequence[Recorded], folder: Path, member: Tensor) -> dict[str, Any]:
    """Return counts of the training data, and one digest over all shards."""
    import hashlib

    shards = sorted(folder.glob("shard-*.safetensors"))
    chosen = torch.cat([one.token_ids[one.generated] for one in recorded])
    return {
        "conversations": len(recorded),
        "tokens": sum(len(one.token_ids) for one in recorded),
        "answer_tokens": len(chosen),
        "draft_vocab_coverage": round(float(member[chosen].float().mean()), 4),
        "shards": len(shards),
        "sha256_of_shard_sha256s": hashlib.sha256(
            "\n".join(sha256(path) for path in shards).encode()
        ).hexdigest(),
        "settings": json.loads((folder / "manifest.json").read_text())["settings"],
    }


def export(
    draft: Draft,
    frozen: Frozen,
    recipe: Recipe,
    course: Course,
    options: argparse.Namespace,
    target: Any,
    recorded: Sequence[Recorded],
    report: Sequence[Batch],
) -> None:
    """Write the folder, whole or not at all, with the figures of the weights as they are stored."""
    out: Path = options.out
    state = tensors(draft, frozen.to_target, target.config.vocab_size)
    draft.load_state_dict({name: state[name].float() for name in draft.state_dict()})
    figures = {
        f"steps_{steps}": _figures(walk(draft, report, frozen.embedding, frozen.to_target, steps))
        for steps in (3, 5)
    }
    with whole_directory(out) as folder:
        model = folder / "model.safetensors"
        save_file(state, model, {"format": "pt"})
        model.chmod(0o644)
        settings = config(draft.shape, target.config)
        write_text(folder / "config.json", json.dumps(settings, indent=1) + "\n")
        provenance = {
            "schema": "draftproof/demo-draft/1",
            "license": "Apache-2.0",
            "commands": [
                "python workflow/demo/target.py",
                "python workflow/demo/generate.py --prompts 4000 --max-minutes 45",
                f"python workflow/demo/train.py --epochs {recipe.epochs} --max-minutes {recipe.max_minutes:g}",
            ],
            "recipe": asdict(recipe),
            "model_sha256": sha256(model),
            "target": json.loads((options.target / "source.json").read_text())
            | {"converted_sha256": sha256(options.target / "model.safetensors")},
            "boundaries": list(BOUNDARIES),
            "data": data_summary(recorded, options.data, state["t2d"]),
            "sources_sha256": {name: sha256(Path(__file__).with_name(name)) for name in SOURCES},
            "versions": {
                name: importlib.metadata.version(name)
                for name in ("torch", "transformers", "safetensors", "gguf")
            },
            "training": {
                "minutes": round(course.spent_s / 60, 1),
                "updates": course.updates,
                "rows": course.seen_rows,
                "log": course.history,
            },
            "held_out": {
                "prompts": "built-in set, split report, first turns",
                "prompts_sha256": sha256(HELD_OUT),
                "max_new_tokens": MAX_NEW_TOKENS,
                "method": "walk on the target's greedy text, float32, weights rounded to bfloat16",
                **figures,
            },
        }
        write_text(folder / "provenance.json", json.dumps(provenance, indent=1) + "\n")
        for name in KEPT:
            if (out / name).is_file():
                shutil.copy2(out / name, folder / name)
    size = sum(path.stat().st_size for path in out.iterdir())
    found = figures["steps_3"]
    print(
        f"{out}: {size:,} bytes; accept length {found['accept_length']:.3f} at 3 steps on held-out prompts "
        f"({found['verify_steps']} verify steps)"
    )
