"""An eval task that fails with the same error again rests, instead of failing on every checkpoint."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from evaluation_simulation import EvaluatedStudy, WatchedRun, evaluated, failed, nothing, suite_of
from facts import check_facts
from phyla.client import Client
from phyla.evaluation import EvalTask, Suite
from phyla.machine import ClaimedEvaluation, TrainRules, WatchRules
from phyla.records import LOG_FOLLOWS, GroupState, JobKind, JobState, Maximize, StudyState
from phyla.space import Float, Space
from phyla.strategies import PBT, FromSuite

BROKEN = "AssertionError: no data file (suites.py, line 7); the full traceback is in /logs/worker-{}.log"


def attempt(run: WatchedRun, error: Callable[[ClaimedEvaluation], str | None], count: int = 1000) -> list[str]:
    """Let a worker do what there is; return `step/task` of what it tried. An error of None is a success."""
    tried: list[str] = []
    while len(tried) < count and (work := run.claim()) is not None:
        why = error(work) if work.job.kind is JobKind.EVALUATE else None
        if work.job.kind is JobKind.EVALUATE:
            tried.append(f"{work.seen.step}/{work.job.task}")
        if why is None:
            run.hand_in(evaluated(work, 1.0))
        else:
            run.clock.now += 1.0
            run.controller.fail(failed(work, why, retryable=False))
    return tried


def broken(work: ClaimedEvaluation) -> str:
    return BROKEN.format(work.job.id)


def resting(run: WatchedRun) -> list[str]:
    return [event.message for event in run.reader().events() if event.kind == "resting"]


def test_after_the_same_error_on_two_checkpoints_an_eval_task_rests() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(*range(100, 1100, 100))
    assert attempt(run, broken) == ["1000/a", "900/a"]
    (text,) = resting(run)
    check_facts(text, "a", "s", "2 checkpoints")
    assert "no data file" in text
    assert run.status(800) == (GroupState.QUEUED, None)


def test_it_is_tried_now_and_then_on_the_newest_and_takes_up_the_others_when_it_succeeds() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100, 200, 300, 400)
    attempt(run, broken)
    run.observe(500)
    assert attempt(run, broken) == []
    run.clock.now += 3600
    assert attempt(run, broken) == ["500/a"]
    assert attempt(run, broken) == []
    run.clock.now += 3600
    run.restart()  # what rests is in the store
    probe = run.claim()
    assert probe is not None
    assert run.claim("another worker") is None
    run.hand_in(evaluated(probe, 1.0))
    assert sorted(attempt(run, lambda work: None)) == ["100/a"]
    assert len(resting(run)) == 1
    states = {group.state for group in run.groups()}
    assert states == {GroupState.PARTIAL, GroupState.COMPLETE}


def test_the_other_eval_tasks_go_on() -> None:
    run = WatchedRun([suite_of("a", "b", shards=2)])
    run.observe(100, 200, 300, 400)
    tried = attempt(run, lambda work: broken(work) if work.job.task == "a" else None)
    assert sorted({one for one in tried if one.endswith("b")}) == ["100/b", "200/b", "300/b", "400/b"]
    assert sorted({one for one in tried if one.endswith("a")}) == ["300/a", "400/a"]
    assert len(resting(run)) == 1


@pytest.mark.parametrize(
    "error",
    [
        lambda work: f"ValueError: {'abcdefghij'[work.seen.number]} (suites.py, line 7)",
        lambda work: None if work.seen.number % 2 else broken(work),
        lambda work: broken(work) if work.seen.step == 500 else None,
    ],
    ids=["another error each", "every other succeeds", "one checkpoint only"],
)
def test_what_fails_differently_or_succeeds_meanwhile_never_rests(
    error: Callable[[ClaimedEvaluation], str | None],
) -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100, 200, 300, 400, 500)

    def timed(work: ClaimedEvaluation) -> str | None:
        run.clock.now += 1.0
        return error(work)

    assert len(attempt(run, timed)) == 5
    assert resting(run) == []


def test_errors_that_differ_in_numbers_and_names_of_the_checkpoint_are_the_same() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100, 200, 300, 400)
    path = "FileNotFoundError: [Errno 2] No such file: '/home/.phyla/snapshots/job/step_{0}@{1:016x}/w.json'"
    assert len(attempt(run, lambda work: path.format(work.seen.step, work.seen.step * 0xABCDEF12345))) == 2


def test_the_log_of_a_process_that_died_makes_no_difference() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100, 200, 300, 400)
    died = "worker process {} was ended by SIGSEGV" + "{}"
    logs = {
        400: f"{LOG_FOLLOWS}a.log",
        300: f"{LOG_FOLLOWS}b.log\nwhat another eval task printed\nin several lines",
    }
    assert len(attempt(run, lambda work: died.format(work.job.id, logs[work.seen.step]))) == 2
    (text,) = resting(run)
    check_facts(text, "SIGSEGV", "b.log")


def test_one_failure_in_several_shards_is_one_checkpoint() -> None:
    run = WatchedRun([suite_of("a", shards=3)])
    run.observe(100, 200, 300)
    tried = attempt(run, broken)
    assert tried[:3] == ["300/a"] * 3
    assert set(tried) == {"300/a", "200/a"}
    assert len(resting(run)) == 1


def test_while_others_still_run_a_repaired_one_is_taken_up() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100, 200, 300, 400)
    works = [run.claim(f"worker {number}") for number in range(3)]
    for work in works[:2]:
        assert work is not None
        run.clock.now += 1
        run.controller.fail(failed(work, broken(work), retryable=False))
    assert run.claim() is None
    assert works[2] is not None
    run.clock.now += 1
    run.hand_in(evaluated(works[2], 1.0))
    assert attempt(run, lambda work: None) == ["100/a"]


def test_a_run_that_ends_tries_one_more_and_says_what_it_did_not_try() -> None:
    run = WatchedRun([suite_of("a", "b")])
    run.observe(*range(100, 1100, 100))
    run.sightings.drain("once")
    tried = attempt(run, lambda work: broken(work) if work.job.task == "a" else None)
    assert [one for one in tried if one.endswith("a")] == ["1000/a", "900/a", "800/a"]
    assert len([one for one in tried if one.endswith("b")]) == 10
    assert run.claim() is None
    with run.store.reader(run.run.id) as reader:
        assert reader.study().state is StudyState.COMPLETED
        jobs = [job for job in reader.eval_jobs() if job.task == "a"]
    assert {job.state for job in jobs} == {JobState.FAILED}
    untried = [job.error for job in jobs if not job.token]
    assert len(untried) == 7
    (why,) = set(untried)
    check_facts(str(why), "3", "AssertionError")
    assert {group.state for group in run.groups()} == {GroupState.PARTIAL}
    assert "not tried" in str(run.status(100)[1])


def test_nobody_makes_room_on_gpus_for_what_rests() -> None:
    suite = Suite("s", (EvalTask("a", nothing, resources={"gpus": 2}),))
    run = WatchedRun([suite])
    run.observe(100, 200, 300, 400)
    client = Client(run.store, run.run, WatchRules(suites=(suite,)))
    assert [(one.gpus, one.count) for one in client.waiting()] == [(2, 4)]
    attempt(run, broken)
    assert client.waiting() == []
    # When the run ends, somebody with these GPUs tries it once more, and gives up the others.
    run.sightings.drain("done")
    assert [(one.gpus, one.count) for one in client.waiting()] == [(2, 2)]


def test_trying_again_ends_the_rest() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100, 200, 300, 400)
    attempt(run, broken)
    assert run.sightings.retry() == 2
    assert attempt(run, broken) == ["400/a", "300/a"]
    assert len(resting(run)) == 2
    run.sightings.retry()
    assert attempt(run, lambda work: None) == ["400/a", "300/a", "200/a", "100/a"]
    assert {group.state for group in run.groups()} == {GroupState.COMPLETE}


def test_what_was_not_tried_when_a_run_ended_is_tried_at_the_next_start() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100, 200, 300, 400, 500)
    run.sightings.drain("once")
    attempt(run, broken)
    assert run.claim() is None
    run.store.set_state(run.run.id, StudyState.RUNNING)
    assert run.sightings.retry() == 5
    assert len(attempt(run, lambda work: None)) == 5
    assert {group.state for group in run.groups()} == {GroupState.COMPLETE}


def test_a_run_that_ends_while_it_rests_ends() -> None:
    run = WatchedRun([suite_of("a")])
    run.observe(100, 200, 300, 400)
    attempt(run, broken)
    run.sightings.drain("training wrote DONE")
    assert attempt(run, broken) == ["200/a"]
    assert run.claim() is None
    assert run.reader().study().state is StudyState.COMPLETED


def rules(*suites: Suite, **more: Any) -> TrainRules:
    strategy = PBT(population_size=2, steps_per_trial=1, total_steps=6, exploit=None, explore=None, **more)
    return TrainRules(space=Space(h=Float(0.1, 1.0)), objective=Maximize("x"), strategy=strategy, suites=suites)


def test_a_population_that_waits_for_a_broken_suite_stops_as_before() -> None:
    one = EvaluatedStudy(
        rules(Suite("s", (EvalTask("a", nothing),)), fitness=FromSuite("s", "x_mean", max_partial=5)),
        lambda weights, trial: weights + 1,
        lambda weights, work: weights,
    )
    one.fails = lambda work: True
    ended = one.run_serially()
    assert ended.state is StudyState.FAILED
    assert "5 groups of suite 's' in a row ended partial" in (ended.message or "")
    with one.store.reader(one.study.id) as reader:
        assert reader.events() == []


def test_a_population_is_not_held_up_by_a_suite_that_rests() -> None:
    one = EvaluatedStudy(
        rules(Suite("beside", (EvalTask("a", nothing),))),
        lambda weights, trial: weights + 1,
        lambda weights, work: weights,
    )
    one.fails = lambda work: True
    trained = one.trained
    one.trained = lambda trial: _reported(trained(trial))  # type: ignore[method-assign]
    assert one.run_serially().state is StudyState.COMPLETED
    with one.store.reader(one.study.id) as reader:
        jobs = [job for job in reader.eval_jobs() if job.task == "a"]
        assert [event.kind for event in reader.events()] == ["resting"]
    assert len(jobs) == 12
    assert {job.state for job in jobs} == {JobState.FAILED}
    assert sum(job.token > 0 for job in jobs) < 6


def _reported(done: Any) -> Any:
    return replace(done, values={"x": (1.0,)})
