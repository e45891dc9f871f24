"""A program that runs one study after the other, as a sweep in a notebook does, does not run out of files."""

import gc
import os
import sys
from pathlib import Path

import pytest

import phyla
from phyla.records import StudyRecord
from phyla.store import open_store


def train(trial: phyla.Trial) -> None:
    (trial.checkpoint_dir / "weights").write_text(str(trial.seed))
    trial.report(score=float(trial.params["lr"]))


def _open_in(folder: Path) -> int:
    gc.collect()
    found = [os.path.realpath(entry.path) for entry in os.scandir("/proc/self/fd")]
    return sum(name.startswith(str(folder)) for name in found)


@pytest.mark.skipif(sys.platform != "linux", reason="counts the open files of a process, which only Linux lists")
def test_a_study_that_is_gone_holds_no_file_open(tmp_path: Path) -> None:
    for name in ("first", "second"):
        study = phyla.Study(
            name=name,
            space=phyla.Space(lr=phyla.Float(0.1, 1.0)),
            objective=phyla.Maximize("score"),
            strategy=phyla.PBT(population_size=2, steps_per_trial=1, total_steps=2),
            train=train,
            home=tmp_path,
        )
        assert study.run(workers=0).best is not None
        assert phyla.load_study(name, home=tmp_path).best is not None
        del study
        assert _open_in(tmp_path) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="counts the open files of a process, which only Linux lists")
# JAX, where another test has imported it, has threads, and says so at every fork.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_a_child_process_that_drops_a_store_leaves_that_of_its_parent_open(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'phyla.db'}")
    store.create_study("first", {}, 1, 2)
    before = _open_in(tmp_path)
    assert before > 0
    child = os.fork()
    if child == 0:
        del store
        os._exit(0 if _open_in(tmp_path) == before else 1)
    assert os.waitpid(child, 0)[1] == 0
    found = store.find_study("first")
    assert isinstance(found, StudyRecord)
