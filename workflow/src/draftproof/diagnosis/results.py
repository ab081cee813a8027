"""What the stages left in results/<experiment>/, read strictly: a missing file names the stage that makes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof.benchmark.records import Record, read_records
from draftproof.errors import InputError
from draftproof.files import read_result, require_directory

# kind: (file, stage that makes it)
SINGLE_FILES = {
    "preflight": ("preflight.json", "preflight"),
    "validation": ("checkpoint/validation.json", "validate"),
    "conversion": ("checkpoint/draft/conversion.json", "convert"),
    "capture": ("capture/manifest.json", "capture"),
    "accuracy": ("accuracy/accuracy.json", "accuracy"),
    "wiring": ("accuracy/wiring.json", "accuracy"),
    "diagnosis": ("diagnosis.json", "diagnose"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One measured cell and the folder it lies in."""

    folder: Path
    data: dict[str, Any]

    @property
    def name(self) -> str:
        """Return ``<server>-c<concurrency>``."""
        return self.folder.name

    @property
    def server(self) -> str:
        """Return the server's name."""
        return str(self.data["server"])

    @property
    def concurrency(self) -> int:
        """Return the users at a time."""
        return int(self.data["concurrency"])

    @property
    def valid(self) -> bool:
        """Return whether the benchmark's own checks let its figures be believed."""
        return bool(self.data["status"] == "valid")

    def records(self) -> dict[str, Record]:
        """Return the requests that succeeded, by sample id; raises InputError when the file is not readable."""
        rows = read_records(self.folder / "requests.parquet")
        return {row.id: row for row in rows if not row.error and row.output_ids}


def require(folder: Path, kind: str) -> dict[str, Any]:
    """Return a result file of the experiment; raises InputError naming the stage when it is missing."""
    name, stage = SINGLE_FILES[kind]
    if not (folder / name).is_file():
        raise InputError("no such file", str(folder / name), f"Run the stage `{stage}` first.")
    return read_result(folder / name, kind)


def optional(folder: Path, kind: str) -> dict[str, Any] | None:
    """Return a result file, or None when its stage has not run; raises InputError when it is broken."""
    return read_result(path, kind) if (path := folder / SINGLE_FILES[kind][0]).is_file() else None


def launches(folder: Path) -> dict[str, dict[str, Any]]:
    """Return launch.json of every server, by name."""
    return {
        file.parent.name: read_result(file, "launch")
        for file in sorted(folder.glob("serving/*/launch.json"))
    }


def listed_cells(folder: Path) -> list[Cell]:
    """Return the cells that the servers' results list, by server and load; other folders of the store are leftovers."""
    cells = list(_listed(folder))
    return sorted(cells, key=lambda cell: (cell.server, cell.concurrency))


def _listed(folder: Path) -> Iterator[Cell]:
    for file in sorted(folder.glob("benchmark/*.json")):
        for entry in read_result(file, "benchmark")["cells"]:
            place = folder / "benchmark" / entry["cell"]
            if not (place / "cell.json").is_file():
                raise InputError(
                    f"{file.name} lists this cell, its file is missing",
                    str(place / "cell.json"),
                    "Run the stage `benchmark` again.",
                )
            yield Cell(folder=place, data=read_result(place / "cell.json", "cell"))


def require_cells(folder: Path) -> list[Cell]:
    """Return the listed cells; raises InputError when there are none."""
    require_directory(folder, "results", "Give the folder of one experiment.")
    if not (cells := listed_cells(folder)):
        raise InputError(
            "no benchmark of any server",
            str(folder / "benchmark"),
            "Run the stage `benchmark` first.",
        )
    return cells
