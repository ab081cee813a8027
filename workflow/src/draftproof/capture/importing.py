"""Make a capture of hidden states that a training tool has dumped, or say why they cannot be one.

Every stretch of a dump's text that the target said itself becomes a sample, with all that was before it as its prompt. The
text must be this target's own greedy answers: its last state must choose at least 99 % of the tokens. Pickled files are
opened as tensors alone, and nothing of them is run. workflow/capture-format.md describes the result.
Exit code 0: imported. 2: the dump cannot be used; the line says why.

example:
  draftproof import --format specforge --dump my-dump --target my-target --validation validation.json --out capture
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof.capture.dumps import (
    FORMATS,
    Dump,
    dump_files,
    own_runs,
    read_dump,
)
from draftproof.capture.loss_masks import LossMasks, loss_masks
from draftproof.capture.samples import FORMAT, LAST, MANIFEST, file_name, remove_stale, write_sample
from draftproof.capture.selfcheck import SIDES, SelfCheck
from draftproof.capture.stops import configured_stop_ids
from draftproof.checkpoint.boundaries import (
    layer_count,
    target_architecture,
    text_config,
    trainers_boundaries,
)
from draftproof.checkpoint.configuration import read_config
from draftproof.checkpoint.target_tensors import target_ending
from draftproof.errors import ConfigError, InputError
from draftproof.files import digest, read_result, require_directory, sha256, write_result
from draftproof.progress import progress


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--format", choices=FORMATS, required=True, help="who made the dump")
    parser.add_argument("--dump", type=Path, required=True, metavar="DIR", help="the dump's files")
    parser.add_argument("--target", type=Path, required=True, metavar="DIR", help="the target")
    parser.add_argument(
        "--validation", type=Path, required=True, metavar="FILE", help="what validate wrote"
    )
    parser.add_argument(
        "--boundaries",
        type=int,
        nargs="+",
        metavar="B",
        help="what the dump captured, slot by slot; default: 2, N/2, N-3, as the tools do",
    )
    parser.add_argument(
        "--last-state",
        choices=SIDES,
        help="side of the final norm its last state is from; default: what the file, or else its format, says",
    )
    parser.add_argument(
        "--dataset",
        type=Path,
        metavar="DIR",
        help="speculators: the prepared dataset; default: the folder around the dump",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="at most N files of the dump")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="manifest.json and the samples"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What holds for every file of a dump. `boundaries` slot by slot; `boundaries_from` says who named them."""

    format: str
    dump: Path
    target: Path
    out: Path
    config: Mapping[str, Any]
    stop_token_ids: frozenset[int]
    boundaries: tuple[int, ...]
    boundaries_from: str
    dtype: str
    last_state: str

    @property
    def order(self) -> list[int]:
        """The slots by ascending boundary."""
        return sorted(range(len(self.boundaries)), key=self.boundaries.__getitem__)


def run(args: argparse.Namespace) -> int:
    """Import a dump and write the manifest."""
    if args.limit is not None and args.limit < 1:
        raise ConfigError(f"must be 1 or more, not {args.limit}", "--limit")
    require_directory(args.dump, "dump")
    validation = read_result(args.validation, "validation")
    config = read_config(require_directory(args.target, "target"), "target")
    width = int(text_config(config)["hidden_size"])
    files = dump_files(args.dump, args.format)[: args.limit]
    masks = loss_masks(args.dump, args.dataset) if args.format == "speculators" else None
    plan = plan_of(args, config, validation, read_dump(files[0], args.format, width, masks))
    check = SelfCheck(target_ending(args.target), plan.last_state)
    (args.out / MANIFEST).unlink(missing_ok=True)
    entries: dict[str, dict[str, Any]] = {}
    for dump in read_all(plan, files, width, masks):
        for entry in take(plan, check, dump):
            if entry["id"] in entries:
                raise InputError(f"two samples would be named {entry['id']}", str(dump.path))
            entries[entry["id"]] = entry
    if not entries:
        raise InputError(
            f"no text of its {len(files)} files holds two tokens that the target said itself",
            str(args.dump),
            "Dump answers of the target, with their loss mask.",
        )
    check.finish(str(args.dump))
    remove_stale(args.out, {entry["file"] for entry in entries.values()})
    write_result(args.out / MANIFEST, manifest(plan, check, files, list(entries.values())))
    sys.stdout.write(summary(plan, check, len(entries), len(files)))
    return 0


def plan_of(
    args: argparse.Namespace, config: Mapping[str, Any], validation: Mapping[str, Any], first: Dump
) -> Plan:
    """Return the plan that the options and a dump's first file make; raises when they do not fit together."""
    layers, slots = layer_count(config), first.aux.shape[1]
    boundaries = tuple(args.boundaries or trainers_boundaries(layers))
    if len(boundaries) != slots:
        raise InputError(
            f"holds {slots} states per token besides the last, not one for each of the boundaries {list(boundaries)}",
            str(first.path),
            f"Give its {slots} boundaries with --boundaries.",
        )
    if len(set(boundaries)) < slots or not all(0 <= b < layers for b in boundaries):
        raise ConfigError(
            f"{list(boundaries)} are not {slots} different boundaries from 0 to {layers - 1}",
            "--boundaries",
            "Give what the dump captured, slot by slot.",
        )
    reads = validation["effective"]["boundaries"]["value"] or []
    if missing := [b for b in reads if b not in boundaries]:
        raise InputError(
            f"the draft reads boundaries {reads}, the dump holds {list(boundaries)}: {missing[0]} is missing",
            str(args.dump),
            "Say with --boundaries what the dump captured, or capture with draftproof capture.",
        )
    return Plan(
        format=args.format,
        dump=args.dump,
        target=args.target,
        out=args.out,
        config=config,
        stop_token_ids=configured_stop_ids(args.target),
        boundaries=boundaries,
        boundaries_from="--boundaries" if args.boundaries else f"the convention of {args.format}",
        dtype=dtype_of(first),
        last_state=args.last_state or first.last_state or FORMATS[args.format].last_state,
    )


def read_all(
    plan: Plan, files: Sequence[Path], width: int, masks: LossMasks | None
) -> Iterator[Dump]:
    """Yield every file of a dump, one in memory at a time; raises InputError when one is unlike the first."""
    expected = (len(plan.boundaries), plan.dtype)
    for path in progress(files, f"importing from {plan.format}"):
        dump = read_dump(path, plan.format, width, masks)
        found = (dump.aux.shape[1], dtype_of(dump))
        if found != expected:
            raise InputError(
                f"holds {found[0]} states per token in {found[1]}, the first file {expected[0]} in {expected[1]}",
                str(path),
                "Import dumps of different kinds one by one.",
            )
        yield dump


def dtype_of(dump: Dump) -> str:
    """Return the name of the dtype of a dump's states."""
    return str(dump.aux.dtype).removeprefix("torch.")


def take(plan: Plan, check: SelfCheck, dump: Dump) -> Iterator[dict[str, Any]]:
    """Check one dumped text, write its samples and yield their entries in the manifest."""
    runs = list(output_runs(dump, plan.stop_token_ids))
    base = dump.path.relative_to(plan.dump).with_name(dump.name).as_posix()
    for number, (first, end) in enumerate(runs, start=1):
        token_ids, last = dump.token_ids[:end].long(), dump.last[:end]
        check.look(last, token_ids, first, str(dump.path))
        finish = "stop" if int(token_ids[-1]) in plan.stop_token_ids else "length"
        name = base if len(runs) == 1 else f"{base}.{number}"
        path = plan.out / file_name(name)
        tensors = {
            "token_ids": token_ids,
            "hidden_states": dump.aux[:end][:, plan.order],
            LAST: last.to(dump.aux.dtype),
            "continuation_ids": token_ids[:0],
        }
        metadata = {
            "format": FORMAT,
            "id": name,
            "settings": digest([plan.format, plan.boundaries, plan.last_state]),
            "prompt_tokens": str(first),
            "output_tokens": str(end - first),
            "finish": finish,
        }
        write_sample(path, tensors, metadata)
        yield {
            "id": name,
            "category": plan.format,
            "split": "report",
            "prompt_tokens": first,
            "output_tokens": end - first,
            "finish": finish,
            "file": path.name,
            "sha256": sha256(path),
        }


def output_runs(dump: Dump, stop_token_ids: frozenset[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of each answer of two or more tokens; it ends at its first stop token."""
    ids = dump.token_ids.tolist()
    for first, end in own_runs(dump.own):
        if first == 0:
            raise InputError(
                "its loss mask begins with the first token: no prompt",
                str(dump.path),
                "Dump the states again, with a loss mask on the answers alone.",
            )
        stop = next((i + 1 for i in range(first, end) if ids[i] in stop_token_ids), end)
        if stop - first > 1:
            yield first, stop


def manifest(
    plan: Plan, check: SelfCheck, files: Sequence[Path], entries: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the content of manifest.json."""
    return {
        "schema": "draftproof/capture/1",
        "target": {"path": str(plan.target), "architecture": target_architecture(plan.config)},
        "source": plan.format,
        "versions": {},
        "prompts": {
            "source": str(plan.dump),
            "split": "all",
            "count": len(files),
            "digest": digest([entry["sha256"] for entry in entries]),
        },
        "max_new_tokens": max(entry["output_tokens"] for entry in entries),
        "stop_token_ids": sorted(plan.stop_token_ids),
        "lookahead_tokens": 0,
        "dtype": plan.dtype,
        "num_layers": layer_count(plan.config),
        "hidden_size": int(text_config(plan.config)["hidden_size"]),
        "boundaries": sorted(plan.boundaries),
        "boundaries_from": plan.boundaries_from,
        "last_state": plan.last_state,
        "self_check": {"tokens": check.tokens, "mismatches": check.mismatches},
        "samples": list(entries),
    }


def summary(plan: Plan, check: SelfCheck, samples: int, files: int) -> str:
    """Return the import in words."""
    stored = ", ".join(map(str, sorted(plan.boundaries)))
    return (
        f"{samples} samples of {files} files, {check.tokens} output tokens, in {plan.out}\n"
        f"Boundaries {stored}, by {plan.boundaries_from}; last state {SIDES[plan.last_state]} the final norm, and recognised"
        f" as such: it chooses {check.tokens - check.mismatches} of {check.tokens} tokens.\n"
    )
