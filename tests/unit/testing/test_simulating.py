"""`phyla.testing.simulate`, with a study of a user's."""

from pathlib import Path
from typing import Any

import pytest

import phyla
from facts import check_facts, raises
from phyla.errors import ConfigurationError
from phyla.testing import simulate


def never(_given: object) -> None:
    raise AssertionError("a simulation calls no function of the user's")


def study(home: Path, **settings: Any) -> phyla.Study:
    return phyla.Study(
        "s",
        phyla.Space(x=phyla.Float(0.0, 1.0)),
        phyla.Maximize("Q"),
        settings.pop("strategy", phyla.PBT(population_size=3, steps_per_trial=2, total_steps=8)),
        never,
        home=home,
        **settings,
    )


def test_nothing_is_trained_opened_or_written(tmp_path: Path) -> None:
    found = simulate(study(tmp_path / "none"), 3, trial_s=10.0, runs=2)
    assert (found.wall_s, found.wall_range_s, found.completes) == (40.0, (40.0, 40.0), True)
    assert found.shares()["training"] == 1.0
    assert found.wasted()["preempted"] == 0.0
    assert found.bound == 13
    assert not (tmp_path / "none").exists()


def test_runs_differ_and_can_be_repeated(tmp_path: Path) -> None:
    def walls(seed: int) -> list[float]:
        found = simulate(study(tmp_path), 2, step_s=1.0, spread=0.5, runs=3, seed=seed)
        return [run.wall_s for run in found.runs]

    assert walls(0) == walls(0)
    assert len({*walls(0), *walls(1)}) == 6


def test_stopping_rules_are_not_simulated_and_said_not_to_be(tmp_path: Path) -> None:
    rules = [phyla.MedianStopping(min_steps=1), phyla.strategies.Divergence()]
    found = simulate(study(tmp_path, stopping=rules), trial_s=1.0)
    (note,) = found.notes
    check_facts(note, "MedianStopping", "Divergence")
    assert simulate(study(tmp_path), trial_s=1.0).notes == ()


def test_one_time_for_trials_of_different_lengths_is_noted(tmp_path: Path) -> None:
    rungs = phyla.ASHA(members=9, min_steps=10, total_steps=90)
    asked = study(tmp_path, strategy=rungs)
    (note,) = simulate(asked, 2, trial_s=60.0).notes
    check_facts(note, "10", "60 steps", "60 s")
    assert note.endswith("give step_s")
    assert simulate(asked, 2, step_s=1.0).notes == ()


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    def refused(match: str, **given: Any) -> None:
        with pytest.raises(ConfigurationError, match=match):
            simulate(study(tmp_path), **given)

    refused("either step_s or trial_s")
    refused("either step_s or trial_s", step_s=1.0, trial_s=1.0)
    refused("runs=0", trial_s=1.0, runs=0)
    refused("seed=-1", trial_s=1.0, seed=-1)
    refused("workers=0", trial_s=1.0, workers=0)
    refused("has no suites=", trial_s=1.0, evaluators=1)
    refused("eval_s=1.0: the study has no suites=", trial_s=1.0, eval_s=1.0)
    refused("choose 'train'", trial_s=1.0, kinds=["trian"])
    refused("kinds: at least one worker", trial_s=1.0, kinds=["evaluate"])
    name: Any = "digits"
    with raises(ConfigurationError, "digits"):
        simulate(name, trial_s=1.0)


def test_labels_hold_up_no_simulation(tmp_path: Path) -> None:
    task = phyla.EvalTask("t", never, resources={"gpus": 8, "label": "a100"})
    strategy = phyla.PBT(
        population_size=2, steps_per_trial=2, total_steps=4, fitness=phyla.FromSuite("s", "x_mean")
    )
    asked = study(tmp_path, strategy=strategy, suites=[phyla.Suite("s", [task])])
    assert simulate(asked, 2, trial_s=10.0, eval_s=1.0).completes
