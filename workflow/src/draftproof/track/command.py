"""Tell MLflow about the results of one experiment; safe to repeat.

One parent run per experiment, one child run per stage, server and cell. Runs whose files have not changed are left alone,
changed ones are replaced. Nothing is read back: delete MLflow, run track again, and it is all there. Exit code 2 when
MLflow cannot be reached; the results stay as they are.

example:
  draftproof track --results results/smollm2-demo --uri sqlite:///results/mlflow/mlflow.db --experiment draftproof
"""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path
from typing import Any

from draftproof.errors import DraftproofError, InputError, MachineError
from draftproof.files import require_directory, write_result
from draftproof.track import address as addresses
from draftproof.track.address import RETRY, Address
from draftproof.track.lock import locked
from draftproof.track.stages import Stage, headline, stages

# Seconds instead of the library's defaults, which block for minutes when a server is away.
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
log = logging.getLogger(__name__)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--results", required=True, type=Path, metavar="DIR", help="folder of one experiment"
    )
    parser.add_argument(
        "--uri", required=True, help="sqlite:///path/to/mlflow.db or http(s)://host:port"
    )
    parser.add_argument("--experiment", required=True, metavar="NAME", help="MLflow experiment")
    parser.add_argument(
        "--partial",
        action="store_true",
        help="track what there is, e.g. after a failure; otherwise every stage must have finished",
    )


def run(args: argparse.Namespace) -> int:
    """Sync, write track.json when every stage was there, say what was done."""
    address = addresses.parse(args.uri)
    folder = require_directory(args.results, "results", "Give the folder of one experiment.")
    found = stages(folder, args.partial)
    if not found:
        raise InputError("holds no result of any stage", str(folder), "Run a stage first.")
    addresses.require_answer(address)
    answer, counts = synced(folder, address, args.experiment, found, args.partial)
    if not args.partial:  # the file says that all was tracked
        write_result(folder / "track.json", answer)
    print(f"tracked {len(found) + 1} runs: {counts}")
    print(place_to_look(address, answer))
    return 0


def synced(
    folder: Path, address: Address, experiment: str, found: list[Stage], partial: bool
) -> tuple[dict[str, Any], str]:
    """Bring MLflow up to date under the lock; return (content of track.json, what was done)."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    from draftproof.track.sync import Sync

    for library in ("mlflow", "alembic"):
        logging.getLogger(library).setLevel(logging.WARNING)
    name = folder.resolve().name
    file = address.database.with_name(address.database.name + ".lock") if address.database else None
    try:
        with locked(file or folder / ".track.lock"):
            sync = Sync(address, experiment, name)
            told, note, artifacts = headline(folder, partial)
            times = [stage.times_ms for stage in found]
            span_ms = min(begin for begin, _ in times), max(end for _, end in times)
            parent = sync.parent(told, note, artifacts, span_ms, not partial)
            runs = {stage.name: sync.child(stage, parent["run_id"]) for stage in found}
            if not partial:
                sync.sweep(set(runs))
    except DraftproofError:
        raise
    except (MlflowException, SQLAlchemyError, OSError) as error:
        lines = addresses.redact(str(error)).strip().splitlines() or [type(error).__name__]
        raise MachineError(f"MLflow refused: {lines[0][:300]}", address.shown, RETRY) from None
    answer = {
        "schema": "draftproof/track/1",
        "tracking_uri": address.shown,
        "experiment": experiment,
        "experiment_id": sync.experiment_id,
        "parent": parent,
        "runs": runs,
    }
    return answer, ", ".join(f"{n} {what}" for what, n in sync.counts.items())


def place_to_look(address: Address, answer: dict[str, Any]) -> str:
    """Return where a person sees the parent run."""
    page = (
        f"#/experiments/{answer['experiment_id']}/runs/{answer['parent']['run_id']}"
        "?workflowType=machine_learning"
    )
    if address.database is None:
        return f"{address.shown}/{page}"
    return f"mlflow server --workers 1 --backend-store-uri {address.shown}, then http://127.0.0.1:5000/{page}"
