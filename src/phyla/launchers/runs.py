"""Opens runs that are watched, by name, as their workers and their watcher need them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from phyla import plugins
from phyla.controller import RunController, suite_differences
from phyla.errors import ConfigurationError, RunNotFound, SchemaMismatch
from phyla.evaluation import Suite
from phyla.local_client import RunClient, known_checkpoints, open_checkpoints
from phyla.records import Json, JsonObject, RunKind, RunRecord
from phyla.store import Store
from phyla.watcher import CheckpointFormat, DirectorySources, Following, get_format
from phyla.worker import Bindings, EvaluatedRun, Sources, StudySources

SCHEMA = 1
_PLAIN = ("lease_s", "outputs", "snapshots", "gin_root", "checkpoints")
"""Fields of `RunConfig` that are stored as they are."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """What the store remembers of how a run is followed and evaluated.

    Attributes:
        suites: its suites.
        lease_s: seconds a claim lasts unless renewed.
        outputs: directory of arrays and files that evaluations save.
        snapshots: directory of its snapshots.
        gin_root: directory to which files of gin bindings are relative.
        checkpoints: directory of a study's checkpoints; empty for a watched directory.
        kind: name of the format of checkpoints in a directory.
        options: options of that format, as `get_format` takes them.
        following: how a directory is followed.
    """

    suites: tuple[Suite, ...]
    lease_s: float = 60.0
    outputs: str = ""
    snapshots: str = ""
    gin_root: str = ""
    checkpoints: str = ""
    kind: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    following: Following = field(default_factory=Following)

    def format(self) -> CheckpointFormat:
        """Return what checkpoints in the directory look like.

        Raises:
            ConfigurationError: there is no such format, or it does not take the options.
        """
        return get_format(self.kind, **self.options)

    def to_json(self, name_of: Callable[[Callable[..., Any]], str] = plugins.reference) -> JsonObject:
        """Write it as JSON.

        Args:
            name_of: names functions and unregistered classes.

        Raises:
            ConfigurationError: a setting cannot be written as JSON.
            NotImportable: a function or class cannot be found again by name.
        """
        return {
            "schema": SCHEMA,
            "suites": [plugins.encode(suite, name_of) for suite in self.suites],
            "format": {"name": self.kind, **self.options},
            "following": asdict(self.following),
            **{name: getattr(self, name) for name in _PLAIN},
        }

    @staticmethod
    def from_json(raw: JsonObject, suites: Sequence[Suite]) -> "RunConfig":
        """Read what `to_json` wrote, except for the suites, which hold functions and commands.

        Args:
            raw: what is stored.
            suites: the suites, from the file that the user gave.

        Raises:
            SchemaMismatch: a newer version of phyla wrote it.
        """
        if raw.get("schema") != SCHEMA:
            raise SchemaMismatch(
                f"the run's configuration has schema {raw.get('schema')}, this phyla understands {SCHEMA}; "
                "use the version of phyla that made the run"
            )
        config: Any = raw
        options = dict(config["format"])
        return RunConfig(
            suites=tuple(suites),
            kind=options.pop("name"),
            options=options,
            following=Following(**config["following"]),
            **{name: config[name] for name in _PLAIN},
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRun:
    """One run, ready to be followed or evaluated.

    Attributes:
        record: the run.
        config: how.
        controller: decides about it.
        evaluated: what workers need of it.
    """

    record: RunRecord
    config: RunConfig
    controller: RunController
    evaluated: EvaluatedRun


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRuns:
    """Several runs that one pool of workers serves.

    Attributes:
        client: speaks with all of them.
        runs: each of them, by its id.
    """

    client: RunClient
    runs: Mapping[int, OpenedRun]

    def run_of(self, run: int) -> EvaluatedRun:
        """Return what workers need of a run."""
        return self.runs[run].evaluated

    @property
    def lease_s(self) -> float:
        """The shortest of their leases."""
        return min(run.config.lease_s for run in self.runs.values())


def open_runs(
    store: Store,
    names: Sequence[str],
    suites: Mapping[str, Sequence[Suite]],
    *,
    gin_bindings: Sequence[str] = (),
) -> OpenedRuns:
    """Open runs by name.

    Args:
        store: where they are remembered.
        names: their names.
        suites: by name of the run; from files that the user gave, never from the store.
        gin_bindings: gin bindings of this worker.

    Raises:
        RunNotFound: there is no run of one of the names.
        CheckpointsAbsent: the checkpoints of a study are not where the run looks for them.
        StoreError: the database failed.
    """
    opened = [_open(store, name, tuple(suites[name]), tuple(gin_bindings)) for name in names]
    client = RunClient(store, [(run.record, run.controller) for run in opened])
    return OpenedRuns(client=client, runs={run.record.id: run for run in opened})


def changed_suites(opened: OpenedRuns, given: Mapping[str, Sequence[Json]]) -> str | None:
    """Return in words how stored suites of runs differ from those given as JSON; None if they do not."""
    for run in opened.runs.values():
        name = run.record.name
        differing = suite_differences(run.record.config, {"suites": list(given[name])})
        if differing:
            listing = "; ".join(f"{key}: it has {old!r}, given {new!r}" for key, (old, new) in differing.items())
            return (
                f"the suites of run {name!r} are not those of the suite file ({listing}); give the file that the "
                "run is watched with, or watch it again with this one"
            )
    return None


def _open(store: Store, name: str, suites: tuple[Suite, ...], gin: tuple[str, ...]) -> OpenedRun:
    record = store.find_run(name)
    if record is None:
        known = ", ".join(repr(run.name) for run in store.runs()) or "none"
        raise RunNotFound(f"there is no run {name!r} in {store.url}; there are: {known}")
    if not record.config:
        raise ConfigurationError(
            f"run {name!r} is that of a study, whose own workers evaluate it; run the study with evaluators"
        )
    config = RunConfig.from_json(record.config, suites)
    sources: Sources = DirectorySources(Path(record.location))
    if record.kind is RunKind.STUDY:
        study = next(study for study in store.studies() if study.id == record.study)
        repository = open_checkpoints(store, study.name, Path(config.checkpoints))
        if known_checkpoints(store, study):
            repository.check_owner()
        sources = StudySources(repository)

    def changed() -> bool:
        now = store.find_run(name)
        return now is not None and now.config.get("suites") != record.config.get("suites")

    return OpenedRun(
        record=record,
        config=config,
        controller=RunController(store, record, suites, lease_s=config.lease_s),
        evaluated=EvaluatedRun(
            suites=suites,
            sources=sources,
            outputs=Path(config.outputs),
            bindings=Bindings(root=Path(config.gin_root), worker=gin),
            changed=changed,
        ),
    )
