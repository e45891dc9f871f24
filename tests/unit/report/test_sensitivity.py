"""Which hyperparameters went with progress: on data where the answer is known."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from compared import Line, study_of
from phyla.records import Json
from phyla.report import StudyData
from phyla.report.measures import Sensitivity, sensitivities

PARAMETERS: list[Json] = [
    {"name": "lr", "kind": "float", "low": 0.0, "high": 1.0, "log": False},
    {"name": "act", "kind": "choice", "values": ["relu", "gelu", "tanh"]},
    {"name": "width", "kind": "ordinal", "values": ["s", "m", "l"]},
    {"name": "fixed", "kind": "float", "low": 0.0, "high": 1.0, "log": False},
]


def made(
    gain: Callable[[dict[str, Any], int], float],
    *,
    members: int = 10,
    generations: int = 12,
    seed: int = 0,
    noise: float = 1.0,
    maximize: bool = True,
) -> StudyData:
    """A population without exploits, in which a trial gains what a function of its hyperparameters says."""
    rng = np.random.default_rng(seed)
    lines: list[Line] = []
    params: list[dict[str, Any]] = []
    value = [0.0] * members
    for generation in range(generations):
        for member in range(members):
            chosen = {
                "lr": float(rng.random()) + generation,
                "act": str(rng.choice(["relu", "gelu", "tanh"])),
                "width": str(rng.choice(["s", "m", "l"])),
                "fixed": 0.5,
            }
            value[member] += (gain(chosen, generation) + noise * float(rng.normal())) * (1 if maximize else -1)
            lines.append((member, 1, float(len(lines)), value[member]))
            params.append(chosen)
    return study_of(lines, params=params, parameters=PARAMETERS, maximize=maximize)


def found(*studies: StudyData) -> dict[str, Sensitivity]:
    return {one.name: one for one in sensitivities(studies)}


def strengths(*studies: StudyData) -> dict[str, float | None]:
    return {name: one.strength for name, one in found(*studies).items()}


@pytest.mark.parametrize("maximize", [True, False])
def test_what_alone_decides_has_full_strength(maximize: bool) -> None:
    up = found(made(lambda p, g: p["lr"] % 1, noise=0, maximize=maximize))
    assert up["lr"].strength == pytest.approx(1.0)
    assert up["lr"].trials == 110
    assert up["fixed"].strength is None
    down = strengths(made(lambda p, g: -p["lr"], noise=0, maximize=maximize))
    assert down["lr"] == pytest.approx(-1.0)
    choice = found(made(lambda p, g: 5.0 * (p["act"] == "gelu"), noise=0.01, maximize=maximize))
    assert (choice["act"].strength or 0) > 0.65
    assert choice["act"].gains["gelu"] == pytest.approx(5.0, abs=0.1)
    assert choice["act"].gains["relu"] == pytest.approx(0.0, abs=0.1)
    assert not choice["act"].ordered
    places = {"s": 0, "m": 1, "l": 2}
    ordered = found(made(lambda p, g: float(places[p["width"]]), noise=0.1, maximize=maximize))
    assert ordered["width"].ordered
    assert (ordered["width"].strength or 0) > 0.85


def test_one_generation_is_spearmans_correlation() -> None:
    data = made(lambda p, g: p["lr"], members=30, generations=2)
    later = [trial for trial in data.trials if trial.generation == 1]
    gains = [(trial.fitness or 0.0) - (data.trials[trial.member].fitness or 0.0) for trial in later]
    expected = stats.spearmanr([trial.params["lr"] for trial in later], gains).statistic
    assert strengths(data)["lr"] == pytest.approx(expected)


def test_that_early_trials_gain_more_is_no_strength_of_what_falls_over_time() -> None:
    # Here lr rises with the generation, and gains fall with it.
    data = made(lambda p, g: 50.0 / (1 + g), noise=1.0, generations=30)
    lr = found(data)["lr"]
    assert lr.strength is not None
    assert abs(lr.strength) < lr.noise


def test_chance_stays_below_the_noise_that_is_told() -> None:
    # For each of these, 95 of 100 should; from 200 draws that is at least 180 with near certainty.
    below = {"lr": 0, "act": 0, "width": 0}
    for seed in range(200):
        for name, one in found(made(lambda p, g: 0.0, members=5, generations=9, seed=seed)).items():
            if one.strength is not None and name in below:
                below[name] += abs(one.strength) <= one.noise
    assert all(count >= 180 for count in below.values()), below
    assert all(count < 200 for count in below.values()), below


def test_replicates_are_taken_together() -> None:
    one, other = made(lambda p, g: p["lr"], seed=1), made(lambda p, g: p["lr"], seed=2)
    alone, both = found(one)["lr"], found(one, other)["lr"]
    assert both.trials == 220
    assert both.noise < alone.noise
    low, high = sorted(value for value in (alone.strength, strengths(other)["lr"]) if value is not None)
    assert low <= (both.strength or 0) <= high


def test_too_few_trials_say_nothing() -> None:
    few = found(made(lambda p, g: p["lr"], members=3, generations=3))
    assert [one.strength for one in few.values()] == [None] * 4
    assert sensitivities([]) == []
    first_only = found(made(lambda p, g: p["lr"], generations=1))
    assert {one.trials for one in first_only.values()} == {0}


def test_what_is_no_number_and_what_is_missing_is_left_out() -> None:
    data = made(lambda p, g: p["lr"] % 1, noise=0)
    odd: list[StudyData] = []
    lines: list[Line] = [(t.member, 1, t.ended_at or 0.0, t.fitness) for t in data.trials]
    for value in (math.nan, None):
        params = [dict(trial.params) for trial in data.trials]
        for place in range(0, len(params), 7):
            if value is None:
                del params[place]["lr"]
            else:
                params[place]["lr"] = value
        odd.append(study_of(lines, params=params, parameters=PARAMETERS))
    for one in odd:
        assert strengths(one)["lr"] == pytest.approx(1.0)
    holes = study_of(
        [(m, s, e, math.nan if place % 9 == 0 else f) for place, (m, s, e, f) in enumerate(lines)],
        params=[dict(trial.params) for trial in data.trials],
        parameters=PARAMETERS,
    )
    assert strengths(holes)["lr"] == pytest.approx(1.0)
