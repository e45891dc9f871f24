"""MLflow: one run per member, in the experiment of the study; one for a watched run."""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, final
from urllib.parse import unquote

from phyla import settings
from phyla.integrations.trackers import Row, TrackedStudy, Tracker, check_installed, check_writable

MOST: Final = 1000
"""Maximum number of metrics in one request to MLflow."""
MOST_CHARACTERS: Final = 5000
"""Of a tag."""
ID: Final = "phyla.run_id"
_REFUSED = re.compile(r"[^\w\-. :/]")
"""Characters that the name of a metric may not have."""
_LOCAL = re.compile(
    r"(?P<file>sqlite(\+\w+)?:///(?!:memory:))|file:(//(localhost)?(?=/))?|(?!\w[\w+]*:|databricks|uc$)"
)
"""How URIs of this machine's files begin: a database, or a directory, also one that is a plain path."""


@final
class MLflow(Tracker):
    """Logs to `PLACE`, a tracking URI; by default `MLFLOW_TRACKING_URI`, else `mlflow.db` in the home.

    A metric that a run already has at a step is not changed. A watched run adds a value that differs.
    """

    name: ClassVar[str] = "mlflow"

    def __init__(self, place: str | None = None) -> None:
        check_installed("the tracker mlflow", "mlflow", "alembic", extra="mlflow")
        self.place = place
        self._runs: dict[int, str] = {}
        self._known: dict[tuple[str, str], set[tuple[int, float | None]]] = {}
        # The last step of each metric, and when that was, in milliseconds.
        self._last: dict[tuple[str, str], tuple[int, int]] = {}

    def environment(self, study: TrackedStudy) -> Mapping[str, str]:
        if local := _LOCAL.match(uri := self._uri(study)):
            path = Path(unquote(uri[local.end() :].partition("?")[0])).absolute()
            check_writable(path.parent if local["file"] else path, "give the tracker mlflow another URI")
        return {}

    def open(self, study: TrackedStudy) -> None:
        from mlflow import MlflowClient

        self._known.clear()
        logging.getLogger("alembic").setLevel(logging.WARNING)
        # It logs each error that it raises, with its traceback: phyla warns once.
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
        self._study = study
        study.home.mkdir(parents=True, exist_ok=True)
        self._client: MlflowClient = MlflowClient(tracking_uri=self._uri(study))
        if study.existing is not None:
            self._client.get_run(study.existing)  # raises where there is none
            return
        known = self._client.get_experiment_by_name(study.name)
        self._experiment = known.experiment_id if known else self._client.create_experiment(study.name)

    def _uri(self, study: TrackedStudy) -> str:
        return self.place or settings.mlflow_uri() or f"sqlite:///{study.home / 'mlflow.db'}"

    def log(self, rows: Sequence[Row]) -> None:
        from mlflow.entities import Metric, RunTag

        for member in dict.fromkeys(row.member for row in rows):
            run = self._run(member)
            metrics: list[Metric] = []
            tags: dict[str, str] = {}
            for row in (other for other in rows if other.member == member):
                for key, value in row.values.items():
                    name = _REFUSED.sub("_", key)
                    if isinstance(value, str):
                        tags[name] = value
                    elif not self._has(run, name, row.progress, float(value)):
                        metrics.append(Metric(name, float(value), self._at(run, name, row), row.progress))
                if row.note is not None:
                    tags[f"phyla.lineage.{row.progress}"] = row.note
            for first in range(0, len(metrics), MOST):
                self._client.log_batch(run, metrics=metrics[first : first + MOST])
            self._client.log_batch(run, tags=[RunTag(name, text[:MOST_CHARACTERS]) for name, text in tags.items()])

    def _at(self, run: str, name: str, row: Row) -> int:
        """Return when a value was measured; of several at one step and time, MLflow would show the largest."""
        at = int(row.at * 1000)
        step, last = self._last.get((run, name), (row.progress, 0))
        if step == row.progress:
            at = max(at, last + 1)
        self._last[run, name] = row.progress, at
        return at

    def _has(self, run: str, name: str, step: int, value: float) -> bool:
        if (run, name) not in self._known:
            history = self._client.get_metric_history(run, name)
            self._known[run, name] = {self._key(metric.step, metric.value) for metric in history}
        return self._key(step, value) in self._known[run, name]

    def _key(self, step: int, value: float) -> tuple[int, float | None]:
        return step, value if self._study.watched else None

    def _run(self, member: int) -> str:
        if self._study.existing is not None:
            return self._study.existing
        if member not in self._runs:
            study, run_id = self._study, self._study.run_id(member)
            runs = self._client.search_runs([self._experiment], f"tags.`{ID}` = '{run_id}'", max_results=1)
            if runs:
                self._runs[member] = runs[0].info.run_id
                self._client.update_run(self._runs[member], status="RUNNING")
            else:
                tags = {ID: run_id, "phyla.study": study.name}
                tags |= {} if study.watched else {"phyla.member": str(member)}
                created = self._client.create_run(self._experiment, tags=tags, run_name=study.run_name(member))
                self._runs[member] = created.info.run_id
        return self._runs[member]

    def close(self) -> None:
        runs, self._runs = self._runs, {}
        for run in runs.values():
            self._client.set_terminated(run)
