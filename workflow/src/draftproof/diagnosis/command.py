"""Claimed, offline and served acceptance, text and speed: where is the loss?

Reads what the earlier stages left in the folder of one experiment, writes diagnosis.json and diagnosis.md there and prints
the verdict. Exit code 0 whatever the verdict: a bad one is an answer. 2: something is missing, and which stage makes it.

example:
  draftproof diagnose --results results/smollm2-demo --claimed '{"value": 0.747, "kind": "marginal", "step": 1}'
"""

from __future__ import annotations

import argparse
from pathlib import Path

from draftproof.diagnosis import claimed, results
from draftproof.diagnosis.diagnose import diagnose
from draftproof.diagnosis.markdown import markdown
from draftproof.files import write_result, write_text


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--results", required=True, type=Path, metavar="DIR", help="folder of one experiment"
    )
    parser.add_argument(
        "--claimed",
        metavar="JSON",
        help="what the training run reported: value, kind (marginal, conditional, cumulative, accept_length), step",
    )


def run(args: argparse.Namespace) -> int:
    """Write the diagnosis and print its verdict and findings."""
    diagnosis = diagnose(args.results, claimed.parse(args.claimed))
    coverage = results.require(args.results, "accuracy")["coverage"]
    write_text(args.results / "diagnosis.md", markdown(diagnosis, coverage))
    write_result(args.results / "diagnosis.json", diagnosis)
    print(diagnosis["verdict"])
    if diagnosis["acceptance"]["claimed"]:
        print(claimed.sentence(diagnosis["acceptance"]["claimed"], coverage))
    for each in diagnosis["findings"]:
        print(
            f"{each['severity']}: {each['id']}: {each['subject']}: {each['message']}. {each['fix']}"
        )
    return 0
