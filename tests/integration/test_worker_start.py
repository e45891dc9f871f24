"""A worker process that dies while it is being started is one more crash, not the end of the run."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

import phyla
import toy_study
from durability import check_whole, load

MEMBERS, TRIALS = 2, 3


def test_a_worker_that_dies_before_it_reads_its_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    real = subprocess.Popen

    def dies_at_once(command: Any, **options: Any) -> Any:
        if not killed and "phyla.launchers.process" in command:
            process: Any = real(["sh", "-c", "exec <&-; kill -9 $$"], **options)
            process.wait()
            killed.append(process.pid)
            return process
        return real(command, **options)

    monkeypatch.setattr(subprocess, "Popen", dies_at_once)
    (tmp_path / "options.json").write_text("{}")
    study = phyla.Study(
        name="toy",
        space=phyla.Space(lr=phyla.Float(0.01, 1.0, log=True)),
        objective=phyla.Maximize("score"),
        strategy=phyla.PBT(
            population_size=MEMBERS, steps_per_trial=toy_study.STEPS, total_steps=toy_study.STEPS * TRIALS
        ),
        train=toy_study.train,
        setup=toy_study.setup,
        home=tmp_path,
    )
    study.run(workers=1)
    assert len(killed) == 1
    check_whole(load(tmp_path), members=MEMBERS, trials=TRIALS)
