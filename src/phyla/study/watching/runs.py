"""The runs of one watch: their records, and what looks for their checkpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, final

from phyla import plugins, queries
from phyla.checkpoints import place_of
from phyla.checkpoints.objects import Objects
from phyla.client import Client
from phyla.controller import Sightings, records_of, sightings_of
from phyla.errors import ConfigurationError, NotImportable, RunChanged
from phyla.evaluation import Suite
from phyla.records import Json, JsonObject, StudyKind, StudyRecord, StudyState
from phyla.store import Store
from phyla.study.maintaining.recover import remove_outputs
from phyla.study.places import Places, check_kept
from phyla.study.running.run import Crew
from phyla.study.validation import check_tasks
from phyla.study.watching.targets import Target
from phyla.watcher import DirectoryWatcher, Following, StudyWatcher, get_format
from phyla.watcher.remote import Remote, is_url
from phyla.watcher.snapshots import check_links
from phyla.worker import EvaluatedStudy
from phyla.worker.make import Runs

Watcher: TypeAlias = DirectoryWatcher | StudyWatcher


@final
@dataclass(frozen=True, kw_only=True)
class Watching:
    """What the runs of one watch have in common.

    Attributes:
        crew: who evaluates.
        places: where they keep their things.
        suites: what is run on each checkpoint.
        format: the name of the format of checkpoints, and its options.
        following: snapshots, how training ends, and the like.
        snapshot_dir: the directory of snapshots that was named; empty for one in the home.
        lease_s: seconds after which a worker that went silent loses its eval task.
    """

    crew: Crew
    places: Places
    suites: Sequence[Suite]
    format: Mapping[str, Any]
    following: Following
    snapshot_dir: str
    lease_s: float

    def check(self) -> None:
        """Make sure that this process can do it."""
        self.crew.check(self.places)
        if self.lease_s <= 0:
            raise ConfigurationError(f"lease_s={self.lease_s!r}: must be above 0")
        check_tasks(self.suites, self.crew.pool)
        get_format(**self.format)  # raises where there is no such format

    @cached_property
    def encoded(self) -> Sequence[Json]:
        """The stored suites; worker processes import their functions."""
        name_of = plugins.reference if self.crew.workers else plugins.reference_here
        try:
            return [plugins.encode(suite, name_of) for suite in self.suites]
        except NotImportable as error:
            raise NotImportable(f"{error} (in a suite)") from error

    def create(self, store: Store, target: Target) -> None:
        """Create a run, or resume an existing one with these settings."""
        if isinstance(target.directory, Path) and self.following.snapshots == "link":
            held = self.places.snapshots(target.name, self.snapshot_dir, store.identity().id)
            check_links(target.directory, held)
        _create(store, target, self._config(target))

    def _config(self, target: Target) -> JsonObject:
        study = target.study
        return {
            "suites": self.encoded,
            "format": dict(self.format),
            "following": asdict(self.following),
            "lease_s": self.lease_s,
            "outputs": str(self.places.folder("outputs", target.name)),
            "snapshots": self.snapshot_dir,
            # Files of gin bindings are relative to it.
            "gin_root": str(target.directory if isinstance(target.directory, Path) else Path.cwd()),
            "checkpoints": "" if study is None else str(self.places.checkpoints(study.name, study.config)),
        }

    def watchers(self, store: Store, client: Client, runs: Runs) -> list[Watcher]:
        """Return what looks for the checkpoints of each run."""
        return [self._watcher(store, client, record, evaluated) for record, evaluated in runs]

    def _watcher(self, store: Store, client: Client, record: StudyRecord, evaluated: EvaluatedStudy) -> Watcher:
        sightings = sightings_of(store, record, self.suites)
        sightings.backfill()
        sightings.retry()
        _note_edited(sightings, store, evaluated, record.id)
        remove_outputs(store, record.id, evaluated.outputs)
        stored: Any = record.config
        best = self.places.folder("best", record.name)
        if record.source is not None:
            checkpoints = place_of(stored["checkpoints"], self.places.home)
            once = self.following.once
            return StudyWatcher(sightings, store, record.source, checkpoints=checkpoints, best=best, once=once)
        root = Remote(record.location) if is_url(record.location) else Path(record.location)
        return DirectoryWatcher(
            sightings,
            root,
            get_format(**self.format),
            run=record,
            snapshots=self.places.snapshots(record.name, stored["snapshots"], store.identity().id),
            best=best,
            following=self.following,
        )


def check_url(url: str, how: Following, snapshot_dir: str) -> None:
    """Reject options that only directories have, and buckets that are missing or cannot be listed."""
    if how.snapshots != "link" or snapshot_dir:
        raise ConfigurationError(
            f"{url}: leave out --snapshots (in Python snapshots=, snapshot_dir=): workers evaluate copies of what "
            "is on an object store"
        )
    Objects(url, writes=False).infos("-")  # one request, since nothing is below that


def _create(store: Store, target: Target, config: JsonObject) -> None:
    kind = StudyKind.DIRECTORY if target.study is None else StudyKind.STUDY
    location = str(target.directory or "")
    source = None if target.study is None else target.study.id
    record = store.create_study(target.name, config, kind=kind, location=location, source=source)
    check_kept(record)
    if (record.kind, record.source, record.location) != (kind, source, location):
        origin = record.location or f"study number {record.source or record.id}"
        raise RunChanged(
            f"run {target.name!r} in {store.url} is that of {origin}, not of {location or target.name}; give "
            "this one another name (on the command line: --name)"
        )
    if record.config != config or record.state is not StudyState.RUNNING:
        records_of(store, record.id).store_config(config, record.config)


def _note_edited(sightings: Sightings, store: Store, evaluated: EvaluatedStudy, run: int) -> None:
    """Note which eval tasks were edited under the same version, by the newest results of each suite."""
    for suite in evaluated.suites:
        for newest in store.look(run, queries.newest_complete, suite.name):
            for results in newest.groups:
                if results.group.suite == suite.name and not results.group.replicate:
                    for message in evaluated.describe_edits(suite, results.results).values():
                        sightings.note("changed-source", message, suite=suite.name)
