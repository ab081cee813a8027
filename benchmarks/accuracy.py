"""Scoring a draft against speculators' own model on the same draft and states: time and peak memory, 4 steps, float32.

Needs the results of `make demo`: the demo draft and its captured texts, joined to one long text whose first half counts as
prompt. Both sides run in one process, in turn, so speculators 0.9.0 must be importable beside draftproof: run this with
the Python of a throw-away environment that has both. Two ways of scoring: of every row all steps (marginal acceptance),
and of each row the steps up to its first miss (what the walk needs). The model that trains computes every row, prompt
included. Memory is the growth of the peak resident size during a second run, each side in a process of its own.

Example: python benchmarks/accuracy.py --repeats 7
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # eager attention needs no compiler

import psutil
import torch
from ratio import ratio

from draftproof.engines import DEFAULT_ENGINE

RESULTS = Path("results/smollm2-demo")
DRAFT, TARGET = RESULTS / "checkpoint/draft", Path("results/models/smollm2-135m-instruct")
STEPS, LENGTHS = 4, (512, 2048)
Side = Callable[[], Any]


def text(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return boundary states [T, A, H] float32 and token ids [T] of captured texts, joined and repeated."""
    from draftproof.accuracy.load import boundaries_of
    from draftproof.capture.samples import read_manifest, read_sample
    from draftproof.checkpoint.pair import read_pair

    capture = RESULTS / "capture"
    manifest = read_manifest(capture)
    samples = [read_sample(capture, manifest, entry) for entry in manifest["samples"]]
    wired = boundaries_of(read_pair(DRAFT, TARGET, DEFAULT_ENGINE))
    columns = [manifest["boundaries"].index(boundary) for boundary in wired]
    states = torch.cat([sample.hidden_states[:, columns].float() for sample in samples])
    tokens = torch.cat([sample.token_ids for sample in samples])
    times = -(-length // len(tokens))
    return states.repeat(times, 1, 1)[:length], tokens.repeat(times)[:length]


def theirs(length: int) -> Side:
    """Return speculators' forward pass over the text, with the demo draft's weights."""
    from safetensors.torch import load_file
    from speculators.models.eagle3 import Eagle3DraftModel
    from speculators.train.cli import create_transformer_layer_config

    weights = load_file(DRAFT / "model.safetensors")
    config = json.loads((DRAFT / "config.json").read_text())
    layers = create_transformer_layer_config(
        verifier_name_or_path=str(TARGET),
        num_layers=1,
        draft_arch="llama",
        hidden_act=None,
        sliding_window=8192,
        full_attention_indices=[0],
    )
    layers.intermediate_size = config["intermediate_size"]
    model = Eagle3DraftModel.from_training_args(
        layers,
        t2d=weights.pop("t2d"),
        d2t=weights.pop("d2t"),
        verifier_name_or_path=str(TARGET),
        draft_vocab_size=config["draft_vocab_size"],
        ttt_steps=STEPS,
        draft_attn_impl="eager",
        norm_before_residual=False,
        norm_before_fc=False,
        norm_output=False,
        target_layer_ids=None,
    )
    named = {name.replace("midlayer.", "layers.0."): value for name, value in weights.items()}
    unknown = model.load_state_dict(named, strict=False).unexpected_keys
    assert not unknown, unknown
    model = model.float().eval()
    states, tokens = text(length)
    inputs = {
        "hidden_states": states[:-1].flatten(1)[None],
        "input_ids": tokens[1:][None],
        "document_ids": torch.zeros(1, length - 1, dtype=torch.long),
        "ttt_steps": STEPS,
    }

    def run() -> Any:
        with torch.inference_mode():
            return model(**inputs)

    return run


def ours(length: int, *, all_rows: bool) -> Side:
    """Return the scoring of the text's second half."""
    from draftproof.accuracy.acceptance import matches
    from draftproof.accuracy.load import load_draft
    from draftproof.checkpoint.pair import read_pair

    draft = load_draft(read_pair(DRAFT, TARGET, DEFAULT_ENGINE))
    states, tokens = text(length)
    return partial(matches, draft, states, tokens, tokens, length // 2, STEPS, all_rows=all_rows)


SIDES = {
    "all steps": partial(ours, all_rows=True),
    "up to the first miss": partial(ours, all_rows=False),
    "speculators": theirs,
}


def peak_growth_mib(side: str, length: int) -> float:
    """Return by how much a side's second run raises the peak resident size, MiB, in a process of its own."""
    command = [sys.executable, __file__, "--memory-of", side, str(length)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1])


def memory_of(side: str, length: int) -> None:
    """Print the growth for the process that asked."""
    run = SIDES[side](length)
    run()  # weights that lie in mapped files are in memory from now on
    before = psutil.Process().memory_info().rss / 2**20
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew (proc_pid_clear_refs(5))
    run()
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
    print(max(0.0, peak - before))


def compare(repeats: int, threads: int) -> None:
    """Print time and memory, side by side."""
    torch.set_num_threads(threads)
    for length in LENGTHS:
        other = theirs(length)
        its = peak_growth_mib("speculators", length)
        for side in list(SIDES)[:2]:
            one = SIDES[side](length)
            one(), other()
            print(f"{length} tokens, {side}: time of draftproof / speculators' forward")
            print(f"  {ratio(one, other, repeats)}", flush=True)
            mine = peak_growth_mib(side, length)
            print(f"  memory {mine:.0f} MiB / {its:.0f} MiB: {mine / its:.2f}", flush=True)
    one = SIDES["all steps"](LENGTHS[0])
    print(f"four texts / one text: {ratio(lambda: [one() for _ in range(4)], one, repeats)}")


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--memory-of", nargs=2, metavar=("SIDE", "LENGTH"))
    args = parser.parse_args()
    if args.memory_of:
        memory_of(args.memory_of[0], int(args.memory_of[1]))
    else:
        compare(args.repeats, args.threads)


if __name__ == "__main__":
    main()
