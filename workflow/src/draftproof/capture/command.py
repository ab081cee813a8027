"""What does the target itself say and feel on these prompts?

Lets the target answer every prompt greedily (the second turn of a prompt follows the target's own first answer) and
stores its tokens with its hidden states at the boundaries that the draft reads, and at those its wiring may be confused
with. A stopped capture goes on where it was: finished samples of the same settings are kept.
With --source sglang a running server answers instead of transformers, so that a quantised target is captured as it is
served; `draftproof serve --arm capture` starts one, and --launch names its launch.json.
Exit code 0: captured. 2: could not be asked, or the target does not repeat its own tokens.

example:
  draftproof capture --target my-target --validation validation.json --prompts builtin --split report --limit 24 \\
    --max-new-tokens 64 --out capture
  draftproof serve --server capture --arm capture --target my-target --validation validation.json --device cuda \\
    --out server -- draftproof capture --source sglang --launch server/launch.json --target my-target \\
    --validation validation.json --out capture
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftproof.capture.boundaries import stored_boundaries
from draftproof.capture.run import Capture, capture
from draftproof.capture.samples import MANIFEST
from draftproof.capture.target import DTYPES, Target, load_target
from draftproof.checkpoint.boundaries import layer_count, target_architecture
from draftproof.checkpoint.configuration import read_config
from draftproof.errors import ConfigError
from draftproof.files import read_result, require_directory, write_result
from draftproof.prompts.load import load
from draftproof.prompts.prompt import SPLITS

SOURCES = ("huggingface", "sglang")


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
    parser.add_argument("--source", choices=SOURCES, default=SOURCES[0], help="who runs the target")
    parser.add_argument(
        "--launch", type=Path, metavar="FILE", help="launch.json of the server, with sglang"
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, help="default: float32; with sglang, the server's own"
    )
    parser.add_argument(
        "--device",
        choices=["auto", "cpu", "cuda"],
        help="with huggingface; default: auto, which is cuda where there is one, and all GPUs where there are several",
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
    target, boundaries = asked(args, validation)
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


def asked(args: argparse.Namespace, validation: Mapping[str, Any]) -> tuple[Target, list[int]]:
    """Return who answers, and the boundaries to store; settles args.dtype."""
    served = args.source == "sglang"
    for name, wrong in {"device": served, "launch": not served}.items():
        if wrong and getattr(args, name) is not None:
            raise ConfigError(f"has no meaning with --source {args.source}", option(name))
    where = str(args.validation)
    if not served:
        args.dtype = args.dtype or "float32"
        loaded = load_target(args.target, args.dtype, args.device or "auto")
        return loaded, stored_boundaries(validation, loaded.architecture, loaded.num_layers, where)
    if args.launch is None:
        raise ConfigError("needs --launch FILE", "--source sglang")
    from draftproof.capture.served import served_target

    config = read_config(require_directory(args.target, "target"), "target")
    wanted = stored_boundaries(validation, target_architecture(config), layer_count(config), where)
    target = served_target(args.target, read_result(args.launch, "launch"), args.dtype, wanted)
    args.dtype = target.dtype
    held = {*target.served, *([] if target.embedding is None else [0])}
    if missing := set(validation["effective"]["boundaries"]["value"]) - held:
        raise ConfigError(
            f"hands out boundaries {list(target.served)}, the draft reads {min(missing)} too",
            f"server {args.launch}",
            "Start it with the same --validation.",
        )
    return target, [b for b in wanted if b in held]


def option(name: str) -> str:
    """Return an argument's name as a person types it."""
    return "--" + name.replace("_", "-")
