"""A study is complete once its goal is reached, or once it no longer improves."""

from pathlib import Path
from typing import Any

import pytest

import forked
import phyla
from effort import rarely
from facts import check_facts, raises
from phyla.errors import ConfigurationError
from phyla.records import StudyState
from phyla.study.files import toml


def train(trial: phyla.Trial) -> None:
    for _ in trial.steps():
        pass
    (trial.checkpoint_dir / "w").write_text("w")
    trial.report(score=trial.end_step, loss=-trial.end_step, size=trial.end_step)


def study(home: Path, objective: Any, **options: Any) -> phyla.Study:
    strategy = phyla.PBT(population_size=2, steps_per_trial=1, total_steps=20, quorum=1.0, **options)
    return phyla.Study("goal", {"lr": phyla.Float(0.1, 1.0)}, objective, strategy, train, home=home)


HIGH, LOW = phyla.Maximize("score", stop_at=5), phyla.Minimize("loss", stop_at=-5)
CONSTRAINED = phyla.Constrained(phyla.Maximize("score", stop_at=3), "size >= 5")
GOALS = {"HIGH": HIGH, "LOW": LOW, "CONSTRAINED": CONSTRAINED}


@pytest.mark.parametrize(
    ("objective", "said", "workers"),
    [
        (HIGH, "score is 5 in trial", 0),
        (LOW, "loss is -5 in trial", 0),
        (CONSTRAINED, "score is 5 in trial", 0),
        (CONSTRAINED, "score is 5 in trial", 2),
        rarely(HIGH, "score is 5 in trial", 2),
        rarely(LOW, "loss is -5 in trial", 2),
    ],
)
def test_a_study_ends_when_its_goal_is_reached(tmp_path: Path, objective: Any, said: str, workers: int) -> None:
    if workers and objective.name == "loss":
        return  # one with workers is enough of each kind
    program = f"study(Path(sys.argv[1]), {next(name for name, one in GOALS.items() if one is objective)})"
    if workers:
        forked.run_with(__file__, f"{program}.run(workers={workers})", tmp_path, spares=workers)
    results = study(tmp_path, objective).results() if workers else study(tmp_path, objective).run()
    assert results.state is StudyState.COMPLETED
    assert said in str(results.study().message)
    assert "stop_at=" in str(results.study().message)
    best = results.best
    assert best is not None
    assert abs(best.fitness) >= 5
    assert 9 <= results.counts()["completed"] <= 12
    assert results.incomplete is None
    assert study(tmp_path, objective).run().counts() == results.counts()


def test_a_goal_that_is_not_reached_ends_nothing(tmp_path: Path) -> None:
    results = study(tmp_path, phyla.Maximize("score", stop_at=21)).run()
    assert results.counts() == {"completed": 40}
    assert results.study().message is None


def test_studies_without_a_goal_are_stored_as_before(tmp_path: Path) -> None:
    assert study(tmp_path, phyla.Maximize("score")).config()["objective"] == {
        "plugin": "phyla.objectives/maximize",
        "metric": "score",
    }


def test_goals_that_make_no_sense_are_refused() -> None:
    for at in (float("nan"), True, "5"):
        with raises(ConfigurationError, "stop_at="):
            phyla.Minimize("loss", stop_at=at)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="a front is never reached"):
        phyla.Pareto(phyla.Maximize("score", stop_at=1.0), phyla.Minimize("loss"))
    with raises(ConfigurationError, "stop_at"):
        phyla.Suite("s", [], objective=phyla.Maximize("x_mean", stop_at=1.0))


def test_a_goal_in_a_study_file(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(
        'name = "s"\nobjective = { name = "minimize", metric = "loss", stop_at = 0.1 }\n'
        "[space]\nlr = { low = 0.1, high = 1.0 }\n"
        '[command]\narguments = ["true", "{save_to}"]\n'
        "[pbt]\npopulation_size = 2\nsteps_per_trial = 1\ntotal_steps = 2\n"
    )
    (found,) = toml.read_studies(file)
    assert found.rules.objective == phyla.Minimize("loss", stop_at=0.1)


@pytest.mark.parametrize("workers", [0, rarely(2)])
def test_a_study_ends_when_the_best_no_longer_improves(
    tmp_path: Path, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    best = phyla.Maximize("size")  # is what `train` was asked to reach, never more than 5

    def plateau(stopping: Any) -> phyla.Study:
        strategy = phyla.PBT(population_size=2, steps_per_trial=1, total_steps=40, quorum=1.0)
        space = {"lr": phyla.Float(0.1, 1.0)}
        return phyla.Study("flat", space, best, strategy, saturates, stopping=stopping, home=tmp_path)

    rule = phyla.strategies.Plateau(steps=6)
    results = plateau(rule).run(workers=workers)
    assert results.state is StudyState.COMPLETED
    assert results.study().message == "the best size has not improved for 6 steps"
    # Five rounds rise, the last of them begins the six that do not.
    assert 20 <= results.counts()["completed"] <= 22
    caplog.clear()
    assert plateau(rule).run().counts() == results.counts()
    check_facts(caplog.text, "6 steps")
    assert "change what ended it" in caplog.text
    plateau(()).change()
    assert plateau(()).run(workers=workers).counts() == {"completed": 80}


def saturates(trial: phyla.Trial) -> None:
    for _ in trial.steps():
        pass
    (trial.checkpoint_dir / "w").write_text("w")
    trial.report(size=min(trial.end_step, 5))


def test_a_plateau_in_a_study_file(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(
        'name = "s"\nobjective = "minimize loss"\n[space]\nlr = { low = 0.1, high = 1.0 }\n'
        '[command]\narguments = ["true", "{save_to}"]\n[[stopping]]\nname = "plateau"\nsteps = 8\n'
        "[pbt]\npopulation_size = 2\nsteps_per_trial = 1\ntotal_steps = 20\n"
    )
    (found,) = toml.read_studies(file)
    assert found.rules.stopping == (phyla.strategies.Plateau(steps=8),)
