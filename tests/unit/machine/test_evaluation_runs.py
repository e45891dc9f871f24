"""Which checkpoints of a watched run are evaluated, in which order, and what becomes of each."""

import math
from dataclasses import replace

import pytest

from evaluation_simulation import WatchedRun, evaluated, failed, suite_of
from facts import check_facts, raises
from phyla.controller import EVALUATE_ONLY
from phyla.errors import LeaseLost, StateError
from phyla.evaluation import Policy, Suite
from phyla.evaluation.matrix import current_tasks
from phyla.machine import Accepted, ClaimedEvaluation
from phyla.records import (
    CheckpointState,
    Goal,
    GroupState,
    JobKind,
    JobState,
    Maximize,
    Minimize,
    StudyState,
)


def test_a_group_is_complete_when_all_its_eval_tasks_are_and_never_before() -> None:
    run = WatchedRun([suite_of("a", "b", shards=2)])
    run.observe(100)
    for _ in range(4):
        work = run.claim()
        assert work is not None
        assert work.job.kind is JobKind.EVALUATE
        assert run.status(100) == (GroupState.QUEUED, None)
        run.hand_in(evaluated(work))
    last = run.claim()
    assert last is not None
    assert last.job.kind is JobKind.AGGREGATE
    run.hand_in(evaluated(last, values={"x_mean": 3.0}, best=True))
    assert run.status(100) == (GroupState.COMPLETE, None)
    assert run.groups()[0].values == {"x_mean": {"value": 3.0, "stderr": 0.1}}
    assert run.groups()[0].best


def test_the_newest_checkpoint_comes_first_and_those_behind_it_by_age() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100, 200, 300)
    assert run.work(3) == ["300/a", "300/aggregate", "200/a"]
    run.observe(400)
    assert run.work() == ["200/aggregate", "400/a", "400/aggregate", "100/a", "100/aggregate"]


def test_milestones_come_before_backfill_and_are_never_skipped() -> None:
    run = WatchedRun([suite_of("a", policy=Policy(every=3, milestone_every=200, latest=True))])
    run.observe(100, 200, 300, 400, 450, 460, 470)
    statuses = {step: run.status(step)[0] for step in (100, 200, 300, 400, 450, 460, 470)}
    assert statuses == {
        100: GroupState.SKIPPED,  # superseded (latest)
        200: GroupState.QUEUED,
        300: GroupState.SKIPPED,  # every third
        400: GroupState.QUEUED,
        450: GroupState.SKIPPED,
        460: GroupState.SKIPPED,
        470: GroupState.QUEUED,
    }
    assert [step for step in run.work() if step.endswith("/a")] == ["470/a", "400/a", "200/a"]
    assert "one in 3 checkpoints, and this is number 3" in (run.status(300)[1] or "")


def test_latest_leaves_what_has_begun_alone() -> None:
    run = WatchedRun([suite_of("a", "b", policy=Policy(latest=True))])
    run.observe(100)
    begun = run.claim()
    assert begun is not None
    run.observe(200)
    run.observe(300)
    assert run.status(200)[0] is GroupState.SKIPPED
    assert "newer checkpoint" in (run.status(200)[1] or "")
    run.hand_in(evaluated(begun))
    run.work()
    assert run.status(100)[0] is GroupState.COMPLETE
    assert run.status(300)[0] is GroupState.COMPLETE


def test_skip_if_busy_and_throttle() -> None:
    busy = WatchedRun([suite_of("a", policy=Policy(skip_if_busy=True))])
    busy.observe(100)
    work = busy.claim()
    busy.observe(200)
    assert busy.status(200)[0] is GroupState.SKIPPED
    assert work is not None
    busy.hand_in(evaluated(work))
    busy.work()
    busy.observe(300)
    assert busy.status(300)[0] is GroupState.QUEUED

    throttled = WatchedRun([suite_of("a", policy=Policy(throttle_s=60))])
    throttled.observe(100)
    throttled.clock.now += 59
    throttled.observe(200)
    throttled.clock.now += 2
    throttled.observe(300)
    assert [throttled.status(step)[0] for step in (100, 200, 300)] == [
        GroupState.QUEUED,
        GroupState.SKIPPED,
        GroupState.QUEUED,
    ]


def test_a_start_delay_is_kept() -> None:
    run = WatchedRun([suite_of("a", policy=Policy(start_delay_s=30))])
    run.observe(100)
    _, claimed, rest = run.controller.complete((), "w", 1, kinds=EVALUATE_ONLY)
    assert not claimed
    assert rest is not None
    assert getattr(rest, "seconds", None) == pytest.approx(30)
    run.clock.now += 30
    assert run.claim() is not None


def test_a_checkpoint_that_does_not_change_is_seen_once() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100)
    run.observe(100)
    assert len(run.groups()) == 1


def test_what_is_overwritten_in_place_is_evaluated_as_it_is_now() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100)
    run.observe(100, identity="other", fingerprint="g")
    first, second = run.groups()
    assert first.state is GroupState.GONE
    assert "overwritten" in (first.why or "")
    assert second.state is GroupState.QUEUED
    assert run.work() == ["100/a", "100/aggregate"]


def test_a_snapshot_outlives_that_the_original_is_overwritten() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100, snapshot=True)
    run.observe(100, identity="other", fingerprint="g", snapshot=True)
    assert [group.state for group in run.groups()] == [GroupState.QUEUED, GroupState.QUEUED]


def test_a_checkpoint_without_a_step_does_not_hide_that_a_run_was_rewound() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100, 200, -1)
    run.clock.now += 1
    run.observe(150)
    assert [(seen.step, seen.branch) for seen in run.reader().all_seen()] == [
        (100, 0),
        (200, 0),
        (-1, 0),
        (150, 1),
    ]
    assert [event.kind for event in run.reader().events()] == ["rewound"]


def test_a_rewound_run_is_a_branch() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100, 200, 300)
    run.clock.now += 1
    run.observe(250)
    run.observe(350)
    assert [(seen.step, seen.branch) for seen in run.reader().all_seen()] == [
        (100, 0),
        (200, 0),
        (300, 0),
        (250, 1),
        (350, 1),
    ]
    assert [event.kind for event in run.reader().events()] == ["rewound"]


def test_a_late_find_of_an_older_checkpoint_is_no_rewinding() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(300)
    run.observe(200, written_at=run.clock.now - 100)
    assert [seen.branch for seen in run.reader().all_seen()] == [0, 0]


@pytest.mark.parametrize("policy", [Policy(), Policy(latest=True)], ids=["all", "latest"])
def test_what_is_copied_after_a_newer_one_is_older(policy: Policy) -> None:
    run = WatchedRun([suite_of("a", policy=policy)])
    run.observe(300, 500)
    run.clock.now += 1
    run.observe(200, 400, rewinds=False)
    assert [seen.branch for seen in run.reader().all_seen()] == [0] * 4
    assert run.reader().events() == []
    order = [one for one in run.work() if one.endswith("/a")]
    assert order == (["500/a"] if policy.latest else ["500/a", "400/a", "200/a", "300/a"])
    with run.store.reader(run.run.id) as reader:
        backlog = reader.backlog("s")
        assert backlog.complete is not None
        assert (reader.seen(backlog.complete).step, backlog.behind) == (500, 0)
    if policy.latest:
        assert run.status(200)[1] == run.status(400)[1]
        check_facts(run.status(200)[1], "latest")


def test_what_is_behind_is_what_was_trained_later() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(300)
    run.work()
    run.observe(500)
    run.observe(200, 400, rewinds=False)
    reader = run.reader()
    backlog = reader.backlog("s")
    assert (backlog.behind, backlog.waiting) == (2, 3)
    run.observe(250)
    assert run.reader().backlog("s").behind == 3
    assert run.work(2) == ["250/a", "250/aggregate"]
    backlog = run.reader().backlog("s")
    assert (backlog.behind, backlog.waiting) == (0, 3)


def test_the_final_checkpoint_is_the_farthest_of_the_newest_branch() -> None:
    run = WatchedRun([suite_of("a", policy=Policy(every=100))])
    run.observe(300, 500)
    run.observe(200, rewinds=False)
    run.sightings.drain("done")
    assert [one for one in run.work() if one.endswith("/a")] == ["500/a", "300/a"]
    rewound = WatchedRun([suite_of("a", policy=Policy(every=100))])
    rewound.observe(300, 500)
    rewound.observe(200)
    rewound.sightings.drain("done")
    assert [one for one in rewound.work() if one.endswith("/a")] == ["200/a", "300/a"]


def test_a_bad_checkpoint_is_quarantined_until_it_changes() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100, error="truncated")
    run.observe(100, error="truncated")
    seen = run.reader().all_seen()
    assert [(each.state, each.error) for each in seen] == [(CheckpointState.QUARANTINED, "truncated")]
    assert run.claim() is None
    run.observe(100, fingerprint="mended")
    assert run.work() == ["100/a", "100/aggregate"]
    assert [event.kind for event in run.reader().events()] == ["quarantined"]


def test_the_ledger_answers_what_was_computed_before() -> None:
    run = WatchedRun([suite_of("a", shards=2)])
    run.observe(100)
    run.work()
    run.clock.now += 1
    run.observe(110, identity="id-100", name="a-copy")
    assert run.work() == ["110/aggregate"]
    tasks = run.reader().eval_jobs()
    assert [task.reused for task in tasks] == [False, False, False, True, True, False]


def test_an_eval_task_that_is_added_is_computed_for_what_still_exists() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100, 200)
    run.work()
    run.sightings.gone({run.reader().all_seen()[0].id: "deleted"})
    run.suites = [suite_of("a", "b")]
    run.restart()
    run.sightings.backfill()
    assert run.work() == ["200/b", "200/aggregate"]
    assert run.status(200)[0] is GroupState.COMPLETE
    assert run.status(100)[0] is GroupState.COMPLETE  # as it was computed then


def test_what_waits_takes_over_the_resources_that_its_suite_has_now() -> None:
    (done, misspelt) = suite_of("a", "b").tasks
    run = WatchedRun([Suite("s", (done, replace(misspelt, resources={"label": "a1000"})))])
    run.observe(100)
    assert run.work() == ["100/a"]
    run.suites = [suite_of("a", "b")]
    run.restart()
    assert run.work() == []
    for then in (["100/b", "100/aggregate"], []):
        run.sightings.backfill()
        assert run.work() == then
    assert run.status(100)[0] is GroupState.COMPLETE


def test_a_suite_that_is_added_is_backfilled_unless_its_policy_says_no() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100)
    run.work()
    more = Suite("more", suite_of("c").tasks)
    late = Suite("late", suite_of("d").tasks, policy=Policy(backfill=False))
    run.suites = [*run.suites, more, late]
    run.restart()
    run.sightings.backfill()
    run.observe(200)
    order = [done for done in run.work() if not done.endswith("aggregate")]
    assert order == ["200/a", "200/c", "200/d", "100/c"]
    states = {group.suite: group.state for group in run.groups(100)}
    assert states["late"] is GroupState.SKIPPED


def test_every_counts_checkpoints_that_were_there_before_too() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100, 200, 300, 400)
    run.work()
    run.suites = [*run.suites, Suite("rare", suite_of("c").tasks, policy=Policy(every=3))]
    run.restart()
    run.sightings.backfill()
    assert [done for done in run.work() if done.endswith("/c")] == ["400/c", "100/c"]


def test_a_suite_that_is_taken_out_waits_until_it_is_back() -> None:
    stays, leaves = suite_of("a"), replace(suite_of("b", "c"), name="leaves")
    run = WatchedRun([stays, leaves])
    run.observe(100, 200)
    done = ["200/a", "200/aggregate", "200/b"]
    assert sorted(run.work(3)) == sorted(done)
    run.suites = [stays]
    run.restart()
    run.sightings.backfill()
    assert run.work() == ["100/a", "100/aggregate"]
    assert {(group.suite, group.state) for group in run.groups()} == {
        ("s", GroupState.COMPLETE),
        ("leaves", GroupState.SKIPPED),
    }
    run.suites = [stays, leaves]
    run.restart()
    run.sightings.backfill()
    assert run.work() == ["200/c", "200/aggregate", "100/b", "100/c", "100/aggregate"]
    assert {group.state for group in run.groups()} == {GroupState.COMPLETE}


def test_what_keeps_failing_is_given_up_and_its_group_is_partial() -> None:
    run = WatchedRun([suite_of("good", "bad")])
    run.observe(100)
    attempts = 0
    while (work := run.claim()) is not None:
        if work.job.task == "bad":
            attempts += 1
            run.controller.fail(failed(work, "Traceback\nValueError: no"))
        else:
            run.hand_in(evaluated(work))
    assert attempts == 3
    state, why = run.status(100)
    assert state is GroupState.PARTIAL
    check_facts(why, "bad", "ValueError")


def test_an_aggregation_that_keeps_failing_ends_its_group_and_runs_again_when_a_person_asks() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100)
    assert run.work(1) == ["100/a"]
    attempts = 0
    while (work := run.claim()) is not None:
        attempts += 1
        run.controller.fail(failed(work, "Traceback\nKeyError: 'best'"))
    assert attempts == 3
    assert run.status(100) == (GroupState.PARTIAL, "its aggregation failed: KeyError: 'best'")
    (seen,) = run.reader().all_seen()
    run.sightings.evaluate_again(seen.id, "s")
    assert run.work() == ["100/aggregate"]
    assert run.status(100) == (GroupState.COMPLETE, None)


def test_a_person_has_a_checkpoint_evaluated_again() -> None:
    run = WatchedRun([suite_of("good", "bad")])
    run.observe(100)
    (seen,) = run.reader().all_seen()
    with raises(StateError, "suite 's'", "step-100", "queued"):
        run.sightings.evaluate_again(seen.id, "s")
    while (work := run.claim()) is not None:
        if work.job.task == "bad":
            run.controller.fail(failed(work, retryable=False))
        else:
            run.hand_in(evaluated(work))
    assert run.status(100)[0] is GroupState.PARTIAL
    # Only what failed runs once more; where all have results, everything does, with other seeds.
    run.sightings.evaluate_again(seen.id, "s")
    assert run.work() == ["100/bad", "100/aggregate"]
    assert run.status(100) == (GroupState.COMPLETE, None)
    run.sightings.evaluate_again(seen.id, "s")
    assert run.work() == ["100/good", "100/bad", "100/aggregate"]
    assert [(group.replicate, group.state) for group in run.groups(100)] == [
        (0, GroupState.COMPLETE),
        (1, GroupState.COMPLETE),
    ]
    run.sightings.gone({seen.id: "deleted"})
    with raises(StateError, "suite 's'", "step-100", "gone"):
        run.sightings.evaluate_again(seen.id, "s")


def test_only_what_failed_is_tried_again() -> None:
    run = WatchedRun([suite_of("good", "bad", shards=2)])
    run.observe(100, 200)
    while (work := run.claim()) is not None:
        if work.job.task == "bad" and (work.job.shard or work.seen.step == 200):
            run.controller.fail(failed(work, retryable=False))
        else:
            run.hand_in(evaluated(work))
    assert {group.state for group in run.groups()} == {GroupState.PARTIAL}
    run.restart()
    assert run.sightings.retry() == 2
    assert run.sightings.retry() == 0
    assert run.work() == ["200/bad", "200/bad", "200/aggregate", "100/bad", "100/aggregate"]
    assert {group.state for group in run.groups()} == {GroupState.COMPLETE}
    assert run.sightings.retry() == 0


def test_what_fails_again_is_tried_at_the_next_start_too() -> None:
    run = WatchedRun([suite_of("bad")])
    run.observe(100)
    for _ in range(3):
        work = run.claim()
        assert work is not None
        assert work.job.failures == 0
        run.controller.fail(failed(work, retryable=False))
        assert run.status(100)[0] is GroupState.PARTIAL
        assert run.claim() is None
        assert run.sightings.retry() == 1
    run.sightings.gone({run.groups()[0].seen: "deleted"})
    assert run.sightings.retry() == 0
    assert run.status(100)[0] is GroupState.GONE


def test_an_aggregation_that_failed_is_tried_again() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100)
    assert run.work(1) == ["100/a"]
    while (work := run.claim()) is not None:
        run.controller.fail(failed(work))
    assert run.sightings.retry() == 1
    assert run.work() == ["100/aggregate"]
    assert run.status(100)[0] is GroupState.COMPLETE


def test_what_a_suite_has_not_any_more_is_not_tried_again() -> None:
    run = WatchedRun([suite_of("bad"), replace(suite_of("bad"), name="other")])
    run.observe(100)
    while (work := run.claim()) is not None:
        run.controller.fail(failed(work, retryable=False))
    run.suites = run.suites[:1]
    run.restart()
    assert run.sightings.retry() == 1
    run.work()
    assert [group.state for group in run.groups()] == [GroupState.COMPLETE, GroupState.PARTIAL]


def test_what_was_skipped_is_evaluated_when_a_person_asks() -> None:
    run = WatchedRun([suite_of("a", policy=Policy(every=2))])
    run.observe(100, 200)
    run.work()
    skipped = next(group for group in run.groups() if group.state is GroupState.SKIPPED)
    run.sightings.evaluate_again(skipped.seen, "s")
    assert [done.partition("/")[2] for done in run.work()] == ["a", "aggregate"]
    run.sightings.drain("over")
    with raises(StateError, "suite 's'", "step-200", "run", "completed"):
        run.sightings.evaluate_again(skipped.seen, "s")


def test_a_poisoned_eval_task_delays_nothing_else() -> None:
    run = WatchedRun([suite_of("good", "bad")])
    run.observe(100)
    first = run.claim("one")
    second = run.claim("two")
    assert {first.job.task, second.job.task} == {"good", "bad"} if first and second else False
    run.observe(200)
    third = run.claim("three")
    assert third is not None
    assert third.seen.step == 200


def test_an_error_that_no_attempt_cures_is_not_tried_again() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100)
    work = run.claim()
    assert work is not None
    run.controller.fail(failed(work, retryable=False))
    assert run.claim() is None
    assert run.status(100)[0] is GroupState.PARTIAL


def test_a_checkpoint_that_vanishes_in_its_turn_ends_its_groups() -> None:
    run = WatchedRun([suite_of("a", "b")])
    run.observe(100)
    work = run.claim()
    assert work is not None
    run.controller.fail(failed(work, "deleted during evaluation", gone=work.seen.name))
    assert run.status(100) == (GroupState.GONE, "deleted during evaluation")
    assert run.claim() is None
    assert {task.state for task in run.reader().eval_jobs()} == {JobState.CANCELLED}


def test_a_lease_that_ran_out_is_given_to_somebody_else_and_the_first_answer_counts() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100)
    late = run.claim("slow")
    run.clock.now += 61
    other = run.claim("quick")
    assert late is not None
    assert other is not None
    assert other.job.id == late.job.id
    assert isinstance(run.hand_in(evaluated(late))[0], LeaseLost)
    assert run.hand_in(evaluated(other)) == [Accepted(job=other.job.id)]
    # The same request again, as after a lost answer:
    assert run.hand_in(evaluated(other)) == [Accepted(job=other.job.id, repeated=True)]
    assert len(run.reader().ledger("id-100", other.job.identity, 0, 1)) == 1


def test_a_late_answer_counts_while_nobody_else_has_claimed() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100)
    late = run.claim("slow")
    assert late is not None
    run.controller.lose_worker("slow", "gone", counts=False)
    assert run.hand_in(evaluated(late)) == [Accepted(job=late.job.id)]


def test_a_worker_that_dies_again_and_again_gives_an_eval_task_up() -> None:
    run = WatchedRun([suite_of("a", "b")])
    run.observe(100)
    for turn in range(3):
        work = run.claim(f"w{turn}")
        assert work is not None
        assert work.job.task == "a"
        assert run.controller.lose_worker(f"w{turn}", "killed", counts=True) == 1
    run.work()
    assert run.status(100)[0] is GroupState.PARTIAL


def test_a_worker_stays_with_the_checkpoint_it_has_loaded_within_a_class() -> None:
    run = WatchedRun([suite_of("a", "b", "c")])
    run.observe(100)
    run.observe(200)
    first = run.claim()
    assert first is not None
    assert first.seen.step == 200
    run.observe(300)
    again = run.claim(holding=first.seen.id)
    assert again is not None
    assert again.seen.step == 300, "a newer one is more urgent than not to load again"
    backlog = run.reader().find_seen("step-100")
    assert backlog is not None
    for _ in range(2):
        run.claim()
    kept = run.claim(holding=backlog.id)
    assert kept is not None
    assert kept.seen.step == 100


def test_draining_guarantees_the_final_checkpoint_and_ends_the_run() -> None:
    run = WatchedRun([suite_of("a", policy=Policy(every=5))])
    run.observe(100, 200, 300)
    assert run.status(300)[0] is GroupState.SKIPPED
    run.sightings.drain("training is done")
    assert run.reader().study().state is StudyState.DRAINING
    assert run.work() == ["300/a", "300/aggregate", "100/a", "100/aggregate"]
    run.claim()
    assert run.reader().study().state is StudyState.COMPLETED
    assert run.groups(300)[0].guaranteed == "final"
    assert run.status(200)[0] is GroupState.SKIPPED


@pytest.mark.parametrize(("evaluated_before", "guaranteed"), [(False, "final"), (True, None)])
def test_draining_guarantees_the_final_checkpoint_unless_it_has_its_result(
    *, evaluated_before: bool, guaranteed: str | None
) -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100, 200)
    if evaluated_before:
        run.work()
    run.sightings.drain("training is done")
    assert [group.guaranteed for step in (100, 200) for group in run.groups(step)] == [None, guaranteed]


def test_draining_revives_what_latest_had_skipped() -> None:
    run = WatchedRun([suite_of("a", policy=Policy(latest=True))])
    run.observe(100)
    run.observe(200)
    run.sightings.gone({run.reader().all_seen()[1].id: "deleted"})
    run.sightings.drain("training is done")
    assert run.work() == ["100/a", "100/aggregate"]
    assert run.status(100)[0] is GroupState.COMPLETE


def test_a_cancelled_shard_that_is_wanted_again_is_a_new_job() -> None:
    run = WatchedRun([suite_of("a", policy=Policy(latest=True))])
    run.observe(100)
    (first,) = run.reader().eval_jobs()
    run.observe(200)
    run.sightings.gone({run.reader().all_seen()[1].id: "deleted"})
    run.sightings.drain("training is done")
    jobs = [job for job in run.reader().eval_jobs() if job.seen == first.seen]
    assert [job.state for job in jobs] == [JobState.CANCELLED, JobState.PENDING]
    assert jobs[0].id == first.id
    assert jobs[0].error == "a newer checkpoint came before its evaluation began (latest)"


def test_a_shard_that_was_cancelled_and_done_later_is_done() -> None:
    run = WatchedRun([suite_of("a", policy=Policy(latest=True))])
    run.observe(100)
    run.observe(200)
    run.sightings.gone({run.reader().all_seen()[1].id: "deleted"})
    run.sightings.drain("training is done")
    run.work()
    (group,) = run.groups(100)
    assert group.state is GroupState.COMPLETE
    shards = current_tasks(run.reader().group_jobs(group.id))["a"]
    assert [job.state for job in shards] == [JobState.COMPLETED]


def test_of_two_groups_aggregated_at_once_the_better_one_is_the_best() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100, 200)
    aggregations: list[ClaimedEvaluation] = []
    for _ in range(2):
        shard = run.claim()
        assert shard is not None
        run.hand_in(evaluated(shard))
        aggregation = run.claim()
        assert aggregation is not None
        assert aggregation.job.kind is JobKind.AGGREGATE
        aggregations.append(aggregation)
    newer, older = aggregations
    assert (newer.seen.step, older.seen.step) == (200, 100)
    # Both were compared when there was no best one yet.
    better = evaluated(older, values={"x_mean": 2.0}, best=True)
    worse = evaluated(newer, values={"x_mean": 1.0}, best=True)
    run.controller.complete([better])
    run.controller.complete([worse])
    assert [group.best for group in run.groups(older.seen.step)] == [True]
    assert run.status(newer.seen.step)[0] is GroupState.QUEUED, "it has to be compared with the new best one"
    again = run.claim()
    assert again is not None
    assert (again.job.kind, again.seen.step) == (JobKind.AGGREGATE, newer.seen.step)
    run.hand_in(evaluated(again, values={"x_mean": 1.0}))
    assert run.status(newer.seen.step)[0] is GroupState.COMPLETE
    assert [group.best for group in run.groups(older.seen.step)] == [True]


def test_only_the_newest_best_group_is_the_best() -> None:
    run = WatchedRun([suite_of("a")])
    for step in (100, 200):
        run.observe(step)
        for _ in ("a", "aggregate"):
            work = run.claim()
            assert work is not None
            run.hand_in(evaluated(work, values={"x_mean": float(step)}, best=True))
    assert [group.best for step in (100, 200) for group in run.groups(step)] == [False, True]


@pytest.mark.parametrize(
    ("goal", "best"),
    [(Maximize("x_mean"), 200), (Minimize("x_mean"), 100), (Minimize("y_mean"), 200), (Minimize("z_mean"), 300)],
)
def test_the_best_group_is_that_of_the_objective_which_the_suite_has_now(goal: Goal, best: int) -> None:
    run = WatchedRun([replace(suite_of("a"), objective=Maximize("z_mean"))])
    values = {100: (1.0, 3.0), 200: (5.0, 2.0), 300: (3.0, math.nan)}
    for step, (x, y) in values.items():
        run.observe(step)
        for _ in ("a", "aggregate"):
            work = run.claim()
            assert work is not None
            run.hand_in(evaluated(work, values={"x_mean": x, "y_mean": y}, best=step == 300))
    run.suites = [replace(suite_of("a"), objective=goal)]
    run.restart()
    run.sightings.backfill()
    assert [step for step in values for group in run.groups(step) if group.best] == [best]
    assert run.sightings.backfill() == 0


def test_draining_twice_changes_nothing_more() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100)
    run.sightings.drain("one")
    before = run.reader().eval_jobs()
    run.sightings.drain("two")
    assert run.reader().eval_jobs() == before
