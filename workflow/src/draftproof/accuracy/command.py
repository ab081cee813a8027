"""How many draft tokens would be accepted, before any server runs?

Runs the draft, as the engine reads it, on a capture's texts: its acceptance per step, the server's walk for every number
of draft steps up to K and for the trees asked for, and whether the weights fit another wiring better: other boundaries,
norms, rotary frequencies. No tree is scored unasked: each costs about half as much again as all the rest.
Exit code 0: scored. 2: could not be asked; for a draft that cannot be computed as configured, --wiring still says which
near reading of it can, and fits.

example:
  draftproof accuracy --draft my-draft --target my-target --samples capture --steps 5 --tree 5,4,8 \\
    --json accuracy.json --wiring wiring.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof.capture import selfcheck
from draftproof.capture.samples import read_manifest
from draftproof.checkpoint.boundaries import layer_count, target_architecture
from draftproof.checkpoint.pair import Pair, read_pair
from draftproof.engines import DEFAULT_ENGINE
from draftproof.errors import ConfigError, InputError
from draftproof.files import require_directory, write_result

if TYPE_CHECKING:
    from draftproof.accuracy.draft import Draft
    from draftproof.accuracy.wiring_scan import Samples

KINDS = {
    "marginal": "count",
    "conditional": "conditional_count",
    "cumulative": "cumulative_count",
    "teacher_forced": "count",
}


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
        "--tree",
        action="append",
        default=[],
        metavar="STEPS,TOPK,TOKENS",
        help="score a tree too: the server's steps, topk above 1, draft tokens; may be repeated",
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
    from draftproof.accuracy import groups, scores, tree, wiring
    from draftproof.accuracy.bootstrap import Bootstrap
    from draftproof.accuracy.evaluate import evaluate
    from draftproof.accuracy.load import boundaries_of, load_draft
    from draftproof.accuracy.walk import walk
    from draftproof.accuracy.wiring_readings import configured_reading
    from draftproof.accuracy.wiring_scan import scan

    if args.steps < 1:
        raise ConfigError(f"must be 1 or more, not {args.steps}", "--steps")
    trees = sorted({tree.parse(text) for text in args.tree})
    require_directory(args.samples, "samples", "Run draftproof capture first.")
    pair = read_pair(args.draft, args.target, args.engine)
    manifest = read_manifest(args.samples)
    configured = boundaries_of(pair)
    check_capture(manifest, pair, configured, args.samples)
    selfcheck.check_capture(args.samples, manifest, args.target)
    scan_steps = min(wiring.STEPS, args.steps)
    try:
        draft = load_draft(pair)
    except InputError as fault:
        raise explained(fault, pair, manifest, args, scan_steps) from None
    tree.check_width(trees, len(draft.head))
    scored = evaluate(draft, args.samples, manifest, configured, args.steps, trees)
    bootstrap = Bootstrap(len(scored))
    own = [walk(sample.match, steps=[scan_steps])[0] for sample in scored]
    samples = samples_of(draft, pair, manifest, args.samples, scan_steps)
    found, judge = scan(configured_reading(pair, draft), own, None, samples)
    scanned = wiring.wiring(found, judge, scan_steps)
    answer = {
        "schema": "draftproof/accuracy/1",
        "draft": {
            "path": str(args.draft),
            "sha256": pair.digest(),
            "architecture": pair.effective.architecture.value,
        },
        "target": {"path": str(args.target), "architecture": target_architecture(pair.target)},
        "semantics": args.semantics,
        "feeding": "the draft's own tokens",
        "boundaries": list(configured),
        "samples": len(scored),
        "positions": sum(len(sample.match) for sample in scored),
        "coverage": scores.coverage(scored),
        "steps": scores.step_scores(scored, bootstrap),
        "walk": scores.walk_scores(scored, bootstrap),
        "trees": scores.tree_scores(scored, bootstrap),
        "categories": groups.categories(scored, bootstrap),
        "position_buckets": groups.positions(scored, bootstrap),
        "requests": scores.request_scores(scored),
        "capture": str(args.samples),
    }
    for path, payload in ((args.json, answer), (args.wiring, scanned)):
        if path is not None:
            write_result(path, payload)
    sys.stdout.write(table(answer) + sentence(answer, scanned) + "\n")
    return 0


def explained(
    fault: InputError,
    pair: Pair,
    manifest: Mapping[str, Any],
    args: argparse.Namespace,
    steps: int,
) -> InputError:
    """Return why the configured draft cannot be computed and, where a near reading can be, which one it fits.

    The scan of those is written to --wiring.
    """
    from draftproof.accuracy.wiring import wiring
    from draftproof.accuracy.wiring_repair import repaired
    from draftproof.accuracy.wiring_scan import scan, walk_all

    answers = []
    for reading in repaired(pair):
        samples = samples_of(reading.draft, pair, manifest, args.samples, steps)
        (walked,) = walk_all([reading], samples)
        found, judge = scan(reading, walked.histograms, str(fault.what), samples)
        answers.append(wiring(found, judge, steps))
    if not answers:
        return fault
    best = max(answers, key=lambda answer: float(answer["best"]["accept_length"]))
    if args.wiring is not None:
        write_result(args.wiring, best)
    return InputError(best["message"], fault.where, "Run draftproof validate for more.")


def samples_of(
    draft: Draft, pair: Pair, manifest: Mapping[str, Any], directory: Path, steps: int
) -> Samples:
    """Return the samples of a scan of this draft."""
    from draftproof.accuracy.evaluate import eligible
    from draftproof.accuracy.wiring_scan import Samples

    return Samples(
        read=lambda most: eligible(draft, directory, manifest, "wirings", most),
        stored=manifest["boundaries"],
        steps=steps,
        original=pair.draft,
    )


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
    lines = [f"{'kind':<15}{'step':>7}{'value':>9}{'count':>8}   95 % interval"]
    for kind, counter in KINDS.items():
        for step in answer["steps"]:
            name, count = kind.replace("_", "-"), step[counter]
            lines.append(row(name, step["k"], step[kind], count, step["ci95"].get(kind)))
    for shape, walked in {**answer["walk"], **answer["trees"]}.items():
        value, count = walked["accept_length"], walked["verify_steps"]
        lines.append(row("accept length", shape, value, count, walked["ci95"]))
    return "\n".join(lines) + "\n"


def row(
    kind: str, step: int | str, value: float | None, count: int, interval: list[float] | None
) -> str:
    """Return one line of the table; a dash where nothing was counted."""
    shown = "-" if value is None else f"{value:.4f}"
    span = "" if interval is None else f"{interval[0]:.4f} to {interval[1]:.4f}"
    return f"{kind:<15}{step:>7}{shown:>9}{count:>8}   {span}"


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
