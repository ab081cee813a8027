"""What MLflow is told, as a function of the result files alone: one entry per stage, server and cell."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from draftproof.diagnosis.results import SINGLE_FILES, listed_cells
from draftproof.errors import InputError
from draftproof.files import digest, read_result, sha256
from draftproof.track import describe
from draftproof.track.describe import Described

log = logging.getLogger(__name__)
NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_\-. /]")
LONGEST_PARAM = 500
LARGEST_ARTIFACT_BYTES = 50 * 2**20
FORMAT = 1
"""Counts up when this module tells something else about the same files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One run to be: its name, what it is told, and the files it keeps."""

    name: str
    files: Mapping[str, Path]
    """Artifact path: file. Small ones only: never weights or hidden states."""
    told: Described = field(default_factory=Described)
    finished: bool = True

    @property
    def digest(self) -> str:
        """Return a digest of the files' bytes."""
        return digest(
            [
                FORMAT,
                self.name,
                self.finished,
                *((name, sha256(file)) for name, file in sorted(self.files.items())),
            ]
        )

    @property
    def params(self) -> dict[str, str]:
        """Return the params under names that MLflow takes, long values cut; the files have them whole."""
        return {
            name_for(key): value
            if len(value) <= LONGEST_PARAM
            else f"{value[: LONGEST_PARAM - 4]} ..."
            for key, value in self.told.params.items()
        }

    @property
    def metrics(self) -> list[tuple[str, float, int]]:
        """Return (name, value, step), finite values only, six significant digits."""
        return [
            (name_for(key), float(f"{value:.6g}"), step)
            for key, value, step in self.told.metrics
            if value is not None and math.isfinite(value)
        ]

    @property
    def times_ms(self) -> tuple[int, int]:
        """Return begin and end: the stage's own times, else when its files were written."""
        written = [int(file.stat().st_mtime * 1000) for file in self.files.values()]
        begin = self.told.started_at
        started = int(datetime.fromisoformat(begin).timestamp() * 1000) if begin else min(written)
        return min(started, max(written)), max(written)


def name_for(key: str) -> str:
    """Return a key with only the characters that MLflow takes in a name."""
    return NOT_IN_A_NAME.sub("_", key).strip("/")[:250]


def stages(folder: Path, partial: bool) -> list[Stage]:
    """Return what exists, in the order of the chain; raises InputError when something is missing and `partial` is not set."""
    found = [
        single(
            folder,
            "1-preflight",
            "preflight",
            describe.preflight,
            partial=partial,
            logs=["preflight"],
        ),
        single(
            folder,
            "2-checkpoint",
            "validation",
            describe.validation,
            partial=partial,
            logs=["validate", "convert"],
            more=["checkpoint/draft/conversion.json", "checkpoint/draft/config.json"],
        ),
        single(folder, "3-capture", "capture", describe.capture, partial=partial, logs=["capture"]),
        single(
            folder,
            "4-accuracy",
            "accuracy",
            lambda data: describe.accuracy(data, wiring_of(folder, partial)),
            partial=partial,
            logs=["accuracy"],
            more=["accuracy/wiring.json"],
        ),
        *servers(folder, partial),
        *cells(folder, partial),
        single(
            folder,
            "7-diagnosis",
            "diagnosis",
            describe.diagnosis,
            partial=partial,
            logs=["diagnosis"],
            more=["diagnosis.md"],
        ),
        report(folder),
    ]
    known = [stage for stage in found if stage is not None]
    if not partial:
        require_whole(folder, known)
    return known


def require_whole(folder: Path, known: Iterable[Stage]) -> None:
    """Raise InputError naming the first stage that has left nothing."""
    finished = [stage.name.split("/")[0] for stage in known if stage.finished]
    for name in (
        "1-preflight",
        "2-checkpoint",
        "3-capture",
        "4-accuracy",
        "5-serving",
        "6-benchmark",
        "7-diagnosis",
        "8-report",
    ):
        if name not in finished:
            raise InputError(
                f"nothing of the stage {name[2:]}",
                str(folder),
                "Run it first, or give --partial to track what there is.",
            )


def existing(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """Return {name below folder: file} of those that exist, are not empty and are small enough."""
    files = {name: folder / name for name in names}
    return {
        name: file
        for name, file in files.items()
        if file.is_file() and 0 < file.stat().st_size <= LARGEST_ARTIFACT_BYTES
    }


def single(
    folder: Path,
    name: str,
    kind: str,
    tell: Callable[[dict[str, Any]], Described],
    *,
    partial: bool,
    logs: Iterable[str],
    more: Iterable[str] = (),
) -> Stage | None:
    """Return a stage with one main result; without it, an unfinished one when a log tells of it; else None."""
    main = SINGLE_FILES[kind][0]
    files = existing(folder, [main, *more, *(f"logs/{log}.log" for log in logs)])
    data = result(files.get(main), kind, partial)
    if data is not None:
        return Stage(name=name, files=files, told=tell(data))
    return Stage(name=name, files=files, finished=False) if files else None


def result(file: Path | None, kind: str, partial: bool) -> dict[str, Any] | None:
    """Return the content of a result, None when there is none.

    One that cannot be read must not hide the others when `partial` is set: a warning, and None. Otherwise InputError.
    """
    try:
        return None if file is None else read_result(file, kind)
    except InputError as error:
        if not partial:
            raise
        log.warning("not tracked: %s", error)
        return None


def wiring_of(folder: Path, partial: bool) -> dict[str, Any] | None:
    """Return wiring.json when it is there."""
    file = folder / SINGLE_FILES["wiring"][0]
    return result(file if file.is_file() else None, "wiring", partial)


def servers(folder: Path, partial: bool) -> list[Stage]:
    """Return one entry per launch; unfinished when the server never got ready."""
    found = []
    for place in sorted(folder.glob("serving/*/")):
        base = f"serving/{place.name}"
        files = existing(folder, [f"{base}/launch.json", f"{base}/server.log"])
        if files:
            data = result(files.get(f"{base}/launch.json"), "launch", partial)
            found.append(
                Stage(
                    name=f"5-serving/{place.name}",
                    files=files,
                    told=describe.launch(data) if data else Described(),
                    finished=data is not None,
                )
            )
    return found


def cells(folder: Path, partial: bool) -> list[Stage]:
    """Return one entry per cell: those the servers' results list, or all in the store when the chain is not whole."""
    names = (
        sorted(file.parent.name for file in folder.glob("benchmark/*/cell.json"))
        if partial
        else [cell.name for cell in listed_cells(folder)]
    )
    found = []
    for name in names:
        files = existing(
            folder, [f"benchmark/{name}/cell.json", f"benchmark/{name}/requests.parquet"]
        )
        data = result(folder / f"benchmark/{name}/cell.json", "cell", partial)
        if data is not None:
            found.append(Stage(name=f"6-benchmark/{name}", files=files, told=describe.cell(data)))
    return found


def report(folder: Path) -> Stage | None:
    """Return the report's entry when it has been written."""
    files = existing(folder, ["report/report.html", "logs/report.log"])
    page = files.get("report/report.html")
    if page is None:
        return Stage(name="8-report", files=files, finished=False) if files else None
    told = Described(metrics=[("report/bytes", page.stat().st_size, 0)])
    return Stage(name="8-report", files=files, told=told)


def headline(folder: Path, partial: bool) -> tuple[Described, str, dict[str, Path]]:
    """Return what the parent run is told: (params and metrics, note in Markdown, artifacts)."""
    names = {kind: SINGLE_FILES[kind][0] for kind in ("diagnosis", "validation")}
    files = existing(folder, ["report/report.html", "diagnosis.md", *names.values()])
    diagnosis, validation = (
        result(files.pop(name, None), kind, partial) for kind, name in names.items()
    )
    params = describe.pair(validation) if validation else {}
    metrics = describe.diagnosis(diagnosis).metrics if diagnosis else []
    artifacts = {Path(name).name: path for name, path in files.items()}
    note = (
        describe.note(diagnosis)
        if diagnosis
        else "The chain has not reached its diagnosis; the children show what there is."
    )
    return Described(params=params, metrics=metrics), note, artifacts
