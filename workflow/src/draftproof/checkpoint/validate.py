"""Will the engine read this draft as it was trained?

Says what the pinned engine will really do with the checkpoint, and what would fail or silently lower acceptance, worst
first, with a fix for each.

exit codes:
  0  yes, also when there are warnings
  1  no: there are errors
  2  the question could not be asked: bad usage, or a file that cannot be read

example:
  draftproof validate --draft my-draft --target my-target --json validation.json
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftproof.checkpoint import rules
from draftproof.checkpoint.configuration import Config, architecture
from draftproof.checkpoint.findings import findings, printable
from draftproof.checkpoint.pair import Pair, read_pair
from draftproof.checkpoint.weights import Weights
from draftproof.engines import DEFAULT_ENGINE
from draftproof.files import write_result

MARKS = {"error": "ERROR", "warning": "WARN", "info": "info"}
WIDTH = 100
LONGEST_LIST = 12
SHOWN = (
    "algorithm",
    "boundaries",
    "head_dim",
    "rope",
    "draft_vocab_size",
    "vocabulary_map",
    "head_source",
)
__all__ = ["configure", "rules", "run", "validation"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--draft", type=Path, required=True, metavar="DIR", help="the draft")
    parser.add_argument("--target", type=Path, required=True, metavar="DIR", help="its target")
    parser.add_argument(
        "--engine", default=DEFAULT_ENGINE, help="engine and version (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the answer here too")


def run(args: argparse.Namespace) -> int:
    """Validate; 1 when there is an error."""
    pair = read_pair(args.draft, args.target, args.engine)
    answer = validation(pair)
    if args.json:
        write_result(args.json, answer)
    sys.stdout.write(table(answer))
    return 1 if answer["status"] == "fail" else 0


def validation(pair: Pair) -> dict[str, Any]:
    """Return the content of validation.json."""
    found = findings(pair)
    severities = {finding["severity"] for finding in found}
    return {
        "schema": "draftproof/validation/1",
        "status": "fail"
        if "error" in severities
        else "warn"
        if "warning" in severities
        else "pass",
        "engine": pair.engine,
        "draft": {"path": str(pair.draft_path), "sha256": pair.digest()}
        | _architecture(pair.draft),
        "target": {"path": str(pair.target_path)} | _architecture(pair.target) | _target(pair),
        "dialect": pair.dialect.name,
        "effective": pair.effective.as_json(),
        "findings": found,
    }


def table(answer: Mapping[str, Any]) -> str:
    """Return the answer for a person: what the engine will use, then the findings, worst first."""
    lines = [f"{answer['engine']} reads {answer['draft']['path']} ({answer['dialect']}) as"]
    for name in SHOWN:
        value = answer["effective"][name]
        lines.append(f"  {name:<18}{_short(value['value']):<48} {value['origin']}")
    lines.append(f"  {'target':<18}{_described(answer['target'])}")
    for finding in answer["findings"]:
        lines.append("")
        lines.append(f"{MARKS[finding['severity']]:<6}{finding['id']}")
        for text in (finding["message"] + ".", finding["fix"]):
            lines += textwrap.wrap(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    counts = [sum(f["severity"] == severity for f in answer["findings"]) for severity in MARKS]
    lines += ["", f"{answer['status']}: {counts[0]} errors, {counts[1]} warnings"]
    return "\n".join(lines) + "\n"


def _target(pair: Pair) -> dict[str, Any]:
    """Return how the target is quantised, and what of its weights was looked at."""
    found: dict[str, Any] = {}
    if pair.target_quantisation is not None:
        found["quantisation"] = printable(str(pair.target_quantisation))
    weights = pair.target_weights
    if isinstance(weights, Weights):
        found["weights"] = {
            "files": len(weights.files),
            "tensors": len(weights.tensors),
            "bytes": sum(tensor.end - tensor.begin for tensor in weights.tensors.values()),
            "checked": pair.target_comparison.checked,
        }
    return found


def _described(target: Mapping[str, Any]) -> str:
    weights = target.get("weights")
    checked = (
        f"{weights['tensors']} tensors in {weights['files']} files, {weights['bytes'] / 1e9:.3g} GB"
        if weights
        else "weights not checked"
    )
    return ", ".join([*([target["quantisation"]] if "quantisation" in target else []), checked])


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        shown = (f"{key} {_short(inner)}" for key, inner in value.items() if inner)
        return printable(", ".join(shown))
    if isinstance(value, list) and len(value) > LONGEST_LIST:
        first = ", ".join(map(str, value[:LONGEST_LIST]))
        return printable(f"[{first}, ...] ({len(value)} in all)")
    return f"{value:g}" if isinstance(value, float) else printable(str(value))


def _architecture(config: Config) -> dict[str, str]:
    name = architecture(config)
    return {} if name is None else {"architecture": name}
