"""A small results/<experiment>/ folder with known truth, written through the real writers, schemas included."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from draftproof.benchmark.acceptance import Counters
from draftproof.benchmark.cell import figures, keep
from draftproof.benchmark.command import summary
from draftproof.benchmark.records import Record
from draftproof.benchmark.workload import load_workload
from draftproof.diagnosis.acceptance import counters_of
from draftproof.diagnosis.acceptance import summary as acceptance_summary
from draftproof.files import sha256, write_result, write_text

CATEGORIES = ("writing", "math", "coding", "extraction")
DRAFT = {"path": "draft", "sha256": "d" * 64, "architecture": "LlamaForCausalLMEagle3"}
TARGET = {"path": "target", "sha256": "e" * 64, "architecture": "LlamaForCausalLM"}
ENGINE = "sglang==0.5.23"
PLAIN_STEP_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What the folder is to say."""

    requests: int = 12
    output_tokens: int = 40
    steps: int = 3
    accept: float = 0.45
    """Probability with which each draft of a step is accepted in turn, offline and served."""
    served_accept: float | None = None
    """Another one for the server, when it reads the draft otherwise than the walk."""
    cost: float = 2.0
    """Plain steps that one iteration costs: the break-even accept length."""
    noise: float = 0.02
    concurrency: tuple[int, ...] = (1, 4)
    changed_by_spec: Collection[int] = ()
    """Samples whose text speculation changes, at output token 7."""
    changed_by_engine: Collection[int] = ()
    """Samples whose text the engine changes in both arms, at output token 9."""
    wrong_wiring: bool = False
    topk: int = 1
    tree_scored: bool = True
    """Whether accuracy was told of a server's tree (topk above 1)."""
    dtype: str = "float32"
    hostile: str = ""
    """Put into findings and names that come from checkpoints."""


def write_results(folder: Path, truth: Truth | None = None) -> Path:
    """Write everything up to the benchmark; return the folder."""
    truth = truth or Truth()
    preflight(folder)
    checkpoint(folder, truth)
    texts = capture(folder, truth)
    accuracy(folder, truth, texts)
    for server in ("baseline", "spec"):
        launch = launched(folder, server, truth)
        measured(folder, truth, launch)
    write_text(folder / "logs/accuracy.log", "12:00:00 walk: 12 done in 1.0 s\n")
    return folder


def preflight(folder: Path) -> None:
    check = {"id": "memory", "status": "pass", "message": "16 GiB", "evidence": {}, "fix": ""}
    write_result(
        folder / "preflight.json",
        {
            "schema": "draftproof/preflight/1",
            "status": "pass",
            "device": "cpu",
            "engine": ENGINE,
            "checks": [check],
        },
    )


def checkpoint(folder: Path, truth: Truth) -> None:
    finding = {
        "id": "rope.theta",
        "severity": "warning",
        "subject": "rope_theta" + truth.hostile,
        "message": "the draft says 10000, the target 100000" + truth.hostile,
        "evidence": {"draft": 10000, "target": 100000},
        "fix": "Compare with the training code",
    }
    effective = {
        "architecture": {"value": DRAFT["architecture"], "origin": "explicit"},
        "boundaries": {"value": [2, 15, 27], "origin": "default", "note": "2, N/2, N-3"},
        "rope": {
            "value": {"type": "default", "theta": 100000.0, "scaling": None},
            "origin": "explicit",
        },
        "head_dim": {"value": 64, "origin": "explicit"},
    }
    write_result(
        folder / "checkpoint/validation.json",
        {
            "schema": "draftproof/validation/1",
            "status": "warn",
            "engine": ENGINE,
            "draft": DRAFT,
            "target": TARGET,
            "dialect": "sglang",
            "effective": effective,
            "findings": [finding],
        },
    )
    draft = folder / "checkpoint/draft"
    draft.mkdir(parents=True)
    save_file({"fc.weight": np.zeros((4, 12), dtype=np.float32)}, draft / "model.safetensors")
    write_text(draft / "config.json", "{}\n")
    write_result(
        draft / "conversion.json",
        {
            "schema": "draftproof/conversion/1",
            "engine": ENGINE,
            "dialect": "sglang",
            "source": DRAFT,
            "values": {"head_dim": {"value": 64, "origin": "explicit"}},
            "tensors": {"copied": 1, "renamed": {}, "dropped": []},
            "files": {"model.safetensors": sha256(draft / "model.safetensors")},
        },
    )


def capture(folder: Path, truth: Truth) -> dict[str, list[int]]:
    """Write the manifest and the samples; return the output ids by sample id."""
    place = folder / "capture"
    place.mkdir(parents=True)
    rng = np.random.default_rng(1)
    samples, texts = [], {}
    for i in range(truth.requests):
        category = CATEGORIES[i % len(CATEGORIES)]
        identity = f"{category}-{i:02d}"
        tokens = rng.integers(10, 1000, size=8 + truth.output_tokens)
        file = place / f"{identity}.safetensors"
        save_file(
            {
                "token_ids": tokens.astype(np.int64),
                "hidden_states": np.zeros((len(tokens), 2, 4), np.float32),
            },
            file,
        )
        texts[identity] = tokens[8:].tolist()
        samples.append(
            {
                "id": identity,
                "category": category,
                "split": "report",
                "prompt_tokens": 8,
                "output_tokens": truth.output_tokens,
                "finish": "length",
                "file": file.name,
                "sha256": sha256(file),
            }
        )
    write_result(
        place / "manifest.json",
        {
            "schema": "draftproof/capture/1",
            "target": TARGET,
            "source": "huggingface",
            "versions": {"transformers": "5.19.0", "torch": "2.14.1"},
            "prompts": {
                "source": "builtin",
                "split": "report",
                "count": truth.requests,
                "digest": "0" * 16,
            },
            "max_new_tokens": truth.output_tokens,
            "stop_token_ids": [2],
            "dtype": truth.dtype,
            "num_layers": 30,
            "hidden_size": 4,
            "boundaries": [0, 2],
            "samples": samples,
        },
    )
    return texts


def accepted(seed: int, tokens: int, accept: float, steps: int) -> list[int]:
    """Return the drafts accepted in each verify step of an answer; its first token comes from prefill."""
    rng, left, walk = np.random.default_rng(seed), tokens - 1, []
    while left:
        misses = np.flatnonzero(rng.random(steps) >= accept)
        walk.append(min(int(misses[0]) if len(misses) else steps, left - 1))
        left -= walk[-1] + 1
    return walk


def histogram(walk: list[int], steps: int) -> list[int]:
    return np.bincount(walk, minlength=steps + 1).tolist()


def shares(truth: Truth, k: int, positions: int, factor: float) -> dict[str, Any]:
    value = truth.accept * factor
    return {
        "marginal": round(value * 0.95 ** (k - 1), 4),
        "conditional": value,
        "cumulative": round(value**k, 4),
        "teacher_forced": round(value * 0.97 ** (k - 1), 4),
        "count": positions,
        "conditional_count": max(1, int(positions * truth.accept ** (k - 1))),
        "cumulative_count": positions,
        "ci95": {
            "marginal": [value * 0.8, value * 1.1],
            "cumulative": [value**k * 0.9, value**k * 1.1],
        },
    }


def walked(histograms: list[list[int]]) -> dict[str, Any]:
    pooled = acceptance_summary([counters_of(each) for each in histograms])
    mean = {
        "mean_of_requests": pooled["accept_length"],
        "mean_of_requests_ci95": pooled["ci95"],
    }
    return pooled | mean


def accuracy(folder: Path, truth: Truth, texts: dict[str, list[int]]) -> None:
    longest = max(5, truth.steps)
    tree = f"{truth.steps},{truth.topk},{truth.steps + 1}"
    trees = [tree] if truth.topk > 1 and truth.tree_scored else []
    requests = [
        {
            "id": identity,
            "category": identity.split("-")[0],
            "walk": {
                str(k): histogram(accepted(i, len(ids), truth.accept, k), k)
                for k in range(1, longest + 1)
            },
            "trees": {
                name: histogram(accepted(i, len(ids), truth.accept, truth.steps), truth.steps)
                for name in trees
            },
        }
        for i, (identity, ids) in enumerate(texts.items())
    ]
    walk = {
        str(k): walked([each["walk"][str(k)] for each in requests]) for k in range(1, longest + 1)
    }
    positions = truth.requests * (truth.output_tokens - 1)
    steps = [
        {
            "k": k,
            **shares(truth, k, positions, 1.0),
            "in_vocabulary": shares(truth, k, round(positions * 0.97), 1 / 0.97),
        }
        for k in range(1, longest + 1)
    ]
    write_result(
        folder / "accuracy/accuracy.json",
        {
            "schema": "draftproof/accuracy/1",
            "draft": DRAFT,
            "target": TARGET,
            "semantics": "engine",
            "feeding": "own tokens",
            "boundaries": [2, 15, 27],
            "samples": truth.requests,
            "positions": positions,
            "coverage": 0.97,
            "steps": steps,
            "walk": walk,
            "trees": {name: walked([each["trees"][name] for each in requests]) for name in trees},
            "categories": {},
            "position_buckets": {},
            "requests": requests,
            "capture": "0" * 16,
        },
    )
    write_result(folder / "accuracy/wiring.json", wiring(truth, walk["3"]))


def wiring(truth: Truth, walk: dict[str, Any]) -> dict[str, Any]:
    def candidate(
        boundaries: list[int], label: str, difference: float, *kinds: str
    ) -> dict[str, Any]:
        length = max(1.0, walk["accept_length"] + difference)
        return {
            "kinds": list(kinds),
            "boundaries": boundaries,
            "label": label,
            "setting": f'"eagle_config": {{"eagle_aux_hidden_state_layer_ids": {boundaries}}}',
            "accept_length": length,
            "ci95": [length - 0.1, length + 0.1],
            "difference": difference,
            "difference_ci95": [difference - 0.05, difference + 0.05] if difference else [0.0, 0.0],
            "difference_adjusted": [difference - 0.1, difference + 0.1]
            if difference
            else [0.0] * 2,
        }

    configured = candidate([2, 15, 27], "configured", 0.0)
    gain = 0.6 if truth.wrong_wiring else -0.2
    others = [
        candidate([0, 15, 27], "boundaries (0, 15, 27), 2 replaced by 0", gain, "boundaries"),
        candidate([1, 14, 26], "boundaries (1, 14, 26), one lower", -0.3, "boundaries"),
    ]
    return {
        "schema": "draftproof/wiring/2",
        "steps": truth.steps,
        "samples": truth.requests,
        "configured": configured,
        "fault": None,
        "candidates": [configured, *others],
        "screened": [
            {key: each[key] for key in ("kinds", "boundaries", "label")}
            | {"first_step": 0.4, "count": 100, "walked": True}
            for each in others
        ],
        "not_tried": [{"kind": "embedding", "reason": "the tensor embed_tokens.weight is missing"}],
        "alternatives": len(others),
        "best": others[0] if truth.wrong_wiring else configured,
        "significant": truth.wrong_wiring,
        "ties": [],
        "message": "scan of 3 candidates",
    }


def launched(folder: Path, server: str, truth: Truth) -> dict[str, Any]:
    spec = {
        "speculative_algorithm": "EAGLE3",
        "speculative_num_steps": truth.steps,
        "speculative_eagle_topk": truth.topk,
        "speculative_num_draft_tokens": truth.steps + 1,
    }
    settings = {"model_path": "target", "dtype": truth.dtype} | (spec if server == "spec" else {})
    launch = {
        "schema": "draftproof/launch/1",
        "server": server,
        "arm": server,
        "engine": ENGINE,
        "device": "cpu",
        "target": "target",
        "draft": "draft" if server == "spec" else None,
        "argv": ["python", "-m", "sglang.launch_server", "--model-path", "target"],
        "environment": {"HF_HUB_OFFLINE": "1"},
        "digest": server[0] * 16,
        "url": "http://127.0.0.1:30000",
        "pid": 4242,
        "started_at": "2026-12-01T05:00:00+00:00",
        "stopped_at": "2026-12-01T05:05:00+00:00",
        "exit_status": 0,
        "ready_s": 42.5,
        "versions": {"sglang": "0.5.23", "torch": "2.14.1"},
        "settings": {name: {"asked": value, "found": value} for name, value in settings.items()},
        "log": f"serving/{server}/server.log",
    }
    write_result(folder / f"serving/{server}/launch.json", launch)
    write_text(folder / f"serving/{server}/server.log", "The server is fired up\n")
    return launch


def measured(folder: Path, truth: Truth, launch: dict[str, Any]) -> None:
    workload = load_workload(folder / "capture")
    cells = []
    for concurrency in truth.concurrency:
        records = [
            record(i, sample, truth, launch["arm"], concurrency)
            for i, sample in enumerate(workload.samples)
        ]
        name = f"{launch['server']}-c{concurrency}"
        cell = figures(records, workload, launch, concurrency, f"key-{name}", "")
        assert cell["status"] == "valid", cell["reasons"]
        keep(folder / "benchmark", cell, records)
        cells.append(cell)
    write_result(
        folder / f"benchmark/{launch['server']}.json",
        summary(launch, f"serving/{launch['server']}/launch.json", cells),
    )


def record(i: int, sample: Any, truth: Truth, arm: str, concurrency: int) -> Record:
    """Return a request whose iterations cost `cost` plain steps, give or take the noise."""
    ids = list(sample.expected_ids)
    if i in truth.changed_by_engine:
        ids[9] += 1
    if i in truth.changed_by_spec and arm == "spec":
        ids[7] += 1
    served = truth.accept if truth.served_accept is None else truth.served_accept
    walk = accepted(i, len(ids), served, truth.steps) if arm == "spec" else None
    events = [1, *([1] * (len(ids) - 1) if walk is None else [m + 1 for m in walk])]
    rng = np.random.default_rng((i, concurrency, arm == "spec"))
    step_s = PLAIN_STEP_S * concurrency**0.5 * (truth.cost if walk is not None else 1)
    gaps = [0.05, *(step_s * (1 + truth.noise * rng.standard_normal(len(events) - 1)))]
    start_s = i * 1.0
    times = (start_s + np.cumsum(gaps)).tolist()
    bins = histogram(walk, truth.steps) if walk is not None else []
    counted = counters_of(bins)
    return Record(
        id=sample.id,
        category=sample.category,
        prompt_tokens=len(sample.ask.input_ids),
        output_ids=ids,
        start_s=start_s,
        event_times_s=times,
        event_tokens=events,
        end_s=times[-1] + 0.001,
        finish="length",
        cached_tokens=0,
        counters=Counters(
            verify_steps=counted.verify_steps,
            correct_drafts=counted.correct_drafts,
            proposed_drafts=counted.verify_steps * truth.steps,
            histogram=bins,
        ),
        error="",
    )


def change_json(file: Path, **changes: Any) -> None:
    """Replace some top-level keys of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
