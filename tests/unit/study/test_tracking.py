"""What trackers are told: every row once, in the order of progress, also after failures and restarts."""

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

import phyla
from effort import rarely
from facts import check_facts, raises
from phyla.errors import ConfigurationError
from phyla.integrations.trackers import Row, TrackedStudy
from phyla.integrations.trackers.mlflow import MLflow
from phyla.integrations.trackers.wandb import WandB
from phyla.study.results.tracker_rows import Feed
from phyla.study.running import background as beside
from phyla.study.running.trackers import TrackerFeed
from phyla.worker import session_of
from waiting import until

MEMBERS, STEPS, TOTAL = 3, 4, 16


class Told:
    """A tracker that remembers; the first `fails` calls raise."""

    name: ClassVar[str] = "told"
    place: str | None = None

    def __init__(self, *, fails: int = 0, error: BaseException | None = None) -> None:
        self.fails = fails
        self.error = error or OSError("offline")
        self.opened = 0
        self.rows: list[Row] = []

    def environment(self, study: TrackedStudy) -> Mapping[str, str]:
        return {"TOLD_RUN": study.run_id("{member}")}

    def open(self, study: TrackedStudy) -> None:
        self.opened += 1

    def log(self, rows: Sequence[Row]) -> None:
        if self.fails:
            self.fails -= 1
            raise self.error
        self.rows += rows

    def close(self) -> None:
        pass


@phyla.eval_task
def measure(evaluation: phyla.Evaluation) -> None:
    evaluation.record(x=float((evaluation.checkpoint.path / "x").read_text()), n=4, stderr=0.5)


def train(trial: phyla.Trial) -> None:
    x = float((trial.source.path / "x").read_text()) if trial.source else 0.0
    for step in trial.steps():
        x += trial.params["lr"]
        trial.report({"train/x": x}, step=step)
    (trial.checkpoint_dir / "x").write_text(str(x))
    trial.report(x=x)


def made(home: Path, **more: object) -> phyla.Study:
    return phyla.Study(
        "tracked",
        {"lr": phyla.Float(0.1, 1.0), "kind": phyla.Choice(["a", "b"])},
        phyla.Maximize("x"),
        phyla.PBT(population_size=MEMBERS, steps_per_trial=STEPS, total_steps=TOTAL),
        train,
        home=home,
        **more,  # type: ignore[arg-type]
    )


def feed(study: phyla.Study, position: object = None) -> Feed:
    client = study._open(works=False)
    return Feed(client.store, client.record, study.places, position)  # type: ignore[arg-type]


def told(fed: Feed) -> list[Row]:
    return [row for rows in fed.batches() for row in rows]


def plain(rows: Sequence[Row]) -> list[tuple[int, int, dict[str, object]]]:
    return sorted(((row.member, row.progress, dict(row.values)) for row in rows), key=str)


def test_what_is_told_live_is_what_is_told_at_the_end(tmp_path: Path) -> None:
    study = made(tmp_path, suites=[phyla.Suite("deep", (measure,))])
    live, rows = feed(study), []
    results = study.run(workers=0, on_progress=lambda _: rows.extend(told(live)))
    rows += told(live)
    assert told(live) == []
    assert plain(rows) == plain(told(feed(study)))
    trials = {trial.id: trial for trial in results.trials()}
    jumps = [trial for trial in trials.values() if trial.jump_from is not None]
    sources = [row for row in rows if "phyla/source_member" in row.values]
    assert jumps
    assert {(row.member, row.values["phyla/source_member"]) for row in sources} == {
        (trial.member, trials[trial.parent or 0].member) for trial in jumps
    }
    assert all(row.note and "took over" in row.note for row in sources)
    for member in range(MEMBERS):
        mine = [row for row in rows if row.member == member and "deep/measure/x" not in row.values]
        progress = [row.progress for row in mine]
        assert progress == sorted(progress)
        assert progress[-1] == TOTAL
        # Trackers such as MLflow put the numbers of a run in the order of their times.
        assert [row.at for row in mine] == sorted(row.at for row in mine)
        assert [row.progress for row in mine if "train/x" in row.values] == list(range(TOTAL))
        assert [row.progress for row in mine if "params/lr" in row.values] == list(range(0, TOTAL, STEPS))
        assert all(row.values["phyla/age"] <= row.progress for row in mine)  # type: ignore[operator]
        evaluated = [row.progress for row in rows if row.member == member and "deep/measure/x" in row.values]
        assert sorted(evaluated) == list(range(STEPS, TOTAL + 1, STEPS))
    errors = [row.values["deep/measure/x_stderr"] for row in rows if "deep/measure/x" in row.values]
    assert set(errors) == {0.5}


def test_a_feed_goes_on_where_another_one_was(tmp_path: Path) -> None:
    study = made(tmp_path)
    rows: list[Row] = []
    position: list[object] = [None]

    def restart(_: object) -> None:
        # As a supervisor that is killed after each look.
        again = feed(study, json.loads(json.dumps(position[0])))
        rows.extend(told(again))
        position[0] = again.position()

    study.run(workers=0, on_progress=restart)
    restart(None)
    assert plain(rows) == plain(told(feed(study)))


def test_a_trial_that_is_tried_again_is_told_once(tmp_path: Path) -> None:
    study = made(tmp_path)
    live = feed(study)
    first = study.ask()
    assert first is not None
    client = study._open()

    def send(trial: phyla.Trial, values: Mapping[int, float]) -> None:
        for step, value in values.items():
            trial.report({"train/x": value}, step=step)
        session = session_of(trial)
        client.report(session.id, session.token, session.take_reports())

    send(first, {0: 1.0, 1: 2.0, 2: 3.0})
    rows = told(live)
    assert [row.progress for row in rows] == [0, 0, 1, 2]
    send(first, {2: 3.5})
    rows += told(live)
    study.tell(first, error="out of memory")
    (second,) = [trial for trial in study.ask(MEMBERS) if trial.id == first.id]
    send(second, {0: 10.0, 1: 20.0, 2: 30.0, 3: 40.0})
    (second.checkpoint_dir / "x").write_text("1")
    study.tell(second, metrics={"x": 1.0})
    rows += told(live)
    mine = [row for row in rows if row.member == second.member and "train/x" in row.values]
    assert [(row.progress, row.values["train/x"]) for row in mine] == [
        (0, 1.0),
        (1, 2.0),
        (2, 3.0),
        (2, 3.5),
        (3, 40.0),
    ]
    # What is written anew has the attempt that counts.
    again = [row for row in told(feed(study)) if row.member == second.member and "train/x" in row.values]
    assert [(row.progress, row.values["train/x"]) for row in again] == [(0, 10.0), (1, 20.0), (2, 30.0), (3, 40.0)]


@pytest.mark.parametrize(
    "error", [OSError("offline"), rarely(SystemExit("offline")), KeyboardInterrupt("offline")]
)
def test_a_tracker_that_fails_for_a_while_misses_nothing(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(beside, "EVERY_S", 0.001)
    tracker, study = Told(fails=2, error=error), made(tmp_path)

    def wait(results: phyla.Results) -> None:
        if results.counts().get("completed"):
            until(lambda: not tracker.fails, "it works")

    with caplog.at_level(logging.WARNING, "phyla"):
        study.run(0, trackers=[tracker], on_progress=wait)
    assert plain(tracker.rows) == plain(told(feed(study)))
    warned = [one.message for one in caplog.records if "told" in one.message]
    (warning,) = warned
    check_facts(warning, "told", f"{type(error).__name__}: offline")
    assert tracker.opened == 3
    # Told again, it goes on from its position, and nothing is told twice.
    study.run(workers=0, trackers=[tracker])
    assert plain(tracker.rows) == plain(told(feed(study)))


def test_a_tracker_that_never_works_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(beside, "EVERY_S", 0.001)
    study = made(tmp_path)
    with caplog.at_level(logging.WARNING, "phyla"):
        results = study.run(workers=0, trackers=[Told(fails=1000)])
    assert results.counts() == {"completed": MEMBERS * TOTAL // STEPS}
    warned = [one.message for one in caplog.records if "told" in one.message]
    assert len(warned) == 2
    command = study.places.command("export", "tracked", "--format", "told", "--output", "PLACE")
    check_facts(warned[-1], command)


def test_a_tracker_that_hangs_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(beside, "SAID_AFTER_S", 0.05)
    monkeypatch.setattr(beside, "LAST_WAIT_S", 0.1)
    forever = threading.Event()
    tracker = Told()
    tracker.log = lambda rows: forever.wait() and None  # type: ignore[method-assign, assignment]
    with caplog.at_level(logging.WARNING, "phyla"):
        results = made(tmp_path).run(workers=0, trackers=[tracker])
    forever.set()
    assert results.counts() == {"completed": MEMBERS * TOTAL // STEPS}
    waits, given_up = [one.message for one in caplog.records][-2:]
    check_facts(waits, "told", "0.1 s")
    check_facts(given_up, "told", "phyla export")


def test_of_two_processes_one_tells(tmp_path: Path) -> None:
    study = made(tmp_path)
    study.run(workers=0)
    client = study._open(works=False)
    first, second = Told(), Told()
    one, other = (TrackerFeed(tracker, client.store, client.record, study.places) for tracker in (first, second))
    one.look()
    other.look()
    assert plain(first.rows) == plain(told(feed(study)))
    assert (second.opened, second.rows) == (0, [])
    one.close()
    other.look()
    assert (second.opened, second.rows) == (1, [])
    other.close()


def test_training_code_finds_the_run_of_its_member(tmp_path: Path) -> None:
    import os

    found: dict[int, set[str]] = {}

    def look(trial: phyla.Trial) -> None:
        found.setdefault(trial.member, set()).add(os.environ["TOLD_RUN"])
        train(trial)

    study = made(tmp_path)
    study.train = look
    study.run(workers=0, trackers=[Told()])
    ids = [next(iter(found[member])) for member in range(MEMBERS)]
    assert all(len(its) == 1 for its in found.values())
    assert len(set(ids)) == MEMBERS
    assert "TOLD_RUN" not in os.environ


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["tensorbord"], "tensorbord tensorboard"),
        ("wandb", "trackers="),
    ],
)
def test_trackers_that_make_no_sense(tmp_path: Path, given: object, message: str) -> None:
    with raises(ConfigurationError, *message.split()):
        made(tmp_path).run(workers=0, trackers=given)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_what_was_told_must_be_remembered_in_the_home(tmp_path: Path) -> None:
    (tmp_path / "tracking").touch()
    with raises(ConfigurationError, f"{tmp_path}/tracking/tracked"):
        made(tmp_path).run(workers=0, trackers=[Told()])
    assert [path.name for path in tmp_path.iterdir()] == ["tracking"]


def test_a_study_is_not_written_to_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    results = made(tmp_path / "home").run(workers=0)
    (tmp_path / "file").touch()
    for tracker in (WandB(offline=tmp_path / "file"), MLflow(f"sqlite:///{tmp_path}/file/a.db")):
        with raises(ConfigurationError, f"{tmp_path}/file"):
            results.write_tracker(tracker)
