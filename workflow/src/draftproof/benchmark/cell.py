"""One cell: its figures from the records, the checks that make it valid, and its place in the store."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from draftproof.benchmark.acceptance import accept_length_interval, pool
from draftproof.benchmark.records import Record, read_records, write_records
from draftproof.benchmark.workload import Workload
from draftproof.errors import InputError
from draftproof.files import read_result, whole_directory, write_result

REASONS_PER_CHECK = 3
log = logging.getLogger(__name__)


def figures(
    records: Sequence[Record],
    workload: Workload,
    launch: Mapping[str, Any],
    concurrency: int,
    key: str,
    flushed: str,
) -> dict[str, Any]:
    """Return the content of cell.json. `flushed` is "", or why the cache could not be emptied before the cell.

    Failed requests count in the wall time and make the cell invalid; latencies are over the others.
    """
    done = [record for record in records if not record.error]
    wall_s = max(record.end_s for record in records) - min(record.start_s for record in records)
    output_tokens = sum(len(record.output_ids) for record in done)
    decode_s = sum(record.decode_s for record in done)
    reasons = list(faults(records, workload, launch, flushed))
    return {
        "schema": "draftproof/cell/1",
        "key": key,
        "server": launch["server"],
        "arm": launch["arm"],
        "concurrency": concurrency,
        "launch_digest": launch["digest"],
        "workload": {
            "digest": workload.digest,
            "requests": len(workload.samples),
            "max_new_tokens": workload.max_new_tokens,
        },
        "status": "invalid" if reasons else "valid",
        "reasons": reasons,
        "requests": {"done": len(done), "failed": len(records) - len(done)},
        "wall_s": wall_s,
        "output_tokens": output_tokens,
        "output_tokens_per_s": output_tokens / wall_s,
        "decode_tokens_per_s": sum(record.decode_tokens for record in done) / decode_s
        if decode_s
        else 0.0,
        "ttft_s": spread([record.ttft_s for record in done]),
        "inter_token_s": spread([gap for record in done for gap in record.token_gaps_s()]),
        "cached_tokens": sum(record.cached_tokens for record in done),
        "same_text_as_capture": sum(
            record.output_ids == sample.expected_ids
            for record, sample in zip(records, workload.samples, strict=True)
        ),
        "spec": None if launch["arm"] == "baseline" else acceptance(done, launch),
    }


def spec_settings(launch: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return (steps, topk, draft tokens) as the server itself reported them."""
    found = {name: pair["found"] for name, pair in launch["settings"].items()}
    names = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    try:
        steps, topk, draft_tokens = (int(found[name]) for name in names)
    except (KeyError, TypeError, ValueError):
        raise InputError(
            "launch.json does not hold the speculative settings of the server",
            f"server {launch['server']}",
            "Start it with this version of draftproof.",
        ) from None
    return steps, topk, draft_tokens


def acceptance(done: Sequence[Record], launch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pooled counters and the accept length with its interval."""
    steps, topk, draft_tokens = spec_settings(launch)
    counters = [record.counters for record in done]
    pooled = pool(counters)
    return {
        "steps": steps,
        "topk": topk,
        "draft_tokens": draft_tokens,
        "verify_steps": pooled.verify_steps,
        "correct_drafts": pooled.correct_drafts,
        "proposed_drafts": pooled.proposed_drafts,
        "histogram": pooled.histogram + [0] * (steps + 1 - len(pooled.histogram)),
        "accept_length": pooled.accept_length,
        "ci95": list(accept_length_interval(counters)),
    }


def faults(
    records: Sequence[Record], workload: Workload, launch: Mapping[str, Any], flushed: str
) -> Iterator[str]:
    """Yield every reason why the figures of a cell must not be believed."""
    if flushed:
        yield f"the prefix cache could not be emptied: {flushed}"
    done = [record for record in records if not record.error]
    failed = [record for record in records if record.error]
    if failed:
        yield f"{len(failed)} of {len(records)} requests failed; {failed[0].id}: {failed[0].error}"
    if cached := sum(record.cached_tokens for record in done):
        yield f"{cached} prompt tokens came from the prefix cache: add disable-radix-cache: true to engine.flags"
    per_record = [
        (record.id, fault) for record in done for fault in record_faults(record, workload, launch)
    ]
    yield from (f"{identity}: {fault}" for identity, fault in per_record[:REASONS_PER_CHECK])
    if len(per_record) > REASONS_PER_CHECK:
        yield f"and {len(per_record) - REASONS_PER_CHECK} more of this kind"


def record_faults(record: Record, workload: Workload, launch: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with one request that the engine calls finished."""
    tokens, limit, counters = len(record.output_ids), workload.max_new_tokens, record.counters
    if not tokens:
        yield "no output tokens"
    if tokens > limit or (record.finish == "length" and tokens != limit):
        yield f"{tokens} output tokens at a limit of {limit}, ended by {record.finish}"
    if launch["arm"] == "baseline":
        if counters.verify_steps:
            yield "verify steps in a server without speculation"
        return
    steps, _, draft_tokens = spec_settings(launch)
    if tokens > 1 and not counters.verify_steps:
        yield f"{tokens} output tokens without one verify step: speculation did not run"
    if counters.verify_steps and tokens > 1 + counters.verify_steps + counters.correct_drafts:
        # The first token comes from prefill; the last step may be cut off by the limit or the end of text.
        yield f"{tokens} output tokens from {counters.verify_steps} verify steps and {counters.correct_drafts} drafts"
    yield from counters.faults(steps, draft_tokens)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return count, mean, median and 90th percentile; zeros when there is nothing to count."""
    if not values:
        return {"count": 0, "mean": 0.0, "median": 0.0, "p90": 0.0}
    median, p90 = np.percentile(values, [50, 90])
    return {
        "count": len(values),
        "mean": float(np.mean(values)),
        "median": float(median),
        "p90": float(p90),
    }


def keep(store: Path, cell: Mapping[str, Any], records: Sequence[Record]) -> None:
    """Put a measured cell into the store, whole, in the place of an older one of the same name."""
    with whole_directory(store / cell_name(cell["server"], cell["concurrency"])) as beside:
        write_records(beside / "requests.parquet", records)
        write_result(beside / "cell.json", cell)


def kept(store: Path, server: str, concurrency: int, key: str) -> dict[str, Any] | None:
    """Return the cell from the store if it is valid, complete and of this key; else None, so that it is measured."""
    place = store / cell_name(server, concurrency)
    if not place.exists():
        return None
    try:
        cell = read_result(place / "cell.json", "cell")
        rows = len(read_records(place / "requests.parquet"))
    except InputError as error:
        log.info("%s: measured again: %s", place.name, error)
        return None
    if cell["key"] != key or cell["status"] != "valid" or rows != cell["workload"]["requests"]:
        log.info("%s: measured again: made by other settings or code, or not valid", place.name)
        return None
    return cell


def cell_name(server: str, concurrency: int) -> str:
    """Return the name of a cell: its folder in the store."""
    return f"{server}-c{concurrency}"
