"""Let a person see it: one HTML file with the verdict first, the charts and tables behind it, and nothing to download.

Works offline, in a mail and in a browser without scripts. What the experiment has not reached yet is named as missing.

example:
  draftproof report --results results/smollm2-demo
"""

from __future__ import annotations

import argparse
from pathlib import Path

from draftproof.errors import InputError
from draftproof.files import require_directory, write_text


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--results", required=True, type=Path, metavar="DIR", help="folder of one experiment"
    )


def run(args: argparse.Namespace) -> int:
    """Write report/report.html and print where it is."""
    from draftproof.report.content import CHAIN, content
    from draftproof.report.page import page

    folder = require_directory(args.results, "results", "Give the folder of one experiment.")
    shown = content(folder)
    if all(shown[kind] is None for kind in CHAIN):
        raise InputError("holds no result of any stage", str(folder), "Run a stage first.")
    file = folder / "report" / "report.html"
    write_text(file, page(shown))
    print(file)
    return 0
