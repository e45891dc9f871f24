"""Stopping running trials: what is remembered, who is told, and what their members do next."""

import asyncio
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from effort import rarely, times
from facts import check_facts, raises
from phyla.configuration import from_config, to_config
from phyla.errors import ConfigurationError, LeaseLost
from phyla.integrations.optuna_search import Optuna
from phyla.machine import Accepted, Claimed, Completion, Ended, Failure, ReportAnswer, Stopped, TrainRules
from phyla.records import (
    AttemptState,
    Constrained,
    JobKind,
    JobState,
    JsonObject,
    Maximize,
    Member,
    MemberState,
    Minimize,
    Report,
    StudyState,
    TrialRecord,
    WeightedSum,
)
from phyla.records.objective import _OneMetric
from phyla.space import Float, Space
from phyla.strategies import (
    ASHA,
    PBT,
    Backtrack,
    Divergence,
    FixedSchedule,
    GridSearch,
    InitiatorPBT,
    MedianStopping,
    Others,
    RandomSearch,
    Reported,
    SingleWorkerExplore,
    StoppingRule,
    StopWith,
    Truncation,
)
from simulation import Simulation

SPACE = Space(lr=Float(0.1, 1.0))
NAN = math.nan


def pbt(size: int = 4, trials: int = 3, steps: int = 10, **more: Any) -> PBT:
    return PBT(population_size=size, steps_per_trial=steps, total_steps=trials * steps, **more)


def make(strategy: Any, *stopping: StoppingRule, train: Any = None, **more: Any) -> Simulation:
    more = {"space": SPACE, "objective": Maximize("Q"), **more}
    rules = TrainRules(strategy=strategy, stopping=stopping, **more)
    return Simulation(rules, train or (lambda parent, trial: (None, float(trial.member))))


def claim(simulation: Simulation) -> TrialRecord:
    (work,), rest = simulation.controller.claim("w")
    assert isinstance(work, Claimed), rest
    return work.trial


def report(simulation: Simulation, trial: TrialRecord, *values: float, first: int = 1) -> ReportAnswer:
    reports = [Report(trial.start_step + first + n, {"Q": value}) for n, value in enumerate(values)]
    return simulation.controller.report(trial.id, trial.token, reports)


def complete(simulation: Simulation, trial: TrialRecord, reports: Sequence[Report] = ()) -> Any:
    done = replace(simulation.completion(trial), reports=tuple(reports))
    (answer,), _, _ = simulation.controller.complete([done])
    return answer


def row(simulation: Simulation, trial: TrialRecord | int) -> TrialRecord:
    with simulation.store.reader(simulation.study.id) as reader:
        return reader.trial(trial if isinstance(trial, int) else trial.id)


def rows(simulation: Simulation) -> list[TrialRecord]:
    with simulation.store.reader(simulation.study.id) as reader:
        return list(reader.trials())


def member(simulation: Simulation, index: int) -> Member:
    with simulation.store.reader(simulation.study.id) as reader:
        return reader.member(index)


def test_a_report_of_nan_stops_the_trial_and_its_member_starts_afresh() -> None:
    simulation = make(pbt(size=1), Divergence())
    first = claim(simulation)
    assert report(simulation, first, 0.5) == ReportAnswer()
    standing = report(simulation, first, NAN, first=2)
    reason: JsonObject = {"rule": "divergence", "metric": "Q", "step": 2, "value": "nan"}
    assert standing == ReportAnswer(cancelled=True, stop_reason=reason)
    stopped = row(simulation, first)
    assert (stopped.state, stopped.stop_reason, stopped.reached_step) == (JobState.CANCELLED, reason, 2)
    assert stopped.ended_at is not None
    with simulation.store.reader(simulation.study.id) as reader:
        assert [attempt.state for attempt in reader.attempts(first.id)] == [AttemptState.CANCELLED]
        assert [r.step for r in reader.reports(first.id)] == [1, 2]
        assert reader.broken_in_a_row() == 0
        assert reader.counts() == {"cancelled": 1}
    # Whoever asks again learns the same.
    assert simulation.controller.report(first.id, 1, []).stop_reason == reason
    again = claim(simulation)
    assert (again.replaces, again.parent, again.generation, again.jump_from) == (first.id, None, 0, None)
    assert again.params != first.params
    assert again.seed != first.seed
    assert again.reason["decision"] == "replace"
    assert again.reason["stopped"] == reason
    assert isinstance(complete(simulation, again), Accepted)
    assert (member(simulation, 0).stops, member(simulation, 0).generation) == (0, 1)


@pytest.mark.parametrize("exploit", [Truncation(0.5), Backtrack(quantile=0.5, pool=0.5)])
@pytest.mark.parametrize("quorum", [0.0, 1.0])
def test_the_replacement_starts_from_the_true_ancestor(exploit: Any, quorum: float) -> None:
    # The last generation takes nobody over, because the ready interval has not passed.
    strategy = pbt(size=2, exploit=exploit, ready_interval=20, quorum=quorum)
    simulation = make(strategy, Divergence())
    heads: dict[int, int] = {}
    for _ in range(2):
        trial = claim(simulation)
        complete(simulation, trial)
        heads[trial.member] = trial.id
    for _ in range(2):
        trial = claim(simulation)
        assert trial.parent == heads[trial.member]
        assert report(simulation, trial, NAN).cancelled
        again = claim(simulation)
        assert again.replaces == trial.id
        assert (again.parent, again.jump_from) == (heads[trial.member], None)
        assert again.parent_checkpoint == f"{heads[trial.member]}.1"
        assert again.start_step == 10
        assert again.params != trial.params
        complete(simulation, again)


def test_a_stopped_exploit_is_decided_again_from_where_the_member_was() -> None:
    simulation = make(pbt(size=4, exploit=Truncation(0.25)), Divergence())
    for _ in range(4):
        complete(simulation, claim(simulation))
    trial = claim(simulation)
    assert trial.member == 0
    assert trial.jump_from == 1
    assert report(simulation, trial, NAN).cancelled
    again = claim(simulation)
    assert (again.member, again.replaces, again.jump_from) == (0, trial.id, 1)
    assert again.parent is not None
    assert again.seed != trial.seed


def test_a_completion_brings_reports_that_are_judged_too() -> None:
    simulation = make(pbt(size=1), Divergence(metric="loss", above=1.0))
    trial = claim(simulation)
    reports = [Report(1, {"loss": 0.5}), Report(2, {"loss": 1.5}), Report(3, {"loss": 0.5})]
    for repeated in (False, True):
        answer = complete(simulation, trial, reports)
        assert isinstance(answer, Stopped)
        assert answer.repeated is repeated
        assert answer.reason["step"] == 2
    with simulation.store.reader(simulation.study.id) as reader:
        assert reader.reports(trial.id) == reports
        assert reader.checkpoints() == []
        assert reader.member(0).head is None
        assert reader.counts() == {"cancelled": 1}


def test_a_function_that_ignores_the_stop_works_in_vain() -> None:
    simulation = make(pbt(size=2), Divergence())
    trial = claim(simulation)
    report(simulation, trial, NAN)
    again = claim(simulation)
    assert isinstance(complete(simulation, trial), Stopped)
    with simulation.store.reader(simulation.study.id) as reader:
        assert reader.checkpoints() == []
        assert reader.member(0).head is None
    complete(simulation, again)
    assert [t.id for t in rows(simulation) if t.state is JobState.COMPLETED] == [again.id]
    # Whatever else it may do is refused or without effect.
    simulation.controller.fail(Failure(job=trial.id, token=1, error="late"))
    simulation.controller.release(trial.id, 1)
    checkpoint = simulation.completion(trial).checkpoint
    assert checkpoint is not None
    with pytest.raises(LeaseLost):
        simulation.controller.save_progress(trial.id, 1, checkpoint)
    assert row(simulation, trial).state is JobState.CANCELLED


def test_a_member_is_stopped_only_so_often_in_one_generation() -> None:
    simulation = make(pbt(size=1, trials=2), Divergence(), max_stops=2)
    for _ in range(2):
        for stops in range(2):
            trial = claim(simulation)
            assert member(simulation, 0).stops == stops
            assert report(simulation, trial, NAN).cancelled
        free = claim(simulation)
        assert not report(simulation, free, NAN, NAN).cancelled
        assert isinstance(complete(simulation, free, [Report(9, {"Q": NAN})]), Accepted)
    assert isinstance(simulation.run_serially(), Ended)
    assert [t.state.value for t in rows(simulation)] == ["cancelled", "cancelled", "completed"] * 2


def test_stops_do_not_count_as_broken_and_broken_ones_not_as_stops() -> None:
    simulation = make(pbt(size=6, trials=1), Divergence(), max_broken=2, max_attempts=1, max_stops=9)
    for _ in range(3):
        assert report(simulation, claim(simulation), NAN).cancelled
    simulation.controller.fail(Failure(job=claim(simulation).id, token=1, error="boom"))
    for _ in range(2):
        assert report(simulation, claim(simulation), NAN).cancelled
    with simulation.store.reader(simulation.study.id) as reader:
        assert reader.study().state is StudyState.RUNNING
        assert reader.broken_in_a_row() == 1
    again = claim(simulation)
    assert again.reason.get("stopped") is not None or row(simulation, again.replaces or 0).error == "boom"


def test_a_measurement_is_not_stopped() -> None:
    simulation = make(pbt(size=1), Divergence())
    complete(simulation, claim(simulation))
    with simulation.store.transaction(simulation.study.id, exclusive=True) as tx:
        from phyla.machine import Update

        tx.apply([Update(replace(tx.member(0), measures_left=1))])
    trial = claim(simulation)
    assert trial.kind is JobKind.MEASURE
    assert not report(simulation, trial, NAN).cancelled


def test_reports_of_a_lost_attempt_stop_nothing() -> None:
    simulation = make(pbt(size=1), Divergence())
    trial = claim(simulation)
    simulation.controller.lose_worker("w", "gone", counts=False)
    standing = report(simulation, trial, NAN)
    assert (standing.cancelled, standing.stop_reason) == (True, None)
    assert row(simulation, trial).state is JobState.PENDING
    retried = claim(simulation)
    assert (retried.id, retried.token) == (trial.id, 2)
    assert report(simulation, trial, NAN).stop_reason is None
    assert report(simulation, retried, NAN).stop_reason is not None


def together(simulation: Simulation, curves: Sequence[Sequence[float]], first: int = 1) -> list[ReportAnswer]:
    """Claim a trial for each curve, and report them value by value in turns."""
    trials = [claim(simulation) for _ in curves]
    standings: dict[int, ReportAnswer] = {}
    for n in range(max(map(len, curves))):
        for trial, curve in zip(trials, curves, strict=True):
            if n < len(curve) and not (trial.id in standings and standings[trial.id].cancelled):
                standings[trial.id] = report(simulation, trial, curve[n], first=first + n)
    return [standings[trial.id] for trial in trials]


def test_the_median_of_running_averages_of_those_who_came_to_the_same_age() -> None:
    rule = MedianStopping(min_steps=2, min_trials=3, every_steps=2)
    simulation = make(pbt(size=5, steps=10), rule)
    # Averages at age 2: 1, 2, 3, 4 (not the last values, 2, 4, 6, 8); the best of the fifth is 2.4 there.
    curves = [(0.0, 2.0), (0.0, 4.0), (0.0, 6.0), (0.0, 8.0), (2.4, 0.0)]
    standings = together(simulation, curves)
    assert [standing.cancelled for standing in standings] == [False, False, False, False, True]
    assert standings[-1].stop_reason == {
        "rule": "median",
        "metric": "Q",
        "step": 2,
        "best": 2.4,
        "median": 2.5,
        "of": 4,
    }
    with simulation.store.reader(simulation.study.id) as reader:
        assert reader.averages(2, 2, besides=5, limit=10) == [4.0, 3.0, 2.0, 1.0]
        assert reader.averages(2, 2, besides=2, limit=2) == [1.2, 4.0]
        assert reader.averages(2, 0, besides=2, limit=9) == [2.4, 0.0, 0.0, 0.0]
        assert reader.averages(3, 0, besides=2, limit=9) == []


def test_trials_are_compared_at_the_age_of_their_weights() -> None:
    rule = MedianStopping(min_steps=2, min_trials=1, every_steps=2)
    simulation = make(pbt(size=2, exploit=None, explore=None, steps=10, quorum=0.0), rule)
    first, second = claim(simulation), claim(simulation)
    assert not report(simulation, first, 5.0, 5.0, 5.0).cancelled
    complete(simulation, first)
    third = claim(simulation)
    assert third.start_step == 10
    # Nobody has come to age 12 yet, however good others were after two steps of their trial.
    assert not report(simulation, third, 1.0, 1.0).cancelled
    assert report(simulation, second, 1.0, 1.0).cancelled
    assert third.member == first.member


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1, 1), (6,), (2, 4), (5, 1), (1, 3, 2)])
def test_how_reports_are_sent_changes_nothing(sizes: tuple[int, ...]) -> None:
    rules = (MedianStopping(min_steps=3, min_trials=2, every_steps=3), StopWith(three_bad, history=3))
    simulation = make(pbt(size=4, steps=10), *rules)
    for curve in ((5.0, 5.0, 5.0), (6.0, 6.0, 6.0)):
        assert not report(simulation, claim(simulation), *curve).cancelled
    for values, step in (((1.0, 4.0, 5.0, 4.0, 5.0, 5.0), None), ((6.0, 7.0, 6.0, -1.0, -1.0, -1.0), 6)):
        trial = claim(simulation)
        at = 0
        standing = None
        for size in sizes:
            standing = report(simulation, trial, *values[at : at + size], first=1 + at)
            at += size
        assert standing is not None
        reason: Any = standing.stop_reason
        if step is None:
            # The averages of the others at age 3 are 5 and 6.
            assert reason is not None
            assert (reason["rule"], reason["step"], reason["best"]) == ("median", 3, 5.0)
        else:
            assert (reason["rule"], reason["step"]) == ("three_bad", step)


def three_bad(reported: Reported) -> bool:
    return reported.values("Q") == [-1.0, -1.0, -1.0]


def test_the_tally_goes_on_over_reports_and_starts_anew_with_an_attempt() -> None:
    simulation = make(pbt(size=1), MedianStopping(min_steps=5))
    trial = claim(simulation)
    report(simulation, trial, 1.0, NAN)
    report(simulation, trial, 3.0, first=3)
    with simulation.store.reader(simulation.study.id) as reader:
        tally: Any = reader.attempts(trial.id)[0].tally
        assert math.isnan(tally.mean)
        assert (tally.count, tally.best, tally.step) == (3, 3.0, 3)
    simulation.controller.release(trial.id, 1)
    trial = claim(simulation)
    report(simulation, trial, 2.0, 4.0)
    with simulation.store.reader(simulation.study.id) as reader:
        again: Any = reader.attempts(trial.id)[1].tally
        assert (again.count, again.mean, again.best, again.step) == (2, 3.0, 4.0, 2)
        # The mark of the newest attempt is the one that counts.
        assert reader.averages(5, 0, besides=0, limit=5) == [2.0]


def test_a_trial_is_not_compared_with_an_earlier_attempt_of_itself() -> None:
    simulation = make(pbt(size=1), MedianStopping(min_steps=2, min_trials=1))
    trial = claim(simulation)
    assert not report(simulation, trial, 9.0, 9.0).cancelled
    simulation.controller.release(trial.id, 1)
    trial = claim(simulation)
    assert trial.token == 2
    assert not report(simulation, trial, 1.0, 1.0).cancelled


def broken_rule(reported: Reported) -> bool:
    raise KeyError("loss")


def leaving_rule(reported: Reported) -> bool:
    sys.exit("bye")


def cancelled_rule(reported: Reported) -> bool:
    raise asyncio.CancelledError("bye")


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (broken_rule, "KeyError 'loss'"),
        (leaving_rule, "SystemExit bye"),
        (cancelled_rule, "CancelledError bye"),
    ],
)
def test_a_rule_that_raises_stops_the_study_and_no_trial(rule: Any, told: str) -> None:
    simulation = make(pbt(size=1), StopWith(rule))
    trial = claim(simulation)
    assert not report(simulation, trial, 1.0).cancelled
    with simulation.store.reader(simulation.study.id) as reader:
        study = reader.study()
    assert study.state is StudyState.FAILED
    check_facts(str(study.message), "StopWith", *told.split(), __file__)
    assert isinstance(complete(simulation, trial, [Report(2, {"Q": 1.0})]), Accepted)


@dataclass(frozen=True)
class Judges(_OneMetric):
    """Cannot judge."""

    maximize = True

    def judge(self, values: Any) -> Any:
        return values["accuracy"]


def test_an_objective_that_raises_at_a_report_stops_the_study_and_is_named() -> None:
    simulation = make(pbt(size=1), MedianStopping(min_steps=5), objective=Judges("Q"))
    trial = claim(simulation)
    assert not report(simulation, trial, 1.0).cancelled
    with simulation.store.reader(simulation.study.id) as reader:
        study = reader.study()
    assert study.state is StudyState.FAILED
    check_facts(str(study.message), "Judges(", "KeyError", "'accuracy'", __file__)


@dataclass(frozen=True)
class Always(StoppingRule):
    """Stops everything at once."""

    @property
    def marks_every(self) -> int | None:
        return 5

    @property
    def history(self) -> int:
        return 3

    def judge(self, reported: Reported, others: Others) -> JsonObject | None:
        return {"rule": "always", "step": reported.step}


def strategies() -> Iterator[tuple[str, Any]]:
    for kind, quorum in (("async", 0.0), ("quorum", 0.8), ("sync", 1.0)):
        yield f"truncation, {kind}", pbt(exploit=Truncation(0.25), quorum=quorum)
        yield f"backtrack, {kind}", pbt(exploit=Backtrack(quantile=0.25, pool=0.5), quorum=quorum)
        yield f"explore only, {kind}", pbt(exploit=None, quorum=quorum)
    yield "initiator", InitiatorPBT(population_size=4, steps_per_trial=10, total_steps=30)
    yield "single worker", SingleWorkerExplore(explore_steps=10, exploit_steps=10, total_steps=60)


LIKE_OTHERS = (
    "backtrack, async",
    "backtrack, quorum",
    "explore only, async",
    "explore only, quorum",
    "explore only, sync",
)
"""Strategies that wait as others of PBT do."""


@pytest.mark.parametrize(
    ("name", "strategy"),
    [rarely(*case) if case[0] in LIKE_OTHERS else case for case in strategies()],
    ids=[name for name, _ in strategies()],
)
@pytest.mark.parametrize("workers", [rarely(1), 3])
def test_a_rule_that_always_stops_leaves_the_budget_exact(name: str, strategy: Any, workers: int) -> None:
    def ran(*stopping: StoppingRule) -> Simulation:
        simulation = make(strategy, *stopping, max_stops=2, train=_noisy)
        busy: list[TrialRecord] = []
        rng = np.random.default_rng(0)
        for turn in range(5000):
            claimed, rest = (
                simulation.controller.claim(f"w{turn % workers}") if len(busy) < workers else ([], None)
            )
            if isinstance(rest, Ended) and not busy:
                return simulation
            busy += [work.trial for work in claimed]
            if not busy:
                continue
            trial = busy.pop(int(rng.integers(len(busy))))
            if rng.random() < 0.5 and report(simulation, trial, 0.5).cancelled:
                continue
            complete(simulation, trial, [Report(trial.end_step, {"Q": 0.5})])
        raise AssertionError("the study does not end")

    free, stopping = ran(), ran(Always())
    completed = [t for t in rows(stopping) if t.state is JobState.COMPLETED]
    planned = len([t for t in rows(free) if t.state is JobState.COMPLETED])
    assert len(completed) == planned or strategy.quorum < 1
    assert len(rows(stopping)) == 3 * len(completed)
    assert all(t.stop_reason is not None for t in rows(stopping) if t.state is JobState.CANCELLED)
    assert all(
        member(stopping, m).state is MemberState.DONE for m in range(stopping.rules.strategy.population_size)
    )


def givers_up() -> Iterator[tuple[str, Any, int]]:
    """Strategies that have nothing else to do with a stopped member, and trials each member completes before."""
    yield "grid", GridSearch({"lr": [0.1, 0.3, 0.5]}, 30), 0
    yield "grid in pieces", GridSearch({"lr": [0.1, 0.3, 0.5]}, 30, steps_per_trial=10), 2
    yield "random", RandomSearch(3, 30), 0
    yield "random in pieces", RandomSearch(3, 30, steps_per_trial=10), 1
    yield "schedule", FixedSchedule([(0, {"lr": 0.1}), (20, {"lr": 0.2})], 30, members=3), 1
    yield "halving", ASHA(3, 30, 10), 1
    yield "optuna", Optuna(3, 30, steps_per_trial=10), 1


@pytest.mark.parametrize(("strategy", "before"), [pytest.param(s, b, id=name) for name, s, b in givers_up()])
def test_who_would_train_the_same_again_ends(strategy: Any, before: int) -> None:
    simulation = make(strategy, Divergence())
    for _ in range(100):
        claimed, rest = simulation.controller.claim("w")
        if isinstance(rest, Ended):
            break
        trial = claimed[0].trial
        if trial.generation < before:
            complete(simulation, trial)
        else:
            assert report(simulation, trial, NAN).cancelled
    else:
        raise AssertionError("the study does not end")
    with simulation.store.reader(simulation.study.id) as reader:
        assert reader.study().state is StudyState.COMPLETED
        members = reader.members()
        stopped = [trial for trial in reader.trials() if trial.stop_reason is not None]
    assert all(one.state is MemberState.DONE for one in members)
    # Only the best of three is promoted.
    assert sorted(trial.member for trial in stopped) == ([2] if isinstance(strategy, ASHA) else [0, 1, 2])
    assert all(one.generation == before for one in members)


def test_the_median_rule_takes_what_is_infeasible_for_the_worst() -> None:
    objective = Constrained(Maximize("Q"), subject_to=["cost <= 2"])
    rules = TrainRules(
        space=SPACE,
        objective=objective,
        strategy=RandomSearch(4, 20),
        stopping=(MedianStopping(min_steps=5, min_trials=2),),
    )
    simulation = Simulation(rules, lambda parent, trial: (None, {"Q": 1.0, "cost": 1.0}))
    claimed, _ = simulation.controller.claim("w", 4)
    trials = [work.trial for work in claimed if isinstance(work, Claimed)]

    def told(trial: TrialRecord, q: float, cost: float) -> bool:
        return simulation.controller.report(trial.id, 1, [Report(5, {"Q": q, "cost": cost})]).cancelled

    assert [told(trials[0], 1.0, 1.0), told(trials[1], 0.5, 1.0)] == [False, False]
    assert told(trials[2], 9.0, 3.0)
    assert not told(trials[3], 0.8, 1.0)


BOTH = WeightedSum({"Q": 1.0, "R": -1.0})
FULL = [Report(step, {"Q": float(step), "R": NAN if step == 3 else 0.5}) for step in range(1, 7)]
APART = [Report(one.step, {name: one.metrics[name]}) for one in FULL for name in ("R", "Q")]


def told(reports: Sequence[Report], sizes: Sequence[int]) -> tuple[Any, Any]:
    """Return the tally, and the averages at each mark, of what is reported in portions of these sizes."""
    rules = TrainRules(
        space=SPACE,
        objective=BOTH,
        strategy=RandomSearch(1, 9),
        stopping=(MedianStopping(min_steps=2, min_trials=9),),
    )
    simulation = Simulation(rules, lambda parent, trial: (None, {"Q": 1.0, "R": 1.0}))
    trial, left = claim(simulation), list(reports)
    for size in sizes:
        simulation.controller.report(trial.id, 1, left[:size])
        left = left[size:]
    simulation.controller.report(trial.id, 1, left)
    with simulation.store.reader(simulation.study.id) as reader:
        tally = reader.attempts(trial.id)[0].tally
        return repr(tally), repr([reader.averages(2, step, besides=0, limit=9) for step in range(7)])


def test_metrics_that_are_reported_apart_at_one_step_are_one_report_of_the_objective() -> None:
    whole = told(FULL, [])
    assert "count=6" in whole[0]
    for sizes in ([], [1] * 12, [3, 3, 3], [5, 1, 1], [11]):
        assert told(APART, sizes) == whole, sizes
    # What is said twice before all is known counts once, as it was said last.
    assert told([Report(1, {"Q": 9.0}), *FULL], [1]) == whole
    # Metrics of different steps are no report, whatever comes between; nor is what another metric says.
    split = [Report(1, {"Q": 1.0}), Report(2, {"R": 1.0}), Report(2, {"other": 1.0}), Report(3, {"Q": 2.0})]
    for sizes in ([], [1, 1, 1, 1], [2]):
        tally, averages = told(split, sizes)
        assert tally.startswith("Tally(count=0, "), tally
        assert averages == repr([[]] * 7)


def test_the_median_rule_stops_what_reports_its_metrics_apart() -> None:
    rules = TrainRules(
        space=SPACE,
        objective=BOTH,
        strategy=RandomSearch(3, 20),
        stopping=(MedianStopping(min_steps=2, min_trials=2),),
    )
    simulation = Simulation(rules, lambda parent, trial: (None, {"Q": 1.0, "R": 1.0}))
    for q, stopped in ((5.0, False), (4.0, False), (1.0, True)):
        trial = claim(simulation)
        assert not simulation.controller.report(trial.id, 1, [Report(2, {"Q": q})]).cancelled
        assert simulation.controller.report(trial.id, 1, [Report(2, {"R": 1.0})]).cancelled is stopped


def _noisy(parent: Any, trial: TrialRecord) -> tuple[Any, float]:
    return None, float(np.random.default_rng(trial.seed).normal())


def test_a_synchronous_study_is_the_same_for_the_same_reports() -> None:
    def ran(workers: int) -> list[Any]:
        strategy = pbt(size=4, trials=4, quorum=1.0, exploit=Truncation(0.25))
        simulation = make(strategy, Divergence(), train=_noisy)
        busy: list[TrialRecord] = []
        rng = np.random.default_rng(workers)
        while True:
            claimed, rest = simulation.controller.claim("w") if len(busy) < workers else ([], None)
            if isinstance(rest, Ended) and not busy:
                break
            busy += [work.trial for work in claimed]
            if busy:
                trial = busy.pop(int(rng.integers(len(busy))))
                value = NAN if trial.seed % 3 == 0 else 0.5
                if workers % 2:
                    report(simulation, trial, value)
                complete(simulation, trial, [] if workers % 2 else [Report(trial.start_step + 1, {"Q": value})])
        found = rows(simulation)
        place = {t.id: (t.member, t.generation, t.seed) for t in found}
        return sorted(
            (place[t.id], t.state.value, t.params["lr"], place.get(t.parent or 0), place.get(t.replaces or 0))
            for t in found
        )

    first = ran(1)
    assert any(state == "cancelled" for _, state, *_ in first)
    for workers in (4, 3, 2)[: times(1, 3)]:
        assert ran(workers) == first


def test_the_configuration_keeps_the_rules() -> None:
    rules = make(pbt(), Divergence(above=3.0), MedianStopping(min_steps=7), max_stops=5).rules
    stored = to_config(rules, 0)
    assert from_config(stored) == rules
    without = to_config(make(pbt()).rules, 0)
    assert without["stopping"] is None
    assert from_config(without).stopping == ()


@dataclass(frozen=True)
class Odd(StoppingRule):
    """A rule whose members can be anything."""

    marks_every: Any = None
    history: Any = 0
    answer: Any = None

    def judge(self, reported: Reported, others: Others) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Divergence, "not a stopping rule class"),
        ("median", "marks_every"),
        (Odd(marks_every=0), "Odd(marks_every=0)"),
        (Odd(history=None), "Odd(history=None)"),
    ],
)
def test_what_is_no_rule_is_refused(wrong: Any, message: str) -> None:
    with raises(ConfigurationError, *message.split()):
        make(pbt(), wrong)


@pytest.mark.parametrize(
    "answer", [True, "why", {"rule": "odd", "value": np.float32(1.0)}, {1j: 2}, {"seen": {1, 2}}]
)
def test_a_reason_that_is_no_json_stops_the_study_and_no_trial(answer: Any) -> None:
    simulation = make(pbt(size=1), Odd(answer=answer))
    assert not report(simulation, claim(simulation), 1.0).cancelled
    with simulation.store.reader(simulation.study.id) as reader:
        assert reader.study().state is StudyState.FAILED
        check_facts(str(reader.study().message), "Odd", "judge()", repr(answer), "JSON")


@pytest.mark.parametrize("answer", [True, False, {"why": "enough"}])
def test_an_end_that_is_no_text_stops_the_study_and_is_named(answer: Any) -> None:
    @dataclass(frozen=True)
    class Ends(Odd):
        def ends(self, *_: object) -> Any:
            return answer

    _, rest = make(pbt(size=1), Ends()).controller.claim("w")
    assert isinstance(rest, Ended)
    assert rest.state is StudyState.FAILED
    check_facts(rest.message or "", "Ends.ends()", repr(answer), "str or None")


def test_minimising_compares_the_other_way_round() -> None:
    rule = MedianStopping(min_steps=1, min_trials=2)
    rules = TrainRules(space=SPACE, objective=Minimize("Q"), strategy=pbt(size=3), stopping=(rule,))
    simulation = Simulation(rules, lambda parent, trial: (None, 0.0))
    assert [s.cancelled for s in together(simulation, [(1.0,), (2.0,), (1.4,)])] == [False] * 3
    simulation = Simulation(rules, lambda parent, trial: (None, 0.0))
    assert [s.cancelled for s in together(simulation, [(1.0,), (2.0,), (1.6,)])] == [False, False, True]


def test_a_completion_without_reports_of_a_study_without_rules_costs_nothing_more() -> None:
    simulation = make(pbt(size=1))
    trial = claim(simulation)
    done = simulation.completion(trial)
    assert isinstance(done, Completion)
    report(simulation, trial, NAN)
    with simulation.store.reader(simulation.study.id) as reader:
        assert reader.attempts(trial.id)[0].tally is None
    assert isinstance(complete(simulation, trial), Accepted)
