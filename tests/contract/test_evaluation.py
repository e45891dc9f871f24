"""What every store must do about evaluation. One suite for memory, SQLite and PostgreSQL."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from effort import rarely, times
from evaluating import (
    LABEL,
    ROOM,
    EvaluatesAlike,
    Evaluator,
    evaluated,
    found,
    ledger,
    population_rules,
    result,
    suites,
    trained,
    watching,
)
from facts import raises
from naive_store import NaiveStore
from phyla import machine
from phyla.controller import EVALUATE_ONLY, Controller, Sightings, StudyRecords
from phyla.errors import IllegalTransition, LeaseLost, StateError, StudyNotFound
from phyla.evaluation import Policy
from phyla.machine import ClaimedEvaluation, Failure, ParentGone, Room
from phyla.machine.jobs import TRANSITIONS, change_state
from phyla.records import (
    Attempt,
    AttemptState,
    Checkpoint,
    CheckpointState,
    EvalEvent,
    EvalJob,
    EvalResult,
    GroupState,
    JobKind,
    JobState,
    StudyKind,
    StudyState,
    TrialRecord,
    Waiting,
)
from phyla.store import Reader, Store, open_store
from phyla.store.contract import NEWEST_DURATIONS
from phyla.store.sql.postgres import PostgresBackend
from phyla.store.sql.sqlite import SqliteBackend
from phyla.store.sql.store import SqlStore
from storing import LEASE_S, WORKERS, VirtualClock, everything, pbt, plain, rules

KINDS = ("memory", "sqlite", "postgres")
everywhere = pytest.mark.parametrize("kind", KINDS, indirect=True)
"""For what databases do in their own ways, and random sequences of all there is."""


@dataclass(frozen=True)
class Subject:
    """A store under test, its clock, and what opens the same database once more."""

    store: Store
    clock: VirtualClock
    again: Callable[[], Store]


@pytest.fixture(params=[kind if kind != "postgres" else rarely(kind) for kind in KINDS])
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


@everywhere
def test_it_answers_as_the_naive_store_does(subject: Subject, kind: str) -> None:
    oracle = NaiveStore(subject.clock)
    # A sequence does not take back the ids that it gave.
    alike = partial(EvaluatesAlike, subject.store, oracle, subject.clock, interrupts=kind != "postgres")
    run_state_machine_as_test(
        # Anything that makes a state machine will do.
        cast("type[EvaluatesAlike]", alike),
        settings=settings(
            max_examples=times(*{"memory": (2, 8), "sqlite": (2, 20), "postgres": (2, 8)}[kind]),
            stateful_step_count=30,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def _watched(subject: Subject, name: str = "r") -> Evaluator:
    study = subject.store.create_study(name, {}, kind=StudyKind.DIRECTORY, location="/checkpoints")
    return Evaluator(subject.store, study, watching(suites()))


def _population(subject: Subject, size: int = 1) -> tuple[Controller, Evaluator]:
    """Return a study that evaluates the checkpoints of its own population, and one checkpoint of each member."""
    study = subject.store.create_study("s", {}, 1, size)
    of = population_rules(size)
    controller = Controller(subject.store, study.id, of)
    controller.complete([trained(claimed) for claimed in controller.claim("w", size)[0]])
    return controller, Evaluator(subject.store, study, of)


def _watching(subject: Subject, *, size: int = 1) -> tuple[Controller, Evaluator]:
    """Return a study, and another one that evaluates its checkpoints and has seen one of each member."""
    source = subject.store.create_study("source", {}, 1, size)
    study = subject.store.create_study("watching", {}, kind=StudyKind.STUDY, source=source.id)
    controller = Controller(subject.store, source.id, rules(pbt(size)))
    evaluator = Evaluator(subject.store, study, watching(suites()))
    done = [trained(claimed) for claimed in controller.claim("w", size)[0]]
    controller.complete(done)
    rows = [one.checkpoint for one in done if one.checkpoint]
    evaluator.observe(*(found(row.name, row.step, identity=row.digest, trial=row.trial) for row in rows))
    return controller, evaluator


def _own(evaluator: Evaluator) -> dict[str, object]:
    own = dict(ledger(evaluator))
    # How long an eval task takes is learned from every study.
    del own["durations"]
    return own


def test_a_watched_study_is_created_once(subject: Subject) -> None:
    store = subject.store
    first = store.create_study("a", {"b": math.inf, "a": [1]}, kind=StudyKind.DIRECTORY, location="/x \u2603")
    assert store.create_study("a", {"other": 1}, 1, 1) == first
    assert (first.kind, first.location, first.source) == (StudyKind.DIRECTORY, "/x \u2603", None)
    assert (first.state, first.watched, first.created_at) == (StudyState.RUNNING, True, subject.clock.now)
    assert list(first.config) == ["b", "a"]
    source = store.create_study("b", {}, 0, 1)
    assert (source.kind, source.location, source.watched) == (StudyKind.POPULATION, "", False)
    second = store.create_study("c", {}, kind=StudyKind.STUDY, source=source.id)
    assert (second.kind, second.source, second.watched) == (StudyKind.STUDY, source.id, True)
    assert subject.again().studies() == [first, source, second]
    assert (store.find_study("c"), store.find_study("d")) == (second, None)


@everywhere
def test_a_deleted_study_takes_its_evaluation_along_and_leaves_what_others_use(subject: Subject) -> None:
    store = subject.store

    def identities(evaluator: Evaluator) -> list[str]:
        with evaluator.look() as look:
            return [row.identity for row in look.all_seen()]

    _, own = _population(subject, 2)
    shared, alone = identities(own)
    own.work()
    directory = _watched(subject)
    directory.observe(found("same bytes", identity=shared), found("other"))
    directory.work()
    with directory.look() as look:
        tasks = {job.identity for job in look.eval_jobs() if job.task}
    before = _own(directory)

    def known(identity: str) -> bool:
        with directory.look() as look:
            return any(look.ledger(identity, task, 0, shards) for task in tasks for shards in (1, 2))

    assert known(shared)
    assert known(alone)
    store.delete_study(own.study.id)
    assert subject.again().studies() == [directory.study]
    assert _own(directory) == before
    assert known(shared)
    assert not known(alone)
    with pytest.raises(StudyNotFound):
        own.claim()
    _, renewed = _population(subject, 2)
    assert renewed.study.id not in (own.study.id, directory.study.id)
    assert renewed.work()
    assert _own(directory) == before


def test_a_deleted_study_takes_those_that_watch_it_along(subject: Subject) -> None:
    controller, evaluator = _watching(subject)
    other = _watched(subject)
    other.observe(found("c0"))
    before = _own(other)
    source, watcher = subject.store.studies()[:2]
    held = evaluator.claim("host:1:1")
    assert held is not None
    with raises(StateError, "watching", "host:1:1"):
        StudyRecords(subject.store, source.id).begin_deleting()
    with evaluator.look() as look:
        jobs = {job.id for job in look.eval_jobs()}
    subject.store.delete_study(source.id)
    assert subject.again().studies() == [other.study]
    assert _own(other) == before
    for study in (source, watcher):
        with pytest.raises(StudyNotFound), subject.store.reader(study.id):
            pass
    with pytest.raises(StudyNotFound):
        evaluator.complete(evaluated(held))
    with pytest.raises(StudyNotFound):
        controller.claim("w")
    _, again = _watching(subject)
    with again.look() as look:
        assert min(job.id for job in look.eval_jobs()) > max(jobs)
        assert look.events() == []


def test_a_deleted_study_leaves_the_one_that_it_watched(subject: Subject) -> None:
    controller, evaluator = _watching(subject)
    source, watcher = subject.store.studies()
    evaluator.work()
    with subject.store.reader(source.id) as reader:
        rows = reader.checkpoints()
    subject.store.delete_study(watcher.id)
    assert subject.again().studies() == [source]
    with subject.store.reader(source.id) as reader:
        assert reader.checkpoints() == rows
    assert len(controller.claim("w")[0]) == 1


def test_a_watched_study_that_ended_runs_again_with_another_configuration(subject: Subject) -> None:
    evaluator = _watched(subject)
    with evaluator.transaction() as tx:
        tx.apply([machine.SetStudyState(StudyState.COMPLETED, "enough \u2603")])
        assert (tx.study().state, tx.study().message) == (StudyState.COMPLETED, "enough \u2603")
    StudyRecords(subject.store, evaluator.study.id).store_config({"new": 1}, evaluator.study.config)
    changed = subject.store.find_study("r")
    assert changed is not None
    assert (changed.state, changed.message, changed.config) == (StudyState.RUNNING, None, {"new": 1})


@everywhere
def test_a_transaction_that_raises_leaves_nothing(subject: Subject) -> None:
    evaluator = _watched(subject)
    evaluator.observe(found("c0"))
    before = ledger(evaluator)

    def work() -> None:
        with evaluator.transaction() as tx:
            tx.apply(machine.observe(tx, evaluator.rules.suites, found("c1")))
            claimed = evaluator.claim_in(tx)
            assert claimed is not None
            _, commands = machine.complete_evaluation(tx, evaluator.rules, evaluated(claimed))
            tx.apply(commands)
            tx.apply(machine.drain(tx, evaluator.rules.suites, "x"))
            assert tx.study().state is StudyState.DRAINING
            assert tx.locked_eval_job(claimed.job.id) is not None
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert ledger(evaluator) == before


def test_a_claim_changes_what_the_same_transaction_sees(subject: Subject) -> None:
    evaluator = _watched(subject)
    evaluator.observe(found("c0"))
    with evaluator.transaction() as tx:
        first, second = evaluator.claim_in(tx), evaluator.claim_in(tx)
        assert first is not None
        assert second is not None
        assert first.job.id != second.job.id
        assert tx.group(first.group.id).started
        assert [attempt.job for attempt in tx.running("host:1:1")] == [first.job.id, second.job.id]
        assert tx.busy(first.group.suite)


def test_a_study_that_watches_another_takes_its_checkpoints(subject: Subject) -> None:
    _, evaluator = _watching(subject)
    source = subject.store.studies()[0]

    def row() -> Checkpoint:
        with subject.again().reader(source.id) as reader:
            found = reader.checkpoint("1.1")
        assert found is not None
        return found

    assert row().taken == 0
    work = evaluator.claim()
    assert work is not None
    assert row().taken == 1
    with evaluator.transaction() as look:
        assert look.checkpoint("1.1") is None, "it has none of its own"
        of = look.source()
        assert of is not None
        assert (of.study(), of.checkpoint("1.1")) == (source, row())
        again = of.source()
        assert again is not None
        assert again.study() == source
    failure = Failure(job=work.job.id, token=1, error="torn", gone="1.1", damage="a byte differs \u2603")
    evaluator.fail(failure)
    assert (row().state, row().error) == (CheckpointState.DAMAGED, "a byte differs \u2603")
    with pytest.raises(ParentGone), evaluator.transaction() as tx:
        tx.apply([machine.TakeCheckpoint("1.1")])
    with subject.store.reader(source.id) as reader:
        assert reader.member(0).states == (), "nobody takes it over"
        assert reader.study() == source


def test_a_directory_has_no_study_whose_checkpoints_it_evaluates(subject: Subject) -> None:
    with _watched(subject).transaction() as look:
        assert look.source() is None
    _, evaluator = _population(subject)
    with evaluator.transaction() as tx:
        assert tx.source() is tx


def test_questions_about_the_queue_are_about_jobs_of_all_kinds(subject: Subject) -> None:
    controller, evaluator = _population(subject, 2)
    (trial,) = controller.claim(WORKERS[0])[0]
    subject.clock.now += 1.0
    first, second = evaluator.claim(WORKERS[0]), evaluator.claim(WORKERS[1])
    subject.clock.now += 1.0
    (later,) = controller.claim(WORKERS[1])[0]
    assert first is not None
    assert second is not None
    ids = [trial.trial.id, first.job.id, second.job.id, later.trial.id]

    def asked(question: Callable[[Reader], Sequence[Attempt]]) -> list[int]:
        with subject.again().reader(evaluator.study.id) as view:
            return [attempt.job for attempt in question(view)]

    assert asked(lambda view: view.running()) == sorted(ids)
    assert asked(lambda view: view.running(WORKERS[0])) == sorted(ids[:2])
    assert asked(lambda view: view.running(WORKERS[1])) == sorted(ids[2:])
    assert asked(lambda view: view.expired(9)) == []
    subject.clock.now -= 2 * LEASE_S
    assert asked(lambda view: view.claimed_ahead(view.now())) == [ids[0], *sorted(ids[1:3]), ids[3]]
    assert asked(lambda view: view.claimed_ahead(view.now() + 3 * LEASE_S - 0.5)) == [ids[3]]
    subject.clock.now += 2 * LEASE_S
    evaluator.renew(WORKERS[0])
    subject.clock.now += LEASE_S - 0.5
    assert asked(lambda view: view.expired(9)) == [second.job.id]
    subject.clock.now += LEASE_S
    oldest_first = [second.job.id, *sorted([ids[0], ids[1], ids[3]])]
    assert asked(lambda view: view.expired(9)) == oldest_first
    for limit in range(4):
        assert asked(partial(_expired, limit=limit)) == oldest_first[:limit]
    with subject.again().transaction(evaluator.study.id, exclusive=True) as tx:
        jobs = [tx.job(job) for job in ids]
        assert [type(job) for job in jobs] == [TrialRecord, EvalJob, EvalJob, TrialRecord]
        assert [job.state for job in jobs if job is not None] == [JobState.RUNNING] * 4
        assert [tx.locked_trial(job) is None for job in ids] == [False, True, True, False]
        assert [tx.locked_eval_job(job) is None for job in ids] == [True, False, False, True]
        for job in ids[1:3]:
            with pytest.raises(KeyError):
                tx.trial(job)
        assert tx.trial_attempts() == [
            one for job in (1, 2, *ids) for one in tx.attempts(job) if one.job not in ids[1:3]
        ]
        assert [tx.attempt(job, 1) for job in ids] == [tx.attempts(job)[0] for job in ids]
        assert [tx.attempt(job, 2) for job in ids] == [None] * 4
    assert controller.lose_worker(WORKERS[0], "gone", counts=False) == 2
    assert evaluator.lose(WORKERS[1], counts=False) == 2
    assert asked(lambda view: view.running()) == []
    with evaluator.look() as view:
        assert {job.state for job in map(view.job, ids) if job is not None} == {JobState.PENDING}


def _expired(view: Reader, limit: int) -> Sequence[Attempt]:
    return view.expired(limit)


@everywhere
def test_trials_and_eval_jobs_never_share_an_id(subject: Subject) -> None:
    _, evaluator = _population(subject)
    other = _watched(subject)
    with other.transaction() as tx:
        before = tx.new_job_id()
        tx.apply(machine.observe(tx, suites(), found("c0")))
        after = tx.new_job_id()
        ids = [before, *(job.id for job in tx.eval_jobs()), after]
    evaluator.work()
    with evaluator.look() as view:
        ids += [trial.id for trial in view.trials()] + [job.id for job in view.eval_jobs()]
    assert len(set(ids)) == len(ids)


@everywhere
def test_what_was_rolled_back_does_not_give_its_ids_to_others(subject: Subject) -> None:
    evaluator = _watched(subject)
    given: list[int] = []

    def rolled_back() -> None:
        with evaluator.transaction() as tx:
            given.append(tx.new_job_id())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        rolled_back()
    evaluator.observe(found("c0"))
    with evaluator.look() as view:
        assert min(job.id for job in view.eval_jobs()) > given[0]


@pytest.mark.parametrize("state", JobState)
def test_forbidden_moves_of_eval_jobs_are_refused(subject: Subject, state: JobState) -> None:
    evaluator = _watched(subject)
    evaluator.observe(found("c0"))
    work = evaluator.claim()
    assert work is not None
    job = replace(work.job, state=state)
    for to in set(JobState) - TRANSITIONS[state]:
        with raises(IllegalTransition, f"job {job.id}", state, to):
            change_state(job, to)
    for to in TRANSITIONS[state]:
        assert change_state(job, to).state is to


def test_what_ended_stays_as_it_ended(subject: Subject) -> None:
    evaluator = _watched(subject)
    evaluator.observe(found("c0"))
    done, broken = evaluator.claim(), evaluator.claim()
    assert done is not None
    assert broken is not None
    evaluator.complete(evaluated(done))
    evaluator.fail(Failure(job=broken.job.id, token=1, error="no", retryable=False))
    evaluator.cancel(1)
    before = ledger(evaluator)
    with evaluator.look() as view:
        states = {job.id: job.state for job in view.group_jobs(1)}
    assert [*states.values()] == [JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED]
    assert [*states] == [done.job.id, broken.job.id, *[job for job in states if states[job] is JobState.CANCELLED]]
    evaluator.fail(Failure(job=done.job.id, token=1, error="late"))
    evaluator.release(done)
    assert evaluator.complete(evaluated(done)) is True
    too_late: list[Callable[[], object]] = [
        lambda: evaluator.complete(evaluated(broken)),
        lambda: evaluator.release(broken),
        lambda: evaluator.fail(Failure(job=broken.job.id, token=1, error="late")),
    ]
    for late in too_late:
        with raises(LeaseLost, f"job {broken.job.id}"):
            late()
    assert ledger(evaluator) == before


def test_a_cancelled_shard_that_is_wanted_again_is_a_new_job(subject: Subject) -> None:
    evaluator = _watched(subject)
    evaluator.observe(found("c0"))
    for group in (1, 2):
        evaluator.cancel(group)
    with evaluator.look() as view:
        old = view.eval_jobs()
    assert {job.state for job in old} == {JobState.CANCELLED}
    evaluator.drain()
    assert len(evaluator.work()) == 4 + 2
    with evaluator.look() as view:
        assert view.eval_jobs(limit=len(old)) == old, "they stay as they were"
        new = [job for job in view.eval_jobs(after=old[-1].id) if job.kind is JobKind.EVALUATE]
        assert [(job.group, job.identity, job.shard) for job in new] == [
            (job.group, job.identity, job.shard) for job in old
        ]
        assert {job.state for job in new} == {JobState.COMPLETED}
        assert [group.state for group in view.groups()] == [GroupState.COMPLETE] * 2


def test_studies_do_not_see_each_others_evaluations(subject: Subject) -> None:
    mine, theirs = _watched(subject, "a"), _watched(subject, "b")
    mine.observe(found("c0"))
    theirs.observe(found("c0", identity="other"), found("c1", identity="another"))
    claimed = theirs.claim()
    assert claimed is not None
    before = _own(mine)
    with mine.transaction() as view:
        assert view.locked_group(claimed.group.id) is None
        assert view.locked_eval_job(claimed.job.id) is None
        assert (view.running(), view.open_groups()) == ([], 2)
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


def test_studies_share_the_ledger(subject: Subject) -> None:
    first, second = _watched(subject, "a"), _watched(subject, "b")
    first.observe(found("c0", identity="same"))
    assert len(first.work()) == 4 + 2
    second.observe(found("elsewhere", identity="same"))
    # Everything is known already: only what aggregates it has to be run.
    assert [work.job.kind for work in second.work()] == ["aggregate", "aggregate"]
    with second.look() as view:
        assert [group.state for group in view.groups()] == [GroupState.COMPLETE] * 2
        assert all(task.reused for task in view.eval_jobs() if task.task)


@everywhere
def test_a_result_under_the_same_key_stays_as_it_is(subject: Subject) -> None:
    evaluator = _watched(subject)
    evaluator.observe(found("c0"))
    work = evaluator.claim()
    assert work is not None
    first, later = result(work, score=0.5), result(work, score=0.9)
    with evaluator.transaction() as tx:
        tx.apply([machine.Insert(first), machine.Insert(later)])
    with evaluator.look() as view:
        kept = view.ledger(first.identity, first.task_identity, 0, first.shards)
    assert plain(kept) == plain([first])


def test_the_newest_results_say_how_long_an_eval_task_takes(subject: Subject) -> None:
    evaluator = _watched(subject)
    with evaluator.transaction() as tx:
        for number in range(NEWEST_DURATIONS + 50):
            entry = EvalResult(
                identity=f"c{number}",
                task_identity="how",
                study=evaluator.study.id,
                statistics={},
                duration_s=1000.0 if number < 50 else float(number % 2),
                created_at=float(number),
            )
            tx.apply([machine.Insert(entry)])
        assert tx.mean_duration_s("how") == 0.5
        assert tx.mean_duration_s("never") is None


@everywhere
def test_text_that_databases_do_not_like_can_be_stored(subject: Subject) -> None:
    evaluator = _watched(subject)
    evaluator.observe(found("c0"))
    work = evaluator.claim()
    assert work is not None
    error = "nul \0 inside \udcff"
    evaluator.fail(Failure(job=work.job.id, token=1, error=error))
    event = EvalEvent(
        study=evaluator.study.id, kind="regression", message=error, data={"x": math.nan}, created_at=1.0
    )
    with evaluator.transaction() as tx:
        tx.apply([machine.Insert(event)])
        row = tx.seen(work.seen.id)
        tx.apply([machine.Update(replace(row, state=CheckpointState.GONE, error=error))])
    with subject.again().reader(evaluator.study.id) as view:
        texts = [view.events()[0].message, view.seen(1).error, view.attempts(work.job.id)[0].error]
    assert all(text is not None and text.startswith("nul ") for text in texts)


def test_leases_end_and_are_renewed(subject: Subject) -> None:
    evaluator = _watched(subject)
    evaluator.observe(found("c0"))
    kept, late = evaluator.claim("host:1:1"), evaluator.claim("host:2:1")
    assert kept is not None
    assert late is not None
    subject.clock.now += LEASE_S - 1
    evaluator.renew("host:1:1")
    subject.clock.now += 2
    assert evaluator.expire() == 1
    with evaluator.look() as view:
        assert [attempt.job for attempt in view.running()] == [kept.job.id]
        assert [attempt.state for attempt in view.attempts(late.job.id)] == [AttemptState.LOST]
    again = evaluator.claim("host:1:1")
    assert again is not None
    assert (again.job.id, again.job.token) == (late.job.id, 2)
    with raises(LeaseLost, "attempt 2"):
        evaluator.complete(evaluated(late))
    assert evaluator.complete(evaluated(again)) is False
    assert evaluator.complete(evaluated(again)) is True


def test_what_nobody_waits_for_any_more_is_not_queued_again(subject: Subject) -> None:
    evaluator = _watched(subject)
    evaluator.observe(found("c0"))
    works = [evaluator.claim() for _ in range(3)]
    assert None not in works
    released, failed, lost = (cast("ClaimedEvaluation", work) for work in works)
    evaluator.gone(1)
    evaluator.release(released)
    evaluator.fail(Failure(job=failed.job.id, token=1, error="no such file"))
    evaluator.lose("host:1:1", counts=False)
    with evaluator.look() as view:
        assert {task.state for task in view.eval_jobs()} == {JobState.CANCELLED}
        assert view.attempts(lost.job.id)[0].state is AttemptState.LOST
    assert evaluator.claim() is None


def test_a_worker_goes_on_with_the_checkpoint_it_has_loaded(subject: Subject) -> None:
    evaluator = _watched(subject)
    evaluator.observe(found("c0"), found("c1"), existed=True)
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


def test_a_worker_gets_what_asks_for_one_of_its_labels_or_for_none(subject: Subject) -> None:
    evaluator = _watched(subject)
    evaluator.observe(found("c0"))
    unlike = ("A_100", "a2100", LABEL[:-1], f"{LABEL}0")
    with evaluator.look() as view:
        assert Waiting(gpus=2, label=LABEL, count=1) in view.waiting()
    controller = Controller(subject.store, evaluator.study.id, evaluator.rules)
    for labels, wanted in ((unlike, ["", ""]), (("nvlink", LABEL, *unlike), [LABEL])):
        room = Room(gpus=(0, 2), labels=labels)
        _, given, _ = controller.complete((), wanted[0], 9, kinds=EVALUATE_ONLY, room=room)
        assert [work.job.label for work in given if isinstance(work, ClaimedEvaluation)] == wanted
    with evaluator.look() as view:
        assert LABEL not in {one.label for one in view.waiting()}, "what runs does not wait"


def test_nothing_is_claimed_before_its_time(subject: Subject) -> None:
    evaluator = _watched(subject)
    evaluator.rules = watching(suites(Policy(start_delay_s=5.0)))
    evaluator.observe(found("c0", written_at=subject.clock.now))
    assert evaluator.claim() is None
    with evaluator.look() as view:
        assert view.next_not_before() == subject.clock.now + 5.0
    subject.clock.now += 5.0
    assert evaluator.claim() is not None
    with evaluator.look() as view:
        assert view.next_not_before() is None


@everywhere
def test_what_members_show_of_a_score_comes_back(subject: Subject) -> None:
    _, evaluator = _population(subject)
    with evaluator.look() as reader:
        assert reader.open_groups() == 2
        assert [state.judged for state in reader.member(0).states] == [False]
        assert reader.member(0).published is None
        assert reader.held_checkpoints() == {"1.1"}
    evaluator.work()
    with subject.again().reader(evaluator.study.id) as reader:
        published = reader.member(0).published
        assert published is not None
        assert (published.fitness, published.stderr) == (0.5, 0.25)
        assert reader.open_groups() == 0


def test_evaluation_holds_checkpoints_of_its_study(subject: Subject) -> None:
    controller, evaluator = _population(subject)
    names = ["1.1"]
    for number in range(6):
        if number:
            (claimed,) = controller.claim("w")[0]
            names.append(f"{claimed.trial.id}.1")
            controller.complete([trained(claimed)])
        work = evaluator.claim()
        while work is not None:
            evaluator.complete(evaluated(work, best=work.seen.id == 1))
            work = evaluator.claim()
    with evaluator.look() as reader:
        # The first one is the best of both suites, the others are the states that the member publishes.
        assert reader.held_checkpoints() == {names[0], *names[2:]}
        assert reader.held_paths() == {1}


def test_evaluation_holds_checkpoints_of_the_study_that_it_watches(subject: Subject) -> None:
    controller, evaluator = _watching(subject)
    before = dict(everything(subject.store, evaluator.study.id))
    source = subject.store.studies()[0]

    def held() -> frozenset[str]:
        with subject.again().reader(source.id) as reader:
            return reader.held_checkpoints()

    names = ["1.1"]
    for _ in range(5):
        (claimed,) = controller.claim("w")[0]
        names.append(f"{claimed.trial.id}.1")
        controller.complete([trained(claimed)])
    after = dict(everything(subject.store, evaluator.study.id))
    # Of what it watches, one checkpoint was taken.
    assert {**after, "source": None} == {**before, "source": None}
    with subject.store.reader(source.id) as reader:
        published = {state.checkpoint for state in reader.member(0).states}
    assert names[0] not in held() | published, "a queued group that has not begun holds nothing"
    work = evaluator.claim()
    while work is not None:
        assert names[0] in held()
        evaluator.complete(evaluated(work, best=True))
        work = evaluator.claim()
    assert names[0] in held(), "it is the best"
    with evaluator.look() as view:
        assert view.held_checkpoints() == {names[0]}


@pytest.mark.parametrize("made", [_population, _watching])
def test_a_checkpoint_that_was_collected_is_not_evaluated(
    subject: Subject, made: Callable[[Subject], tuple[Controller, Evaluator]]
) -> None:
    _, evaluator = made(subject)
    StudyRecords(subject.store, 1).set_checkpoints(["1.1"], CheckpointState.DELETED)
    assert evaluator.claim() is None
    with evaluator.look() as view:
        assert [group.state for group in view.groups()] == [GroupState.GONE] * 2
        assert [seen.usable for seen in view.all_seen()] == [False]


DAY_S = 86400.0


def _controller(store: Store, evaluator: Evaluator) -> Callable[[str], list[int]]:
    """Return what claims eval jobs for a worker as a process does that has just started."""
    controller = Controller(store, evaluator.study.id, evaluator.rules)

    def claim(worker: str) -> list[int]:
        _, given, _ = controller.complete((), worker, 9, kinds=EVALUATE_ONLY, room=ROOM)
        return [work.job.id for work in given if isinstance(work, ClaimedEvaluation)]

    return claim


def test_a_lease_given_while_the_clock_was_ahead_ends_when_one_given_now_would(subject: Subject) -> None:
    evaluator = _watched(subject)
    subject.clock.now += DAY_S
    Sightings(subject.store, evaluator.study, suites()).observe([found("c0")])
    held = _controller(subject.store, evaluator)("host:0:1:1")
    assert len(held) == 4
    subject.clock.now -= DAY_S
    later = _controller(subject.again(), evaluator)
    assert later("host:0:2:1") == []
    subject.clock.now += LEASE_S + 1
    assert later("host:0:2:1") == held


def test_what_was_seen_while_the_clock_was_ahead_waits_no_longer_than_its_delay(subject: Subject) -> None:
    evaluator = _watched(subject)
    evaluator.rules = watching(suites(Policy(start_delay_s=5.0)))
    subject.clock.now += DAY_S
    seen = found("c0", written_at=subject.clock.now)
    Sightings(subject.store, evaluator.study, evaluator.rules.suites).observe([seen])
    subject.clock.now -= DAY_S
    later = _controller(subject.again(), evaluator)
    assert later("host:0:1:1") == []
    subject.clock.now += 5.0
    assert len(later("host:0:1:1")) == 4


def test_a_file_of_the_future_waits_no_longer_than_its_delay(subject: Subject) -> None:
    evaluator = _watched(subject)
    evaluator.rules = watching(suites(Policy(start_delay_s=5.0)))
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


@everywhere
def test_any_name_of_a_file_comes_back_as_it_was(subject: Subject) -> None:
    location = "/data\udcff/\\x"
    study = subject.store.create_study("r", {"gin": location}, kind=StudyKind.DIRECTORY, location=location)
    evaluator = Evaluator(subject.store, study, watching(suites()))
    evaluator.observe(
        *(
            found(name, identity=f"id {number}", path=f"{location}/{name}", paths=(name,))
            for number, name in enumerate(ODD_NAMES)
        )
    )
    again = subject.again()
    stored = again.find_study("r")
    assert stored is not None
    assert (stored.location, stored.config) == (location, {"gin": location})
    with again.reader(stored.id) as reader:
        rows = reader.all_seen()
        assert [(row.name, row.path, row.paths) for row in rows] == [
            (name, f"{location}/{name}", (name,)) for name in ODD_NAMES
        ]
        for row in rows:
            newest = reader.find_seen(row.name)
            assert newest is not None
            assert newest.id == row.id
    evaluator.observe(found(ODD_NAMES[0], identity="another", error="torn \udcff"))
    with again.reader(stored.id) as reader:
        newest = reader.find_seen(ODD_NAMES[0])
    assert newest is not None
    assert newest.state is CheckpointState.QUARANTINED
