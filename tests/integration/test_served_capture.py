"""A capture through the real engine equals the one that transformers makes: tokens exactly, states to float32's rounding."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from draftproof.capture.samples import read_manifest, read_sample
from draftproof.cli import main
from draftproof.files import read_result
from tests.builders.tiny_models import tiny_deepseek_target, tiny_draft, tiny_llama_target
from tests.builders.workspace import make_workspace

pytestmark = pytest.mark.engine

TIMEOUT_S = 850
TOLERANCE = 1e-3  # of states up to about 13; seen: 3e-6 (Llama-type), 8e-5 (DeepSeek-type)
PROMPTS = [
    {"id": "one", "category": "math", "turns": ["What is 2 + 2?"]},
    {"id": "two", "category": "writing", "turns": ["Write.", "Shorter, please."]},
    {"id": "long", "category": "math", "turns": ["Count up and back again. " * 12]},
]


@pytest.mark.parametrize(
    "build",
    [tiny_llama_target, pytest.param(tiny_deepseek_target, marks=pytest.mark.slow)],
    ids=["llama", "deepseek"],
)
def test_the_engines_capture_is_that_of_transformers(
    tmp_path: Path, build: Callable[[Path], Path]
) -> None:
    target = build(tmp_path / "target")
    draft = tiny_draft(tmp_path / "draft", target)
    validation, prompts = tmp_path / "validation.json", tmp_path / "prompts.jsonl"
    pair = ["--draft", str(draft), "--target", str(target)]
    main(["validate", *pair, "--json", str(validation)])
    prompts.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    asked = [
        *("capture", "--target", str(target), "--validation", str(validation)),
        *("--prompts", str(prompts), "--max-new-tokens", "24"),
    ]
    assert main([*asked, "--out", str(tmp_path / "huggingface")]) == 0

    launch = tmp_path / "server" / "launch.json"
    program = [sys.executable, "-m", "draftproof"]
    done = subprocess.run(
        [
            *(*program, "serve", "--server", "capture", "--arm", "capture", "--device", "cpu"),
            *("--target", str(target), "--validation", str(validation)),
            *("--flags", '{"max-total-tokens": 8192, "max-running-requests": 8}'),
            *("--environment", '{"OMP_NUM_THREADS": "1"}', "--out", str(launch.parent), "--"),
            *(*program, *asked, "--source", "sglang", "--launch", str(launch)),
            *("--out", str(tmp_path / "sglang")),
        ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert "The target repeats 96 of 96 tokens" in done.stdout
    settings = read_result(launch, "launch")["settings"]
    assert settings["speculative_algorithm"]["found"] is None
    assert settings["disable_radix_cache"]["found"] is True

    theirs, ours = read_manifest(tmp_path / "huggingface"), read_manifest(tmp_path / "sglang")
    assert (ours["source"], ours["dtype"]) == ("sglang", "float32")
    assert ours["boundaries"] == theirs["boundaries"] == [0, 1, 2, 3, 4, 5]
    assert [s["id"] for s in ours["samples"]] == ["one", "two.1", "two.2", "long"]
    largest = 0.0
    for mine, other in zip(ours["samples"], theirs["samples"], strict=True):
        served = read_sample(tmp_path / "sglang", ours, mine)
        loaded = read_sample(tmp_path / "huggingface", theirs, other)
        assert torch.equal(served.token_ids, loaded.token_ids)
        assert torch.equal(served.continuation_ids, loaded.continuation_ids)
        assert mine["finish"] == other["finish"]
        largest = max(largest, float((served.hidden_states - loaded.hidden_states).abs().max()))
    print(f"largest difference of {build.__name__}: {largest:.2e}")
    assert largest < TOLERANCE
    scored = [*pair, "--samples", str(tmp_path / "sglang"), "--steps", "3"]
    assert main(["accuracy", *scored]) == 0


@pytest.mark.chain
@pytest.mark.slow
def test_the_workflow_captures_through_a_server_of_its_own(tmp_path: Path) -> None:
    models = tmp_path / "models"
    target = tiny_llama_target(models / "target")
    tiny_draft(models / "draft", target)
    workspace = make_workspace(
        tmp_path / "workspace",
        target={"path": str(target)},
        draft={"path": str(models / "draft")},
        capture={"source": "sglang", "max_new_tokens": 8, "dtype": "float32"},
    )
    shown = workspace.snakemake("accuracy", timeout=TIMEOUT_S)
    assert shown.returncode == 0, shown.stdout[-5000:]
    capture = workspace.results / "capture"
    manifest = read_manifest(capture)
    launch = read_result(capture / "server" / "launch.json", "launch")
    assert (manifest["source"], len(manifest["samples"])) == ("sglang", 4)
    assert manifest["target"]["launch"] == launch["digest"]
    assert "stopped_at" in launch
    assert not list(workspace.results.glob("serving/*")), "no server of the benchmark ran"
