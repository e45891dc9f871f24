"""How worker processes start; one that dies meanwhile is one more crash, not the end of the run."""

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import phyla
import toy_study
from durability import check_whole, load
from effort import rarely
from phyla.supervision.worker_process import WORKER
from phyla.worker.spec import Exit

MEMBERS, TRIALS = 2, 3


AWAY = """
import dataclasses
from phyla.worker import process
from phyla.worker.spec import WorkerSpec

read = WorkerSpec.from_json
process.WorkerSpec.from_json = lambda line: dataclasses.replace(read(line), storage="postgresql://me@127.0.0.1:1/db")
process.main()
"""
"""A worker process whose database is away when it starts."""
UNHEARD = f"""
import os
for file in (1, 2):
    os.dup2(os.open("/dev/full", os.O_WRONLY), file)
{AWAY}
"""
"""The same, where its log cannot be written either."""


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["sh", "-c", "exec <&-; kill -9 $$"], -9),
        rarely([sys.executable, "-c", AWAY], Exit.STORE_FAILED),  # the next one has this cause, too
        ([sys.executable, "-c", UNHEARD], Exit.STORE_FAILED),
    ],
    ids=["before it reads its orders", "while the store is away", "while nothing can be written"],
)
def test_a_worker_that_dies_while_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], status: int
) -> None:
    died: list[Any] = []
    real = subprocess.Popen

    def dies_at_first(words: Any, **options: Any) -> Any:
        process: Any = real(command if WORKER in words and not died else words, **options)
        if process.args is command:
            died.append(process)
            if command[0] == "sh":
                process.wait()
        return process

    monkeypatch.setattr(subprocess, "Popen", dies_at_first)
    study = phyla.Study(
        name="toy",
        space=phyla.Space(lr=phyla.Float(0.01, 1.0, log=True)),
        objective=phyla.Maximize("score"),
        strategy=phyla.PBT(
            population_size=MEMBERS, steps_per_trial=toy_study.STEPS, total_steps=toy_study.STEPS * TRIALS
        ),
        train=toy_study.train,
        home=tmp_path,
    )
    study.run(workers=1)
    assert [process.returncode for process in died] == [status]
    check_whole(load(tmp_path), members=MEMBERS, trials=TRIALS)


def train(trial: phyla.Trial) -> None:
    """Report how many objects no collection looks at, where garbage is collected."""
    (trial.checkpoint_dir / "empty").touch()
    trial.report(spared=float(gc.get_freeze_count() if gc.isenabled() else 0))


def test_workers_collect_the_garbage_of_training_but_not_among_what_phyla_imported(tmp_path: Path) -> None:
    study = phyla.Study(
        name="garbage",
        space=phyla.Space(lr=phyla.Float(0.01, 1.0)),
        objective=phyla.Maximize("spared"),
        strategy=phyla.PBT(population_size=1, steps_per_trial=1, total_steps=1),
        train=train,
        home=tmp_path,
    )
    (trial,) = study.run(workers=1).trials()
    assert (trial.fitness or 0.0) > 10_000
