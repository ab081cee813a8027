"""Write the checkpoint that is served, or refuse.

Needs the validation of this very draft. What the engine reads already is taken over as it is: weights are linked where
the disk allows, config.json is copied. Exit code 0: written. 1: refused, with the reason. 2: could not be asked.

example:
  draftproof convert --draft my-draft --target my-target --validation validation.json --out served-draft
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftproof.checkpoint.configuration import config_file, read_config
from draftproof.checkpoint.findings import plain
from draftproof.checkpoint.weights import Weights, checkpoint_digest, open_weights
from draftproof.engines import DEFAULT_ENGINE, facts
from draftproof.errors import ConfigError, InputError
from draftproof.files import read_result, sha256, whole_directory, write_result

RECORD = "conversion.json"
# Files besides weights that the engine reads from a draft's folder.
SIDE_FILES = ("config.json", "hf_quant_config.json")
OURS = (".json", ".safetensors")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--draft", type=Path, required=True, metavar="DIR", help="the draft")
    parser.add_argument("--target", type=Path, required=True, metavar="DIR", help="its target")
    parser.add_argument(
        "--validation", type=Path, required=True, metavar="FILE", help="what validate wrote"
    )
    parser.add_argument(
        "--engine", default=DEFAULT_ENGINE, help="engine and version (default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="appears whole or not at all"
    )


def run(args: argparse.Namespace) -> int:
    """Convert; 1 when the draft cannot be served as it was trained."""
    facts(args.engine, "checkpoint")
    validation = read_result(args.validation, "validation")
    config = read_config(args.draft, "draft")
    weights = open_weights(args.draft)
    check_validation(validation, args.validation, args.draft, args.engine, weights)
    if validation["status"] == "fail":
        first = next(f for f in validation["findings"] if f["severity"] == "error")
        sys.stdout.write(
            f"refused: {first['id']}: {first['message']}. {first['fix']} See {args.validation}\n"
        )
        return 1
    check_destination(args.out, args.draft, args.target)
    with whole_directory(args.out) as directory:
        names = take_over(args.draft, weights, directory)
        record = conversion(validation, config, weights, directory, names)
        write_result(directory / RECORD, record)
    sys.stdout.write(f"{args.out}: {len(weights.tensors)} tensors taken over unchanged\n")
    return 0


def check_validation(
    validation: Mapping[str, Any], path: Path, draft: Path, engine: str, weights: Weights
) -> None:
    """Raise InputError unless the validation is of this draft, as it is now, for this engine."""
    again = f"Run draftproof validate --draft {draft} first."
    if validation["engine"] != engine:
        raise InputError(f"is for {validation['engine']}, not {engine}", str(path), again)
    if validation["draft"].get("sha256") != checkpoint_digest(config_file(draft), weights):
        raise InputError(f"is not of the draft {draft} as it is now", str(path), again)


def check_destination(out: Path, draft: Path, target: Path) -> None:
    """Raise ConfigError when writing to `out` would take away something that convert did not write."""
    place = out.resolve()
    for kept, what in ((draft, "draft"), (target, "target")):
        if place == kept.resolve() or place in kept.resolve().parents:
            raise ConfigError(f"--out would replace the {what} {kept}", str(out), "Name another.")
    if out.exists() and not out.is_dir():
        raise ConfigError("--out is a file", str(out), "Name a folder.")
    foreign = [p.name for p in out.iterdir() if p.suffix not in OURS] if out.is_dir() else []
    if foreign:
        raise ConfigError(
            f"--out holds {foreign[0]}, which convert did not write", str(out), "Name another."
        )


def take_over(draft: Path, weights: Weights, directory: Path) -> list[str]:
    """Put the draft's files into the directory; returns their names, sorted.

    Weights are hard links where possible: a draft of a big target has gigabytes. The config is a copy, so that an edit
    of the served one leaves the original alone.
    """
    folder = config_file(draft).parent
    copied = [folder / name for name in SIDE_FILES if (folder / name).is_file()]
    for file in [*copied, *([weights.index] if weights.index else [])]:
        shutil.copyfile(file, directory / file.name)
    for file in weights.files:
        try:
            os.link(file.resolve(), directory / file.name)
        except OSError:
            shutil.copyfile(file, directory / file.name)
    return sorted(path.name for path in directory.iterdir())


def conversion(
    validation: Mapping[str, Any],
    config: Mapping[str, Any],
    weights: Weights,
    directory: Path,
    names: list[str],
) -> dict[str, Any]:
    """Return the content of conversion.json; nothing in it depends on when or where it was written."""
    return {
        "schema": "draftproof/conversion/1",
        "engine": validation["engine"],
        "dialect": validation["dialect"],
        "source": validation["draft"],
        "values": {
            key: {"value": plain(value), "origin": "draft's config.json"}
            for key, value in config.items()
        },
        "tensors": {"copied": len(weights.tensors), "renamed": {}, "dropped": []},
        "files": {name: sha256(directory / name) for name in names},
    }
