"""Shapes of published curves, on a few seeds: `bench/quality/published.py` has all of them, and 25 seeds."""

from dataclasses import replace

import numpy as np
import pytest
from published import Experiment, longer, measured, toy
from published_page import crossing, table
from recorded import record

from effort import times

SEEDS = range(times(5, 25))


def some(experiment: Experiment, *labels: str) -> Experiment:
    contenders = {label: experiment.contenders[label] for label in labels}
    return replace(experiment, contenders=contenders)


def test_on_the_toy_of_figure_2_each_part_is_better_than_the_grid() -> None:
    found = measured(toy(), SEEDS)
    medians = {label: row["median"] for label, row in found["rows"].items()}
    assert medians["grid"] == pytest.approx(0.592, abs=5e-4)
    assert medians["exploit only"] == pytest.approx(1.157, abs=5e-4)
    assert min(medians["PBT"], medians["explore only"]) > medians["grid"] + 0.1
    assert "| grid |" in table(found)


def test_on_long_runs_pbt_falls_behind_random_search_and_mf_pbt_does_not() -> None:
    """In a quarter of the steps of the benchmark; quartiles are 0.01 to 0.02 apart, the medians 0.1."""
    labels = "random, constant", "PBT, every 20 steps", "MF-PBT, every 20 steps"
    found = measured(some(longer(steps=2000), *labels), SEEDS[: times(1, 2)])
    greedy, several = (crossing(found, label) for label in labels[1:])
    assert greedy is not None
    assert 500 < greedy < 2000
    assert several is None


def test_a_recorded_curve_ends_where_the_study_does() -> None:
    contender = longer(steps=500, dims=10).contenders["PBT, every 20 steps"]
    found = record(contender, SEEDS[:2], ("lr",))
    assert [row["value"] for row in found.finals] == found.values[-1].tolist()
    assert found.steps[-1] == 500
    assert np.isfinite(found.paths["lr"]).all()
