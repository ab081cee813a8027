"""Dumps of hidden states as speculators, SpecForge and Model-Optimizer write them (names, shapes, dtypes of their sources)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from safetensors.torch import save_file
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """token_ids [T], own bool [T], aux [T, A, H], last states [T, H] on both sides of the final norm."""

    token_ids: Tensor
    own: Tensor
    aux: Tensor
    before: Tensor
    behind: Tensor


def text_of(model: Any, token_ids: Tensor, own: Tensor, boundaries: Sequence[int]) -> Text:
    """Run a target of transformers over a text and keep what a tool would dump."""
    seen: list[Tensor] = []
    handle = model.model.norm.register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0]))
    try:
        with torch.inference_mode():
            states = model(token_ids[None], output_hidden_states=True).hidden_states
    finally:
        handle.remove()
    return Text(
        token_ids=token_ids,
        own=own,
        aux=torch.stack([states[b][0] for b in boundaries], dim=1),
        before=seen[0][0],
        behind=states[-1][0],
    )


def write_speculators(folder: Path, texts: Sequence[Text]) -> Path:
    """Write hidden_states/hs_<i>.safetensors inside a prepared dataset, as `load_from_disk` reads it."""
    dump = folder / "hidden_states"
    dump.mkdir(parents=True)
    for i, text in enumerate(texts):
        tensors = {
            "token_ids": text.token_ids,
            "hidden_states": torch.cat([text.aux, text.before[:, None]], dim=1),
        }
        save_file(tensors, dump / f"hs_{i}.safetensors")
    table = pa.table(
        {
            "input_ids": pa.array([t.token_ids.tolist() for t in texts], pa.list_(pa.int32())),
            "loss_mask": pa.array([t.own.long().tolist() for t in texts], pa.list_(pa.int64())),
        }
    )
    name = "data-00000-of-00001.arrow"
    with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    return dump


def write_specforge(folder: Path, texts: Sequence[Text], *, packed: bool = False) -> Path:
    """Write rows_<a>-<b>/data_<i>.ckpt, or .ckpt.gz."""
    rows = folder / "rows_0-2000"
    rows.mkdir(parents=True)
    for i, text in enumerate(texts):
        record = {
            "input_ids": text.token_ids,
            "loss_mask": text.own.long(),
            "aux_hidden_state": text.aux.flatten(1)[None],
            "hidden_state": text.behind[None],
        }
        if packed:
            with gzip.open(rows / f"data_{i}.ckpt.gz", "wb") as file:
                torch.save(record, file)
        else:
            torch.save(record, rows / f"data_{i}.ckpt")
    return folder


def write_modelopt(folder: Path, texts: Sequence[Text], *, prenorm: bool | None = None) -> Path:
    """Write <id>.pt; `prenorm` is what newer files say of their last state, None leaves it out."""
    folder.mkdir(parents=True)
    for i, text in enumerate(texts):
        record = {
            "input_ids": text.token_ids,
            "loss_mask": text.own.long(),
            "aux_hidden_states": text.aux.flatten(1),
            "hidden_states": text.before if prenorm else text.behind,
            "conversation_id": f"conversation-{i}",
        }
        if prenorm is not None:
            record["hidden_states_prenorm"] = prenorm
        torch.save(record, folder / f"conversation-{i}.pt")
    return folder
