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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml
from ratio import ratio

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
    config = yaml.safe_load(Path("config.yaml").read_text())
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
        *(
            "--validation",
            str(RESULTS / "checkpoint/validation.json"),
            "--limit",
            str(config["prompts"]["limit"]),
        ),
        *(
            "--max-new-tokens",
            str(config["capture"]["max_new_tokens"]),
            "--dtype",
            "float32",
            "--out",
            str(scratch / "capture"),
        ),
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


def run(command: Sequence[str]) -> None:
    """Run a command; raises CalledProcessError when it fails."""
    subprocess.run(command, check=True, capture_output=True)


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
            figures = ratio(partial(run, one.command), partial(run, one.limit), repeats)
            print(f"{one.name} / {one.limit_name}: {figures}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
