"""What becomes of an eval job that cannot go on: queued again, given up, or ended with its group."""

from dataclasses import replace
from typing import Any

import pytest

from evaluating import Evaluator, evaluated, found, skip_group, suites, trained, watching
from facts import raises
from phyla import machine
from phyla.controller import Controller, Sightings
from phyla.errors import LeaseLost
from phyla.evaluation import Policy
from phyla.machine import ClaimedEvaluation, Failure, Update
from phyla.records import (
    Attempt,
    AttemptState,
    Cause,
    CheckpointState,
    EvalJob,
    GroupState,
    JobState,
    StudyKind,
    StudyState,
)
from phyla.store import open_store
from storing import VirtualClock, pbt, rules

CAUSE = Cause(kind="OSError", error="OSError: 5", file="e.py", line=3)


def watched() -> Evaluator:
    """Return an evaluator of a directory with one checkpoint: three eval jobs of suite `s`, one of `small`."""
    store = open_store("memory://", clock=VirtualClock())
    study = store.create_study("r", {}, kind=StudyKind.DIRECTORY, location="/checkpoints")
    evaluator = Evaluator(store, study, watching(suites()))
    evaluator.observe(found("c0"))
    return evaluator


def claim(evaluator: Evaluator, worker: str = "w") -> ClaimedEvaluation:
    work = evaluator.claim(worker)
    assert work is not None
    return work


def state(evaluator: Evaluator, work: ClaimedEvaluation) -> tuple[EvalJob, Attempt]:
    with evaluator.look() as view:
        attempt = view.attempt(work.job.id, work.job.token)
        assert attempt is not None
        return next(job for job in view.eval_jobs() if job.id == work.job.id), attempt


def test_what_is_released_is_queued_again_and_has_not_failed() -> None:
    evaluator = watched()
    work = claim(evaluator)
    evaluator.release(work)
    job, attempt = state(evaluator, work)
    assert (job.state, job.worker, job.failures, job.error, job.ended_at) == (
        JobState.PENDING,
        None,
        0,
        None,
        None,
    )
    assert (attempt.state, attempt.ended_at, attempt.error) == (AttemptState.RELEASED, 1_000_000.0, None)
    before = state(evaluator, work)
    evaluator.release(work)
    assert state(evaluator, work) == before, "what is queued again already is left alone"
    again = claim(evaluator, "v")
    assert again.job.id == work.job.id
    evaluator.complete(evaluated(again))
    before = state(evaluator, again)
    evaluator.release(again)
    evaluator.fail(Failure(job=again.job.id, token=2, error="late"))
    assert state(evaluator, again) == before, "and so is what has ended"


def test_who_asks_about_a_job_that_there_is_not_is_told_so() -> None:
    evaluator = watched()
    with raises(LeaseLost, "job 99"):
        evaluator.fail(Failure(job=99, token=1, error="x"))
    with evaluator.transaction() as tx, raises(LeaseLost, "job 99"):
        machine.release(tx, 99, 1)


@pytest.mark.parametrize(("why", "told"), [(None, "a person said so"), ("first", "first")])
def test_a_job_whose_group_has_ended_is_cancelled_and_says_why(why: str | None, told: str) -> None:
    evaluator = watched()
    work = claim(evaluator)
    if why is not None:
        evaluator.fail(Failure(job=work.job.id, token=1, error=why))
        work = claim(evaluator)
        assert work.job.error == why
    evaluator.cancel(work.group.id)
    evaluator.release(work)
    job, attempt = state(evaluator, work)
    assert (job.state, job.error, job.ended_at) == (JobState.CANCELLED, told, 1_000_000.0)
    assert attempt.state is AttemptState.RELEASED
    with evaluator.look() as view:
        group = view.group(work.group.id)
        assert (group.state, group.why) == (GroupState.SKIPPED, "a person said so")


def test_a_group_that_ended_without_a_reason_is_one() -> None:
    evaluator = watched()
    work = claim(evaluator)
    with evaluator.transaction() as tx:
        group: Any = tx.group(work.group.id)
        tx.apply([Update(replace(group, state=GroupState.SKIPPED, ended_at=tx.now()))])
    evaluator.release(work)
    assert state(evaluator, work)[0].error == "its group is skipped"


def test_failures_are_counted_until_there_are_as_many_as_the_eval_task_allows() -> None:
    evaluator = watched()
    work = claim(evaluator)
    assert work.job.max_attempts == 2
    evaluator.fail(Failure(job=work.job.id, token=1, error="first", cause=CAUSE, timings={"load": 1.0}))
    job, attempt = state(evaluator, work)
    assert (job.state, job.failures, job.error, job.worker) == (JobState.PENDING, 1, "first", None)
    assert (attempt.state, attempt.error, attempt.timings) == (AttemptState.FAILED, "first", {"load": 1.0})
    assert attempt.cause == CAUSE
    evaluator.fail(Failure(job=work.job.id, token=1, error="late"))
    assert state(evaluator, work)[0].error == "first", "what was said before it was queued again counts once"
    again = claim(evaluator)
    assert (again.job.id, again.job.token) == (work.job.id, 2)
    evaluator.fail(Failure(job=work.job.id, token=2, error="second"))
    job, _ = state(evaluator, again)
    assert (job.state, job.failures, job.error, job.ended_at) == (JobState.FAILED, 2, "second", 1_000_000.0)


def test_what_cannot_be_tried_again_is_given_up_at_once() -> None:
    evaluator = watched()
    work = claim(evaluator)
    evaluator.fail(Failure(job=work.job.id, token=1, error="never", retryable=False))
    assert state(evaluator, work)[0].state is JobState.FAILED


@pytest.mark.parametrize("counts", [True, False])
def test_workers_that_die_are_counted_where_they_are_to_be(counts: bool) -> None:
    evaluator = watched()
    # Claims have a limit of their own, five, so that what kills its worker ends all the same.
    for number in range(1, 6):
        work = claim(evaluator, f"w{number}")
        assert work.job.token == number
        assert evaluator.lose(f"w{number}", counts=counts) == 1
        job, attempt = state(evaluator, work)
        assert (attempt.state, attempt.error, job.error) == (AttemptState.LOST, "gone \u2603", "gone \u2603")
        if job.state is not JobState.PENDING:
            break
    assert (job.state, number, job.failures) == (JobState.FAILED, 2 if counts else 5, 2 if counts else 0)


def test_a_failure_at_the_last_claim_is_the_last() -> None:
    evaluator = watched()
    for _ in range(4):
        evaluator.release(claim(evaluator))
    work = claim(evaluator)
    evaluator.fail(Failure(job=work.job.id, token=5, error="once"))
    job, _ = state(evaluator, work)
    assert (job.state, job.failures, job.error) == (JobState.FAILED, 1, "once")


def test_only_a_running_attempt_is_lost() -> None:
    evaluator = watched()
    done, back, other = claim(evaluator), claim(evaluator), claim(evaluator)
    evaluator.complete(evaluated(done))
    evaluator.release(back)
    with evaluator.transaction() as tx:
        for job, token in ((done.job.id, 1), (back.job.id, 1), (other.job.id, 2), (99, 1)):
            assert machine.lose(tx, evaluator.rules, job, token, "it died", counts=True) == []


def test_a_newer_attempt_is_not_lost_with_an_older_one() -> None:
    """A supervisor that stood still may tell of a worker whose job another one has claimed since."""
    evaluator = watched()
    first = claim(evaluator)
    evaluator.release(first)
    again = claim(evaluator)
    assert (again.job.id, first.job.token, again.job.token) == (first.job.id, 1, 2)
    with evaluator.transaction() as tx:
        assert machine.lose(tx, evaluator.rules, first.job.id, 1, "it died", counts=True) == []
        assert machine.lose(tx, evaluator.rules, first.job.id, 2, "it died", counts=True) != []


def test_an_evaluation_ends_with_its_checkpoint() -> None:
    evaluator = watched()
    work, other = claim(evaluator), claim(evaluator, "v")
    evaluator.fail(Failure(job=work.job.id, token=1, error="it vanished", gone="c0"))
    job, attempt = state(evaluator, work)
    assert (job.state, job.error, job.ended_at) == (JobState.CANCELLED, "it vanished", 1_000_000.0)
    assert (attempt.state, job.failures) == (AttemptState.CANCELLED, 0)
    assert state(evaluator, other)[0].state is JobState.RUNNING, "what runs may finish for the ledger"
    with evaluator.look() as view:
        assert (view.seen(1).state, view.seen(1).error) == (CheckpointState.GONE, "it vanished")
        assert {(group.state, group.why) for group in view.groups()} == {(GroupState.GONE, "it vanished")}
        rest = [one for one in view.eval_jobs() if one.id not in (work.job.id, other.job.id)]
        assert {(one.state, one.error) for one in rest} == {(JobState.CANCELLED, "it vanished")}
        assert [(event.kind, event.message, event.seen) for event in view.events()] == [("gone", "it vanished", 1)]
    assert evaluator.claim() is None


@pytest.mark.parametrize(
    ("damage", "after"), [(None, CheckpointState.LIVE), ("a byte differs", CheckpointState.DAMAGED)]
)
def test_a_study_is_told_of_damage_that_another_finds(damage: str | None, after: CheckpointState) -> None:
    store = open_store("memory://", clock=VirtualClock())
    source = store.create_study("source", {}, 1, 1)
    trainer = Controller(store, source.id, rules(pbt(1)))
    (claimed,) = trainer.claim("w")[0]
    done = trained(claimed)
    trainer.complete([done])
    row = done.checkpoint
    assert row is not None
    study = store.create_study("watching", {}, kind=StudyKind.STUDY, source=source.id)
    evaluator = Evaluator(store, study, watching(suites()))
    evaluator.observe(found(row.name, row.step, identity=row.digest, trial=row.trial))
    work = claim(evaluator)
    evaluator.fail(Failure(job=work.job.id, token=1, error="cannot load", gone=row.name, damage=damage))
    assert state(evaluator, work)[0].state is JobState.CANCELLED
    with store.reader(source.id) as reader:
        kept = reader.checkpoint(row.name)
        assert kept is not None
        assert (kept.state, kept.error) == (after, damage)
        assert (reader.member(0).published is None) == (damage is not None)


def test_a_group_that_is_skipped_ends_alone() -> None:
    evaluator = watched()
    work = claim(evaluator)
    with evaluator.look() as view:
        other = next(group.id for group in view.groups() if group.id != work.group.id)
    with evaluator.transaction() as tx:
        skip_group(tx, other, "not needed")
    with evaluator.transaction() as tx:
        assert (tx.group(other).state, tx.group(other).why) == (GroupState.SKIPPED, "not needed")
        assert tx.group(work.group.id).state is GroupState.QUEUED


def test_who_watches_is_told_what_came_and_what_went() -> None:
    """`Sightings` is what a watcher holds: what it notes, it finds again."""
    store = open_store("memory://", clock=VirtualClock())
    study = store.create_study("r", {}, kind=StudyKind.DIRECTORY, location="/checkpoints")
    evaluator = Evaluator(store, study, watching(suites()))
    sightings = Sightings(store, study, suites())
    sightings.observe([found("c0"), found("c1", 1), found("c2", 2)])
    assert [row.name for row in sightings.seen()] == ["c0", "c1", "c2"]
    assert [row.name for row in sightings.seen(after=1)] == ["c1", "c2"]
    assert sightings.held() == (frozenset({1, 2, 3}), {})
    assert sightings.gone({}) == frozenset()
    assert sightings.gone({1: "deleted", 2: "deleted"}, unless_held=True) == frozenset()
    assert sightings.gone({1: "deleted"}) == sightings.gone({1: "again"}) == {1}
    assert sightings.held()[0] == {2, 3}
    assert [(row.state, row.error) for row in sightings.seen()][:2] == [
        (CheckpointState.GONE, "deleted"),
        (CheckpointState.READY, None),
    ]
    assert sightings.gone({1: "again", 2: "x"}, unless_held=True) == {1}
    while (work := evaluator.claim()) is not None:
        evaluator.complete(evaluated(work, best=work.seen.name == "c1"))
    held, best = sightings.held()
    assert held == {2}
    assert {suite: row.name for suite, row in best.items()} == {"s": "c1", "small": "c1"}
    sightings.note("slow", "it is slow", seen=2)
    sightings.note("odd", "it is odd")
    with store.reader(study.id) as reader:
        noted = [(one.kind, one.message, one.seen, one.created_at) for one in reader.events()[-2:]]
        assert noted == [("slow", "it is slow", 2, 1_000_000.0), ("odd", "it is odd", None, 1_000_000.0)]
        assert reader.study().state is StudyState.RUNNING
    sightings.drain("no more come")
    with store.reader(study.id) as reader:
        assert (reader.study().state, reader.study().message) == (StudyState.COMPLETED, "no more come")


@pytest.mark.parametrize("first_look", [True, False])
def test_what_was_there_before_anybody_looked_is_told_from_what_comes(first_look: bool) -> None:
    store = open_store("memory://", clock=VirtualClock())
    study = store.create_study("r", {}, kind=StudyKind.DIRECTORY, location="/checkpoints")
    sightings = Sightings(store, study, suites(Policy(backfill=False)))
    rows = [found("c0", written_at=999_999.0), found("c1", 1, written_at=1_000_000.0)]
    sightings.observe(rows, **({"first_look": True} if first_look else {}))
    with store.reader(study.id) as reader:
        queued = {group.seen for group in reader.groups() if group.state is GroupState.QUEUED}
    assert queued == ({2} if first_look else {1, 2})


def test_what_suites_gained_is_queued_on_every_checkpoint_that_is_still_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = open_store("memory://", clock=VirtualClock())
    study = store.create_study("r", {}, kind=StudyKind.DIRECTORY, location="/checkpoints")
    Sightings(store, study, suites()).observe([found(f"c{number}", number) for number in range(5)])
    grown = Sightings(store, study, suites(grown=True))
    grown.gone({5: "deleted"})
    monkeypatch.setattr("phyla.controller.sightings.BACKFILLED_AT_ONCE", 2)
    # On each of four: one eval task more, of one suite, and one suite more.
    assert grown.backfill() == 8
    assert grown.backfill() == 0
    with store.reader(study.id) as reader:
        added = [job for job in reader.eval_jobs() if job.task == "c" and job.state is JobState.PENDING]
        assert sorted(job.seen for job in added) == [1, 1, 2, 2, 3, 3, 4, 4]
