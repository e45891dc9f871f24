"""What training reports: steps are whole numbers of any type and nothing else, metrics have names."""

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phyla
from facts import raises
from phyla.errors import ConfigurationError
from phyla.validation import brief
from phyla.worker import session_of


@pytest.fixture
def trial(tmp_path: Path) -> phyla.Trial:
    search = phyla.RandomSearch(members=1, steps_per_trial=9, total_steps=9)
    asked = phyla.Study("s", {"lr": phyla.Float(0.1, 1.0)}, phyla.Minimize("loss"), search, home=tmp_path).ask()
    assert asked is not None
    return asked


@pytest.mark.parametrize("step", [3, 3.0, np.int64(3), np.float32(3), np.array(3), np.array(3.0), Decimal(3)])
def test_whole_numbers_of_any_type_are_steps(trial: phyla.Trial, step: Any) -> None:
    trial.report(loss=0.5, step=step)
    (report,) = session_of(trial).take_reports()
    assert (type(report.step), report.step) == (int, 3)


@pytest.mark.parametrize(
    "step", [3.7, math.nan, math.inf, "3", [3], np.array([3, 4]), 2**63, 1 << 20_000, 1 + 0j], ids=brief
)
def test_other_steps_are_refused_and_nothing_is_reported(trial: phyla.Trial, step: Any) -> None:
    with raises(ConfigurationError, "report(step="):
        trial.report(loss=0.5, step=step)
    assert not session_of(trial).take_reports()


def test_a_metric_with_an_empty_name_is_refused_and_one_below_a_name_is_not(trial: phyla.Trial) -> None:
    with raises(ConfigurationError, "report("):
        trial.report({"loss": 0.5, "": 1.0})
    assert not session_of(trial).take_reports()
    trial.report({"loss": {"": 1.0}})
    (report,) = session_of(trial).take_reports()
    assert report.metrics == {"loss/": 1.0}
