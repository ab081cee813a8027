"""Write the checkpoint that is served, or refuse.

Needs the validation of this very draft. What the engine reads already is taken over as it is: weights are linked where
the disk allows, config.json is copied. Pickled weights become safetensors. Another writer's config is rebuilt, layer ids
are translated for the target, and tensors that need another name get it; values never change. Exit code 0: written. 1:
refused, with the reason. 2: could not be asked.

example:
  draftproof convert --draft my-draft --target my-target --validation validation.json --out served-draft
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftproof.checkpoint.configuration import config_file
from draftproof.checkpoint.findings import plain
from draftproof.checkpoint.pair import Pair, read_pair
from draftproof.checkpoint.rename import renamed_index, write_renamed
from draftproof.engines import DEFAULT_ENGINE, facts
from draftproof.errors import ConfigError, InputError
from draftproof.files import read_result, sha256, whole_directory, write_result, write_text

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
    pair = read_pair(args.draft, args.target, args.engine)
    check_validation(validation, args.validation, pair)
    if validation["status"] == "fail":
        first = next((f for f in validation["findings"] if f["severity"] == "error"), None)
        if first is None:
            raise InputError(
                "says fail but names no error", str(args.validation), "Validate again."
            )
        sys.stdout.write(
            f"refused: {first['id']}: {first['message']}. {first['fix']} See {args.validation}\n"
        )
        return 1
    check_destination(args.out, args.draft, args.target)
    with whole_directory(args.out) as directory:
        names = write_draft(pair, directory)
        write_result(directory / RECORD, conversion(validation, pair, directory, names))
    renamed = len(pair.translation.renames)
    sys.stdout.write(
        f"{args.out}: {len(pair.weights.tensors)} tensors taken over unchanged"
        + (f", {renamed} of them renamed" if renamed else "")
        + ("" if pair.draft == pair.source else "; config.json rebuilt")
        + ("; pickled files became safetensors" if pair.weights.pickled else "")
        + "\n"
    )
    return 0


def check_validation(validation: Mapping[str, Any], path: Path, pair: Pair) -> None:
    """Raise InputError unless the validation is of this draft, as it is now, for this engine and target."""
    again = f"Run draftproof validate --draft {pair.draft_path} first."
    if validation["engine"] != pair.engine:
        raise InputError(f"is for {validation['engine']}, not {pair.engine}", str(path), again)
    if validation["draft"].get("sha256") != pair.digest():
        raise InputError(f"is not of the draft {pair.draft_path} as it is now", str(path), again)
    if validation["effective"]["boundaries"]["value"] != pair.effective.boundaries.value:
        raise InputError(f"is not for the target {pair.target_path}", str(path), again)


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


def write_draft(pair: Pair, directory: Path) -> list[str]:
    """Put the draft's files into the directory; returns their names, sorted.

    Weights are hard links where possible: a draft of a big target has gigabytes. The config is a copy, so that an edit
    of the served one leaves the original alone. Files with tensors to rename are written anew.
    """
    folder, renames, index = (
        config_file(pair.draft_path).parent,
        pair.translation.renames,
        pair.weights.index,
    )
    for name in SIDE_FILES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, directory / name)
    if pair.draft != pair.source:
        config = json.dumps(pair.draft, indent=2)
        write_text(directory / "config.json", config + "\n")
    if index and renames:
        write_text(directory / index.name, renamed_index(index, renames))
    elif index:
        shutil.copyfile(index, directory / index.name)
    changed = {tensor.path for name, tensor in pair.weights.tensors.items() if name in renames}
    for file in pair.weights.files:
        if file in changed:
            write_renamed(file, directory / file.name, renames)
        else:
            link(file, directory / file.name)
    return sorted(path.name for path in directory.iterdir())


def link(file: Path, place: Path) -> None:
    """Make a file appear in another place, without a copy where the disk allows."""
    try:
        os.link(file.resolve(), place)
    except OSError:
        shutil.copyfile(file, place)


def conversion(
    validation: Mapping[str, Any], pair: Pair, directory: Path, names: list[str]
) -> dict[str, Any]:
    """Return the content of conversion.json; nothing in it depends on when or where it was written."""
    made = pair.translation
    return {
        "schema": "draftproof/conversion/1",
        "engine": validation["engine"],
        "dialect": validation["dialect"],
        "source": validation["draft"],
        "values": {
            key: {"value": plain(value), "origin": made.origins[key]}
            for key, value in made.config.items()
        },
        "left_out": made.left_out,
        "tensors": {"copied": len(pair.weights.tensors), "renamed": made.renames, "dropped": []},
        "files": {name: sha256(directory / name) for name in names},
    }
