"""What does the target itself say and feel on these prompts?

Lets the target answer every prompt greedily (the second turn of a prompt follows the target's own first answer) and
stores its tokens with its hidden states at the boundaries that the draft reads, and at those its wiring may be confused
with. A stopped capture goes on where it was: finished samples of the same settings are kept.
Exit code 0: captured. 2: could not be asked, or the target does not repeat its own tokens.

example:
  draftproof capture --target my-target --validation validation.json --prompts builtin --split report --limit 24 \\
    --max-new-tokens 64 --out capture
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from draftproof.capture.boundaries import stored_boundaries
from draftproof.capture.run import Capture, capture
from draftproof.capture.samples import MANIFEST
from draftproof.capture.target import DTYPES, load_target
from draftproof.errors import ConfigError
from draftproof.files import read_result, write_result
from draftproof.prompts.load import load
from draftproof.prompts.prompt import SPLITS


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--target", type=Path, required=True, metavar="DIR", help="the target")
    parser.add_argument(
        "--validation", type=Path, required=True, metavar="FILE", help="what validate wrote"
    )
    parser.add_argument(
        "--prompts", default="builtin", metavar="FILE", help="builtin, or a local file"
    )
    parser.add_argument("--shape", default="auto", help="the file's shape (default: recognised)")
    parser.add_argument("--split", choices=SPLITS, help="keep one split")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N prompts")
    parser.add_argument(
        "--max-new-tokens", type=int, default=64, metavar="N", help="default: %(default)s"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="default: %(default)s")
    parser.add_argument(
        "--source", choices=["huggingface"], default="huggingface", help="who runs the target"
    )
    parser.add_argument(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="default: cuda where there is one",
    )
    parser.add_argument("--batch", type=int, default=8, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="manifest.json and the samples"
    )


def run(args: argparse.Namespace) -> int:
    """Capture every prompt and write the manifest."""
    for name in ("max_new_tokens", "batch"):
        if getattr(args, name) < 1:
            raise ConfigError(f"must be 1 or more, not {getattr(args, name)}", option(name))
    validation = read_result(args.validation, "validation")
    prompts = load(args.prompts, shape=args.shape, split=args.split, limit=args.limit)
    (args.out / MANIFEST).unlink(missing_ok=True)
    target = load_target(args.target, args.dtype, args.device)
    boundaries = stored_boundaries(
        validation, target.architecture, target.num_layers, str(args.validation)
    )
    settings = Capture(
        target=target,
        boundaries=tuple(boundaries),
        max_new_tokens=args.max_new_tokens,
        dtype=args.dtype,
        batch=args.batch,
    )
    entries, checked = capture(settings, prompts, args.out)
    manifest = settings.manifest(entries, checked, prompts, args.prompts, args.split)
    write_result(args.out / MANIFEST, manifest)
    tokens = sum(entry["output_tokens"] for entry in entries)
    sys.stdout.write(
        f"{len(entries)} samples, {tokens} output tokens, boundaries {', '.join(map(str, boundaries))} in {args.out}\n"
        f"The target repeats {checked.tokens - checked.mismatches} of {checked.tokens} tokens"
        " when it reads them whole.\n"
    )
    return 0


def option(name: str) -> str:
    """Return an argument's name as a person types it."""
    return "--" + name.replace("_", "-")
