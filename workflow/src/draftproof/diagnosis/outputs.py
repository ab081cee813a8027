"""Is the text the same with and without speculation, and as Hugging Face wrote it? Compared as token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftproof.benchmark.workload import load_workload
from draftproof.diagnosis.results import Cell

Texts = Mapping[str, Sequence[int]]


def captured(folder: Path) -> dict[str, list[int]]:
    """Return the capture's own output ids by sample id; raises InputError when the capture is incomplete."""
    return {each.id: each.expected_ids for each in load_workload(folder).samples}


def first_difference(first: Sequence[int], second: Sequence[int]) -> int | None:
    """Return the first index at which the two differ, the shorter one's length when it is a prefix, None if equal."""
    for i, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return i
    return None if len(first) == len(second) else min(len(first), len(second))


def differences(cell: str, found: Texts, against: str, expected: Texts) -> list[dict[str, Any]]:
    """Return one entry per sample whose text differs from the expected one or has no counterpart."""
    entries = []
    for sample, ids in found.items():
        other = expected.get(sample)
        position = 0 if other is None else first_difference(ids, other)
        if position is not None:
            entries.append(
                {
                    "cell": cell,
                    "against": against,
                    "sample": sample,
                    "position": position,
                    "tokens": len(ids),
                    "expected_tokens": len(other or ()),
                    "found_id": ids[position] if position < len(ids) else None,
                    "expected_id": other[position] if other and position < len(other) else None,
                }
            )
    return entries


def compare(spec: Sequence[Cell], baseline: Sequence[Cell], capture: Texts) -> dict[str, Any]:
    """Return the outputs part of the diagnosis.

    The totals are over all requests of the valid cells of the speculative arm. A cell's baseline is that of the same
    load, or the one of the lowest load when that is missing. `cells` holds the same counts for every cell.
    """
    texts = {cell.name: texts_of(cell) for cell in (*baseline, *spec)}
    at = {cell.concurrency: cell.name for cell in baseline}
    lowest = at[min(at)] if at else None
    rows, divergences = [], []
    for cell in (*baseline, *spec):
        found = texts[cell.name]
        row: dict[str, Any] = {"cell": cell.name, "arm": cell.data["arm"], "requests": len(found)}
        reference = at.get(cell.concurrency, lowest) if cell.data["arm"] == "spec" else None
        wrong = differences(cell.name, found, "capture", capture)
        row["identical_to_capture"] = len(found) - len(wrong)
        divergences += wrong
        if reference is not None:
            wrong = differences(cell.name, found, reference, texts[reference])
            row["identical_to_baseline"] = len(found) - len(wrong)
            divergences += wrong
        rows.append(row)
    served = [row for row in rows if row["arm"] == "spec"]
    return {
        "requests": sum(row["requests"] for row in served),
        "identical_to_baseline": sum(row.get("identical_to_baseline", 0) for row in served),
        "identical_to_capture": sum(row["identical_to_capture"] for row in served),
        "divergences": divergences,
        "cells": rows,
    }


def different_from_baseline(outputs: Mapping[str, Any]) -> int:
    """Return how many outputs with speculation differ from a baseline's; those without a baseline to compare do not count."""
    return sum(
        row["requests"] - row["identical_to_baseline"]
        for row in outputs["cells"]
        if "identical_to_baseline" in row
    )


def texts_of(cell: Cell) -> dict[str, list[int]]:
    """Return the output ids of a cell by sample id."""
    return {identity: record.output_ids for identity, record in cell.records().items()}
