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
from naive_store import NaiveStore
from phyla import machine
from phyla.controller import Controller, RunController
from phyla.errors import LeaseLost, StateError, StoreError
from phyla.evaluation import Policy
from phyla.machine import Claimed, ClaimedEvaluation, EvaluationFailed
from phyla.records import (
    AttemptState,
    CheckpointState,
    EvalEvent,
    EvalResult,
    GroupState,
    RunKind,
    RunState,
    SeenState,
    StudyRecord,
    TrialState,
)
from phyla.store import EvalReader, Store, open_store
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
            return opened[0] if opened else open_store("memory://", clock=clock)
        if kind == "sqlite":
            return SqlStore(SqliteBackend(f"sqlite:///{tmp_path}/store.db", clock))
        return SqlStore(PostgresBackend(request.getfixturevalue("postgres_url"), clock))

    def keep() -> Store:
        opened.append(again())
        return opened[-1]

    yield Subject(keep(), clock, keep)
    for store in opened:
        store.close()


def test_it_answers_as_the_naive_store_does(subject: Subject, kind: str) -> None:
    oracle = NaiveStore(subject.clock)
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


def test_a_deleted_study_takes_its_evaluation_along_and_leaves_what_others_use(subject: Subject) -> None:
    store, of = subject.store, population_rules(2)

    def trained_study() -> tuple[StudyRecord, Evaluator, list[str]]:
        study = store.create_study("s", {}, 1, 2)
        run = store.create_run("s", RunKind.STUDY, {}, study=study.id)
        controller = Controller(store, study.id, of)
        done = [trained(work) for work in controller.claim("w", 2)[0] if isinstance(work, Claimed)]
        controller.complete(done)
        return (
            study,
            Evaluator(store, run, of.suites, of),
            [one.checkpoint.digest for one in done if one.checkpoint],
        )

    study, own, (shared, alone) = trained_study()
    held = own.claim()
    assert held is not None
    with pytest.raises(StateError, match="training or evaluating"):
        store.delete_study(study.id)
    own.complete(evaluated(held))
    own.work()
    run = store.create_run("r", RunKind.DIRECTORY, {}, location="/checkpoints")
    directory = Evaluator(store, run, of.suites)
    directory.observe(found("same bytes", identity=shared), found("other"))
    directory.work()
    with _look(directory) as look:
        tasks = {task.identity for task in look.eval_tasks() if task.task}
    before = _own(directory)

    def known(identity: str) -> bool:
        with _look(directory) as look:
            return any(look.results(identity, task, 0, shards) for task in tasks for shards in (1, 2))

    assert known(shared)
    assert known(alone)
    store.delete_study(study.id)
    assert subject.again().runs() == [run]
    assert _own(directory) == before
    assert known(shared)
    assert not known(alone)
    with pytest.raises(StoreError):
        own.claim()
    new, renewed, _ = trained_study()
    assert new.id != study.id
    assert renewed.run.id not in (own.run.id, run.id)
    assert renewed.work()
    assert _own(directory) == before


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


DAY_S = 86400.0


def _controller(store: Store, evaluator: Evaluator, policy: Policy | None = None) -> RunController:
    return RunController(store, evaluator.run, suites(policy), lease_s=LEASE_S)


def test_a_lease_given_while_the_clock_was_ahead_ends_when_one_given_now_would(subject: Subject) -> None:
    evaluator = _run(subject)
    controller = _controller(subject.store, evaluator)
    subject.clock.now += DAY_S
    controller.observe([found("c0")])
    _, held, _ = controller.exchange((), "host:0:1:1", 9)
    assert len(held) == 4
    subject.clock.now -= DAY_S
    later = _controller(subject.again(), evaluator)
    assert later.exchange((), "host:0:2:1", 9)[1] == []
    subject.clock.now += LEASE_S + 1
    _, again, _ = later.exchange((), "host:0:2:1", 9)
    assert [work.task.id for work in again] == [work.task.id for work in held]


def test_what_was_seen_while_the_clock_was_ahead_waits_no_longer_than_its_delay(subject: Subject) -> None:
    evaluator = _run(subject)
    policy = Policy(start_delay_s=5.0)
    subject.clock.now += DAY_S
    _controller(subject.store, evaluator, policy).observe([found("c0", written_at=subject.clock.now)])
    subject.clock.now -= DAY_S
    later = _controller(subject.again(), evaluator, policy)
    assert later.exchange((), "host:0:1:1", 9)[1] == []
    subject.clock.now += 5.0
    assert len(later.exchange((), "host:0:1:1", 9)[1]) == 4


def test_a_file_of_the_future_waits_no_longer_than_its_delay(subject: Subject) -> None:
    evaluator = _run(subject)
    evaluator.suites = suites(Policy(start_delay_s=5.0))
    evaluator.observe(found("c0", written_at=subject.clock.now + DAY_S))
    subject.clock.now += 5.0
    assert evaluator.claim() is not None


ODD_NAMES = (
    "step_2\udcff",
    "\udc80\udcfe",
    "line\nfeed",
    "\x1b[31mred\x07",
    "-rf",
    "--",
    "a\\xff",
    "back\\slash\\\\",
    "e" * 255,
    "\udcff" * 255,
    "\U0001f468\u200d\U0001f52c step_5",
    "\u05d0\u202e3",
    "\u2028 %s {} $(x) `x` 'x' \"x\"",
    "nul\0",
)


def test_any_name_of_a_file_comes_back_as_it_was(subject: Subject) -> None:
    location = "/data\udcff/\\x"
    run = subject.store.create_run("r", RunKind.DIRECTORY, {"gin": location}, location=location)
    evaluator = Evaluator(subject.store, run, suites())
    evaluator.observe(
        *(
            found(name, identity=f"id {number}", path=f"{location}/{name}", paths=(name,))
            for number, name in enumerate(ODD_NAMES)
        )
    )
    again = subject.again()
    stored = again.find_run("r")
    assert stored is not None
    assert (stored.location, stored.config) == (location, {"gin": location})
    with again.evaluations(stored) as reader:
        rows = reader.all_seen()
        assert [(row.name, row.path, row.paths) for row in rows] == [
            (name, f"{location}/{name}", (name,)) for name in ODD_NAMES
        ]
        for row in rows:
            newest = reader.find_seen(row.name)
            assert newest is not None
            assert newest.id == row.id
    evaluator.observe(found(ODD_NAMES[0], identity="another", error="torn \udcff"))
    with again.evaluations(stored) as reader:
        newest = reader.find_seen(ODD_NAMES[0])
    assert newest is not None
    assert newest.state is SeenState.QUARANTINED
