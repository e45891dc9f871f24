"""Studies whose fitness comes from a suite are started from checkpoints, replayed, trained on and resized."""

import json
from pathlib import Path
from typing import Any

import pytest

import phyla
from effort import rarely
from phyla.records import JobKind, JobState, StudyState

STEPS = 5
SPACE = phyla.Space(lr=phyla.Float(0.01, 1.0, log=True))


def train(trial: phyla.Trial) -> None:
    value = json.loads((trial.source.path / "value.json").read_text()) if trial.source else 0.0
    for _ in trial.steps():
        value += trial.params["lr"]
    (trial.checkpoint_dir / "value.json").write_text(json.dumps(value))


@phyla.eval_task
def read(evaluation: phyla.Evaluation) -> None:
    """What the weights are worth."""
    evaluation.record(value=json.loads((evaluation.checkpoint.path / "value.json").read_text()))


SUITE = phyla.Suite("read", [read], objective=phyla.Maximize("value_mean"))


def study(folder: Path, size: int, trials: int, *, quorum: float, **options: Any) -> phyla.Study:
    strategy = phyla.PBT(
        population_size=size,
        steps_per_trial=STEPS,
        total_steps=trials * STEPS,
        quorum=quorum,
        exploit=phyla.Truncation(0.4),
        fitness=phyla.FromSuite("read", "value_mean"),
    )
    objective = phyla.Maximize("value_mean")
    return phyla.Study("scored", SPACE, objective, strategy, train, suites=[SUITE], home=folder, **options)


@pytest.mark.parametrize(("quorum", "workers"), [rarely(0.8, 2), (1.0, 0)])
def test_a_study_with_a_suite(tmp_path: Path, quorum: float, workers: int) -> None:
    given = tmp_path / "given"
    given.mkdir()
    (given / "value.json").write_text("100.0")
    options: Any = {"quorum": quorum, "start_from": [phyla.StartFrom(given, step=50)]}
    made = study(tmp_path, 4, 3, **options)
    results = made.run()
    assert results.counts() == {"completed": 12}
    assert all(row.fitness is not None for row in results.trials() if row.kind is JobKind.TRAIN)
    assert results.best is not None
    assert results.best.fitness > 100.0

    again = phyla.replay(made)
    assert again.best is not None
    assert (again.best.fitness, again.best.checkpoint.digest) == (
        results.best.fitness,
        results.best.checkpoint.digest,
    )
    on = phyla.continue_training(made, 7)
    assert on.best is not None
    assert on.best.checkpoint.step == results.best.checkpoint.step + 7
    assert on.best.fitness > results.best.fitness

    for size, trials in ((6, 5), (2, 6)):
        changed = study(tmp_path, size, trials, **options)
        changed.change()
        results = changed.run(workers=workers)
        assert results.state is StudyState.COMPLETED
        assert [m.progress for m in results.members() if not m.retired] == [trials * STEPS] * size
    trained = [row for row in results.trials() if row.kind is JobKind.TRAIN]
    if quorum == 1:
        assert sum(row.state is JobState.COMPLETED for row in trained) == 4 * 3 + 4 * 2 + 2 * 2 + 2
    assert all(row.fitness is not None for row in trained)
    joined = [row for row in trained if row.reason["decision"] == "join"]
    assert len(joined) == 2
