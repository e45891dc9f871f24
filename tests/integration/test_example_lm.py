"""The example of continuous evaluation: a language model is trained, and its checkpoints are measured."""

import importlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import forked
from effort import thorough
from phyla import plugins, study_modules
from phyla.evaluation import Metric, Suite, TaskResult
from phyla.evaluation.recorder import decode, encode, merge_shards
from phyla.evaluation.regression import Measured, regressions
from phyla.records import Checkpoint, CheckpointKind, EvalJob
from phyla.worker import Evaluation
from phyla.worker.evaluating.evaluation import checkpoint_of

pytestmark = pytest.mark.xdist_group("frameworks")
"""Its run is made once, not by each process of tests."""

EXAMPLE = Path(__file__).parents[2] / "examples" / "continuous_eval"
EVERY = 60
SMALL = """
import sys

sys.path.insert(0, sys.argv[1])
import train

train.LENGTH = 16
del sys.argv[1]
train.main()
"""
"""The training job with shorter windows: a step takes a quarter of the time."""
SPOILED = ("tests", "docstrings") + (("held-out",) if thorough() else ())
"""Tasks with so many groups that a fall after five checkpoints is sure."""


def train(out: Path, *options: str, steps: int) -> str:
    """Run the training job; return what it printed."""
    words = ["--out", out, "--every", EVERY, "--steps", steps, *options]
    done = forked.run(["-c", SMALL, EXAMPLE, *words], frameworks=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def checkpoint(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step_{step:06d}.pt"


def losses(printed: str) -> list[float]:
    """Return the losses that were printed, in their order."""
    return [float(line.split("loss ")[1].split()[0]) for line in printed.splitlines() if ": loss " in line]


@pytest.fixture(scope="module")
def suite() -> Iterator[Suite]:
    """The suite of the example, whose files are found as a worker finds them."""
    before = list(sys.path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield study_modules.load(EXAMPLE / "suite.py").suite
    finally:
        torch.set_num_threads(threads)
        sys.path[:] = before
        study_modules.forget()
        for name in ("char_gru", "stdlib_text"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run whose last checkpoint but one is spoiled, and what it printed."""
    out = tmp_path_factory.mktemp("lm")
    return out, train(out, "--inject-regression", str(5 * EVERY), steps=6 * EVERY)


def evaluated(
    suite: Suite, path: Path, work: Path, *, shards: int | None = None, tasks: Sequence[str] = ()
) -> list[TaskResult]:
    """Evaluate a checkpoint on all tasks or those named, and merge shards as an aggregation would."""
    seen = Checkpoint(
        study=1, name=path.name, step=int(path.stem[5:]), identity=path.name, kind=CheckpointKind.SEEN
    )
    assert suite.load is not None
    checkpoint = checkpoint_of(seen, path)
    loaded = suite.load(checkpoint)
    results = []
    for task in [suite.task(name) for name in tasks] or suite.tasks:
        count = shards or task.shards
        parts: list[dict[str, Metric]] = []
        for shard in range(count):
            record = EvalJob(
                study=1, task=task.name, identity=task.identity, shard=shard, shards=count, created_at=0.0
            )
            evaluation = Evaluation(
                record,
                task,
                checkpoint,
                suite=suite.name,
                loaded=loaded,
                worker=None,
                outputs=work / "outputs",
                work_root=work / "scratch",
            )
            task(evaluation)
            stored = {name: encode(metric, plugins.reference) for name, metric in evaluation.statistics.items()}
            parts.append({name: decode(raw, plugins.loaded_class) for name, raw in stored.items()})
        metrics = merge_shards(parts, expected=task.samples)
        results.append(
            TaskResult(
                task=task.name, config=task.config, tags=task.tags, weight=task.weight, metrics=metrics, arrays={}
            )
        )
    return results


@pytest.fixture(scope="module")
def before(suite: Suite, run: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> list[TaskResult]:
    """What the suite finds on the last checkpoint before the spoiled one."""
    return evaluated(suite, checkpoint(run[0], 4 * EVERY), tmp_path_factory.mktemp("before"))


def values(results: Sequence[TaskResult]) -> dict[str, float]:
    return {
        f"{one.task}/{name}/{key}": value
        for one in results
        for name, metric in one.metrics.items()
        for key, value in metric.summary().items()
    }


def test_training_lowers_the_loss_and_says_when_it_is_done(run: tuple[Path, str]) -> None:
    out, printed = run
    first, second, *_ = losses(printed)
    assert second < first - 0.3
    assert sorted((out / "checkpoints").iterdir()) == [
        out / "checkpoints" / "DONE",
        *(checkpoint(out, step) for step in range(EVERY, 6 * EVERY + 1, EVERY)),
    ]


@pytest.mark.thorough
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(run: tuple[Path, str], tmp_path: Path) -> None:
    out, _ = run
    resumed = tmp_path / "resumed"
    (resumed / "checkpoints").mkdir(parents=True)
    shutil.copy(checkpoint(out, 5 * EVERY), checkpoint(resumed, 5 * EVERY))
    # The writer was killed while it wrote the newest one.
    checkpoint(resumed, 5 * EVERY + 10).write_bytes(checkpoint(out, 6 * EVERY).read_bytes()[:300_000])
    printed = train(resumed, steps=6 * EVERY)
    assert f"at step {5 * EVERY}" in printed
    ends = [torch.load(checkpoint(folder, 6 * EVERY), weights_only=True)["model"] for folder in (out, resumed)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.thorough
def test_only_the_newest_checkpoints_are_kept_on_request(tmp_path: Path) -> None:
    train(tmp_path, "--keep", "2", "--every", "2", steps=7)
    assert sorted((tmp_path / "checkpoints").glob("*.pt")) == [checkpoint(tmp_path, step) for step in (6, 7)]


@pytest.mark.thorough  # unit/evaluation/test_recorder.py: any shards
def test_statistics_do_not_depend_on_the_number_of_shards(
    suite: Suite, run: tuple[Path, str], before: list[TaskResult], tmp_path: Path
) -> None:
    sharded = [task.name for task in suite.tasks if task.shards > 1]
    whole = values(evaluated(suite, checkpoint(run[0], 4 * EVERY), tmp_path, shards=1, tasks=sharded))
    assert whole == pytest.approx(values([result for result in before if result.task in sharded]), rel=1e-12)
    measured = values(before)
    assert set(whole) < set(measured)
    for task in suite.tasks:
        assert measured[f"{task.name}/loss/n"] == task.samples
        assert 0 < measured[f"{task.name}/loss/stderr"] < 0.1


def test_the_spoiled_checkpoint_is_a_regression_and_the_next_is_not(
    suite: Suite, run: tuple[Path, str], before: list[TaskResult], tmp_path: Path
) -> None:
    out, _ = run
    by_step = [
        before if step == 4 else evaluated(suite, checkpoint(out, step * EVERY), tmp_path, tasks=SPOILED)
        for step in range(1, 7)
    ]
    for name in SPOILED:
        results = [next(result for result in step if result.task == name) for step in by_step]
        measured = [Measured.of(result.metrics, "loss") for result in results]
        alarms = regressions(measured, maximize=False, metrics=len(suite.tasks))
        assert [(alarm.place, alarm.last) for alarm in alarms] == [(4, 4)]


def test_the_texts_are_there_where_no_unit_tests_are_installed(suite: Suite, tmp_path: Path) -> None:
    text = importlib.import_module("stdlib_text")
    for path in text.stdlib().glob("*.py"):
        shutil.copy(path, tmp_path / path.name)
    made_up = text.unit_tests(tmp_path)
    assert made_up.count("    def test_") > 300
    task = suite.task("tests")
    config: Any = task.config
    assert len(made_up) > config["group"] * config["groups"] * (config["length"] + 1)
