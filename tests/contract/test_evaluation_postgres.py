"""Evaluation by writers at the same time, on PostgreSQL. The bad interleavings are forced, not hoped for."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from evaluating import Evaluator, evaluated, found, population_rules, skip_group, suites, trained, watching
from phyla import machine
from phyla.controller import Controller, StudyRecords
from phyla.machine import ClaimedEvaluation
from phyla.records import CheckpointState, GroupState, JobKind, JobState, StudyKind
from phyla.store.sql.postgres import PostgresBackend
from phyla.store.sql.store import SqlStore
from storing import LEASE_S, VirtualClock

WAIT_S = 120.0


@dataclass(frozen=True)
class Server:
    store: SqlStore
    backend: PostgresBackend
    clock: VirtualClock
    pool: ThreadPoolExecutor

    def evaluator(self, *names: str, exclusive: bool = False) -> Evaluator:
        study = self.store.create_study("r", {}, kind=StudyKind.DIRECTORY, location="/checkpoints")
        evaluator = Evaluator(self.store, study, watching(suites()[:1]), exclusive=exclusive)
        evaluator.observe(*(found(name) for name in names))
        return evaluator

    def start(self, call: Callable[[], Any]) -> "Future[Any]":
        return self.pool.submit(call)

    def until_somebody_waits(self, started: "Future[Any]") -> None:
        """Return once a connection waits for a lock that another one holds."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        end = time.monotonic() + WAIT_S
        with self.backend.engine.connect() as connection:
            while not connection.exec_driver_sql(query).scalar_one():
                connection.rollback()
                assert not started.done(), f"it did not wait: {started.result()}"
                assert time.monotonic() < end


@pytest.fixture
def server(postgres_url: str) -> Iterator[Server]:
    clock = VirtualClock()
    backend = PostgresBackend(postgres_url, clock)
    store = SqlStore(backend)
    with ThreadPoolExecutor(4) as pool:
        yield Server(store, backend, clock, pool)
    store.close()


def _claimed(evaluator: Evaluator) -> ClaimedEvaluation:
    work = evaluator.claim()
    assert work is not None
    return work


def test_claims_of_one_group_at_the_same_time_get_different_eval_tasks(server: Server) -> None:
    evaluator = server.evaluator("c0")
    works = [_claimed(evaluator)]
    with evaluator.transaction() as tx:
        mine = evaluator.claim_in(tx)
        assert mine is not None
        works += [mine, server.start(partial(_claimed, evaluator)).result(WAIT_S)]
    assert sorted(work.job.id for work in works) == [1, 2, 3]
    assert evaluator.claim() is None


@pytest.mark.parametrize("exclusive", [False, True])
def test_many_workers_evaluate_each_thing_once(server: Server, exclusive: bool) -> None:
    evaluator = server.evaluator(*(f"c{number}" for number in range(8)), exclusive=exclusive)
    expected = 8 * 4

    def work(worker: str) -> list[int]:
        done: list[int] = []
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            claimed = evaluator.claim(worker)
            if claimed is not None:
                evaluator.complete(evaluated(claimed))
                done.append(claimed.job.id)
                continue
            with evaluator.look() as view:
                if not view.open_groups():
                    break
        return done

    running = [server.start(partial(work, f"w{number}")) for number in range(4)]
    done = [task for future in running for task in future.result(2 * WAIT_S)]
    assert len(done) == len(set(done)) == expected
    with evaluator.look() as view:
        assert {group.state for group in view.groups()} == {GroupState.COMPLETE}
        kinds = [task.kind for task in view.eval_jobs()]
        assert kinds.count(JobKind.AGGREGATE) == 8


def test_two_last_completers_of_a_group_make_one_aggregation(server: Server) -> None:
    evaluator = server.evaluator("c0")
    first, second, third = (_claimed(evaluator) for _ in range(3))
    evaluator.complete(evaluated(first))
    with evaluator.transaction() as tx:
        _, commands = machine.complete_evaluation(tx, evaluator.rules, evaluated(second))
        tx.apply(commands)
        # The other one cannot look before this one is done: both would see the other as still running.
        other = server.start(partial(evaluator.complete, evaluated(third)))
        server.until_somebody_waits(other)
        tx.apply(machine.settle_group(tx, evaluator.rules, second.group.id))
    other.result(WAIT_S)
    with evaluator.look() as view:
        assert [task.task for task in view.eval_jobs() if task.state is JobState.PENDING] == [""]


def test_a_claim_passes_over_a_group_that_is_being_ended(server: Server) -> None:
    evaluator = server.evaluator("c0", "c1")
    with evaluator.transaction() as tx:
        skip_group(tx, 2, "enough")
        # It neither waits, which could be a deadlock, nor takes what is being cancelled.
        work = server.start(partial(_claimed, evaluator)).result(WAIT_S)
    assert work.group.id == 1
    with evaluator.look() as view:
        assert {task.state for task in view.group_jobs(2)} == {JobState.CANCELLED}


def test_who_ends_a_group_waits_for_the_claim_of_its_eval_task(server: Server) -> None:
    evaluator = server.evaluator("c0")
    with evaluator.transaction() as tx:
        work = evaluator.claim_in(tx)
        ending = server.start(partial(evaluator.cancel, 1))
        server.until_somebody_waits(ending)
    ending.result(WAIT_S)
    assert work is not None
    with evaluator.look() as view:
        # What runs is not cancelled: it may finish for the ledger.
        assert [task.state for task in view.group_jobs(1)] == ["running", "cancelled", "cancelled"]
        assert view.group(1).started


def test_a_completion_and_the_end_of_its_lease_do_not_both_count(server: Server) -> None:
    evaluator = server.evaluator("c0")
    work = _claimed(evaluator)
    server.clock.now += 2 * LEASE_S
    with evaluator.transaction() as tx:
        _, commands = machine.complete_evaluation(tx, evaluator.rules, evaluated(work))
        tx.apply(commands)
        assert server.start(evaluator.expire).result(WAIT_S) == 0
        tx.apply(machine.settle_group(tx, evaluator.rules, work.group.id))
    with evaluator.look() as view:
        assert [attempt.state for attempt in view.attempts(work.job.id)] == ["completed"]


def test_exclusive_transactions_on_a_watched_study_take_turns(server: Server) -> None:
    evaluator = server.evaluator("c0", exclusive=True)
    with evaluator.transaction() as tx:
        other = server.start(evaluator.claim)
        server.until_somebody_waits(other)
        assert evaluator.claim_in(tx) is not None
    assert other.result(WAIT_S).job.id == 2


def test_checkpoints_that_are_seen_at_the_same_time_get_different_numbers(server: Server) -> None:
    evaluator = server.evaluator("c0")
    with evaluator.transaction() as tx:
        tx.apply(machine.observe(tx, evaluator.rules.suites, found("c1")))
        other = server.start(partial(evaluator.observe, found("c2")))
        server.until_somebody_waits(other)
    other.result(WAIT_S)
    with evaluator.look() as view:
        assert sorted(seen.number for seen in view.all_seen()) == [0, 1, 2]


@dataclass(frozen=True)
class Trained:
    controller: Controller
    evaluator: Evaluator


@pytest.fixture
def population(server: Server) -> Trained:
    rules = population_rules(1)
    study = server.store.create_study("s", {}, 1, 1)
    controller = Controller(server.store, study.id, rules)
    controller.complete([trained(controller.claim("w")[0][0])])
    return Trained(controller, Evaluator(server.store, study, rules, exclusive=False))


def test_a_checkpoint_that_is_claimed_for_evaluation_is_not_collected(server: Server, population: Trained) -> None:
    with server.store.reader(1) as reader:
        looked_at = reader.checkpoints(CheckpointState.LIVE)
    with population.evaluator.transaction() as tx:
        assert population.evaluator.claim_in(tx) is not None
        assert server.start(lambda: StudyRecords(server.store, 1).mark_deleting(looked_at)).result(WAIT_S) == []
    assert StudyRecords(server.store, 1).mark_deleting(looked_at) == []


def test_a_checkpoint_that_is_being_collected_is_not_evaluated(server: Server, population: Trained) -> None:
    with server.store.transaction(1, exclusive=False) as tx:
        assert tx.apply([machine.MarkDeleting("1.1", 0)]) == ["1.1"]
        claim = server.start(population.evaluator.claim)
        server.until_somebody_waits(claim)
    assert claim.result(WAIT_S) is None
    with population.evaluator.look() as view:
        assert not view.seen(1).usable
        assert {group.state for group in view.groups()} == {GroupState.GONE}


def test_evaluation_and_training_of_a_study_take_turns(server: Server, population: Trained) -> None:
    with server.store.transaction(1, exclusive=True) as tx:
        training = server.start(lambda: population.controller.claim("w"))
        server.until_somebody_waits(training)
        assert population.evaluator.claim_in(tx) is not None
    assert len(training.result(WAIT_S)[0]) == 1


@pytest.mark.parametrize("exclusive", [False, True])
def test_who_deletes_a_study_waits_for_the_claims_of_those_that_watch_it(
    server: Server, population: Trained, exclusive: bool
) -> None:
    source = population.evaluator.study
    study = server.store.create_study("watching", {}, kind=StudyKind.STUDY, source=source.id)
    evaluator = Evaluator(server.store, study, watching(suites()), exclusive=exclusive)
    evaluator.observe(found("1.1", identity="1/1.1"))
    with evaluator.transaction() as tx:
        assert evaluator.claim_in(tx) is not None
        deleting = server.start(lambda: server.store.delete_study(source.id))
        server.until_somebody_waits(deleting)
    deleting.result(WAIT_S)
    assert server.store.studies() == []
