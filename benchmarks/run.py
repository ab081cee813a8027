"""The project's own speed, as ratios of two commands measured in turn on the same machine.

Needs the results of `make demo`; changes none of them. Absolute times on a shared machine say little; a ratio of
neighbours says what a part of the chain costs.

Example: python benchmarks/run.py --repeats 5
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

RESULTS = Path("results/smollm2-demo")
PAIR = (
    "--draft",
    str(RESULTS / "checkpoint/draft"),
    "--target",
    "results/models/smollm2-135m-instruct",
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A command, and the one that shows what its time is worth."""

    name: str
    command: Sequence[str]
    limit_name: str
    limit: Sequence[str]


def comparisons(scratch: Path) -> list[Comparison]:
    """Return what is compared; files go to the scratch folder."""
    capture = [
        *(
            "draftproof",
            "capture",
            "--target",
            PAIR[3],
            "--prompts",
            "builtin",
            "--split",
            "report",
        ),
        *("--validation", str(RESULTS / "checkpoint/validation.json"), "--limit", "16"),
        *("--max-new-tokens", "48", "--dtype", "float32", "--out", str(scratch / "capture")),
    ]
    accuracy = [
        *("draftproof", "accuracy", *PAIR, "--samples", str(RESULTS / "capture"), "--steps", "5"),
        *("--json", str(scratch / "accuracy.json"), "--wiring", str(scratch / "wiring.json")),
    ]
    return [
        Comparison(
            "draftproof --help", ["draftproof", "--help"], "an empty Python", ["python", "-c", ""]
        ),
        Comparison(
            "snakemake, nothing to do",
            ["snakemake"],
            "snakemake --version",
            ["snakemake", "--version"],
        ),
        Comparison(
            "validate",
            ["draftproof", "validate", *PAIR],
            "import of torch",
            ["python", "-c", "import torch"],
        ),
        Comparison(
            "accuracy, 5 steps and the wiring scan",
            accuracy,
            "capture of the same samples",
            capture,
        ),
    ]


def seconds(command: Sequence[str]) -> float:
    """Return the wall time of a command; raises CalledProcessError when it fails."""
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def ratio(one: Comparison, repeats: int) -> tuple[float, float, float]:
    """Return the geometric mean of the ratio over pairs of neighbouring runs, and its 95 % interval (Student's t)."""
    logs = np.log([seconds(one.command) / seconds(one.limit) for _ in range(repeats)])
    middle = logs.mean()
    low, high = stats.t.interval(0.95, repeats - 1, loc=middle, scale=stats.sem(logs))
    return float(np.exp(middle)), float(np.exp(low)), float(np.exp(high))


def main() -> int:
    """Print one line per comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs each")
    repeats = parser.parse_args().repeats
    if repeats < 2 or not (RESULTS / "track.json").exists():
        print("benchmarks: give 2 repeats or more, and run `make demo` first.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        for one in comparisons(Path(scratch)):
            middle, low, high = ratio(one, repeats)
            print(
                f"{one.name}: {middle:.2f} times {one.limit_name}"
                f" (95 % {low:.2f} to {high:.2f}, {repeats} pairs)",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
