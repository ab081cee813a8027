"""How many draft tokens would be accepted, before any server runs?

Runs the draft, as the engine reads it, on a capture's texts: its acceptance per step, the server's walk for every number
of draft steps up to K, and whether other boundaries fit its weights better.
Exit code 0: scored. 2: could not be asked.

example:
  draftproof accuracy --draft my-draft --target my-target --samples capture --steps 5 \\
    --json accuracy.json --wiring wiring.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftproof.capture import selfcheck
from draftproof.capture.samples import read_manifest
from draftproof.checkpoint.boundaries import layer_count, target_architecture
from draftproof.checkpoint.pair import Pair, read_pair
from draftproof.engines import DEFAULT_ENGINE
from draftproof.errors import ConfigError, InputError
from draftproof.files import require_directory, write_result

KINDS = ("marginal", "conditional", "cumulative")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--draft", type=Path, required=True, metavar="DIR", help="the draft")
    parser.add_argument("--target", type=Path, required=True, metavar="DIR", help="its target")
    parser.add_argument(
        "--samples", type=Path, required=True, metavar="DIR", help="what capture wrote"
    )
    parser.add_argument(
        "--steps", type=int, default=5, metavar="K", help="draft steps (default: %(default)s)"
    )
    parser.add_argument(
        "--semantics", choices=["engine"], default="engine", help="whose reading of the draft"
    )
    parser.add_argument(
        "--engine", default=DEFAULT_ENGINE, help="engine and version (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the scores here")
    parser.add_argument("--wiring", type=Path, metavar="FILE", help="write the wiring scan here")


def run(args: argparse.Namespace) -> int:
    """Score the draft on the samples."""
    from draftproof.accuracy import scores, wiring
    from draftproof.accuracy.bootstrap import Bootstrap
    from draftproof.accuracy.evaluate import evaluate
    from draftproof.accuracy.load import boundaries_of, load_draft

    if args.steps < 1:
        raise ConfigError(f"must be 1 or more, not {args.steps}", "--steps")
    require_directory(args.samples, "samples", "Run draftproof capture first.")
    pair = read_pair(args.draft, args.target, args.engine)
    manifest = read_manifest(args.samples)
    configured = boundaries_of(pair)
    check_capture(manifest, pair, configured, args.samples)
    selfcheck.check_capture(args.samples, manifest, args.target)
    draft = load_draft(pair)
    architecture, layers = target_architecture(pair.target), layer_count(pair.target)
    tried = wiring.candidates(configured, args.engine, architecture, layers, manifest["boundaries"])
    scan_steps = min(wiring.STEPS, args.steps)
    evaluation = evaluate(draft, args.samples, manifest, tried, args.steps, scan_steps)
    bootstrap = Bootstrap(len(evaluation.samples))
    settings = [wiring.setting(args.engine, architecture, c.boundaries) for c in tried]
    scan = wiring.wiring(tried, evaluation.histograms, bootstrap, settings, scan_steps)
    answer = {
        "schema": "draftproof/accuracy/1",
        "draft": {
            "path": str(args.draft),
            "sha256": pair.digest(),
            "architecture": pair.effective.architecture.value,
        },
        "target": {"path": str(args.target), "architecture": architecture},
        "semantics": args.semantics,
        "feeding": "the draft's own tokens",
        "boundaries": list(configured),
        "samples": len(evaluation.samples),
        "positions": sum(len(sample.match) for sample in evaluation.samples),
        "coverage": scores.coverage(evaluation.samples),
        "steps": scores.step_scores(evaluation.samples, bootstrap),
        "walk": scores.walk_scores(evaluation.samples, bootstrap),
        "requests": scores.request_scores(evaluation.samples),
        "capture": str(args.samples),
    }
    for path, payload in ((args.json, answer), (args.wiring, scan)):
        if path is not None:
            write_result(path, payload)
    sys.stdout.write(table(answer) + sentence(answer, scan) + "\n")
    return 0


def check_capture(
    manifest: Mapping[str, Any], pair: Pair, configured: tuple[int, ...], directory: Path
) -> None:
    """Raise InputError unless the capture is of such a target and holds the draft's boundaries."""
    again = "Run draftproof capture again, with this target and the draft's validation."
    found = (manifest["num_layers"], manifest["hidden_size"])
    wanted = (layer_count(pair.target), pair.target_text.get("hidden_size"))
    if found != wanted:
        raise InputError(
            f"is of a target with {found[0]} layers of width {found[1]}, not {wanted[0]} of {wanted[1]}",
            str(directory),
            again,
        )
    if missing := [b for b in configured if b not in manifest["boundaries"]]:
        raise InputError(
            f"holds boundaries {manifest['boundaries']}, the draft reads {list(configured)}: {missing[0]} is missing",
            str(directory),
            again,
        )


def table(answer: Mapping[str, Any]) -> str:
    """Return the scores for a person: kind, step, value, count, 95 % interval."""
    lines = [f"{'kind':<14}{'step':>4}{'value':>9}{'count':>8}   95 % interval"]
    for kind in KINDS:
        for step in answer["steps"]:
            count = step["conditional_count" if kind == "conditional" else "count"]
            lines.append(row(kind, step["k"], step[kind], count, step["ci95"].get(kind)))
    for steps, walked in answer["walk"].items():
        value, count = walked["accept_length"], walked["verify_steps"]
        lines.append(row("accept length", steps, value, count, walked["ci95"]))
    return "\n".join(lines) + "\n"


def row(
    kind: str, step: int | str, value: float | None, count: int, interval: list[float] | None
) -> str:
    """Return one line of the table; a dash where nothing was counted."""
    shown = "-" if value is None else f"{value:.4f}"
    span = "" if interval is None else f"{interval[0]:.4f} to {interval[1]:.4f}"
    return f"{kind:<14}{step:>4}{shown:>9}{count:>8}   {span}"


def sentence(answer: Mapping[str, Any], scan: Mapping[str, Any]) -> str:
    """Return the answer in words."""
    steps = str(scan["steps"])
    walked = answer["walk"][steps]
    low, high = walked["ci95"]
    return (
        f"With {steps} draft steps a server would take {walked['accept_length']:.3f} tokens per verify step"
        f" ({low:.3f} to {high:.3f}, {answer['samples']} samples); {answer['coverage']:.1%} of the target's tokens are"
        f" in the draft's vocabulary. {scan['message']}"
    )
