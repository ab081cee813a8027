"""The target's answers to the held-out prompts, made once and kept: what progress is measured on."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import torch
from prompts import HELD_OUT, TrainingPrompt
from rollout import Conversation, Rollout
from rows import Batch, Recorded, collate
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from draftproof.errors import InputError
from draftproof.files import sha256

log = logging.getLogger("demo.held_out")

MAX_NEW_TOKENS = 64  # as in the default experiment
BOUNDARIES = (2, 15, 27)


def held_out_prompts(split: str) -> list[TrainingPrompt]:
    """Return the first turns of the built-in prompts of a split; raises InputError if there are none."""
    lines = HELD_OUT.read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines if line.strip()]
    prompts = [
        TrainingPrompt(id=one["id"], category=one["category"], turns=(one["turns"][0],))
        for one in records
        if one["split"] == split
    ]
    if not prompts:
        raise InputError(f"no prompts of split {split!r}", str(HELD_OUT))
    return prompts


def held_out_batches(target_folder: Path, target: Any, data: Path, split: str) -> list[Batch]:
    """Return the target's greedy answers to the first turns of a split, as batches.

    They are kept in data/held-out-<split>.safetensors and made anew when prompts or target change.
    """
    path = data / f"held-out-{split}.safetensors"
    source = f"{sha256(HELD_OUT)} {sha256(target_folder / 'model.safetensors')} {MAX_NEW_TOKENS}"
    if not path.exists() or _source(path) != source:
        log.info("held-out: generating the target's answers, split %s", split)
        _record(target_folder, target, path, split, source)
    tensors = load_file(path)
    sizes = tensors["lengths"].tolist()
    parts = [torch.split(tensors[name], sizes) for name in ("token_ids", "generated", "states")]
    recorded = [
        Recorded(token_ids=ids, generated=generated, states=states)
        for ids, generated, states in zip(*parts, strict=True)
    ]
    recorded.sort(key=lambda one: len(one.token_ids))
    return [collate(recorded[i : i + 16]) for i in range(0, len(recorded), 16)]


def _source(path: Path) -> str:
    with safe_open(path, "pt") as kept:
        return str((kept.metadata() or {}).get("source"))


def _record(target_folder: Path, target: Any, path: Path, split: str, source: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target_folder, local_files_only=True)
    queue = []
    for prompt in held_out_prompts(split):
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt.turns[0]}],
            add_generation_prompt=True,
            return_dict=False,
        )
        queue.append(Conversation(id=prompt.id, first=list(ids)))
    rollout = Rollout(
        target,
        BOUNDARIES,
        eos_token_id=tokenizer.eos_token_id,
        slots=len(queue),
        length=512,
        max_new_tokens=MAX_NEW_TOKENS,
    )
    samples = list(rollout.run(queue))
    if len(samples) != len(queue):
        raise InputError("a held-out prompt is too long for a slot", str(HELD_OUT))
    tensors = {
        "token_ids": torch.cat([one.token_ids for one in samples]),
        "generated": torch.cat([one.generated for one in samples]),
        "states": torch.cat([one.states for one in samples]),
        "lengths": torch.tensor([len(one.token_ids) for one in samples]),
    }
    part = path.with_suffix(".part")
    save_file(tensors, part, {"source": source})
    part.replace(path)
