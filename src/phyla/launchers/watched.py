"""Opens watched studies by name, as their workers and their watcher need them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from phyla import plugins
from phyla.client import LocalClient, known_checkpoints, open_checkpoints
from phyla.controller import Sightings, suite_differences
from phyla.errors import ConfigurationError, SchemaMismatch, StudyNotFound
from phyla.evaluation import Suite
from phyla.machine import WatchRules
from phyla.records import JsonObject, StudyKind, StudyRecord
from phyla.store import Store
from phyla.watcher import CheckpointFormat, DirectorySources, Following, get_format
from phyla.worker import Bindings, EvaluatedStudy, Sources, StudySources

SCHEMA = 1
_PLAIN = ("lease_s", "outputs", "snapshots", "gin_root", "checkpoints")
"""Fields of `WatchConfig` that are stored as they are."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WatchConfig:
    """What the store remembers of how a watched study is followed and evaluated.

    Attributes:
        outputs: directory of arrays and files that evaluations save.
        snapshots: directory of its snapshots.
        gin_root: directory to which files of gin bindings are relative.
        checkpoints: directory of a study's checkpoints; empty for a watched directory.
        kind: name of the format of checkpoints in a directory.
        options: options of that format, as `get_format` takes them.
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
        """Write it as JSON, with functions and unregistered classes as `name_of` calls them.

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
    def from_json(raw: JsonObject, suites: Sequence[Suite]) -> "WatchConfig":
        """Read what `to_json` wrote, but for the suites: they hold functions, and come from the user's file.

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
        return WatchConfig(
            suites=tuple(suites),
            kind=options.pop("name"),
            options=options,
            following=Following(**config["following"]),
            **{name: config[name] for name in _PLAIN},
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedStudy:
    """One watched study, with what its watcher and its workers need."""

    record: StudyRecord
    config: WatchConfig
    sightings: Sightings
    evaluated: EvaluatedStudy


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedStudies:
    """Watched studies that one pool of workers serves, and the client that speaks with all of them."""

    client: LocalClient
    studies: Sequence[WatchedStudy]

    @property
    def evaluated(self) -> dict[int, EvaluatedStudy]:
        """What workers need of each study, by its id."""
        return {study.record.id: study.evaluated for study in self.studies}

    @property
    def lease_s(self) -> float:
        """The shortest of their leases."""
        return min(study.config.lease_s for study in self.studies)


def open_watched(
    store: Store, suites: Mapping[str, Sequence[Suite]], *, gin_bindings: Sequence[str] = ()
) -> WatchedStudies:
    """Open watched studies, by name with their suites, which come from files that the user gave.

    Raises:
        StudyNotFound: there is no study of one of the names.
        ConfigurationError: a study has a population, whose own workers evaluate it.
        CheckpointsAbsent: the checkpoints of the source study are not where this one looks for them.
        StoreError: the database failed.
    """
    studies = [_open(store, name, tuple(given), tuple(gin_bindings)) for name, given in suites.items()]
    (first, first_rules), *others = [
        (study.record, WatchRules(suites=study.config.suites, lease_s=study.config.lease_s)) for study in studies
    ]
    return WatchedStudies(client=LocalClient(store, first, first_rules, others=others), studies=studies)


def changed_suites(opened: WatchedStudies, given: Mapping[str, JsonObject]) -> str | None:
    """Return in words how stored suites differ from those of given configurations; None if they do not."""
    for study in opened.studies:
        name = study.record.name
        differing = suite_differences(study.record.config, given[name])
        if differing:
            listing = "; ".join(f"{key}: it has {old!r}, given {new!r}" for key, (old, new) in differing.items())
            return (
                f"the suites of run {name!r} are not those of the suite file ({listing}); give the file that the "
                "run is watched with, or watch it again with this one"
            )
    return None


def _open(store: Store, name: str, suites: tuple[Suite, ...], gin: tuple[str, ...]) -> WatchedStudy:
    record = store.find_study(name)
    if record is None:
        known = ", ".join(repr(study.name) for study in store.studies() if study.watched) or "none"
        raise StudyNotFound(f"there is no run {name!r} in {store.url}; there are: {known}")
    if not record.watched:
        raise ConfigurationError(
            f"run {name!r} is that of a study, whose own workers evaluate it; run the study with evaluators"
        )
    config = WatchConfig.from_json(record.config, suites)
    sources: Sources = DirectorySources(Path(record.location))
    if record.kind is StudyKind.STUDY:
        source = next(study for study in store.studies() if study.id == record.source)
        repository = open_checkpoints(store, source.name, Path(config.checkpoints))
        if known_checkpoints(store, source):
            repository.check_owner()
        sources = StudySources(repository)

    def changed() -> bool:
        now = store.find_study(name)
        return now is not None and now.config.get("suites") != record.config.get("suites")

    return WatchedStudy(
        record=record,
        config=config,
        sightings=Sightings(store, record, suites),
        evaluated=EvaluatedStudy(
            suites=suites,
            sources=sources,
            outputs=Path(config.outputs),
            bindings=Bindings(root=Path(config.gin_root), worker=gin),
            changed=changed,
        ),
    )
