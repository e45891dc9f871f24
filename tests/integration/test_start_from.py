"""Studies whose members start from checkpoints that exist already."""

import json
import os
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import forked
import phyla
from facts import raises
from phyla.checkpoints import LocalCheckpoints
from phyla.errors import CheckpointMissing, ConfigurationError, SpaceError, StudyChanged
from phyla.lineage import Lineage
from phyla.records import CheckpointState, JobKind, JobState, TrialRecord
from phyla.settings import child_environment
from phyla.study import Places
from phyla.study.results.load import list_all
from phyla.system.failpoints import NAMES
from phyla.worker import session_of

SPACE = phyla.Space(lr=phyla.Float(0.01, 1.0, log=True), width=phyla.Int(1, 64))
STEPS = 5


def train(trial: phyla.Trial) -> None:
    """Count steps from what the weights say."""
    weights = {"value": 0.0, "from": "nothing"}
    if trial.source:
        weights = json.loads((trial.source.path / "weights.json").read_text())
    for _ in trial.steps():
        weights["value"] += trial.params["lr"]
    (trial.checkpoint_dir / "weights.json").write_text(json.dumps(weights))
    trial.report(score=weights["value"])


def given(folder: Path, name: str, value: float) -> Path:
    """A checkpoint of somebody else."""
    path = folder / name
    path.mkdir(parents=True)
    (path / "weights.json").write_text(json.dumps({"value": value, "from": name}))
    return path


def study(folder: Path, **options: Any) -> phyla.Study:
    options.setdefault("strategy", phyla.PBT(population_size=4, steps_per_trial=STEPS, total_steps=4 * STEPS))
    options.setdefault("space", SPACE)
    return phyla.Study("started", objective=phyla.Maximize("score"), train=train, home=folder / "home", **options)


def imports(results: phyla.Results) -> list[TrialRecord]:
    return [row for row in results.trials() if row.kind is JobKind.IMPORT]


def origin(results: phyla.Results, trial: int) -> str | None:
    return Lineage(results.trials()).ancestry(trial)[0].origin


def test_members_start_from_the_entries_in_turn(tmp_path: Path) -> None:
    a, b = given(tmp_path, "a", 10.0), given(tmp_path, "b", 20.0)
    entries = [str(a), phyla.StartFrom(b, step=1000, params={"lr": 0.5})]
    results = study(tmp_path, start_from=entries).run()
    first = imports(results)
    assert [(row.member, row.origin, row.start_step, row.reached_step) for row in first] == [
        (0, str(a), 0, 0),
        (1, str(b), 1000, 1000),
        (2, str(a), 0, 0),
        (3, str(b), 1000, 1000),
    ]
    assert all(row.state is JobState.COMPLETED and row.token == 0 and row.fitness is None for row in first)
    assert len({row.checkpoint for row in first}) == 2, "one copy per entry"
    started = [row for row in results.trials() if row.kind is JobKind.TRAIN and row.generation == 0]
    for row in started:
        start = first[row.member]
        assert (row.parent, row.parent_checkpoint, row.start_step) == (start.id, start.checkpoint, start.end_step)
        assert row.jump_from is None
        assert SPACE.contains(row.params)
        assert row.reason["imported"] == start.id
    assert [row.params["lr"] == 0.5 for row in sorted(started, key=lambda row: row.member)] == [False, True] * 2
    assert len({row.params["width"] for row in started}) > 1, "what is not given is sampled"


BUDGETED = """
strategy = phyla.PBT(population_size=4, steps_per_trial=STEPS, total_steps=4 * STEPS, quorum=1.0)
study(Path(sys.argv[1]), strategy=strategy, start_from=[sys.argv[2]]).run(workers=2)
"""


def test_the_budget_counts_no_import(tmp_path: Path) -> None:
    forked.run_with(__file__, BUDGETED, tmp_path, given(tmp_path, "a", 1.0), spares=2)
    results = phyla.load_study("started", home=tmp_path / "home")
    assert results.counts() == {"completed": 16}
    assert [member.progress for member in results.members()] == [4 * STEPS] * 4
    assert [member.generation for member in results.members()] == [4] * 4
    assert results.best is not None
    path = json.loads((results.best.checkpoint.path / "weights.json").read_text())
    assert path["from"] == "a"
    schedule = results.schedule()
    assert schedule.segments[0].start_step == 0
    assert all(segment.end_step > segment.start_step for segment in schedule.segments), "an import is no segment"
    assert origin(results, results.best.trial) == str(tmp_path / "a")
    assert results.write_report(tmp_path / "report.html").stat().st_size > 0
    repository = LocalCheckpoints(Path(str(results.places.checkpoints("started"))))
    live = {row.name for row in results.checkpoints() if row.state is CheckpointState.LIVE}
    assert set(repository.names()) == live
    assert not [name for name in live if name.startswith("start-")], "imports are collected like others"


@pytest.mark.parametrize(
    ("strategy", "size"),
    [
        (phyla.InitiatorPBT(population_size=4, steps_per_trial=STEPS, total_steps=4 * STEPS), 4),
        (phyla.PBT(population_size=4, steps_per_trial=STEPS, total_steps=4 * STEPS, quorum=1.0), 4),
        (phyla.PBT(population_size=4, steps_per_trial=5, total_steps=20, exploit=phyla.strategies.Backtrack()), 4),
        (phyla.PBT(population_size=4, steps_per_trial=5, total_steps=20, exploit=phyla.strategies.TTest()), 4),
        (phyla.RandomSearch(3, 4 * STEPS, STEPS), 3),
        (phyla.GridSearch({"lr": [0.1, 0.2]}, 4 * STEPS, STEPS), 2),
        (
            phyla.strategies.FixedSchedule(
                [(0, {"lr": 0.1, "width": 1}), (10, {"lr": 0.3, "width": 1})], 4 * STEPS, 2, STEPS
            ),
            2,
        ),
        (phyla.strategies.SingleWorkerExplore(explore_steps=STEPS, exploit_steps=STEPS, total_steps=8 * STEPS), 1),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else "",
)
def test_every_strategy_starts_from_them(tmp_path: Path, strategy: Any, size: int) -> None:
    results = study(tmp_path, strategy=strategy, start_from=[given(tmp_path, "a", 100.0)]).run()
    assert [member.progress for member in results.members()] == [strategy.total_steps] * size
    for row in results.trials():
        assert row.kind is JobKind.IMPORT or row.parent is not None, "nothing started fresh"
        if row.fitness is not None:
            assert row.fitness > 100.0
        told = phyla.strategies.describe(row.reason)
        assert ("fresh" in told, "from imported trial" in told) == (False, "imported" in row.reason)
    assert any("imported" in row.reason for row in results.trials())
    if isinstance(strategy, phyla.GridSearch):
        first = [row.params["lr"] for row in results.trials() if row.parent in (1, 2)]
        assert set(first) == {0.1, 0.2}


def test_given_hyperparameters_of_a_conditional_space(tmp_path: Path) -> None:
    space = phyla.Space(
        lr=phyla.Float(0.01, 1.0),
        kind=phyla.Choice(["sgd", "adam"]),
        momentum=phyla.Float(0.0, 1.0, when={"kind": "sgd"}),
    )
    entries = [phyla.StartFrom(given(tmp_path, "a", 1.0), params={"kind": "sgd"})]
    results = study(tmp_path, space=space, start_from=entries).run()
    for row in results.trials():
        if row.parent in {found.id for found in imports(results)}:
            assert row.params["kind"] == "sgd"
            assert space.contains(row.params)


def test_a_resumed_study_imports_nothing_again(tmp_path: Path) -> None:
    a = given(tmp_path, "a", 1.0)
    asking = study(tmp_path, start_from=[a])
    trial = asking.ask(lease_s=0.01)
    assert trial is not None
    assert trial.parent is not None
    assert trial.parent.name.startswith("start-0-")
    session_of(trial).discard()
    for file in a.iterdir():
        file.unlink()
    a.rmdir()
    results = study(tmp_path, start_from=[a]).run()
    assert len(imports(results)) == 4
    assert results.counts() == {"completed": 16}


def test_another_list_is_refused_for_a_study_that_exists(tmp_path: Path) -> None:
    a, b = given(tmp_path, "a", 1.0), given(tmp_path, "b", 2.0)
    study(tmp_path, start_from=[a]).ask()
    for entries in ([b], [], [phyla.StartFrom(a, step=3)]):
        with raises(StudyChanged, "start_from"):
            study(tmp_path, start_from=entries).run()
        with raises(ConfigurationError, "start_from"):
            study(tmp_path, start_from=entries).change()


@pytest.mark.parametrize(
    ("entries", "error", "match"),
    [
        ("a", ConfigurationError, r"must be a list"),
        ([1], ConfigurationError, "neither a path nor a StartFrom"),
        ([phyla.StartFrom("a", params={"lr": 7.0})], SpaceError, r"start_from\[0\].*lr.*7\.0"),
        ([phyla.StartFrom("a", params={"rate": 7.0})], SpaceError, "rate"),
    ],
)
def test_lists_that_make_no_sense(tmp_path: Path, entries: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        study(tmp_path, start_from=entries)


SCHEDULE = [(0, {"lr": 0.1, "width": 4}), (3, {"lr": 0.2, "width": 4})]


@pytest.mark.parametrize(
    ("strategy", "params"),
    [
        (phyla.GridSearch({"lr": [0.1, 0.2]}, 6, 3), {"width": 4, "lr": 0.5}),
        (phyla.strategies.FixedSchedule(SCHEDULE, 6), {"lr": 0.5}),
        (
            phyla.strategies.Replay(
                trials=[{"trial": 1, "start_step": 0, "end_step": 3, "seed": 1, "params": SCHEDULE[0][1]}]
            ),
            {"lr": 0.5},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_hyperparameters_that_the_strategy_gives_itself_are_refused(
    tmp_path: Path, strategy: Any, params: Any
) -> None:
    path = given(tmp_path, "a", 1.0)
    with raises(
        ConfigurationError,
        "start_from[1]: params={",
        f"what {type(strategy).__name__} gives itself: 'lr'; leave it out",
    ):
        study(tmp_path, strategy=strategy, start_from=[path, phyla.StartFrom(path, params=params)])


def test_a_grid_starts_from_checkpoints_with_its_own_hyperparameters(tmp_path: Path) -> None:
    start = phyla.StartFrom(given(tmp_path, "a", 1.0), step=10, params={"width": 4})
    results = study(tmp_path, strategy=phyla.GridSearch({"lr": [0.1, 0.2]}, 6, 3), start_from=[start]).run()
    trained = [row for row in results.trials() if row.kind is JobKind.TRAIN]
    assert {(row.member, row.params["lr"], row.params["width"]) for row in trained} == {(0, 0.1, 4), (1, 0.2, 4)}


def test_more_entries_than_members_leave_no_study(tmp_path: Path) -> None:
    made = study(tmp_path, start_from=[given(tmp_path, "a", 1.0)] * 5)
    for use in (made.run, made.ask, made.results):
        with raises(ConfigurationError, "start_from", "5 entries", "4"):
            use()
    assert list_all(Places.of(tmp_path / "home")) == []


def test_a_study_that_shrinks_keeps_its_list(tmp_path: Path) -> None:
    entries = [given(tmp_path, name, 1.0) for name in "abc"]
    asked = study(tmp_path, start_from=entries)
    trial = asked.ask()
    assert trial is not None
    asked.tell(trial, error="given up")
    smaller = study(
        tmp_path,
        start_from=entries,
        strategy=phyla.PBT(population_size=2, steps_per_trial=STEPS, total_steps=4 * STEPS),
    )
    assert [change.name for change in smaller.change()] == ["strategy.population_size"]
    results = smaller.run()
    assert [member.progress for member in results.members() if not member.retired] == [4 * STEPS] * 2
    assert len(imports(results)) == 4
    assert results.study().config["start_from"] == [asdict(entry) for entry in smaller.declared.start_from]


@pytest.mark.parametrize("options", [{"step": -1}, {"step": True}, {"index": -1}, {"params": 3}])
def test_entries_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        phyla.StartFrom("a", **options)


def test_a_path_that_is_wrong_leaves_no_study(tmp_path: Path) -> None:
    with raises(CheckpointMissing, "nowhere"):
        study(tmp_path, start_from=[tmp_path / "nowhere"]).run()
    assert list_all(Places.of(tmp_path / "home")) == []


PROGRAM = """
import sys
from pathlib import Path
import phyla
from test_start_from import study

folder = Path(sys.argv[1])
study(folder, start_from=[folder / "a", phyla.StartFrom(folder / "b", step=3)]).run()
"""


@pytest.mark.parametrize("hit", [1, 2])
@pytest.mark.parametrize(
    "name", [*(name for name in NAMES if name.startswith("import.")), "checkpoint.after_rename"]
)
def test_killed_while_importing_and_run_again(tmp_path: Path, name: str, hit: int) -> None:
    given(tmp_path, "a", 1.0), given(tmp_path, "b", 2.0)
    hit = 1 if name.endswith("commit") else hit
    environment = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), forked.HELPERS])}
    killed = {**environment, "PHYLA_FAILPOINT": f"{name}=kill:{hit}"}
    for more, code in ((killed, -signal.SIGKILL), (environment, 0)):
        done = forked.run(["-c", PROGRAM, tmp_path], env=child_environment(more))
        assert done.returncode == code, done.stderr
    results = phyla.load_study("started", home=tmp_path / "home")
    assert [row.member for row in imports(results)] == [0, 1, 2, 3]
    assert results.counts() == {"completed": 16}
    repository = LocalCheckpoints(Path(str(results.places.checkpoints("started"))))
    live = {row.name for row in results.checkpoints() if row.state is CheckpointState.LIVE}
    assert set(repository.names()) == live
    assert repository.staged() == ()
