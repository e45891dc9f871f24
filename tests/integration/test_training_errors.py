"""What goes wrong inside a trial becomes a clear error on that trial; the study goes on or says what to do."""

import asyncio
import errno
import inspect
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forked
import phyla
from effort import rarely
from facts import check_facts, raises
from phyla.cli.app import run_app
from phyla.errors import CheckpointMissing, CheckpointsAbsent, ConfigurationError, StateError, StudyFailed
from phyla.records import CheckpointState, JobState, StudyState
from phyla.settings import child_environment
from phyla.study import Places
from phyla.study.maintaining.maintain import maintain
from phyla.worker import Trial, session_of
from waiting import until

Train = Callable[[Trial], None]


def study(home: Path, train: Train, *, population: int = 3, trials: int = 4, **options: Any) -> phyla.Study:
    return phyla.Study(
        name="errors",
        space=phyla.Space(lr=phyla.Float(0.1, 1.0)),
        objective=phyla.Maximize("score"),
        strategy=phyla.PBT(population_size=population, steps_per_trial=5, total_steps=5 * trials),
        train=train,
        home=home,
        **options,
    )


def good(trial: Trial) -> None:
    state = json.loads((trial.source.path / "state.json").read_text()) if trial.source else {"steps": 0}
    for _ in trial.steps():
        state["steps"] += 1
    (trial.checkpoint_dir / "state.json").write_text(json.dumps(state))
    trial.report(score=state["steps"] + trial.params["lr"])


@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError])
def test_an_exception_is_retried_and_then_replaced(tmp_path: Path, kind: type[BaseException]) -> None:
    def train(trial: Trial) -> None:
        if trial.member == 1 and trial.generation == 1 and "replaces" not in trial.reason:
            raise kind(f"lr={trial.params['lr']:.2f} exploded")
        good(trial)

    results = study(tmp_path, train).run()
    failed = [trial for trial in results.trials() if trial.state is JobState.FAILED]
    assert len(failed) == 1
    assert failed[0].failures == failed[0].token == 3
    assert f"{kind.__name__}: lr=" in (failed[0].error or "")
    assert "exploded" in (failed[0].error or "")
    assert results.counts() == {"completed": 12, "failed": 1}
    assert results.state is StudyState.COMPLETED
    with raises(CheckpointMissing, f"trial {failed[0].id}"):
        results.checkpoint(failed[0])


BROKEN = "broken"


def fragile(params: Any, rng: Any) -> Any:
    """Explore as long as nothing is broken."""
    if Path(BROKEN).exists():
        raise ZeroDivisionError(f"lr={params['lr']:.1f}")
    return {"lr": float(rng.uniform(0.1, 1.0))}


def exploring() -> phyla.Study:
    strategy = phyla.PBT(
        population_size=3,
        steps_per_trial=5,
        total_steps=20,
        exploit=None,
        explore=phyla.strategies.ExploreWith(fragile),
    )
    space = {"lr": phyla.Float(0.1, 1.0)}
    return phyla.Study("fragile", space, phyla.Maximize("score"), strategy, good)


def test_an_explore_rule_that_raises_stops_the_study_and_nothing_that_was_trained_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(BROKEN).touch()
    with raises(StudyFailed, "PBT", "ZeroDivisionError", "lr=0", "test_training_errors"):
        exploring().run()
    stopped = exploring().results()
    check_stopped(stopped)
    with raises(StateError, "fragile", "failed", "ZeroDivisionError") as refused:
        exploring().work()
    assert ".." not in str(refused.value)  # a message that is a sentence, in another one
    Path(BROKEN).unlink()
    assert exploring().run().counts() == {"completed": 12}


def test_an_explore_rule_that_raises_in_a_worker_process_stops_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(BROKEN).touch()
    told = forked.run_with(__file__, "exploring().run(workers=1)", spares=1, check=False).stderr
    check_facts(told, "StudyFailed", "PBT", "ZeroDivisionError", "lr=0", "test_training_errors")
    check_stopped(phyla.load_study("fragile"))
    Path(BROKEN).unlink()
    forked.run_with(__file__, "exploring().run()")
    assert phyla.load_study("fragile").counts() == {"completed": 12}


def check_stopped(results: phyla.Results) -> None:
    assert results.state is StudyState.FAILED
    # Whoever completes a trial asks for the next one, and learns of it.
    assert results.counts()["completed"] >= 1
    assert "failed" not in results.counts()


def test_no_checkpoint_no_fitness_and_no_step_are_told_apart(tmp_path: Path) -> None:
    def no_checkpoint(trial: Trial) -> None:
        for _ in trial.steps():
            pass
        trial.report(score=1.0)

    def no_fitness(trial: Trial) -> None:
        good_without = [*trial.steps()]
        (trial.checkpoint_dir / "a").write_text(str(good_without))
        trial.report({"train/loss": 1.0})

    def no_step(trial: Trial) -> None:
        for _ in trial.steps():
            break
        (trial.checkpoint_dir / "a").write_text("a")
        trial.report(score=1.0)

    for train, words in (
        (no_checkpoint, "checkpoint_dir"),
        (no_fitness, "without reporting the objective 'score'"),
        (no_step, "so not the step in which you `break`"),
    ):
        failing = study(tmp_path / train.__name__, train)
        with pytest.raises(StudyFailed, match="failed twice with the same error"):
            failing.run()
        errors = {trial.error or "" for trial in failing.results().trials()}
        assert all(words in error for error in errors), errors
        assert all(trial.token == 1 for trial in failing.results().trials()), "another attempt would not help"


def test_after_the_cause_is_mended_the_study_goes_on(tmp_path: Path) -> None:
    def broken(trial: Trial) -> None:
        raise ImportError("no module named torch")

    with raises(StudyFailed, "ImportError", "torch"):
        study(tmp_path, broken, retries=phyla.Retries(broken=3)).run()
    results = study(tmp_path, good, retries=phyla.Retries(broken=3)).run()
    assert results.counts()["completed"] == 12


def dies(trial: Trial) -> None:
    """Train, except for member 1 while something is broken."""
    if trial.member == 1 and Path(BROKEN).exists():
        if Path(BROKEN).read_text() == "raise":
            raise ValueError("no cable")
        os.kill(os.getpid(), signal.SIGSEGV) if "replaces" in trial.reason else os._exit(0)
    good(trial)


FEWER_CRASHES = "from phyla.supervision import supervisor\nsupervisor.CRASHES_IN_A_ROW = 2"


def endangered() -> phyla.Study:
    space, strategy = {"lr": phyla.Float(0.1, 1.0)}, phyla.RandomSearch(2, 10, steps_per_trial=5)
    retries = phyla.Retries(attempts=1, broken=4)
    return phyla.Study("errors", space, phyla.Maximize("score"), strategy, dies, retries=retries)


@pytest.mark.parametrize(
    ("how", "workers", "why"),
    [
        ("raise", 0, "ValueError: no cable"),
        ("die", 1, r"worker process \d+ was ended by SIGSEGV; its log is (?P<log>.*)\. Fix"),
    ],
)
def test_a_member_that_was_given_up_is_named_and_the_next_run_trains_it_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    how: str,
    workers: int,
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(BROKEN).write_text(how)

    pattern = rf"study 'errors' .*member 1 .*trial \d+.*{why}"
    for _ in range(1 if workers else 2):  # the second time it is tried, and given up, again
        caplog.clear()
        if workers:
            program = f"{FEWER_CRASHES}\nendangered().run(workers={workers})"
            told = forked.run_with(__file__, program, spares=5).stderr
            results = endangered().results()
        else:
            results = endangered().run()
            told = caplog.text
        assert results.state is StudyState.COMPLETED
        found = re.match(pattern, results.incomplete or "")
        assert found
        if workers:
            assert " in dies\n" in Path(found["log"]).read_text(), "the line that crashed"
        assert re.search(pattern, told)
    others = [trial for trial in results.trials() if trial.state is JobState.COMPLETED]
    assert [(trial.member, trial.end_step) for trial in others] == [(0, 5), (0, 10)]
    Path(BROKEN).unlink()
    caplog.clear()
    results = endangered().run()
    assert results.incomplete is None
    assert results.study().message is None
    assert "given up" not in caplog.text
    completed = [trial for trial in results.trials() if trial.state is JobState.COMPLETED]
    assert completed[:2] == others
    assert [(trial.member, trial.end_step) for trial in completed[2:]] == [(1, 5), (1, 10)]


def test_the_command_line_tells_a_study_without_a_member_from_a_complete_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.py").write_text(
        "import json, os, signal\nfrom pathlib import Path\nimport phyla\nfrom phyla.worker import Trial\n"
        f"BROKEN = {BROKEN!r}\n{inspect.getsource(good)}\n{inspect.getsource(dies)}\n"
        "study = phyla.Study('errors', {'lr': phyla.Float(0.1, 1.0)}, phyla.Maximize('score'),\n"
        "    phyla.RandomSearch(2, 5), dies, retries=phyla.Retries(attempts=2, broken=4))\n"
    )
    Path(BROKEN).write_text("raise")

    def run() -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["phyla", "run", "study.py", "--workers", "0"])
        with pytest.raises(SystemExit) as ended:
            run_app()
        assert isinstance(ended.value.code, int)
        return ended.value.code, capfd.readouterr().out.splitlines()[-1]

    status, last = run()
    assert status == 1, last
    check_facts(last, "errors", "member 1", "phyla run study.py --workers 0")
    # So does a person who resumes it, for workers that wait.
    found = maintain("errors", Places.of(None))
    assert found.resume()
    assert not found.resume()
    assert run()[0] == 1
    Path(BROKEN).unlink()
    status, last = run()
    assert status == 0
    check_facts(last, "phyla report errors")
    with raises(StateError, "errors", "completed"):
        maintain("errors", Places.of(None)).resume()


@pytest.mark.parametrize("way", ["run", "resume"])
def test_a_study_that_was_resumed_counts_broken_trials_afresh(tmp_path: Path, way: str) -> None:
    broken = [True, True, True]

    def train(trial: Trial) -> None:
        if trial.generation and broken and broken.pop():
            raise ValueError("no cable")
        good(trial)

    made = study(tmp_path, train, retries=phyla.Retries(broken=3, attempts=1))
    with raises(StudyFailed, "3 trials"):
        made.run()
    # The cause is repaired; one more breaks for another reason.
    broken.append(True)
    if way == "resume":
        assert maintain("errors", Places.of(tmp_path)).resume()
        while (trial := made.ask()) is not None:
            try:
                train(trial)
            except ValueError as error:
                made.tell(trial, error=str(error))
            else:
                made.tell(trial)
    else:
        made.run()
    assert made.results().counts() == {"completed": 12, "failed": 4}
    assert made.results().state is StudyState.COMPLETED


def test_a_full_disk_stops_the_study_and_costs_no_attempt(tmp_path: Path) -> None:
    def train(trial: Trial) -> None:
        if trial.generation == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(trial.checkpoint_dir / "model"))
        good(trial)

    with raises(StudyFailed, os.strerror(errno.ENOSPC)) as caught:
        study(tmp_path, train).run()
    assert "make room" in str(caught.value)
    results = study(tmp_path, good).run()
    assert results.counts() == {"completed": 12}
    assert all(trial.failures == 0 for trial in results.trials())


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, *map(rarely, (errno.EDQUOT, errno.EROFS, errno.ESTALE)), errno.EIO]
)
def test_an_error_of_storage_without_a_file_name_says_where_training_writes(tmp_path: Path, number: int) -> None:
    def train(trial: Trial) -> None:
        if trial.generation == 2:
            assert trial.checkpoint_dir.is_dir()
            raise OSError(number, os.strerror(number))
        good(trial)

    with pytest.raises(StudyFailed, match=os.strerror(number)) as caught:
        study(tmp_path, train).run()
    assert f"{tmp_path}/checkpoints/errors/.staging/" in str(caught.value)
    assert f"{tmp_path}/work/errors/trial-" in str(caught.value)
    assert "Then run the study again" in str(caught.value)
    results = study(tmp_path, good).run()
    assert results.counts() == {"completed": 12}
    assert all(trial.failures == 0 for trial in results.trials())


def test_an_error_of_storage_in_an_evaluation_costs_no_attempt_and_stops_the_study(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.touch()

    @phyla.eval_task
    def saving(evaluation: phyla.Evaluation) -> None:
        if full.exists():
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        evaluation.record(length=1.0)

    def made() -> phyla.Study:
        return study(tmp_path, good, suites=[phyla.Suite("length", [saving])])

    with raises(StudyFailed, f"{tmp_path}/outputs/errors"):
        made().run()
    full.unlink()
    results = made().run()
    assert results.counts() == {"completed": 12}
    assert {group.state for group in results.evaluations().groups()} == {"complete"}


def test_logs_that_cannot_be_written_stop_the_run_with_their_path(tmp_path: Path) -> None:
    (tmp_path / "study.py").write_text(
        """
import phyla

def train(trial):
    (trial.checkpoint_dir / "state").write_text("")
    trial.report(score=1.0)

study = phyla.Study(
    "errors", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("score"), phyla.RandomSearch(2, 1), train, home="home"
)
"""
    )
    logs = tmp_path / "home" / "logs"
    logs.parent.mkdir()
    logs.write_text("not a directory")
    words = ["-m", "phyla.cli", "run", "study.py", "--workers", 1]
    done = forked.run(words, cwd=tmp_path, spares=1)
    assert done.returncode == 1
    check_facts(done.stderr, "[Errno 20]", f"{logs}/errors")
    assert "Traceback" not in done.stderr
    logs.unlink()
    done = forked.run(words, cwd=tmp_path, spares=1)
    assert done.returncode == 0, done.stderr


def test_a_checkpoint_deleted_behind_our_back(tmp_path: Path) -> None:
    deleted: list[str] = []

    def train(trial: Trial) -> None:
        if trial.generation == 2 and trial.parent and not deleted:
            deleted.append(trial.parent.name)
            (trial.parent.path / "state.json").unlink()
        good(trial)

    results = study(tmp_path, train).run()
    assert results.counts() == {"completed": 12, "cancelled": 1}
    assert [row.name for row in results.damaged()] == deleted
    broken = next(trial for trial in results.trials() if trial.state is JobState.CANCELLED)
    assert "FileNotFoundError" in (broken.error or "")
    after = next(trial for trial in results.trials() if trial.replaces == broken.id)
    assert after.parent_checkpoint != deleted[0]


def test_a_whole_checkpoint_directory_vanishes_between_runs(tmp_path: Path) -> None:
    import shutil

    def stop_midway(trial: Trial) -> None:
        if trial.generation == 2:
            raise KeyboardInterrupt
        good(trial)

    with pytest.raises(KeyboardInterrupt):
        study(tmp_path, stop_midway).run()
    directory = tmp_path / "checkpoints" / "errors"
    shutil.rmtree(directory)
    with raises(CheckpointsAbsent, directory):
        study(tmp_path, good).run()
    # They are gone for good, and somebody says so.
    directory.mkdir()
    assert "it was empty" in maintain("errors", Places.of(tmp_path)).adopt()
    results = study(tmp_path, good).run()
    assert results.counts()["completed"] == 12
    assert results.state is StudyState.COMPLETED
    assert {trial.reason["decision"] for trial in results.trials()} >= {"recover"}


@pytest.mark.parametrize(
    ("reported", "said"),
    [
        ({"score": "high"}, "report(score= high"),
        ({"score": None}, "report(score=None) NoneType"),
        ({"score": [1, 2]}, "this is a list report its mean or one of its elements"),
        (0.5, "report(0.5) trial.report(loss=0.5)"),
    ],
)
def test_a_metric_that_is_no_number_names_itself(tmp_path: Path, reported: Any, said: str) -> None:
    def train(trial: Trial) -> None:
        good(trial)
        trial.report(reported)

    with raises(StudyFailed, *said.split()):
        study(tmp_path, train, retries=phyla.Retries(attempts=1, broken=1)).run()


def test_progress_is_where_a_retry_resumes(tmp_path: Path) -> None:
    seen: list[list[int]] = []

    def train(trial: Trial) -> None:
        state = json.loads((trial.source.path / "state.json").read_text()) if trial.source else {"steps": 0}
        steps: list[int] = []
        seen.append(steps)
        for step in trial.steps():
            steps.append(step)
            state["steps"] += 1
            if step == trial.start_step + 2 and trial.token < 3:
                (trial.checkpoint_dir / "state.json").write_text(json.dumps(state))
                trial.save_progress()
                assert list(trial.checkpoint_dir.iterdir()) == []
                raise RuntimeError("preempted the hard way")
        (trial.checkpoint_dir / "state.json").write_text(json.dumps(state))
        trial.report(score=state["steps"])

    results = study(tmp_path, train, population=1, trials=2).run()
    assert seen == [[0, 1, 2], [3, 4], [5, 6, 7], [8, 9]]
    assert results.best is not None
    assert results.best.fitness == 10
    live = {row.name for row in results.checkpoints() if row.state is CheckpointState.LIVE}
    assert live == {trial.checkpoint for trial in results.trials()}, "the last two states of a member are kept"
    assert sorted(p.name for p in (tmp_path / "checkpoints" / "errors").iterdir() if p.name[0] != ".") == sorted(
        live
    )


def test_reports_are_kept_with_their_steps(tmp_path: Path) -> None:
    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"train": {"loss": 1.0 / (step + 1)}}, step=step)
        (trial.checkpoint_dir / "a").write_text("a")
        trial.report({"score": 3, "val/acc": 0.5})

    results = study(tmp_path, train, population=1, trials=2).run()
    second = results.trials()[1]
    reports = results.reports(second.id)
    assert [report.step for report in reports] == [5, 6, 7, 8, 9, 10]
    assert reports[0].metrics == {"train/loss": pytest.approx(1 / 6)}
    assert second.metrics == {"train/loss": pytest.approx(0.1), "score": 3.0, "val/acc": 0.5}


def test_what_was_reported_before_an_interruption_stays_with_what_came_after_it(tmp_path: Path) -> None:
    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"train/loss": float(step)}, step=step)
            (trial.checkpoint_dir / "a").write_text("a")
            if step == 2 and trial.progress is None:
                trial.save_progress()
            if step == 3 and trial.progress is None:
                until(lambda: [one.step for one in made.results().reports(trial.id)] == [0, 1, 2, 3], "reports")
                raise RuntimeError("interrupted")
        trial.report({"score": 3})

    made = study(tmp_path, train, population=1, trials=1)
    results = made.run()
    assert results.trials()[0].failures == 1
    assert [one.step for one in results.reports(1)] == [0, 1, 2, 3, 4, 5]


def test_setup_is_called_once_and_cached_state_survives_only_a_continuation(tmp_path: Path) -> None:
    setups: list[str] = []
    wrong: list[int] = []
    kept = 0

    def setup(worker: phyla.WorkerContext) -> str:
        setups.append(worker.name)
        return "data"

    def train(trial: Trial) -> None:
        nonlocal kept
        assert trial.worker == "data"
        if trial.cached_state is not None:
            kept += 1
            if trial.parent is None or trial.cached_state != trial.parent.name:
                wrong.append(trial.id)
        good(trial)
        trial.cached_state = f"{trial.id}.{trial.token}"

    study(tmp_path, train, population=2, trials=10, setup=setup).run()
    assert len(setups) == 1
    assert wrong == []
    study(tmp_path / "one", train, population=1, trials=10, setup=setup).run()
    assert kept >= 9


def test_another_configuration_is_refused_unless_it_is_changed(tmp_path: Path) -> None:
    study(tmp_path, good, trials=2).run()
    with raises(phyla.PhylaError, "strategy.total_steps", "10", "20"):
        study(tmp_path, good, trials=4).run()
    study(tmp_path, good, trials=4).change()
    results = study(tmp_path, good, trials=4).run()
    assert results.counts() == {"completed": 12}
    with raises(ConfigurationError, "4 members", "3", "20 steps"):
        study(tmp_path, good, trials=4, population=4).change()
    more = study(tmp_path, good, trials=5, population=4)
    more.change()
    results = more.run()
    assert results.counts() == {"completed": 12 + 4}
    other = phyla.RandomSearch(members=4, total_steps=25, steps_per_trial=5)
    changed = phyla.Study(
        "errors", phyla.Space(lr=phyla.Float(0.1, 1.0)), phyla.Maximize("score"), other, good, home=tmp_path
    )
    with raises(ConfigurationError, "strategy.plugin", "phyla.strategies/pbt"):
        changed.change()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "a/b"}, "study name 'a/b'"),
        ({"seed": -1}, "seed=-1"),
        ({"train": 3}, "train=3"),
        ({"setup": 3}, "setup=3"),
        ({"retries": phyla.Retention()}, r"retries=Retention\(.*give phyla\.Retries\(\.\.\.\)"),
        ({"retention": 3}, r"retention=3: give phyla\.Retention\(\.\.\.\)"),
    ],
)
def test_bad_arguments_are_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {
        "name": "x",
        "space": phyla.Space(lr=phyla.Float(0.1, 1.0)),
        "objective": phyla.Maximize("score"),
        "strategy": phyla.PBT(population_size=1, steps_per_trial=1, total_steps=1),
        "train": good,
        "home": tmp_path,
    }
    with pytest.raises(ConfigurationError, match=words):
        phyla.Study(**{**arguments, **changes})
    assert list(tmp_path.iterdir()) == []


def test_ask_and_tell(tmp_path: Path) -> None:
    asking = study(tmp_path, good, population=2, trials=3)
    told = 0
    while (trial := asking.ask()) is not None:
        for _ in trial.steps():
            pass
        (trial.checkpoint_dir / "a").write_text(str(trial.id))
        asking.tell(trial, metrics={"score": trial.id})
        told += 1
    assert asking.finished
    assert told == 6


def test_ask_and_tell_for_a_vectorised_population(tmp_path: Path) -> None:
    vector = study(tmp_path, good, population=4, trials=5)
    rounds = 0
    while trials := vector.ask(4):
        assert len(trials) == 4
        values = []
        for trial in trials:
            if trial.parent:
                rows = json.loads((trial.parent.path / "population.json").read_text())
                assert rows[trial.parent.index][0] == trial.parent.trial
            values.append([trial.id, trial.params["lr"]])
        (trials[0].checkpoint_dir / "population.json").write_text(json.dumps(values))
        vector.tell(trials, checkpoint=trials[0], metrics=[{"score": value} for _, value in values])
        rounds += 1
    assert rounds == 5
    results = vector.results()
    assert results.counts() == {"completed": 20}
    assert len(results.checkpoints()) == 5
    assert results.best is not None
    stored = json.loads((results.best.checkpoint.path / "population.json").read_text())
    assert stored[results.best.checkpoint.index][0] == results.best.trial


def test_tell_says_what_is_missing(tmp_path: Path) -> None:
    asking = study(tmp_path, good)
    trial = asking.ask()
    assert trial is not None
    with raises(phyla.PhylaError, "score"):
        asking.tell(trial)
    trial.report(score=1)
    with raises(phyla.PhylaError, "checkpoint_dir"):
        asking.tell(trial)
    (trial.checkpoint_dir / "a").write_text("now")
    asking.tell(trial)
    second = asking.ask()
    assert second is not None
    asking.tell(second, error="my loop failed")
    rows = {row.id: row for row in asking.results().trials()}
    assert rows[second.id].state is JobState.PENDING
    assert rows[second.id].error == "my loop failed"


def unknown_metric(values: Any, objective: Any) -> float:
    return float(values[99])


def test_tell_names_the_rule_that_cannot_compute_a_fitness(tmp_path: Path) -> None:
    strategy = phyla.PBT(population_size=1, steps_per_trial=1, total_steps=2, fitness=unknown_metric)
    asking = phyla.Study(
        "own-rule", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("score"), strategy, home=tmp_path
    )
    trial = asking.ask()
    assert trial is not None
    (trial.checkpoint_dir / "a").write_text("now")
    with raises(StudyFailed, "IndexError", __file__):
        asking.tell(trial, metrics={"score": 1.0})


class Stopper:
    """Asks a trial to stop at a chosen moment, as SIGTERM does."""

    def __init__(self) -> None:
        self.asked = False

    def once(self, trial: Trial) -> None:
        if not self.asked:
            self.asked = True
            session_of(trial).stop()


def test_progress_saved_after_the_loop_counts_the_steps_so_far(tmp_path: Path) -> None:
    stopper = Stopper()
    seen: list[tuple[int, int | None]] = []

    def train(trial: Trial) -> None:
        first = trial.source.step if trial.source else 0
        for step in trial.steps():
            assert step >= first
            if step == 7:
                stopper.once(trial)
        (trial.checkpoint_dir / "a").write_text("a")
        if trial.should_stop:
            trial.save_progress()
            return
        trial.report(score=1.0)
        seen.append((trial.id, trial.progress.step if trial.progress else None))

    results = study(tmp_path, train, population=1, trials=3).run()
    assert seen == [(1, None), (2, 8), (3, None)]
    assert [trial.reached_step for trial in results.trials()] == [5, 10, 15]
    assert [trial.failures for trial in results.trials()] == [0, 0, 0]


def test_a_stop_after_the_last_step_is_no_failure(tmp_path: Path) -> None:
    stopper = Stopper()

    def train(trial: Trial) -> None:
        for step in trial.steps():
            if step == trial.end_step - 1:
                stopper.once(trial)
        if trial.should_stop:
            return
        (trial.checkpoint_dir / "a").write_text("a")
        trial.report(score=1.0)

    results = study(tmp_path, train, population=1, trials=2).run()
    assert [(trial.state, trial.token, trial.failures) for trial in results.trials()] == [
        (JobState.COMPLETED, 2, 0),
        (JobState.COMPLETED, 1, 0),
    ]


def test_a_step_that_is_left_with_break_does_not_count(tmp_path: Path) -> None:
    def train(trial: Trial) -> None:
        for step in trial.steps():
            if step == trial.start_step + 2:
                break
        (trial.checkpoint_dir / "a").write_text("a")
        trial.report(score=1.0)

    results = study(tmp_path, train, population=1, trials=1).run()
    assert results.trials()[0].reached_step == 2


FORKING = """
import os
import sys

import phyla


def train(trial):
    child = os.fork()
    if child == 0:
        LEAVE
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for _ in trial.steps():
        pass
    (trial.checkpoint_dir / "weights").write_text("w")
    trial.report(status=status)


study = phyla.Study(
    "forking", phyla.Space(lr=phyla.Float(0.1, 1.0)), phyla.Maximize("status"), phyla.RandomSearch(1, 1), train
)
"""


@pytest.mark.parametrize(
    ("leave", "status"),
    [("return", 0), rarely("sys.exit()", 0), ("sys.exit(3)", 3), ("raise ValueError('mine')", 1)],
)
def test_a_fork_that_leaves_training_ends_and_is_no_second_worker(tmp_path: Path, leave: str, status: int) -> None:
    (tmp_path / "forking.py").write_text(FORKING.replace("LEAVE", leave))
    words = ["-m", "phyla.cli", "run", "forking.py", "--workers", 1]
    done = forked.run(words, cwd=tmp_path, env=child_environment({}), spares=1)
    assert done.returncode == 0, done.stderr
    rows = phyla.load_study("forking", home=tmp_path / ".phyla").trials()
    assert [(row.state.value, row.fitness) for row in rows] == [("completed", status)]
    logs = "".join(path.read_text() for path in (tmp_path / ".phyla" / "logs").rglob("*.log"))
    assert ("ValueError: mine" in logs) == ("mine" in leave)


def test_a_mistake_in_how_training_is_set_up_stops_the_study_at_the_first_trial(tmp_path: Path) -> None:
    right: list[int] = []

    def train(trial: Trial) -> None:
        if not right:
            raise ConfigurationError("Trainer(max_steps=3) ends before the trial does")
        good(trial)

    made = study(tmp_path, train)
    with raises(StudyFailed, "trial 1", "0 failed", "max_steps=3"):
        made.run()
    assert made.results().counts() == {"pending": 1}
    right.append(1)
    assert made.run().counts() == {"completed": 12}


def test_other_retries_wake_nobody_in_a_study_that_is_complete(tmp_path: Path) -> None:
    results = study(tmp_path, good).run()
    before = results.members()
    assert study(tmp_path, good, retries=phyla.Retries(broken=50)).run().members() == before
    stored: Any = results.study().config
    assert stored["options"]["max_broken"] == 50
