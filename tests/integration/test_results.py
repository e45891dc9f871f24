"""What a user reads of a study, and how often a worker imports the study file."""

import json
from pathlib import Path
from typing import Any

import pytest

import forked
import phyla
from durability import load, run
from facts import raises
from phyla.errors import PhylaError, StudyNotFound, UsageError

STUDY = """
import os
from pathlib import Path
import phyla

HOME = Path({home!r})
with (HOME / "imports").open("a") as file:
    file.write(f"{{os.getpid()}}\\n")

def train(trial):
    (trial.checkpoint_dir / "a").write_text("a")
    trial.report(score=1.0)

study = phyla.Study(
    name="toy",
    space=phyla.Space(lr=phyla.Float(0.1, 1.0)),
    objective=phyla.Maximize("score"),
    strategy=phyla.PBT(population_size=4, steps_per_trial=1, total_steps=10),
    train=train, home=HOME,
)
study.run(workers=2)
"""


def test_a_study_file_is_imported_once_per_worker(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    file = tmp_path / "file.py"
    file.write_text(STUDY.format(home=str(home)))
    forked.run([file], check=True, spares=2)
    pids = (home / "imports").read_text().split()
    assert len(pids) == len(set(pids)) == 3, "the main process and two workers"
    assert load(home).counts() == {"completed": 40}


def test_results_need_no_training_code(tmp_path: Path) -> None:
    from pandas import DatetimeTZDtype  # takes a second, in each process that collects tests

    run(tmp_path, members=4, trials=6)
    results = phyla.load_study("toy", home=tmp_path)
    frame = results.dataframe()
    assert len(frame) == 24
    assert set(frame["member"]) == {0, 1, 2, 3}
    assert isinstance(frame["ended_at"].dtype, DatetimeTZDtype)
    best = results.best
    assert best is not None
    assert best.fitness == frame["fitness"].max() == frame["metrics.score"].max()
    assert best.params["lr"] == frame.loc[frame["trial"] == best.trial, "params.lr"].item()
    assert (best.checkpoint.path / "chain.json").exists()
    each = results.trials()[-1]
    assert results.checkpoint(each) == results.checkpoint(each.id)
    assert results.checkpoint(best.trial) == best.checkpoint
    for column in ("trial", "attempts"), ("trial", "fitness"):  # a row of the second has floats
        trial = frame[list(column)].iloc[-1]["trial"]
        assert results.checkpoint(trial) == results.checkpoint(each)
        assert results.story(trial) == results.story(each.id) != []
        assert results.reports(trial) == results.reports(each.id) != []
        assert results.schedule(trial) == results.schedule(each.id)
    for ask in (results.checkpoint, results.story, results.schedule, results.reports):
        with raises(PhylaError, "toy", "trial 99"):
            ask(99)
    wrongs: list[Any] = [-1, 2**63, 1.5, "1"]
    for read in (results.checkpoint, results.story, results.schedule, results.reports):
        for wrong in wrongs:
            with raises(UsageError, "trial=", str(wrong)):
                read(wrong)
    counts, score = "completed, trials: 24 completed", f"best score {best.fitness:g} (trial {best.trial})"
    assert repr(results) == f"<Results of study 'toy': {counts}, {score}>"
    assert repr(best).startswith(
        f"<Best: fitness {best.fitness:g}, trial {best.trial} of member {best.member}, step "
    )
    assert repr(each).startswith(
        f"<Trial {each.id} of member {each.member}: steps {each.start_step} to {each.end_step}, "
    )
    schedule = results.schedule()
    assert schedule(schedule.steps - 1) == best.params.flat()
    chain = json.loads((best.checkpoint.path / "chain.json").read_text())
    assert [segment.trial for segment in schedule.segments] == [link[0] for link in chain]
    report = results.write_report(tmp_path / "report.html")
    assert "<html" in report.read_text()
    assert results.figure().layout.title.text == "Is it working?"
    assert results.figure("schedules").data[-1].name == "the winner"
    with raises(UsageError, "lineage", "progress", "phylogeny", "front"):
        results.figure("lineage")


def test_an_unknown_study_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(StudyNotFound, match="does not exist"):
        phyla.load_study("toy", home=tmp_path)
    run(tmp_path, members=1, trials=1)
    with raises(StudyNotFound, "toy"):
        phyla.load_study("other", home=tmp_path)
    with raises(StudyNotFound, "trial 99"):
        load(tmp_path).schedule(99)
