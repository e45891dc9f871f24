"""A worker process that dies while it is being started is one more crash, not the end of the run."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import phyla
import toy_study
from durability import check_whole, load

MEMBERS, TRIALS = 2, 3


AWAY = """
import dataclasses
from phyla.launchers import process
from phyla.launchers.launcher import WorkerSpec

read = WorkerSpec.from_json
process.WorkerSpec.from_json = lambda line: dataclasses.replace(read(line), storage="postgresql://me@127.0.0.1:1/db")
process.main()
"""
"""A worker process whose database is away when it starts."""


@pytest.mark.parametrize(
    "command",
    [["sh", "-c", "exec <&-; kill -9 $$"], [sys.executable, "-c", AWAY]],
    ids=["before it reads its orders", "while the store is away"],
)
def test_a_worker_that_dies_while_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    died: list[int] = []
    real = subprocess.Popen

    def dies_at_first(words: Any, **options: Any) -> Any:
        process: Any = real(command if "phyla.worker.process" in words and not died else words, **options)
        if process.args is command:
            died.append(process.pid)
            if command[0] == "sh":
                process.wait()
        return process

    monkeypatch.setattr(subprocess, "Popen", dies_at_first)
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
    assert len(died) == 1
    check_whole(load(tmp_path), members=MEMBERS, trials=TRIALS)
