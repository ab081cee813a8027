"""Put the parts of the diagnosis together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftproof.diagnosis import acceptance, claimed, findings, outputs, results, speed
from draftproof.diagnosis.results import Cell
from draftproof.diagnosis.verdict import verdict
from draftproof.errors import InputError

SEVERITIES = ("error", "warning", "info")


def diagnose(folder: Path, claim: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the content of diagnosis.json; raises InputError naming the stage when something is missing.

    Only valid cells of the arms baseline and spec count; forced acceptance (spec_synthetic) proves nothing of a draft.
    """
    cells = results.require_cells(folder)
    accuracy, wiring = results.require(folder, "accuracy"), results.require(folder, "wiring")
    capture = results.require(folder, "capture")
    baseline, spec = arm(cells, "baseline"), arm(cells, "spec")
    if not spec:
        raise InputError(
            "no valid cell of a speculative server",
            str(folder / "benchmark"),
            "Run the stage `benchmark` again" + (f": {first_reason(cells)}" if cells else "."),
        )
    if len(servers := {cell.server for cell in baseline}) > 1:
        raise InputError(
            f"several baselines: {', '.join(sorted(servers))}",
            str(folder / "benchmark"),
            "Delete the benchmark files of servers that are no longer in the experiment.",
        )
    table = speed.table(baseline, spec)
    chosen = primary(spec, table)
    compared = acceptance.compare(accuracy, chosen, [each for each in spec if each is not chosen])
    texts = outputs.compare(spec, baseline, outputs.captured(folder / "capture"))
    exact = server_dtype(folder, chosen.server, capture) == "float32"
    assessed = claimed.assess(claim, accuracy, compared["steps"]) if claim else None
    found = [
        *findings.wiring_findings(wiring),
        *findings.acceptance_findings(compared),
        *findings.output_findings(texts, exact),
        *findings.speed_findings(table),
        *findings.benchmark_findings(cells),
        *findings.claimed_findings(assessed),
    ]
    return {
        "schema": "draftproof/diagnosis/1",
        "experiment": folder.resolve().name,
        "verdict": verdict(compared, texts, table, wiring, exact),
        "acceptance": {"claimed": assessed, **compared},
        "outputs": texts,
        "speed": table,
        "findings": sorted(found, key=lambda each: SEVERITIES.index(each["severity"])),
    }


def arm(cells: Sequence[Cell], name: str) -> list[Cell]:
    """Return the valid cells of an arm."""
    return [cell for cell in cells if cell.valid and cell.data["arm"] == name]


def first_reason(cells: Sequence[Cell]) -> str:
    """Return why the first invalid cell is invalid, or that none is speculative."""
    reasons = [f"{cell.name}: {reason}." for cell in cells for reason in cell.data["reasons"]]
    return reasons[0] if reasons else "only baseline cells were measured."


def primary(spec: Sequence[Cell], table: Sequence[Mapping[str, Any]]) -> Cell:
    """Return the cell the verdict speaks of: the lowest load; of several servers there, the fastest."""
    speedups = {(row["server"], row["concurrency"]): row["speedup"] for row in table}
    return min(
        spec,
        key=lambda cell: (
            cell.concurrency,
            -speedups.get((cell.server, cell.concurrency), 0.0),
            cell.server,
        ),
    )


def server_dtype(folder: Path, server: str, capture: Mapping[str, Any]) -> str:
    """Return the dtype the server said it computes in; the capture's when the launch does not tell."""
    launch = results.launches(folder).get(server, {"settings": {}})
    found = launch["settings"].get("dtype", {}).get("found")
    return str(found or capture["dtype"])
