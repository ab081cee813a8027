"""Measure one running server at each load, and check that the figures can be believed.

Every cell (server x load) asks the capture's prompts again, greedily, in a closed loop; the cells are kept one by one in
STORE/<server>-c<concurrency>/, so that an interrupted benchmark goes on where it was. A cell whose checks fail is
measured again the next time; it is written, marked invalid, with the reasons.

example:
  draftproof bench --launch results/demo/serving/spec/launch.json --samples results/demo/capture --concurrency 1 4
    --warmup 2 --store results/demo/benchmark --out results/demo/benchmark/spec.json
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftproof.benchmark.cell import cell_name, figures, keep, kept
from draftproof.benchmark.client import connect, require_server
from draftproof.benchmark.load import closed_loop
from draftproof.benchmark.records import Record
from draftproof.benchmark.workload import Workload, load_workload
from draftproof.closure import code_digest
from draftproof.errors import ConfigError, EngineError
from draftproof.files import digest, read_result, write_result

log = logging.getLogger(__name__)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        "--launch", required=True, type=Path, metavar="FILE", help="launch.json of the server"
    )
    parser.add_argument("--samples", required=True, type=Path, metavar="DIR", help="the capture")
    parser.add_argument(
        "--concurrency", required=True, type=int, nargs="+", metavar="N", help="users at a time"
    )
    parser.add_argument(
        "--warmup",
        type=int,
        default=2,
        metavar="N",
        help="requests before each cell; default: %(default)s",
    )
    parser.add_argument(
        "--store", required=True, type=Path, metavar="DIR", help="where finished cells are kept"
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="FILE", help="all cells of this server"
    )


def run(args: argparse.Namespace) -> int:
    """Measure what is missing, write the list of cells, print it; 0 even when cells are invalid: the file says so."""
    if min(args.concurrency) < 1 or args.warmup < 0:
        raise ConfigError("--concurrency must be at least 1 and --warmup at least 0", "bench")
    launch = read_result(args.launch, "launch")
    workload = load_workload(args.samples)
    cells = [measured_or_kept(args, launch, workload, n) for n in dict.fromkeys(args.concurrency)]
    write_result(args.out, summary(launch, str(args.launch), cells))
    for cell in cells:
        name = cell_name(cell["server"], cell["concurrency"])
        print(f"{name}: {describe(cell)}")
        for reason in cell["reasons"]:
            log.warning("%s is invalid: %s", name, reason)
    return 0


def measured_or_kept(
    args: argparse.Namespace, launch: Mapping[str, Any], workload: Workload, concurrency: int
) -> dict[str, Any]:
    """Return the cell of one load, from the store if it is there, else measured and put there."""
    code = code_digest("draftproof.benchmark.command")
    key = digest([launch["digest"], workload.digest, concurrency, args.warmup, code])
    if (cell := kept(args.store, launch["server"], concurrency, key)) is not None:
        log.info("%s: kept", cell_name(launch["server"], concurrency))
        return cell
    if "stopped_at" in launch:
        raise EngineError(
            f"the server has stopped ({launch['stopped_at']})",
            str(args.launch),
            "Start it with draftproof serve.",
        )
    records, flushed = asyncio.run(measure(launch, workload, concurrency, args.warmup))
    cell = figures(records, workload, launch, concurrency, key, flushed)
    keep(args.store, cell, records)
    return cell


async def measure(
    launch: Mapping[str, Any], workload: Workload, concurrency: int, warmup: int
) -> tuple[list[Record], str]:
    """Warm up, empty the prefix cache, run all requests; return their records and why the cache was not emptied, if so.

    Raises EngineError when the server is gone, is another one, or fails its warm-up.
    """
    name = cell_name(launch["server"], concurrency)
    async with connect(launch["url"]) as client:
        await require_server(client, launch)
        for _, reply in await closed_loop(
            client, workload.warmup(warmup), concurrency, f"{name} warm-up"
        ):
            if reply.error:
                raise EngineError(
                    f"a warm-up request failed: {reply.error}",
                    name,
                    f"The server's log: {launch['log']}",
                )
        flushed = await client.flush_cache()
        log.info("%s: measuring %d requests", name, len(workload.samples))
        answers = await closed_loop(
            client, [sample.ask for sample in workload.samples], concurrency, name
        )
    origin_s = min(start_s for start_s, _ in answers)
    records = [
        Record.of(sample, start_s, reply, origin_s)
        for sample, (start_s, reply) in zip(workload.samples, answers, strict=True)
    ]
    return records, flushed


def summary(launch: Mapping[str, Any], file: str, cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the content of benchmark/<server>.json."""
    return {
        "schema": "draftproof/benchmark/1",
        "server": launch["server"],
        "arm": launch["arm"],
        "launch": file,
        "cells": [
            {
                "cell": cell_name(cell["server"], cell["concurrency"]),
                "concurrency": cell["concurrency"],
                "status": cell["status"],
                "output_tokens_per_s": cell["output_tokens_per_s"],
                "accept_length": cell["spec"]["accept_length"] if cell["spec"] else None,
            }
            for cell in cells
        ],
    }


def describe(cell: Mapping[str, Any]) -> str:
    """Return a cell in one line for a person."""
    requests, same = cell["requests"]["done"], cell["same_text_as_capture"]
    text = f"{cell['output_tokens_per_s']:.1f} tokens/s, first token {cell['ttft_s']['median'] * 1000:.0f} ms"
    if cell["spec"]:
        low, high = cell["spec"]["ci95"]
        text += f", accept length {cell['spec']['accept_length']:.3f} ({low:.3f} to {high:.3f})"
    return f"{text}, {requests} requests, {same} as captured, {cell['status']}"
