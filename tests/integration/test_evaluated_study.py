"""Studies whose fitness comes from a suite, with real processes that are killed, hang and hold the interpreter."""

import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forked
import phyla
from durability import check_evaluated, check_whole, load, run
from effort import rarely
from phyla.records import Group, GroupState, Phase, StudyState
from phyla.store import open_store
from phyla.system.failpoints import NAMES

MEMBERS, TRIALS = 3, 5


def groups(home: Path, name: str) -> list[Group]:
    store = open_store(f"sqlite:///{home / 'phyla.db'}")
    found = store.find_study(name)
    assert found is not None
    with store.reader(found.id) as reader:
        listed = list(reader.groups())
    store.close()
    return listed


@pytest.mark.parametrize(("workers", "evaluators"), [rarely(0, 0), (2, 0), rarely(1, 2)])
def test_every_trial_is_scored_by_the_suite(tmp_path: Path, workers: int, evaluators: int) -> None:
    run(tmp_path, evaluated=True, members=MEMBERS, trials=TRIALS, workers=workers, evaluators=evaluators)
    results = load(tmp_path)
    check_whole(results, members=MEMBERS, trials=TRIALS)
    check_evaluated(results)


@pytest.mark.parametrize(
    "name",
    [name for name in NAMES if name.startswith("evaluation.") and "commit" not in name and "complete" not in name]
    + ["claim.after_commit", *map(rarely, ("job.before_complete", "claim.before_commit", "store.after_commit"))],
)
def test_killed_at_a_failpoint_and_resumed(tmp_path: Path, name: str) -> None:
    options: dict[str, Any] = {"evaluated": True, "members": MEMBERS, "trials": TRIALS}
    for hit in (1, 7):
        run(tmp_path, failpoint=f"{name}=kill:{hit}", expect=-signal.SIGKILL, **options)
    run(tmp_path, **options)
    results = load(tmp_path)
    check_whole(results, members=MEMBERS, trials=TRIALS)
    check_evaluated(results)


def train(trial: phyla.Trial) -> None:
    (trial.checkpoint_dir / "x.txt").write_text(str(trial.params["x"]))
    for step in trial.steps():
        trial.report(loss=0.0, step=step)


def good(evaluation: phyla.Evaluation) -> None:
    evaluation.record(x=float((evaluation.checkpoint.path / "x.txt").read_text()))


def dies(evaluation: phyla.Evaluation) -> None:
    os._exit(7)


def hangs(evaluation: phyla.Evaluation) -> None:
    time.sleep(1000)


def holds_the_interpreter(evaluation: phyla.Evaluation) -> None:
    ctypes.PyDLL(None).usleep(int(1000e6))


def study(home: Path, *more: phyla.Suite, members: int = 2, trials: int = 2) -> phyla.Study:
    fitness = phyla.Suite("fitness", (phyla.EvalTask("good", good),))
    return phyla.Study(
        name="s",
        space=phyla.Space(x=phyla.Float(0.0, 1.0)),
        objective=phyla.Maximize("x"),
        strategy=phyla.PBT(
            population_size=members,
            steps_per_trial=2,
            total_steps=2 * trials,
            fitness=phyla.FromSuite("fitness", "x_mean"),
        ),
        train=train,
        suites=[fitness, *more],
        home=home,
    )


def poisoned(bad: Callable[[phyla.Evaluation], None], attempts: int) -> phyla.Suite:
    tasks = (phyla.EvalTask("good", good), phyla.EvalTask("bad", bad, timeout_s=0.5, max_attempts=attempts))
    return phyla.Suite("poisoned", tasks)


@pytest.mark.parametrize(("bad", "attempts"), [(dies, 2), rarely(hangs, 1), rarely(holds_the_interpreter, 1)])
def test_a_poisoned_eval_task_delays_nothing_else_and_its_group_ends_partial(
    tmp_path: Path, bad: Callable[[phyla.Evaluation], None], attempts: int
) -> None:
    program = f"study(Path(sys.argv[1]), poisoned({bad.__name__}, {attempts}), members=1, trials=1).run(workers=1)"
    forked.run_with(__file__, program, tmp_path, spares=1 + attempts)
    results = phyla.load_study("s", home=tmp_path)
    assert results.state is StudyState.COMPLETED
    statuses = {(group.suite, group.state) for group in groups(tmp_path, "s")}
    assert statuses == {("fitness", GroupState.COMPLETE), ("poisoned", GroupState.PARTIAL)}
    assert all(trial.fitness == trial.params["x"] for trial in results.trials())
    why = next(group.why for group in groups(tmp_path, "s") if group.why)
    assert "bad (" in why
    if bad is not dies:
        assert "timeout_s" in why


def waits(trial: phyla.Trial) -> None:
    """Go on training, once there is something to evaluate, until it was evaluated."""
    marker = trial.working_dir.parent / "evaluated"
    (trial.checkpoint_dir / "x.txt").write_text("1")
    for step in trial.steps():
        trial.report(loss=0.0, step=step)
    deadline = time.monotonic() + 60
    while trial.generation and not marker.exists():
        assert time.monotonic() < deadline, "report() never yielded"
        trial.report(loss=0.0)
    trial.report(x=1.0)


def marks(evaluation: phyla.Evaluation) -> None:
    (evaluation.working_dir.parent / "evaluated").touch()
    evaluation.record(x=1.0)


def test_training_yields_to_evaluation_when_it_opted_in(tmp_path: Path) -> None:
    late = phyla.Suite("late", (phyla.EvalTask("marks", marks),), policy=phyla.Policy(start_delay_s=0.2))
    yielding = phyla.Study(
        name="s",
        space=phyla.Space(x=phyla.Float(0.0, 1.0)),
        objective=phyla.Maximize("x"),
        strategy=phyla.PBT(population_size=1, steps_per_trial=1, total_steps=2),
        train=waits,
        suites=[late],
        home=tmp_path,
    )
    results = yielding.run(workers=0, yield_at_report=True)
    assert results.state is StudyState.COMPLETED
    assert [group.state for group in groups(tmp_path, "s")] == [GroupState.COMPLETE] * 2
    # The second trial waited in report() for an eval task on the first one's checkpoint, which is in its time.
    assert ["evaluating" in (attempt.timings or {}) for attempt in results.attempts()] == [False, True]
    tasks = float((results.evaluating().end - results.evaluating().begin).sum())
    assert tasks > 0
    assert results.time_spent().seconds[Phase.EVALUATING] == pytest.approx(tasks)


def test_some_train_and_others_evaluate(tmp_path: Path) -> None:
    program = "study(Path(sys.argv[1])).run(workers=1, kinds=['train'], evaluators=1)"
    forked.run_with(__file__, program, tmp_path, spares=2)
    results = phyla.load_study("s", home=tmp_path)
    assert results.state is StudyState.COMPLETED
    store = open_store(f"sqlite:///{tmp_path / 'phyla.db'}")
    found = store.find_study("s")
    assert found is not None
    with store.reader(found.id) as reader:
        # What the ledger knew already, nobody had to evaluate.
        evaluators = {task.worker for task in reader.eval_jobs() if not task.reused}
    store.close()
    trainers = {trial.worker for trial in results.trials()}
    assert len(evaluators) == 1
    assert not evaluators & trainers
