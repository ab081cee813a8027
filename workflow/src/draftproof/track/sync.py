"""Bring MLflow to what the results say: create what is new, replace what has changed, leave alone what is equal.

A run is found again by the tag draftproof.key; draftproof.digest says which files it tells of, and draftproof.synced is
set last, so that a run half written by a killed track is recognised and replaced. What is replaced is deleted softly: it
leaves the views and can be restored until ``mlflow gc``. Nothing is ever read back into the results.
"""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftproof.errors import ConfigError
from draftproof.files import digest, sha256
from draftproof.track.address import Address, redact
from draftproof.track.describe import Described
from draftproof.track.stages import Stage

KEY, DIGEST, SYNCED, EXPERIMENT = (
    f"draftproof.{name}" for name in ("key", "digest", "synced", "experiment")
)
PARENT, NOTE, SOURCE = "mlflow.parentRunId", "mlflow.note.content", "mlflow.source.name"
LONGEST_NOTE = 7000
TEXT = {".json", ".md", ".log", ".html"}
log = logging.getLogger(__name__)


class Sync:
    """All writes to one MLflow experiment for one results folder."""

    def __init__(self, address: Address, experiment: str, name: str) -> None:
        """Open the client (creates the schema of a new database) and find or make the experiment."""
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient(tracking_uri=address.uri)
        self.name = name
        self.counts: Counter[str] = Counter(created=0, superseded=0, unchanged=0, swept=0)
        self.experiment_id = self.find_experiment(experiment, address.database)
        self.runs = self.find_runs()

    def find_experiment(self, name: str, database: Path | None) -> str:
        """Return the experiment's id. With a database of our own the artifacts lie beside it; a server decides for itself."""
        from mlflow.exceptions import MlflowException

        found = self.client.get_experiment_by_name(name)
        if found is None:
            place = None if database is None else (database.parent / "artifacts").as_uri()
            try:
                return str(self.client.create_experiment(name, artifact_location=place))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = self.client.get_experiment_by_name(name)  # made by another writer meanwhile
        if found is None or found.lifecycle_stage != "active":
            raise ConfigError(
                f"the MLflow experiment {name!r} is deleted",
                "tracking.experiment",
                "Restore it in MLflow or give another name.",
            )
        return str(found.experiment_id)

    def find_runs(self) -> dict[str, list[Any]]:
        """Return the active runs of this results folder by key, newest first."""
        if "'" in self.name or "\\" in self.name:
            raise ConfigError("a quote or backslash in the folder's name", self.name)
        runs: dict[str, list[Any]] = {}
        token: str | None = None
        while True:
            page = self.client.search_runs(
                [self.experiment_id],
                f"tags.`{EXPERIMENT}` = '{self.name}'",
                order_by=["attributes.start_time DESC"],
                page_token=token,
            )
            for run in page:
                runs.setdefault(run.data.tags.get(KEY, ""), []).append(run)
            if not (token := page.token):
                return runs

    def create(self, key: str, name: str, start_ms: int, tags: Mapping[str, str]) -> str:
        """Create a run and return its id."""
        common = {KEY: key, EXPERIMENT: self.name, SOURCE: "draftproof track"}
        run = self.client.create_run(
            self.experiment_id, start_time=start_ms, run_name=name, tags={**common, **tags}
        )
        return str(run.info.run_id)

    def retire(self, runs: Sequence[Any], successor: str) -> None:
        """Delete runs softly and count them: complete ones were superseded, half-written ones are swept."""
        for run in runs:
            self.counts["superseded" if SYNCED in run.data.tags else "swept"] += 1
            if successor:
                self.client.set_tag(run.info.run_id, "draftproof.superseded_by", successor)
            if run.info.status == "RUNNING":
                self.client.set_terminated(run.info.run_id, "KILLED")
            self.client.delete_run(run.info.run_id)

    def parent(
        self,
        told: Described,
        note: str,
        files: Mapping[str, Path],
        span_ms: tuple[int, int],
        whole: bool,
    ) -> dict[str, str]:
        """Bring the parent run up to date and return its id and digest.

        It is kept as long as no param of it has changed its value (params cannot be changed in MLflow); metrics, note
        and artifacts are refreshed in place.
        """
        key = self.name
        stage = Stage(name=key, files={}, told=told)
        state = digest(
            [
                stage.params,
                stage.metrics,
                note,
                whole,
                sorted((name, sha256(file)) for name, file in files.items()),
            ]
        )
        old = self.runs.get(key, [])
        fitting = [
            run
            for run in old
            if all(
                redact(stage.params.get(name, value)) == value
                for name, value in run.data.params.items()
            )
        ]
        if fitting and fitting[0].data.tags.get(DIGEST) == state:
            self.counts["unchanged"] += 1
            run_id = str(fitting[0].info.run_id)
        else:
            run_id = (
                str(fitting[0].info.run_id)
                if fitting
                else self.create(key, self.name, span_ms[0], {SYNCED: "1"})
            )
            self.fill(run_id, stage, span_ms[1])
            self.keep_files(run_id, files)
            self.client.set_tag(run_id, NOTE, redact(note)[:LONGEST_NOTE])
            self.client.set_terminated(
                run_id, "FINISHED" if whole else "FAILED", end_time=span_ms[1]
            )
            self.client.set_tag(run_id, DIGEST, state)
            self.counts["updated" if fitting else "created"] += 1
        self.retire([run for run in old if run.info.run_id != run_id], run_id)
        return {"run_id": run_id, "digest": state}

    def child(self, stage: Stage, parent: str) -> dict[str, str]:
        """Bring one child run up to date and return its id and digest."""
        key, state = f"{self.name}/{stage.name}", stage.digest
        old = self.runs.get(key, [])
        equal = [
            run
            for run in old
            if run.data.tags.get(DIGEST) == state and run.data.tags.get(SYNCED) == "1"
        ]
        if equal:
            run_id = str(equal[0].info.run_id)
            if equal[0].data.tags.get(PARENT) != parent:
                self.client.set_tag(run_id, PARENT, parent)
            self.counts["unchanged"] += 1
        else:
            begin, end = stage.times_ms
            run_id = self.create(key, stage.name, begin, {DIGEST: state, PARENT: parent})
            self.fill(run_id, stage, end)
            self.keep_files(run_id, stage.files)
            self.client.set_tag(run_id, SYNCED, "1")
            self.client.set_terminated(
                run_id, "FINISHED" if stage.finished else "FAILED", end_time=end
            )
            self.counts["created"] += 1
        self.retire([run for run in old if run.info.run_id != run_id], run_id)
        return {"run_id": run_id, "digest": state}

    def sweep(self, wanted: set[str]) -> None:
        """Retire the runs of stages, servers and cells that are no longer among the results."""
        for key, runs in self.runs.items():
            if key.removeprefix(f"{self.name}/") not in wanted and key != self.name:
                self.retire(runs, "")

    def fill(self, run_id: str, stage: Stage, at_ms: int) -> None:
        """Log params and metrics."""
        from mlflow.entities import Metric, Param

        params = [Param(key, redact(value)) for key, value in stage.params.items()]
        metrics = [Metric(name, value, at_ms, step) for name, value, step in stage.metrics]
        for i in range(0, len(params), 100):
            self.client.log_batch(run_id, params=params[i : i + 100])
        for i in range(0, len(metrics), 1000):
            self.client.log_batch(run_id, metrics=metrics[i : i + 1000])

    def keep_files(self, run_id: str, files: Mapping[str, Path]) -> None:
        """Log the artifacts under their names below the results folder; texts without what looks like a secret."""
        for name, file in files.items():
            folder = str(Path(name).parent) if Path(name).parent.name else None
            text = file.read_text(encoding="utf-8", errors="replace") if file.suffix in TEXT else ""
            clean = redact(text) if file.suffix in TEXT - {".html"} else text
            if clean == text:
                self.client.log_artifact(run_id, str(file), folder)
                continue
            with tempfile.TemporaryDirectory() as beside:
                copy = Path(beside) / file.name
                copy.write_text(clean, encoding="utf-8")
                self.client.log_artifact(run_id, str(copy), folder)
