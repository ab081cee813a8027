"""Mutated checkpoints, each made anew from its number alone, so that a failing case can be repeated."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.builders.checkpoints import tiny_draft
from tests.builders.checkpoints_dialects import DIALECTS, OTHERS

NAMES = ("config.json", "target.json", "header", "target header")
JUNK: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3.5, 2**31, 2**63, -(2**70), 10**400, 1e308),
    *(float("nan"), float("inf"), "", "32", "llama", "\ud800", "x" * 3000, "../../etc/passwd"),
    *([], [[]], [1, 5, 8], [-1, 0, 1], [2**40] * 3, ["a"], [None], [True, 2, 3], list(range(600))),
    *({}, {"a": {"b": {}}}, {"factor": 0, "type": "yarn"}, {"rope_theta": -1}),
    *({"eagle_aux_hidden_state_layer_ids": "x"}, {"vocab": [[], [1]]}, {"dtype": "F32"}),
]
MORE_KEYS = (
    *("rope_scaling", "rope_parameters", "norm_before_fc", "fc_norm", "target_hidden_size"),
    *("layer_types", "text_config", "eagle_config", "eagle_aux_hidden_state_layer_ids"),
    *("transformer_layer_config", "num_aux_hidden_states", "quantization_config", "bias"),
    *("q_lora_rank", "draft_vocab_size", "norm_before_residual", "tie_word_embeddings", "dtype"),
)


@dataclass(frozen=True)
class Seed:
    """A healthy pair's files as bytes: both configs, both headers, the draft's values and how many the target has."""

    files: dict[str, bytes]
    values: bytes
    target_bytes: int


def seeds(path: Path) -> list[Seed]:
    """Return one seed per dialect and per kind of other checkpoint."""
    builds = [healthy.build for healthy in DIALECTS.values()] + [b for b, _ in OTHERS.values()]
    found = []
    for number, build in enumerate(builds):
        draft, target = tiny_draft(path / str(number), change=build)
        configs = [(folder / "config.json").read_bytes() for folder in (draft, target)]
        header, values = _split(draft / "model.safetensors")
        target_header, holes = _split(target / "model.safetensors")
        files = dict(zip(NAMES, [*configs, header, target_header], strict=True))
        found.append(Seed(files, values, len(holes)))
    return found


def _split(path: Path) -> tuple[bytes, bytes]:
    """Return a file's header and its values."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return raw[8 : 8 + length], raw[8 + length :]


def write_case(number: int, found: list[Seed], path: Path) -> tuple[Path, Path]:
    """Write the case of this number over whatever is in path; returns draft and target."""
    chance = random.Random(number)
    seed = chance.choice(found)
    files = dict(seed.files)
    for _ in range(chance.choice((1, 1, 2, 4))):
        name = chance.choice(NAMES)
        files[name] = chance.choice(MUTATIONS)(chance, files[name])
    header, values = files["header"], seed.values
    length = len(header) if chance.random() < 0.95 else chance.choice((0, 7, 2**20, 2**40, 2**63))
    if chance.random() < 0.05:
        values = values[: chance.randrange(len(values))]
    draft, target = path / "draft", path / "target"
    for folder in (draft, target):
        folder.mkdir(parents=True, exist_ok=True)
    (draft / "config.json").write_bytes(files["config.json"])
    (target / "config.json").write_bytes(files["target.json"])
    (draft / "model.safetensors").write_bytes(length.to_bytes(8, "little") + header + values)
    header = files["target header"]
    with (target / "model.safetensors").open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + seed.target_bytes)
    return draft, target


def _bytes(chance: random.Random, text: bytes) -> bytes:
    """Flip, drop or double bytes."""
    raw = bytearray(text)
    for _ in range(chance.choice((1, 2, 8))):
        place = chance.randrange(len(raw) or 1)
        match chance.randrange(3):
            case 0 if raw:
                raw[place] = chance.randrange(256)
            case 1:
                del raw[place : place + chance.randrange(40)]
            case _:
                raw[place:place] = raw[place : place + chance.randrange(40)]
    return bytes(raw)


def _deep(chance: random.Random, text: bytes) -> bytes:
    """Nest without end, or start with a very long number."""
    inner = chance.choice((b"[" * 50_000, b'{"a":' * 20_000, b"9" * 5000))
    return b'{"a":' + inner + b"," + text[1:]


def _values(chance: random.Random, text: bytes) -> bytes:
    """Put junk at some place of the JSON, or take something away."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return _bytes(chance, text)
    if not isinstance(content, dict) or not content:
        return text
    for _ in range(chance.choice((1, 1, 3))):
        place = content
        key = chance.choice([*content, *MORE_KEYS])
        while isinstance(place.get(key), dict) and place[key] and chance.random() < 0.7:
            place = place[key]
            key = chance.choice(list(place))
        if chance.random() < 0.2:
            place.pop(key, None)
        else:
            place[key] = chance.choice(JUNK)
    try:
        return json.dumps(content).encode("utf-8", "surrogatepass")
    except ValueError:  # a whole number longer than Python prints
        return text


MUTATIONS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    *(_values,) * 25,
    *(_bytes,) * 4,
    _deep,
)
