"""Can this machine, image and driver run the experiment at all?

Exit code 0: yes, perhaps with warnings. 1: no. 2: could not be asked.

example:
  draftproof preflight --engine sglang==0.5.23 --device cpu --json preflight.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from draftproof.engines import DEFAULT_ENGINE, facts
from draftproof.files import write_result
from draftproof.preflight.checks import Experiment, run_checks

MARKS = {"pass": "ok", "warn": "WARN", "fail": "FAIL", "skipped": "-"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--engine", default=DEFAULT_ENGINE, help="engine and version (default: %(default)s)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the answer here too")


def run(args: argparse.Namespace) -> int:
    """Ask every check; 1 when one of them fails."""
    facts(args.engine, "checkpoint")
    name, _, version = args.engine.partition("==")
    folder = next(path for path in (args.json or Path.cwd()).absolute().parents if path.is_dir())
    experiment = Experiment(
        engine_name=name, engine_version=version, device=args.device, folder=folder
    )
    checks = list(run_checks(experiment))
    statuses = {check["status"] for check in checks}
    status = "fail" if "fail" in statuses else "warn" if "warn" in statuses else "pass"
    for check in checks:
        fix = f" {check['fix']}" if check["fix"] else ""
        print(f"{MARKS[check['status']]:<5}{check['id']:<22}{check['message']}.{fix}")
    if args.json:
        answer = {"schema": "draftproof/preflight/1", "status": status, "device": args.device}
        write_result(args.json, {**answer, "engine": args.engine, "checks": checks})
    return 1 if status == "fail" else 0
