"""Processes that the user started, attached to a study, have what workers have."""

import json
import os
import signal
import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import attached_loop
import phyla
from attached_loop import make, polled, train
from facts import check_facts, raises
from forked import Forked
from phyla.errors import (
    ConfigurationError,
    NoCheckpoint,
    NoFitness,
    NotImportable,
    StateError,
    StudyChanged,
    StudyNotFound,
)
from phyla.records import Attempt, AttemptState, JobState
from phyla.store import open_store
from phyla.study import Results
from phyla.study.attached.attach import Attached
from phyla.study.attached.member import Answer
from waiting import until

LOOP = Path(attached_loop.__file__)


@contextmanager
def attached(home: Path, **options: Any) -> Iterator[Forked]:
    process = Forked([LOOP, json.dumps({"home": str(home), "how": "trials", **options})])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def undisturbed(home: Path) -> list[tuple[int, int, float | None]]:
    study = make(home)
    study.train = train
    return facts(study.run())


def facts(results: Results) -> list[tuple[int, int, float | None]]:
    done = [trial for trial in results.trials() if trial.state is JobState.COMPLETED]
    return sorted((trial.member, trial.generation, trial.fitness) for trial in done)


@pytest.mark.parametrize("how", ["trials", "poll"])
def test_processes_that_start_at_once_make_one_study_and_train_what_workers_would(
    how: str, tmp_path: Path
) -> None:
    with attached(tmp_path, how=how) as first, attached(tmp_path, how=how) as second:
        for process in (first, second):
            _, errors = process.communicate(timeout=180)
            assert (process.returncode, errors) == (0, "")
    results = phyla.load_study("attached", home=tmp_path)
    assert results.state == "completed"
    assert facts(results) == undisturbed(tmp_path / "alone")


@pytest.mark.parametrize(
    ("how", "number"),
    [
        *(("trials", signal.SIGTERM), ("trials", signal.SIGINT), ("trials", signal.SIGKILL)),
        *(("poll", signal.SIGTERM), ("poll", signal.SIGKILL)),
    ],
)
def test_what_a_process_leaves_behind_is_taken_over_at_once(how: str, number: int, tmp_path: Path) -> None:
    said = tmp_path / "said"
    with attached(tmp_path, how=how, said=str(said), sleep_s=0.02) as process:
        until(lambda: said.exists() and len(said.read_text().splitlines()) >= 13, "13 lines", process=process)
        process.send_signal(number)
        process.wait(180)
    results = phyla.load_study("attached", home=tmp_path)
    (left,) = [trial for trial in results.trials() if trial.state is not JobState.COMPLETED]
    told = number != signal.SIGKILL
    assert left.state is (JobState.PENDING if told else JobState.RUNNING)
    assert (left.progress is not None) == (told and how == "poll")
    with phyla.attach("attached", home=tmp_path) as job:
        for trial in job.trials():
            assert trial.id != left.id or trial.token == 2
            train(trial)
    assert facts(results) == undisturbed(tmp_path / "alone")
    assert all(trial.failures == 0 for trial in results.trials())


def test_a_process_on_another_machine_that_went_silent_loses_its_trial_with_its_lease(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with attached(tmp_path, said=str(said), sleep_s=0.02, lease_s=3.0) as process:
        until(said.exists, "a line", process=process)
        os.kill(process.pid, signal.SIGSTOP)
        polled(phyla.attach(make(tmp_path), lease_s=3.0).member())
    assert phyla.load_study("attached", home=tmp_path).counts() == {"completed": 6}


def test_a_process_keeps_its_lease_while_it_computes(tmp_path: Path) -> None:
    with phyla.attach(make(tmp_path), lease_s=3.0) as job:
        for trial in job.trials():
            (started,) = attempts(job.results(), trial.id)
            while attempts(job.results(), trial.id)[0].expires_at == started.expires_at:
                threading.Event().wait(0.05)
            train(trial)
            break


def attempts(results: Results, trial: int) -> Sequence[Attempt]:
    with open_store(results.places.storage).reader(results.study().id) as reader:
        return reader.attempts(trial)


def loop(job: Attached, body: Callable[[phyla.Trial], object]) -> None:
    with job:
        for trial in job.trials():
            body(trial)


def test_an_exception_fails_the_trial_and_comes_through(tmp_path: Path) -> None:
    job = phyla.attach(make(tmp_path))
    with pytest.raises(ZeroDivisionError):
        loop(job, lambda trial: 1 / (trial.generation * 0))
    (failed,) = job.results().trials()
    assert failed.state is JobState.PENDING
    assert failed.failures == 1
    assert "1 / (trial.generation * 0)" in str(failed.error)
    with raises(StateError, "attached"):
        next(job.trials())


class Damaged(BaseException):
    """As `CheckpointException` of `torch.distributed.checkpoint`, which is no `Exception` either."""


@pytest.mark.parametrize(
    ("error", "failures"),
    [(Damaged, 1), *((error, 0) for error in (KeyboardInterrupt, SystemExit, GeneratorExit, CancelledError))],
)
def test_only_what_leaves_on_purpose_does_not_count_as_a_failure(
    error: type[BaseException], failures: int, tmp_path: Path
) -> None:
    def body(trial: phyla.Trial) -> None:
        raise error

    job = phyla.attach(make(tmp_path))
    with pytest.raises(error):
        loop(job, body)
    (left,) = job.results().trials()
    assert (left.state, left.failures) == (JobState.PENDING, failures)


@pytest.mark.parametrize("entered", [False, True])
def test_leaving_the_loop_gives_the_trial_back(
    entered: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = phyla.attach(make(tmp_path))
    if entered:
        job.__enter__()
    for trial in job.trials():
        (trial.checkpoint_dir / "w.txt").write_text("1.0")
        trial.report(loss=1.0)
        break
    assert entered or "the loop was left during trial 1, which goes back to the queue" in caplog.text
    for trial in job.trials():
        assert trial.id != 1 or (trial.token, list(trial.checkpoint_dir.iterdir())) == (2, [])
        train(trial)
    if entered:
        job.__exit__(None, None, None)
    assert facts(job.results()) == undisturbed(tmp_path / "alone")
    assert [one.state for one in attempts(job.results(), 1)] == [AttemptState.LOST, AttemptState.COMPLETED]


def test_what_a_trial_reported_before_saved_progress_is_kept_when_the_loop_is_left(tmp_path: Path) -> None:
    with phyla.attach(make(tmp_path)) as job:
        for trial in job.trials():
            for step in trial.steps():
                trial.report({"train/loss": 1.0}, step=step)
                if step == 2:
                    (trial.checkpoint_dir / "w.txt").write_text("1.0")
                    trial.save_progress()
                    break
            break
    (row,) = job.results().trials()
    assert (row.state, row.progress_step) == (JobState.PENDING, 3)
    assert [report.step for report in job.results().reports(row.id)] == [0, 1, 2]


def test_what_is_missing_is_raised_where_the_loop_is(tmp_path: Path) -> None:
    with raises(NoFitness, "loss"):
        loop(phyla.attach(make(tmp_path / "a")), lambda trial: list(trial.steps()))
    job = phyla.attach(make(tmp_path / "b"))
    with pytest.raises(NoCheckpoint):
        loop(job, lambda trial: trial.report(loss=1.0))
    assert [trial.state for trial in job.results().trials()] == [JobState.FAILED]


def test_what_cannot_be_attached_to_is_refused(tmp_path: Path) -> None:
    with raises(StudyNotFound, "attached"):
        phyla.attach("attached", home=tmp_path)
    phyla.attach(make(tmp_path)).close()
    with pytest.raises(StudyChanged, match="seed"):
        phyla.attach(make(tmp_path, seed=5))
    with pytest.raises(ConfigurationError, match="the study says where it lives"):
        phyla.attach(make(tmp_path), home=tmp_path)
    with raises(ConfigurationError, "train"):
        phyla.attach(make(tmp_path), kinds=["fly"])
    with raises(ConfigurationError, "phyla worker"):
        phyla.attach(make(tmp_path), kinds=["evaluate"])
    space = phyla.Space({"lr": phyla.Float(0.1, 0.5)}, constraints=[positive])
    strategy = phyla.PBT(population_size=1, steps_per_trial=1, total_steps=1)
    phyla.attach(phyla.Study("own", space, phyla.Minimize("loss"), strategy, home=tmp_path)).close()
    with raises(NotImportable, "phyla.attach(Study"):
        phyla.attach("own", home=tmp_path)


def test_a_poll_stops_before_the_final_which_a_loop_over_trials_holds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with phyla.attach(make(tmp_path, final=phyla.Final(candidates=2, measurements=6))) as job:
        polled(job.member())
        check_facts(caplog.text, "poll()", "final", "trials()")
        (released,) = [trial for trial in job.results().trials() if trial.measures]
        assert released.state is JobState.PENDING
        for trial in job.trials():
            assert trial.measuring
            train(trial)
        best = job.results().best
    assert best is not None
    assert best.measurements > 0


def positive(params: phyla.space.Params) -> bool:
    return bool(params["lr"] > 0)


def test_a_poll_goes_on_with_its_member_and_loads_what_an_exploit_takes_over(tmp_path: Path) -> None:
    strategy = phyla.PBT(population_size=2, steps_per_trial=2, total_steps=6, quorum=1.0)
    space = {"lr": phyla.Float(0.1, 0.5)}
    weights = tmp_path / "weights.txt"
    weights.write_text("w")
    together = threading.Barrier(2)

    def poll(score: float) -> list[Answer]:
        made = phyla.Study("poll", space, phyla.Maximize("score"), strategy, home=tmp_path)
        with phyla.attach(made) as job:
            member = job.member()
            first = member.poll(7, checkpoint=weights)
            together.wait()
            between = member.poll(1, checkpoint=tmp_path / "no", metrics={"score": 0.0})
            with raises(ConfigurationError, "poll(step=0)", "1 steps"):
                member.poll(0, checkpoint=weights)
            with pytest.raises(ConfigurationError, match="there is no such file or directory"):
                member.poll(2, checkpoint=tmp_path / "no")
            last = member.poll(2, checkpoint=weights, metrics={"score": score})
            together.wait()  # What one gives back is the other's.
            return [first, between, last]

    with ThreadPoolExecutor(2) as threads:
        better, worse = threads.map(poll, [2.0, 1.0])
    assert {better[0].member, worse[0].member} == {0, 1}
    for first, between, last in (better, worse):
        assert (first.fresh, first.load, first.step) == (True, None, 0)
        assert (between.fresh, between.load, between.step, between.params) == (False, None, 1, first.params)
        assert (last.fresh, last.step, last.member) == (False, 2, first.member)
    assert better[-1].load is None
    assert better[-1].params == better[0].params
    assert worse[-1].load is not None
    assert (worse[-1].load / "weights.txt").read_text() == "w"
    assert worse[-1].params != worse[0].params


def test_a_second_thread_needs_an_attach_of_its_own(tmp_path: Path) -> None:
    with phyla.attach(make(tmp_path)) as job, ThreadPoolExecutor(1) as other:
        trials, member = job.trials(), job.member()
        trial = next(trials)
        for call in (lambda: next(job.trials()), lambda: member.poll(0, checkpoint=tmp_path)):
            with raises(StateError, "attached", "phyla.attach()"):
                other.submit(call).result(30)
        train(trial)
        assert next(trials).id != trial.id
        trials.close()  # type: ignore[attr-defined]  # it is a generator
    assert [row.state for row in job.results().trials()] == [JobState.COMPLETED, JobState.PENDING]
    with phyla.attach(make(tmp_path)) as job, ThreadPoolExecutor(1) as other:
        other.submit(lambda: [*map(train, job.trials())]).result(60)
        assert next(job.trials(), None) is None
    assert facts(job.results()) == undisturbed(tmp_path / "alone")


def test_a_thread_goes_on_where_one_that_ended_left_off(tmp_path: Path) -> None:
    with phyla.attach(make(tmp_path)) as job:
        member, answers = job.member(), list[Answer]()
        for step in range(2):
            poll = partial(member.poll, step, checkpoint=tmp_path)
            thread = threading.Thread(target=lambda poll=poll: answers.append(poll()))
            thread.start()
            thread.join(30)
        assert [(answer.member, answer.step) for answer in answers] == [
            (answers[0].member, 0),
            (answers[0].member, 1),
        ]


FORKING = """
import os
import sys

import phyla
from attached_loop import make, train

with phyla.attach(make(sys.argv[1])) as job:
    trials = job.trials()
    trial = next(trials)
    (trial.checkpoint_dir / "w.txt").write_text("1.0")
    child = os.fork()
    if not child:
        try:
            job.__exit__(None, None, None)
            next(trials)
        except phyla.errors.StateError as error:
            os._exit(f"of process {os.getpid()}, one for each" not in str(error))
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert (trial.checkpoint_dir / "w.txt").read_text() == "1.0"
    train(trial)
    assert next(trials).id != trial.id
"""


def test_a_forked_process_needs_an_attach_of_its_own(tmp_path: Path) -> None:
    process = Forked(["-c", FORKING, tmp_path], env=os.environ | {"PYTHONPATH": str(LOOP.parent)})
    assert process.communicate(60) == ("", "")
    assert process.returncode == 0
    rows = phyla.load_study("attached", home=tmp_path).trials()
    assert [row.state for row in rows] == [JobState.COMPLETED, JobState.PENDING]


def test_a_process_evaluates_between_two_trials(tmp_path: Path) -> None:
    @phyla.eval_task
    def read(evaluation: phyla.Evaluation) -> None:
        evaluation.record(loss=(attached_loop.loaded(evaluation.checkpoint.path) - 3) ** 2)

    suite = phyla.Suite("loss", [read], objective=phyla.Minimize("loss_mean"))
    strategy = phyla.PBT(
        population_size=2, steps_per_trial=5, total_steps=10, fitness=phyla.FromSuite("loss"), quorum=1.0
    )
    space = {"lr": phyla.Float(1e-3, 0.5, log=True)}
    made = phyla.Study("suite", space, phyla.Minimize("loss_mean"), strategy, suites=[suite], home=tmp_path)
    with phyla.attach(made) as job:
        for trial in job.trials():
            train(trial)
    assert made.results().state == "completed"
