"""A capture whose answers the fake engine repeats, and a fake engine that runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from draftproof.files import write_result
from tests.builders.fake_engine import STOP_TOKEN, Script, answer, fake_engines

PROMPTS = {
    "a-01": [5, 6, 7],
    "b-01": [40, 41],
    "c-01": [770, 771, 772],
    "d-01": [100, 200, 300, 400],
}
NEW_TOKENS = 12


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """Write a capture of four samples; the third ends at a stop token."""
    folder = tmp_path / "capture"
    folder.mkdir()
    samples = []
    for identity, prompt in PROMPTS.items():
        output = answer(prompt, NEW_TOKENS, [STOP_TOKEN])
        file = folder / f"{identity}.safetensors"
        save_file({"token_ids": np.array(prompt + output, dtype=np.int64)}, file)
        samples.append(
            {
                "id": identity,
                "category": "math",
                "split": "report",
                "prompt_tokens": len(prompt),
                "output_tokens": len(output),
                "finish": "stop" if output[-1] == STOP_TOKEN else "length",
                "file": file.name,
                "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            }
        )
    manifest = {
        "schema": "draftproof/capture/1",
        "target": {"path": "target"},
        "source": "huggingface",
        "versions": {},
        "prompts": {"source": "builtin", "split": "report", "count": 4, "digest": "d"},
        "max_new_tokens": NEW_TOKENS,
        "stop_token_ids": [STOP_TOKEN],
        "dtype": "float32",
        "num_layers": 4,
        "hidden_size": 8,
        "boundaries": [0],
        "samples": samples,
    }
    write_result(folder / "manifest.json", manifest)
    return folder


def launch_record(url: str, arm: str = "spec", **changes: Any) -> dict[str, Any]:
    """Return the content of a launch.json."""
    settings = {"model_path": {"asked": "target", "found": "target"}}
    if arm != "baseline":
        for name, value in (("num_steps", 3), ("eagle_topk", 1), ("num_draft_tokens", 4)):
            settings[f"speculative_{name}"] = {"asked": value, "found": value}
    return {
        "schema": "draftproof/launch/1",
        "server": arm,
        "arm": arm,
        "engine": "sglang==0.5.23",
        "device": "cpu",
        "target": "target",
        "draft": None if arm == "baseline" else "draft",
        "argv": [],
        "environment": {},
        "digest": "0123456789abcdef",
        "url": url,
        "pid": 1,
        "started_at": "2026-01-01T00:00:00+00:00",
        "ready_s": 1.0,
        "versions": {},
        "settings": settings,
        "log": "server.log",
        **changes,
    }


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Return a function that starts a fake engine and returns its launch.json."""
    with fake_engines() as start:

        def begin(script: Script, arm: str = "spec", **changes: Any) -> Path:
            file = tmp_path / f"{arm}-launch.json"
            file.write_text(json.dumps(launch_record(start(script, "target"), arm, **changes)))
            return file

        yield begin
