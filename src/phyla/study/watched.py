"""How watched runs stand: directories, and other people's studies, whose checkpoints are evaluated."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla.errors import ConfigurationError, RunNotFound, StudyNotFound
from phyla.records import GroupState, RunRecord, RunState, Seen, SeenState
from phyla.study.evaluations import BestEvaluation, Evaluations
from phyla.study.opening import open_existing, sqlite_file
from phyla.study.places import Places

if TYPE_CHECKING:
    from phyla.store import Store


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteStanding:
    """How one suite of a watched run stands.

    Attributes:
        name: of the suite.
        objective: the aggregate that its objective names; None without one.
        counts: how many evaluations are queued, complete, partial, skipped and gone; repetitions do not count.
        best: its best checkpoint; None before there is one.
    """

    name: str
    objective: str | None
    counts: dict[str, int]
    best: BestEvaluation | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a watched run stands.

    Attributes:
        run: the run.
        watcher: the process of this machine that watches it; None if there is none here.
        checkpoints: how many were seen, each version of a name counted.
        newest: the one seen last that can be evaluated, or could; None before there is one.
        step_from: where its step comes from; None for a study.
        suites: its suites.
        quarantined: checkpoints that cannot be evaluated as they are now, with the reason as `error`.
    """

    run: RunRecord
    watcher: str | None
    checkpoints: int
    newest: Seen | None
    step_from: str | None
    suites: tuple[SuiteStanding, ...]
    quarantined: tuple[Seen, ...]

    @property
    def state(self) -> str:
        """The run's state; a run that has not ended and that no process of this machine watches says so."""
        if self.watcher is None and self.run.state is not RunState.ENDED:
            return f"{self.run.state}, not watched here"
        return self.run.state.value

    @property
    def counts(self) -> Counter[str]:
        """Evaluations of all suites by their state."""
        return sum((Counter(suite.counts) for suite in self.suites), Counter[str]())


def standing(found: Evaluations, places: Places) -> Standing:
    """Return how a watched run stands.

    Raises:
        StoreError: the database failed.
    """
    from phyla.watcher import holder

    run = found.run
    checkpoints = 0
    newest: Seen | None = None
    latest: dict[tuple[str, int], Seen] = {}
    for seen in found.checkpoints():
        checkpoints += 1
        newest = newest if seen.state is SeenState.QUARANTINED else seen
        key = (seen.name, seen.index)
        if seen.state is SeenState.QUARANTINED:
            latest[key] = seen
        else:
            latest.pop(key, None)
    return Standing(
        run=run,
        watcher=holder(places.watch_lock(run.name)),
        checkpoints=checkpoints,
        newest=newest,
        step_from=_step_from(run, newest),
        suites=tuple(_suites(found)),
        quarantined=tuple(latest.values()),
    )


def _suites(found: Evaluations) -> Iterable[SuiteStanding]:
    counts: dict[str, Counter[str]] = {}
    for group in found.groups():
        if group.replicate == 0:
            counts.setdefault(group.suite, Counter())[group.state.value] += 1
    for suite in found.suites:
        best = None
        if suite.objective is not None and counts.get(suite.name, Counter())[GroupState.COMPLETE.value]:
            try:
                best = found.best(suite.name)
            except ConfigurationError:
                # Its objective is another one since; the next evaluation finds the best one.
                best = None
        yield SuiteStanding(
            name=suite.name, objective=suite.objective, counts=dict(counts.get(suite.name, {})), best=best
        )


def _step_from(run: RunRecord, newest: Seen | None) -> str | None:
    from phyla.watcher import get_format

    options: Any = run.config.get("format")
    if newest is None or newest.trial is not None or not isinstance(options, dict):
        return None
    settings = dict(options)
    try:
        return get_format(str(settings.pop("name", "auto")), **settings).step_rule(newest.name)
    except ConfigurationError:
        # A later version of phyla wrote it.
        return None


def list_watched(
    *, home: str | Path | None = None, storage: str | None = None, checkpoints: str | Path | None = None
) -> list[Evaluations]:
    """Open all watched runs of a store, oldest first; a SQLite file that is missing has none.

    Args:
        home: directory where they live; by default `.phyla` or the environment's.
        storage: URL of their store, if that is not in the home.
        checkpoints: directory of all studies' checkpoints, if that is not in the home.

    Raises:
        StoreError: the database failed.
    """
    from phyla.store import open_store

    places = Places.of(home, storage, checkpoints)
    file = sqlite_file(places.storage)
    if file is not None and not file.exists():
        return []
    store = open_store(places.storage)
    return [Evaluations(store, run, places) for run in store.runs() if is_watched(run)]


def find_watched(name: str, places: Places) -> Evaluations | None:
    """Return a watched run, or None if a study has that name.

    Raises:
        RunNotFound: there is neither; the message names what there is.
        StoreError: the database failed.
    """
    try:
        store = open_existing(f"study or run {name!r}", places)
    except StudyNotFound as error:
        raise RunNotFound(str(error)) from error
    return watched_of(store, name, places)


def watched_of(store: "Store", name: str, places: Places) -> Evaluations | None:
    """Return a watched run, or None if a study has that name; closes the store unless it returns a run.

    Raises:
        RunNotFound: there is neither; the message names what there is.
        StoreError: the database failed.
    """
    run = store.find_run(name)
    if run is not None and is_watched(run):
        return Evaluations(store, run, places)
    studies = [study.name for study in store.studies()]
    runs = [known.name for known in store.runs() if is_watched(known)]
    store.close()
    if name in studies:
        return None
    told = f"; watched runs: {', '.join(map(repr, runs))}" if runs else ""
    raise RunNotFound(
        f"there is no study {name!r} in {store.url}, and no watched run of that name; there are: "
        f"{', '.join(map(repr, studies)) or 'none'}{told}"
    )


def is_watched(run: RunRecord) -> bool:
    """Return whether a run is watched, and is not that of a study whose own suites are evaluated."""
    return bool(run.config) or run.study is None
