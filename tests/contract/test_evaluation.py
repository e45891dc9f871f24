"""What every store must do about evaluation. One suite for memory, SQLite and PostgreSQL."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from evaluating import (
    EvaluatesAlike,
    Evaluator,
    evaluated,
    found,
    ledger,
    population_rules,
    result,
    suites,
    trained,
)
from phyla import machine
from phyla.controller import Controller
from phyla.errors import LeaseLost, StoreError
from phyla.evaluation import Policy
from phyla.machine import ClaimedEvaluation, EvaluationFailed
from phyla.records import (
    AttemptState,
    CheckpointState,
    EvalEvent,
    EvalResult,
    GroupState,
    RunKind,
    RunState,
    SeenState,
    TrialState,
)
from phyla.store import EvalReader, MemoryStore, Store
from phyla.store.evaluation import NEWEST_DURATIONS
from phyla.store.sql import SqlStore
from phyla.store.sql.postgres import PostgresBackend
from phyla.store.sql.sqlite import SqliteBackend
from storing import LEASE_S, VirtualClock, plain

KINDS = ("memory", "sqlite", "postgres")


@dataclass(frozen=True)
class Subject:
    """A store under test, its clock, and what opens the same database once more."""

    store: Store
    clock: VirtualClock
    again: Callable[[], Store]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def subject(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Iterator[Subject]:
    clock = VirtualClock()
    opened: list[Store] = []

    def again() -> Store:
        if kind == "memory":
            return opened[0] if opened else MemoryStore(clock)
        if kind == "sqlite":
            return SqlStore(SqliteBackend(f"sqlite:///{tmp_path}/store.db", clock))
        return SqlStore(PostgresBackend(request.getfixturevalue("postgres_url"), clock))

    def keep() -> Store:
        opened.append(again())
        return opened[-1]

    yield Subject(keep(), clock, keep)
    for store in opened:
        store.close()


def test_it_answers_as_the_store_in_memory_does(subject: Subject, kind: str) -> None:
    oracle = MemoryStore(subject.clock)
    # A sequence does not take back the ids that it gave.
    alike = partial(EvaluatesAlike, subject.store, oracle, subject.clock, interrupts=kind != "postgres")
    run_state_machine_as_test(
        # Anything that makes a state machine will do.
        cast("type[EvaluatesAlike]", alike),
        settings=settings(
            max_examples={"memory": 30, "sqlite": 25, "postgres": 8}[kind],
            stateful_step_count=30,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def _run(subject: Subject, name: str = "r") -> Evaluator:
    run = subject.store.create_run(name, RunKind.DIRECTORY, {}, location="/checkpoints")
    return Evaluator(subject.store, run, suites())


def _look(evaluator: Evaluator) -> AbstractContextManager[EvalReader]:
    return evaluator.store.evaluations(evaluator.run)


def _own(evaluator: Evaluator) -> dict[str, object]:
    own = dict(ledger(evaluator.store, evaluator.run, evaluator.suites))
    # How long an eval task takes is learned from every run.
    del own["durations"]
    return own


def test_a_run_is_created_once(subject: Subject) -> None:
    store = subject.store
    first = store.create_run("a", RunKind.DIRECTORY, {"b": math.inf, "a": [1]}, location="/x \u2603")
    assert store.create_run("a", RunKind.DIRECTORY, {"other": 1}) == first
    assert (first.state, first.location, first.created_at) == (RunState.FOLLOWING, "/x \u2603", subject.clock.now)
    assert list(first.config) == ["b", "a"]
    study = store.create_study("b", {}, 0, 1)
    second = store.create_run("b", RunKind.STUDY, {}, study=study.id)
    assert second.study == study.id
    assert subject.again().runs() == [first, second]
    assert (store.find_run("b"), store.find_run("c")) == (second, None)


def test_a_run_that_ended_is_followed_again_with_another_configuration(subject: Subject) -> None:
    evaluator = _run(subject)
    with subject.store.evaluating(evaluator.run) as tx:
        tx.apply([machine.SetRunState(RunState.ENDED, "enough \u2603")])
        assert (tx.run().state, tx.run().message) == (RunState.ENDED, "enough \u2603")
    subject.store.set_run_config(evaluator.run.id, {"new": 1})
    changed = subject.store.find_run("r")
    assert changed is not None
    assert (changed.state, changed.message, changed.config) == (RunState.FOLLOWING, None, {"new": 1})


def test_a_transaction_that_raises_leaves_nothing(subject: Subject) -> None:
    evaluator = _run(subject)
    evaluator.observe(found("c0"))
    before = ledger(subject.store, evaluator.run, evaluator.suites)

    def work() -> None:
        with subject.store.evaluating(evaluator.run) as tx:
            tx.apply(machine.observe(tx, evaluator.suites, found("c1")))
            claimed = evaluator.claim_in(tx)
            assert claimed is not None
            _, commands = machine.complete_evaluation(tx, None, evaluated(claimed))
            tx.apply(commands)
            tx.apply(machine.drain(tx, evaluator.suites, "x"))
            assert tx.run().state is RunState.DRAINING
            assert tx.locked_eval_task(claimed.task.id) is not None
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert ledger(subject.store, evaluator.run, evaluator.suites) == before


def test_a_claim_changes_what_the_same_transaction_sees(subject: Subject) -> None:
    evaluator = _run(subject)
    evaluator.observe(found("c0"))
    with subject.store.evaluating(evaluator.run) as tx:
        first, second = evaluator.claim_in(tx), evaluator.claim_in(tx)
        assert first is not None
        assert second is not None
        assert first.task.id != second.task.id
        assert tx.group(first.group.id).started
        assert [attempt.task for attempt in tx.running_evaluations("host:1:1")] == [first.task.id, second.task.id]
        assert tx.busy(first.group.suite)


def test_every_command_about_a_study_can_go_either_way(subject: Subject) -> None:
    study = subject.store.create_study("s", {}, 0, 1)
    run = subject.store.create_run("s", RunKind.STUDY, {}, study=study.id)
    with subject.store.transaction(study.id, exclusive=True) as tx:
        tx.apply([machine.SetRunState(RunState.DRAINING, "a"), machine.SetStrategyState({"n": 1})])
        own = tx.evaluation()
        assert own is not None
        assert own.run().state is RunState.DRAINING
        assert own.population() is tx
    with subject.store.evaluating(run) as both:
        both.apply([machine.SetStrategyState({"n": 2}), machine.SetRunState(RunState.ENDED, "b")])
        population = both.population()
        assert population is not None
        assert population.study().strategy_state == {"n": 2}
        within = population.evaluation()
        assert within is not None
        assert within.run() == both.run()
    found_run = subject.store.find_run("s")
    assert found_run is not None
    assert (found_run.state, found_run.message) == (RunState.ENDED, "b")


def test_a_command_that_has_nowhere_to_go_is_an_error(subject: Subject) -> None:
    evaluator = _run(subject)
    with pytest.raises(TypeError, match="needs a study"), subject.store.evaluating(evaluator.run) as tx:
        tx.apply([machine.SetStrategyState(None)])
    study = subject.store.create_study("s", {}, 0, 1)
    subject.store.create_run("s watched by others", RunKind.STUDY, {}, study=study.id)
    with subject.store.transaction(study.id, exclusive=True) as other:
        assert other.evaluation() is None
        with pytest.raises(TypeError, match="needs a run"):
            other.apply([machine.SetRunState(RunState.ENDED)])


def test_runs_do_not_see_each_other(subject: Subject) -> None:
    mine, theirs = _run(subject, "a"), _run(subject, "b")
    mine.observe(found("c0"))
    theirs.observe(found("c0", identity="other"), found("c1", identity="another"))
    claimed = theirs.claim()
    assert claimed is not None
    before = _own(mine)
    with _look(mine) as view:
        assert view.locked_group(claimed.group.id) is None
        assert view.locked_eval_task(claimed.task.id) is None
        assert (view.running_evaluations(), view.open_groups()) == ([], 2)
        with pytest.raises(KeyError):
            view.seen(claimed.seen.id)
        with pytest.raises(KeyError):
            view.group(claimed.group.id)
    with pytest.raises(LeaseLost):
        mine.complete(evaluated(claimed))
    theirs.work()
    theirs.drain()
    theirs.renew("host:1:1")
    assert _own(mine) == before


def test_runs_share_the_ledger(subject: Subject) -> None:
    first, second = _run(subject, "a"), _run(subject, "b")
    first.observe(found("c0", identity="same"))
    assert len(first.work()) == 4 + 2
    second.observe(found("elsewhere", identity="same"))
    # Everything is known already: only what aggregates it has to be run.
    assert [work.task.kind for work in second.work()] == ["aggregate", "aggregate"]
    with _look(second) as view:
        assert [group.state for group in view.groups()] == [GroupState.COMPLETE] * 2
        assert all(task.reused for task in view.eval_tasks() if task.task)


def test_a_result_under_the_same_key_stays_as_it_is(subject: Subject) -> None:
    evaluator = _run(subject)
    evaluator.observe(found("c0"))
    work = evaluator.claim()
    assert work is not None
    first, later = result(work, score=0.5), result(work, score=0.9)
    with subject.store.evaluating(evaluator.run) as tx:
        tx.apply([machine.InsertResult(first), machine.InsertResult(later)])
    with _look(evaluator) as view:
        kept = view.results(first.identity, first.task_identity, 0, first.shards)
    assert plain(kept) == plain([first])


def test_the_newest_results_say_how_long_an_eval_task_takes(subject: Subject) -> None:
    evaluator = _run(subject)
    with subject.store.evaluating(evaluator.run) as tx:
        for number in range(NEWEST_DURATIONS + 50):
            entry = EvalResult(
                identity=f"c{number}",
                task_identity="how",
                run=evaluator.run.id,
                statistics={},
                duration_s=1000.0 if number < 50 else float(number % 2),
                created_at=float(number),
            )
            tx.apply([machine.InsertResult(entry)])
        assert tx.mean_duration_s("how") == 0.5
        assert tx.mean_duration_s("never") is None


def test_text_that_databases_do_not_like_can_be_stored(subject: Subject) -> None:
    evaluator = _run(subject)
    evaluator.observe(found("c0"))
    work = evaluator.claim()
    assert work is not None
    error = "nul \0 inside \udcff"
    evaluator.fail(EvaluationFailed(task=work.task.id, group=work.group.id, token=1, error=error))
    event = EvalEvent(run=evaluator.run.id, kind="regression", message=error, data={"x": math.nan}, created_at=1.0)
    with subject.store.evaluating(evaluator.run) as tx:
        tx.apply([machine.InsertEvent(event)])
        row = tx.seen(work.seen.id)
        tx.apply([machine.UpdateSeen(replace(row, state=SeenState.GONE, error=error))])
    with subject.again().evaluations(evaluator.run) as view:
        texts = [view.events()[0].message, view.seen(1).error, view.eval_attempts(work.task.id)[0].error]
    assert all(text is not None and text.startswith("nul ") for text in texts)


def test_leases_end_and_are_renewed(subject: Subject) -> None:
    evaluator = _run(subject)
    evaluator.observe(found("c0"))
    kept, late = evaluator.claim("host:1:1"), evaluator.claim("host:2:1")
    assert kept is not None
    assert late is not None
    subject.clock.now += LEASE_S - 1
    evaluator.renew("host:1:1")
    subject.clock.now += 2
    assert evaluator.expire() == 1
    with _look(evaluator) as view:
        assert [attempt.task for attempt in view.running_evaluations()] == [kept.task.id]
        assert [attempt.state for attempt in view.eval_attempts(late.task.id)] == [AttemptState.LOST]
    again = evaluator.claim("host:1:1")
    assert again is not None
    assert (again.task.id, again.task.token) == (late.task.id, 2)
    with pytest.raises(LeaseLost, match="superseded by attempt 2"):
        evaluator.complete(evaluated(late))
    assert evaluator.complete(evaluated(again)) is False
    assert evaluator.complete(evaluated(again)) is True


def test_what_nobody_waits_for_any_more_is_not_queued_again(subject: Subject) -> None:
    evaluator = _run(subject)
    evaluator.observe(found("c0"))
    works = [evaluator.claim() for _ in range(3)]
    assert None not in works
    released, failed, lost = (cast("ClaimedEvaluation", work) for work in works)
    evaluator.gone(1)
    evaluator.release(released)
    evaluator.fail(EvaluationFailed(task=failed.task.id, group=failed.group.id, token=1, error="no such file"))
    evaluator.lose("host:1:1", counts=False)
    with _look(evaluator) as view:
        assert {task.state for task in view.eval_tasks()} == {TrialState.CANCELLED}
        assert view.eval_attempts(lost.task.id)[0].state is AttemptState.LOST
    assert evaluator.claim() is None


def test_a_worker_goes_on_with_the_checkpoint_it_has_loaded(subject: Subject) -> None:
    evaluator = _run(subject)
    evaluator.observe(found("c0", existed=True), found("c1", existed=True))
    first = evaluator.claim()
    assert first is not None
    assert first.seen.name == "c1"
    other = evaluator.claim(holding=1)
    assert other is not None
    assert other.seen.name == "c0"
    evaluator.observe(found("c2"))
    urgent = evaluator.claim(holding=1)
    assert urgent is not None
    assert urgent.seen.name == "c2"


def test_nothing_is_claimed_before_its_time(subject: Subject) -> None:
    evaluator = _run(subject)
    evaluator.suites = suites(Policy(start_delay_s=5.0))
    evaluator.observe(found("c0", written_at=subject.clock.now))
    assert evaluator.claim() is None
    with _look(evaluator) as view:
        assert view.next_not_before() == subject.clock.now + 5.0
    subject.clock.now += 5.0
    assert evaluator.claim() is not None
    with _look(evaluator) as view:
        assert view.next_not_before() is None


def test_what_members_show_of_a_score_comes_back(subject: Subject) -> None:
    rules = population_rules(1)
    study = subject.store.create_study("s", {}, 1, 1)
    run = subject.store.create_run("s", RunKind.STUDY, {}, study=study.id)
    controller = Controller(subject.store, study.id, rules)
    controller.complete([trained(controller.claim("w")[0][0])])
    with subject.store.reader(study.id) as reader:
        assert reader.awaited_groups() == 2
        assert [state.judged for state in reader.member(0).states] == [False]
        assert reader.member(0).published is None
        assert reader.held_checkpoints() == {"1.1"}
    Evaluator(subject.store, run, rules.suites, rules).work()
    with subject.again().reader(study.id) as reader:
        published = reader.member(0).published
        assert published is not None
        assert (published.fitness, published.stderr) == (0.5, 0.25)
        assert reader.awaited_groups() == 0


def test_evaluation_holds_checkpoints_of_its_study(subject: Subject) -> None:
    rules = population_rules(1)
    study = subject.store.create_study("s", {}, 1, 1)
    run = subject.store.create_run("s", RunKind.STUDY, {}, study=study.id)
    controller = Controller(subject.store, study.id, rules)
    evaluator = Evaluator(subject.store, run, rules.suites, rules)
    for _ in range(6):
        controller.complete([trained(controller.claim("w")[0][0])])
        claimed = evaluator.claim()
        while claimed is not None:
            evaluator.complete(evaluated(claimed, best=claimed.seen.id == 1))
            claimed = evaluator.claim()
    with subject.store.reader(study.id) as reader:
        # The first one is the best of both suites, the others are the states that the member publishes.
        assert reader.held_checkpoints() == {"1.1", "3.1", "4.1", "5.1", "6.1"}
    with subject.store.evaluations(run) as view:
        assert view.held_paths() == {1}


def test_a_checkpoint_that_was_collected_is_not_evaluated(subject: Subject) -> None:
    study = subject.store.create_study("s", {}, 1, 1)
    run = subject.store.create_run("s", RunKind.STUDY, {}, study=study.id)
    rules = population_rules(1)
    controller = Controller(subject.store, study.id, rules)
    controller.complete([trained(controller.claim("w")[0][0])])
    controller.set_checkpoints(["1.1"], CheckpointState.DELETED)
    evaluator = Evaluator(subject.store, run, rules.suites, rules)
    assert evaluator.claim() is None
    with subject.store.evaluations(run) as view:
        assert [group.state for group in view.groups()] == [GroupState.GONE] * 2
        assert view.seen(1).state is SeenState.GONE


def test_a_run_that_is_not_there_is_an_error(subject: Subject) -> None:
    evaluator = _run(subject)
    stranger = replace(evaluator.run, id=17)
    with pytest.raises(StoreError, match="no run with id 17"), subject.store.evaluating(stranger):
        pass
    with pytest.raises(StoreError, match="no run with id 17"), subject.store.evaluations(stranger):
        pass
