"""`draftproof serve -- draftproof bench` on the real engine: exact counters, and the text that transformers gives."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from draftproof.benchmark.records import read_records
from draftproof.files import read_result, write_result
from tests.builders.tiny_models import tiny_draft, tiny_llama_target

pytestmark = pytest.mark.engine

NEW_TOKENS, REQUESTS = 24, 6
START_S = 850


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a target, a draft that guesses now and then, and a capture made with transformers."""
    folder = tmp_path_factory.mktemp("experiment")
    target = tiny_llama_target(folder / "target")
    tiny_draft(folder / "draft", target)
    write_capture(folder / "capture", target)
    return folder


def write_capture(capture: Path, target: Path) -> None:
    """Write the target's greedy answers; a token that several of them hold serves as the stop token."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    torch.manual_seed(3)
    prompts = [torch.randint(3, 250, (1, 12 + i)) for i in range(REQUESTS)]
    outputs = []
    for prompt in prompts:
        ids = model.generate(
            prompt, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=1
        )
        outputs.append(ids[0, prompt.shape[1] :].tolist())
    late = Counter(token for output in outputs for token in set(output[8:]) - set(output[:8]))
    stop = late.most_common(1)[0][0]
    capture.mkdir()
    samples = []
    for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        cut = output[: output.index(stop) + 1] if stop in output else output
        file = capture / f"p-{i}.safetensors"
        save_file({"token_ids": torch.tensor(prompt[0].tolist() + cut)}, file)
        samples.append(
            {
                "id": f"p-{i}",
                "category": "math",
                "split": "report",
                "prompt_tokens": prompt.shape[1],
                "output_tokens": len(cut),
                "finish": "stop" if cut[-1] == stop else "length",
                "file": file.name,
                "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            }
        )
    assert any(sample["finish"] == "stop" for sample in samples)
    manifest = {
        "schema": "draftproof/capture/1",
        "target": {"path": str(target)},
        "source": "huggingface",
        "versions": {},
        "prompts": {"source": "builtin", "split": "report", "count": REQUESTS, "digest": "d"},
        "max_new_tokens": NEW_TOKENS,
        "stop_token_ids": [stop],
        "dtype": "float32",
        "num_layers": 6,
        "hidden_size": 64,
        "boundaries": [0],
        "samples": samples,
    }
    write_result(capture / "manifest.json", manifest)


@pytest.mark.parametrize(
    ("arm", "flags"),
    [
        pytest.param("baseline", {}, marks=pytest.mark.slow),
        (
            "spec",
            {
                "speculative-num-steps": 3,
                "speculative-eagle-topk": 1,
                "speculative-num-draft-tokens": 4,
            },
        ),
        pytest.param(
            "spec",
            {
                "speculative-num-steps": 3,
                "speculative-eagle-topk": 4,
                "speculative-num-draft-tokens": 8,
            },
            marks=pytest.mark.slow,
        ),
    ],
    ids=["baseline", "chain", "tree"],
)
def test_cells_are_valid_and_the_text_is_that_of_transformers(
    experiment: Path, tmp_path: Path, arm: str, flags: dict[str, int]
) -> None:
    launch, store, out = (
        tmp_path / "serving" / "launch.json",
        tmp_path / "store",
        tmp_path / "bench.json",
    )
    program = [sys.executable, "-m", "draftproof"]
    done = subprocess.run(
        [
            *(
                *program,
                "serve",
                "--server",
                "it",
                "--arm",
                arm,
                "--device",
                "cpu",
                "--out",
                str(launch.parent),
            ),
            *("--target", str(experiment / "target"), "--draft", str(experiment / "draft")),
            *("--flags", json.dumps({"max-total-tokens": 4096, "max-running-requests": 8} | flags)),
            *("--environment", '{"OMP_NUM_THREADS": "1"}', "--"),
            *(*program, "bench", "--launch", str(launch), "--samples", str(experiment / "capture")),
            *("--concurrency", "1", "4", "--warmup", "2", "--store", str(store), "--out", str(out)),
        ],
        stderr=subprocess.PIPE,
        text=True,
        timeout=START_S,
    )
    assert done.returncode == 0, done.stderr
    for name in ("it-c1", "it-c4"):
        cell = read_result(store / name / "cell.json", "cell")
        assert (cell["status"], cell["reasons"]) == ("valid", [])
        assert cell["same_text_as_capture"] == REQUESTS
        assert cell["cached_tokens"] == 0
        assert len(read_records(store / name / "requests.parquet")) == REQUESTS
        if arm == "spec":
            assert 1.2 < cell["spec"]["accept_length"] < 4
            assert sum(cell["spec"]["histogram"]) == cell["spec"]["verify_steps"]
    assert len(read_result(out, "benchmark")["cells"]) == 2
    assert "stopped_at" in read_result(launch, "launch")
