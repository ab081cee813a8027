"""What reading checkpoints costs, as ratios of two ways to do it, measured in turn in one run.

A synthetic target like Kimi-K2.5 INT4 (64 shards, 211,200 tensors, 1.5 TB as sparse files) is checked whole: headers,
offsets, sizes, index, and the names and shapes that its config promises; against safe_open, which lists names and shapes
of the same files. A draft's values are scanned; against load_file and isfinite per tensor. The most memory held is that
of a process of its own per kind, so that neither counts for the other.

Example: python benchmarks/checkpoint.py --repeats 5
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

import torch
from ratio import ratio
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from draftproof.checkpoint.quantisation import quantisation
from draftproof.checkpoint.scan import scan
from draftproof.checkpoint.target_layout import compare
from draftproof.checkpoint.weights import open_weights
from draftproof.engines import DEFAULT_ENGINE, facts

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.builders.checkpoints_targets import BYTES, Headers, kimi, write_shards

SHARDS, TENSORS, TOTAL_BYTES = 64, 211_200, 1_500_000_000_000
DRAFT_BYTES = 2 << 30


def synthetic_target(folder: Path, tensors: int) -> None:
    """Write Kimi-K2.5's config, and its headers with sparse files behind them.

    What the model has less than `tensors` is added to its vision tower, so large that all files are 1.5 TB.
    """
    config, layers = kimi()
    (folder / "config.json").write_text(json.dumps(config))
    whole: Headers = {name: entry for layer in layers for name, entry in layer.items()}
    missing = max(0, tensors - len(whole))
    if missing:
        language = sum(math.prod(shape) * BYTES[dtype] for dtype, shape in whole.values())
        rows = (TOTAL_BYTES - language) // missing // (2 * 7168)
        whole |= {f"vision_tower.{n}.weight": ("BF16", [rows, 7168]) for n in range(missing)}
    entries = iter(whole.items())
    each = -(-len(whole) // SHARDS)
    write_shards(folder, [dict(islice(entries, each)) for _ in range(SHARDS)])


def check_target(folder: Path) -> int:
    """Check a target as validate does; returns how many tensors its config promises."""
    config = json.loads((folder / "config.json").read_text())
    text = config["text_config"]
    family = facts(DEFAULT_ENGINE, "checkpoint")["target_layers"][config["architectures"][0]]
    weights = open_weights(folder)
    found = compare(weights.tensors, text, family, quantisation(config, text, folder))
    if found.missing or found.wrong:
        raise SystemExit(f"benchmarks: not as promised: {found.missing} {found.wrong}")
    return found.checked


def memory_bytes(work: str, folder: Path) -> int:
    """Return the most memory that a process held which did this work alone, less what it held before."""
    # VmHWM starts anew with a program; ru_maxrss would begin at what this process holds.
    code = (
        "from checkpoint import *\n"
        "most = lambda: int(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])\n"
        f"before = most(); {work}(Path({str(folder)!r})); print(most() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    return int(done.stdout) * 1024


def synthetic_draft(folder: Path, size_bytes: int) -> None:
    """Write bfloat16 tensors of 64 MiB, as a draft of a big target has them."""
    count, side = max(1, size_bytes >> 26), 4096
    tensors = {
        f"layers.0.{n}.weight": torch.full((side, 8192), 1 / (n + 1), dtype=torch.bfloat16)
        for n in range(count)
    }
    save_file(tensors, folder / "model.safetensors")


def list_with_safe_open(folder: Path) -> None:
    """List names and shapes, all that safe_open offers without values."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="numpy") as opened:
            for name in opened.keys():  # noqa: SIM118
                opened.get_slice(name).get_shape()


def scan_with_load_file(folder: Path) -> None:
    """Load every tensor and ask torch whether it is finite."""
    for tensor in load_file(folder / "model.safetensors").values():
        torch.isfinite(tensor).all().item()


def scan_values(folder: Path) -> None:
    """Read every value once, as validate does."""
    for tensor in open_weights(folder).tensors.values():
        scan(tensor)


def main() -> int:
    """Print one line per comparison, and the most memory held."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs each")
    parser.add_argument("--tensors", type=int, default=TENSORS, help="of the target")
    parser.add_argument("--draft-bytes", type=int, default=DRAFT_BYTES, help="of the draft")
    args = parser.parse_args()
    if args.repeats < 2 or args.tensors < 1:
        print("benchmarks: give 2 repeats and a tensor or more.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        target, draft = Path(scratch, "target"), Path(scratch, "draft")
        target.mkdir()
        draft.mkdir()
        synthetic_target(target, args.tensors)
        list_with_safe_open(target)  # the files are in the page cache for both
        figures = ratio(
            lambda: check_target(target), lambda: list_with_safe_open(target), args.repeats
        )
        print(f"target checked / safe_open lists it: {figures}", flush=True)
        files = list(target.glob("*.safetensors"))
        size = sum(file.stat().st_size for file in files)
        print(
            f"target: {len(files)} files, {len(open_weights(target).tensors)} tensors, {size / 1e12:.2f} TB,"
            f" {check_target(target)} promised; {memory_bytes('check_target', target) >> 20} MiB"
            f" (safe_open {memory_bytes('list_with_safe_open', target) >> 20} MiB)",
            flush=True,
        )
        synthetic_draft(draft, args.draft_bytes)
        scan_with_load_file(draft)
        figures = ratio(
            lambda: scan_values(draft), lambda: scan_with_load_file(draft), args.repeats
        )
        print(
            f"draft scanned / load_file and isfinite: {figures};"
            f" {memory_bytes('scan_values', draft) >> 20} MiB"
            f" (load_file {memory_bytes('scan_with_load_file', draft) >> 20} MiB)",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
