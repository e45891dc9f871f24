"""Equal wall time: the studies of `bench/quality/wall_time.py`, and what a slow worker costs."""

from dataclasses import replace

import lockstep
import numpy as np
import pytest
import wall_time
from lockstep import Way, constant
from schedule_tasks import TASKS


def test_a_study_on_the_virtual_clock_decides_as_populations_that_train_in_step() -> None:
    task = replace(TASKS["even noise"], steps=500)
    strategy = wall_time.CONTENDERS["PBT, quorum 1.0"](task)
    study = wall_time.Study(task, strategy, 4, 7)
    study.run()
    (found,) = lockstep.run(task, Way(strategy=strategy, decay=constant), [7])
    assert study.value(np.inf) == pytest.approx(found["value"])


def test_a_slow_worker_of_16_holds_up_a_barrier_and_not_a_quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "even noise", replace(TASKS["even noise"], steps=500))
    ends = {}
    for label in ("PBT, quorum 0.8", "PBT, quorum 1.0"):
        job = wall_time.Job(task="even noise", label=label, workers=16, seeds=(1,))
        (row,) = job.run()
        ends[label] = row["end"]
    assert ends["PBT, quorum 0.8"] < 1.6
    assert ends["PBT, quorum 1.0"] > 2.5
