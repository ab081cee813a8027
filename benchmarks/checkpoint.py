"""What reading checkpoints costs, as ratios of two ways to do it, measured in turn in one run.

A synthetic target like Kimi-K2.5 INT4 (64 shards, 211,200 tensors, 1.5 TB as sparse files) is checked whole: headers,
offsets, sizes and index; against safe_open, which lists names and shapes of the same files. A draft's values are scanned;
against load_file and isfinite per tensor.

Example: python benchmarks/checkpoint.py --repeats 5
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
from pathlib import Path

import torch
from ratio import ratio
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from draftproof.checkpoint.scan import scan
from draftproof.checkpoint.weights import open_weights

SHARDS, TENSORS, TOTAL_BYTES = 64, 211_200, 1_500_000_000_000
DRAFT_BYTES = 2 << 30


def synthetic_target(folder: Path, tensors: int) -> None:
    """Write sparse shards whose headers name as many tensors as asked, and their index."""
    each = tensors // SHARDS
    rows = TOTAL_BYTES // TENSORS // (2 * 7168)
    weight_map: dict[str, str] = {}
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        entries, end = {}, 0
        for number in range(each):
            name = (
                f"language_model.model.layers.{shard}.mlp.experts.{number}.down_proj.weight_packed"
            )
            begin, end = end, end + rows * 7168 * 2
            entries[name] = {"dtype": "I16", "shape": [rows, 7168], "data_offsets": [begin, end]}
            weight_map[name] = file
        header = json.dumps(entries, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
        with (folder / file).open("wb") as stream:
            stream.write(len(header).to_bytes(8, "little") + header)
            stream.truncate(8 + len(header) + end)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


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
    if args.repeats < 2 or args.tensors < SHARDS:
        print(f"benchmarks: give 2 repeats and {SHARDS} tensors or more.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        target, draft = Path(scratch, "target"), Path(scratch, "draft")
        target.mkdir()
        draft.mkdir()
        synthetic_target(target, args.tensors)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        list_with_safe_open(target)  # the files are in the page cache for both
        figures = ratio(
            lambda: open_weights(target), lambda: list_with_safe_open(target), args.repeats
        )
        print(f"target checked / safe_open lists it: {figures}", flush=True)
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(f"{args.tensors} tensors: {held >> 10} MiB more than before", flush=True)
        synthetic_draft(draft, args.draft_bytes)
        scan_with_load_file(draft)
        figures = ratio(
            lambda: scan_values(draft), lambda: scan_with_load_file(draft), args.repeats
        )
        print(f"draft scanned / load_file and isfinite: {figures}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
