"""A virtual clock, a strategy that does everything, and a machine that drives two stores alike."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from phyla.controller import Controller, StudyRecords, changes_of, records_of
from phyla.errors import PhylaError
from phyla.machine import Claimed, Completion, Failure, Imported, SetConfig, TrainRules
from phyla.records import (
    Attempt,
    Checkpoint,
    CheckpointState,
    Constrained,
    JsonObject,
    Maximize,
    Member,
    MemberState,
    Minimize,
    Objective,
    Pareto,
    Report,
    StudyState,
    TrialRecord,
)
from phyla.space import Float, Space
from phyla.store import Reader, Store
from phyla.strategies import (
    PBT,
    Backtrack,
    Context,
    Decision,
    Divergence,
    Measure,
    MedianStopping,
    ParetoTournament,
    Perturb,
    Population,
    Reported,
    Start,
    Stop,
    StoppingRule,
    StopWith,
    Strategy,
    Truncation,
    Wait,
    ranked,
)
from stories import Stories

WORKERS = ("host:1:1", "host:2:1", "host:3:1")
LEASE_S = 10.0
STEPS = 5


class VirtualClock:
    """Stands still until a test moves it."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, kw_only=True)
class Capricious(Strategy):
    """Decides by the number of decisions so far, which it keeps as its state: everything happens soon."""

    population_size: int
    total_steps: int = 6 * STEPS
    exclusive: bool = True
    pareto: bool = True

    def finished(self, member: Member) -> bool:
        return member.progress >= self.total_steps

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        count = cast("dict[str, int]", context.state or {"decisions": 0})["decisions"] + 1
        state: JsonObject = {"decisions": count, "last": math.nan if count % 2 else "\u2603"}
        best = ranked(population)
        scored = [len(best), len(context.history.results(count % 3))]
        reason: JsonObject = {"decision": "capricious", "why": f"decision {count}", "scored": scored}
        running = any(one.state is MemberState.RUNNING for one in population)
        match (count * 7919) % 13:
            case 1 | 2 | 3 if running:
                return Wait(reason=reason)
            case 4 | 5 | 8 if member.head is not None:
                return Measure(times=2, reason=reason, state=state)
            case 6:
                return Stop(reason=reason, state=state)
            case 7 if count > 20:
                return Stop(reason=reason, state=state, study=True)
        weights = member.head
        if best and count % 3 == 0:
            weights = best[0]
        params = {"rate": float(context.rng.random())}
        return Start(
            weights=weights,
            params=params,
            params_from=weights.trial if weights else None,
            steps=STEPS,
            reason=reason,
            exploited=weights is not member.head,
            state=state,
        )


def pbt(size: int, *, quorum: float = 0.0) -> PBT:
    return PBT(
        population_size=size,
        steps_per_trial=STEPS,
        total_steps=6 * STEPS,
        exploit=Truncation(0.5),
        explore=Perturb(),
        quorum=quorum,
    )


def falls(reported: Reported) -> str | None:
    """Stop what reported less than its last three reports on average, or is soon to end."""
    values = reported.values("score")
    return "it falls" if len(values) > 2 and values[-1] < sum(values[-3:]) / 3 else None


STOPPING = (Divergence(below=-2.0), MedianStopping(min_steps=1, min_trials=1), StopWith(falls, history=3))
FEASIBLE = Constrained(Pareto(Maximize("score"), Minimize("cost")), subject_to=["cost <= 0.75"])


def rules(
    strategy: Strategy,
    *,
    minimize: bool = False,
    max_broken: int = 4,
    stopping: Sequence[StoppingRule] = (),
    objective: Objective | None = None,
) -> TrainRules:
    objective = objective or (Minimize("loss") if minimize else Maximize("score"))
    if objective.tradeoffs:
        stopping = [rule for rule in stopping if rule.pareto]
    return TrainRules(
        space=Space(rate=Float(0.0, 1.0)),
        objective=objective,
        strategy=strategy,
        lease_s=LEASE_S,
        max_attempts=2,
        max_claims=5,
        max_broken=max_broken,
        keep_best=2,
        stopping=tuple(stopping),
        max_stops=2,
    )


def completion(
    claimed: Claimed, value: float = 0.5, *, metrics: Mapping[str, Any] | None = None, reports: int = 0
) -> Completion:
    trial = claimed.trial
    checkpoint = Checkpoint(
        name=f"{trial.id}.{trial.token}",
        study=trial.study,
        trial=trial.id,
        step=trial.end_step,
        identity="d",
        size_bytes=1,
        created_at=trial.created_at,
    )
    return Completion(
        trial=trial.id,
        token=trial.token,
        reached_step=trial.end_step,
        values={"score": [value], "loss": [value], "cost": [trial.seed % 7 / 7]},
        metrics={"score": value} if metrics is None else metrics,
        reports=[Report(trial.start_step + n, {"score": value}) for n in range(reports)],
        checkpoint=None if trial.kind == "measure" else checkpoint,
        timings={"loading": 0.25, "training": 1.5},
    )


@cache
def _names_of_fields(kind: type) -> list[str] | None:
    """Return the names of the fields of a dataclass; None of another class."""
    return [found.name for found in fields(kind)] if is_dataclass(kind) else None


def plain(value: Any) -> Any:
    """Return a value in which equal means the same: nan equals nan, 1 is not 1.0, tuples are lists."""
    kind: Any = type(value)
    if kind is str or kind is int or value is None:
        return value
    names = _names_of_fields(kind)
    if names is not None:
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, float):
        # SQLite forgets the sign of zero.
        return repr(float(value) + 0.0)
    if isinstance(value, Mapping):
        return [[key, plain(item)] for key, item in value.items()]
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    if isinstance(value, Exception):
        return [type(value).__name__, str(value)]
    return value


def everything(store: Store, study: int) -> Any:
    """Return all records of a study and every answer a view can give about it."""
    with store.reader(study) as view:
        return everything_of(view)


def pages(reader: Reader, size: int) -> list[TrialRecord]:
    """Return all trials, read page by page."""
    trials: list[TrialRecord] = []
    while page := reader.trials(after=trials[-1].id if trials else 0, limit=size):
        trials += page
    return trials


def pages_of_attempts(reader: Reader, size: int) -> list[Attempt]:
    """Return the attempts at all trials, read page by page."""
    attempts: list[Attempt] = []
    while page := reader.trial_attempts(
        after=(attempts[-1].job, attempts[-1].token) if attempts else (0, 0), limit=size
    ):
        attempts += page
    return attempts


def everything_of(view: Reader) -> Any:
    """Return all records of a study and every answer that is not about evaluation."""
    trials = pages(view, 3)
    return plain(
        {
            "study": view.study(),
            "trials": trials,
            "ancestry": [view.ancestry(trial.id, limit) for trial in trials for limit in (None, 2)],
            "children": [view.children(trial.id) for trial in trials],
            "attempts": view.trial_attempts(),
            "attempts by pages": pages_of_attempts(view, 2),
            "chosen trials": view.chosen_trials([trial.id for trial in trials[::-2]]),
            "checkpoints": view.checkpoints(),
            "reports": [view.reports(trial.id) for trial in trials],
            "reports of first attempts": [view.reports(trial.id, 1) for trial in trials],
            "last reports": [view.last_reports(trial.id, trial.token, 2) for trial in trials],
            "counts": sorted(view.counts().items()),
            **_answers(view),
            "attempts of trials": [view.attempts(trial.id) for trial in trials],
            "trials of member 0": view.trials(member=0, after=1, limit=2),
            "jobs": [view.job(trial.id) for trial in trials],
        }
    )


def _answers(view: Reader) -> dict[str, Any]:
    return {
        "size": view.study().population_size,
        "now": view.now(),
        "live": view.checkpoints(CheckpointState.LIVE),
        "damaged": view.checkpoints(CheckpointState.DAMAGED),
        "held": view.held_checkpoints(),
        "best": view.best_trials(2),
        "scores": view.scores(),
        "finals": view.final_trials(),
        "broken": view.broken_in_a_row(),
        "results": [view.results(generation) for generation in range(5)],
        "running": [view.running(), *(view.running(worker) for worker in WORKERS)],
        "expired": view.expired(2),
        "claimed ahead": view.claimed_ahead(view.now()),
        "members": view.members(),
        "foremost": [view.foremost(count) for count in (-1, 0, 2, 99)],
        "cohorts": view.cohorts(),
        "time spent": view.time_spent(),
        "last completed": [view.last_completed(count) for count in (0, 2, 99)],
        "newest": view.newest_trials(3),
        "ended": [view.ended(age) for age in (None, 0, STEPS, 2 * STEPS, 99 * STEPS)],
        "unfinished trials": view.unfinished(),
        "averages": [
            view.averages(1, step, besides=besides, limit=2) for step in range(3 * STEPS) for besides in (0, 2)
        ],
    }


class Alike(RuleBasedStateMachine):
    """Drives a store and its oracle with the same commands; answers and records must stay the same.

    Args:
        store: the one under test.
        oracle: the one that is right.
        clock: the clock of both.
    """

    def __init__(self, store: Store, oracle: Store, clock: VirtualClock) -> None:
        super().__init__()
        self.store = store
        self.oracle = oracle
        self.stories = Stories(oracle)
        self.clock = clock
        self.claims: list[Claimed] = []

    @initialize(
        size=st.integers(1, 4),
        kind=st.sampled_from(("async", "sync", "capricious", "back", "back, sync", "pareto", "pareto, sync")),
        minimize=st.booleans(),
        stopping=st.sampled_from(((), STOPPING)),
    )
    def create(self, size: int, kind: str, minimize: bool, stopping: Sequence[StoppingRule]) -> None:
        strategy: Strategy = Capricious(population_size=size)
        if kind != "capricious":
            evolving = pbt(size, quorum=1.0 if kind.endswith("sync") and kind != "async" else 0.0)
            returning = replace(evolving, exploit=Backtrack(quantile=0.3, pool=0.6))
            strategy = returning if kind.startswith("back") else evolving
        objective = None
        if kind.startswith("pareto"):
            strategy = replace(evolving, exploit=ParetoTournament())
            objective = FEASIBLE
        agreed = rules(strategy, minimize=minimize, stopping=stopping, objective=objective)
        name = f"study {len(self.oracle.studies())}"
        config: JsonObject = {"schema": 1, "nan": math.nan, "$float": "mine"}
        self.both(lambda store: store.create_study(name, config, 7, size))
        study = self.oracle.find_study(name)
        assert study is not None
        self.study = study.id
        self.here = Controller(self.store, self.study, agreed)
        self.there = self.stories.listen(Controller(self.oracle, self.study, agreed))

    def both(self, act: Callable[[Store], Any]) -> Any:
        return self._same(lambda: act(self.store), lambda: act(self.oracle))

    def asked(self, act: Callable[[Controller], Any]) -> Any:
        return self._same(lambda: act(self.here), lambda: act(self.there))

    def recorded(self, act: Callable[[StudyRecords], Any]) -> Any:
        return self.both(lambda store: act(records_of(store, self.study)))

    def _same(self, here: Callable[[], Any], there: Callable[[], Any]) -> Any:
        mine, right = _outcome(here), _outcome(there)
        assert plain(mine) == plain(right)
        return right

    def remember(self, claims: Sequence[Claimed]) -> None:
        self.claims += claims

    @rule(worker=st.sampled_from(WORKERS), count=st.integers(1, 3))
    def claim(self, worker: str, count: int) -> None:
        self.remember(self.asked(lambda controller: controller.claim(worker, count))[0])

    @precondition(lambda self: self.claims)
    @rule(
        data=st.data(),
        value=st.sampled_from((0.0, 0.25, 0.25, 1.0, -1.0, math.nan, math.inf, -math.inf)),
        reports=st.integers(0, 2),
        worker=st.none() | st.sampled_from(WORKERS),
    )
    def complete(self, data: st.DataObject, value: float, reports: int, worker: str | None) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.claims[-8:]), min_size=1, max_size=2))
        done = [completion(claimed, value, reports=reports) for claimed in chosen]
        answer = self.asked(lambda controller: controller.complete(done, worker, 1 if worker else 0))
        if not isinstance(answer, Exception):
            self.remember(answer[1])

    @precondition(lambda self: self.claims)
    @rule(
        data=st.data(),
        retryable=st.booleans(),
        gone=st.booleans(),
        damage=st.sampled_from((None, "a byte differs\u2603")),
    )
    def fail(self, data: st.DataObject, retryable: bool, gone: bool, damage: str | None) -> None:
        trial = data.draw(st.sampled_from(self.claims[-8:])).trial
        failure = Failure(
            job=trial.id,
            token=trial.token,
            error="it broke\nValueError: \u2603",
            retryable=retryable,
            gone=trial.parent_checkpoint if gone else None,
            damage=damage,
        )
        self.asked(lambda controller: controller.fail(failure))

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        trial = data.draw(st.sampled_from(self.claims[-8:])).trial
        self.asked(lambda controller: controller.release(trial.id, trial.token))

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), step=st.integers(1, 2))
    def save_progress(self, data: st.DataObject, step: int) -> None:
        trial = data.draw(st.sampled_from(self.claims[-8:])).trial
        checkpoint = Checkpoint(
            name=f"{trial.id}.{trial.token}.p{step}",
            study=self.study,
            trial=trial.id,
            step=trial.start_step + step,
            identity="p",
            size_bytes=1,
            created_at=self.clock(),
        )
        self.asked(lambda controller: controller.save_progress(trial.id, trial.token, checkpoint))

    @precondition(lambda self: self.claims)
    @rule(
        data=st.data(),
        value=st.sampled_from((0.5, 0.75, -0.5, math.nan, -math.inf)),
        after=st.integers(0, STEPS),
        count=st.integers(1, 3),
    )
    def report(self, data: st.DataObject, value: float, after: int, count: int) -> None:
        trial = data.draw(st.sampled_from(self.claims[-8:])).trial
        reports = [Report(trial.start_step + after + n, {"score": value - n / 8, "a/b": 1}) for n in range(count)]
        self.asked(lambda controller: controller.report(trial.id, trial.token, reports))

    @rule(worker=st.sampled_from(WORKERS), counts=st.booleans())
    def lose_worker(self, worker: str, counts: bool) -> None:
        self.asked(lambda controller: controller.lose_worker(worker, "it is gone", counts=counts))

    @rule(worker=st.sampled_from(WORKERS))
    def renew(self, worker: str) -> None:
        self.asked(lambda controller: controller.renew(worker))

    @rule(size=st.integers(1, 5), fresh=st.booleans())
    def resize(self, size: int, fresh: bool) -> None:
        strategy: Any = self.here.population.strategy
        agreed = replace(self.here.population, strategy=replace(strategy, population_size=size))
        here, there = (Controller(store, self.study, agreed) for store in (self.store, self.oracle))
        changed = {"schema": 1, "size": size}, {"strategy.population_size": (strategy.population_size, size)}
        answer = self._same(
            lambda: changes_of(self.store, self.study, agreed).change(*changed, fresh=fresh),
            lambda: changes_of(self.oracle, self.study, agreed).change(*changed, fresh=fresh),
        )
        if not isinstance(answer, Exception):
            self.here, self.there = here, there

    @rule(count=st.integers(1, 2))
    def start_from(self, count: int) -> None:
        imports = [
            Imported(
                name=f"start-{number}",
                origin=f"/elsewhere/\u2603{number}",
                step=7 * number,
                params={"rate": 0.5} if number else {},
                index=number,
                digest="i",
                size_bytes=2,
            )
            for number in range(count)
        ]
        self.recorded(lambda records: records.import_checkpoints(imports))

    @rule(seconds=st.sampled_from((0.25, 2.5, 4.0, LEASE_S, 2 * LEASE_S, -3 * LEASE_S)))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(delete=st.booleans())
    def collect(self, delete: bool) -> None:
        found = self.asked(lambda controller: controller.retention())
        marked = self.recorded(lambda records: records.mark_deleting(found.collectable))
        if delete:
            self.recorded(lambda records: records.set_checkpoints(marked, CheckpointState.DELETED))

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), marked=st.booleans())
    def vanish(self, data: st.DataObject, marked: bool) -> None:
        with self.oracle.reader(self.study) as reader:
            live = reader.checkpoints(CheckpointState.LIVE)
        if live:
            row = data.draw(st.sampled_from(live))
            if marked:
                self.recorded(lambda records: records.mark_deleting([row]))
            else:
                self.recorded(lambda records: records.set_checkpoints([row.name], CheckpointState.LOST))

    @rule(state=st.sampled_from((StudyState.STOPPED, StudyState.RUNNING, StudyState.RUNNING)))
    def set_state(self, state: StudyState) -> None:
        self.both(lambda store: store.set_state(self.study, state, f"set to {state}"))

    @rule(number=st.integers(0, 3))
    def set_config(self, number: int) -> None:
        def change(store: Store) -> None:
            with store.transaction(self.study, exclusive=True, alone=True) as tx:
                tx.apply([SetConfig({"number": number})])

        self.both(change)

    @rule(worker=st.sampled_from(WORKERS), count=st.integers(1, 2))
    def interrupt(self, worker: str, count: int) -> None:
        """Do something and roll it back: only the ids that were given out may show."""
        self.asked(lambda controller: _interrupted(controller, worker, count))

    @invariant()
    def same(self) -> None:
        if hasattr(self, "study"):
            assert everything(self.store, self.study) == everything(self.oracle, self.study)


class _Interruption(Exception):
    """Ends a transaction from inside."""


class _Interrupting:
    """A store whose transactions never commit."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @contextmanager
    def transaction(self, study: int, **how: Any) -> Any:
        with self._store.transaction(study, **how) as tx:
            yield tx
            raise _Interruption


def _interrupted(controller: Controller, worker: str, count: int) -> Any:
    store = cast("Store", _Interrupting(controller._store))
    try:
        return Controller(store, controller._study, controller.rules).claim(worker, count)
    except _Interruption:
        return None


def _outcome(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except PhylaError as error:
        return error
