"""How watched runs stand: directories, and other people's studies, whose checkpoints are evaluated."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from phyla.errors import ConfigurationError
from phyla.records import GroupState, Seen, SeenState, StudyRecord, StudyState
from phyla.study.evaluations import BestEvaluation, Evaluations
from phyla.study.opening import find_study, open_if_there
from phyla.study.places import Places
from phyla.study.results import Results

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

    run: StudyRecord
    watcher: str | None
    checkpoints: int
    newest: Seen | None
    step_from: str | None
    suites: tuple[SuiteStanding, ...]
    quarantined: tuple[Seen, ...]

    @property
    def state(self) -> str:
        """The run's state; a run that has not ended and that no process of this machine watches says so."""
        if self.watcher is None and self.run.state is not StudyState.COMPLETED:
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
    quarantined: dict[tuple[str, int], Seen] = {}
    for seen in found.checkpoints():
        checkpoints += 1
        if seen.state is SeenState.QUARANTINED:
            quarantined[seen.name, seen.index] = seen
        else:
            newest = seen
            quarantined.pop((seen.name, seen.index), None)
    return Standing(
        run=run,
        watcher=holder(places.watch_lock(run.name)),
        checkpoints=checkpoints,
        newest=newest,
        step_from=_step_from(run, newest),
        suites=tuple(_suites(found)),
        quarantined=tuple(quarantined.values()),
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


def _step_from(run: StudyRecord, newest: Seen | None) -> str | None:
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


def list_all(places: Places) -> list[Results | Evaluations]:
    """Open all studies of a store, watched ones as what their evaluation found; oldest first.

    A SQLite file that is missing has none.

    Raises:
        StoreError: the database failed.
    """
    store = open_if_there(places)
    return [] if store is None else [_opened(store, study, places) for study in store.studies()]


def open_any(name: str, places: Places) -> Results | Evaluations:
    """Open a study of any kind, a watched one as what its evaluation found.

    Raises:
        StudyNotFound: there is none; the message names what there is.
        StoreError: the database failed.
    """
    return _opened(*find_study(name, places, watched=True), places)


def _opened(store: "Store", study: StudyRecord, places: Places) -> Results | Evaluations:
    return (Evaluations if study.watched else Results)(store, study, places)
