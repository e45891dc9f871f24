"""Following a directory, with a clock that tests move and a store in memory."""

import errno
import fcntl
import json
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import phyla
from facts import check_facts, raises
from foreign import save
from phyla.controller import EVALUATE_ONLY, Controller, Sightings
from phyla.errors import (
    CheckpointChanged,
    CheckpointGone,
    ConfigurationError,
    ConnectionLost,
    RunFollowed,
    StoreBusy,
    StoreUnavailable,
)
from phyla.machine import ClaimedEvaluation, Evaluated, Failure, WatchRules
from phyla.records import Checkpoint, CheckpointState, EvalResult, GroupState, StudyKind, StudyState
from phyla.store import open_store
from phyla.watcher import (
    DirectorySources,
    DirectoryWatcher,
    Following,
    StudyWatcher,
    WatchThread,
    describe_below,
    get_format,
    holder,
    lock,
)
from phyla.watcher.formats.step_source import StepFrom
from phyla.watcher.snapshots import Mode
from phyla.watcher.snapshots import take as take_snapshot
from waiting import until

NOW = 2_000_000_000.0


@phyla.eval_task
def accuracy(evaluation: Any) -> None:
    """Never called."""


SUITE = phyla.Suite("s", (accuracy,), objective=phyla.Maximize("accuracy_mean"))


def away(*_: object, **__: object) -> Any:
    """Stand for a call while the store cannot be reached."""
    raise StoreUnavailable("away")


class World:
    """A directory, a run, and its watcher."""

    def __init__(self, folder: Path, suite: phyla.Suite = SUITE) -> None:
        self.now = NOW
        self.root = folder / "ckpt"
        self.root.mkdir()
        self.snapshots = folder / "home" / "snapshots"
        self.best = folder / "home" / "best"
        self.store = open_store("memory://", clock=lambda: self.now)
        self.run = self.store.create_study("job", {}, kind=StudyKind.DIRECTORY, location=str(self.root))
        self.controller = Controller(self.store, self.run.id, WatchRules(suites=(suite,)))
        self.sightings = Sightings(self.store, self.run, [suite])
        self.watcher = self.watch()

    def watch(
        self, kind: str = "marker", *, quiet_s: float = 5.0, mode: Mode = "link", **following: Any
    ) -> DirectoryWatcher:
        self.watcher = DirectoryWatcher(
            self.sightings,
            self.root,
            get_format(kind, quiet_s=quiet_s),
            run=self.run,
            snapshots=self.snapshots,
            best=self.best,
            following=Following(snapshots=mode, done="FINISHED", **following),
            clock=lambda: self.now,
        )
        return self.watcher

    def write(self, step: int, value: float = 0.0, *, age_s: float = -1.0, done: bool = True) -> Path:
        """Write a checkpoint, whose files are `age_s` seconds old."""
        folder = self.root / f"step_{step}"
        folder.mkdir(exist_ok=True)
        files = ["weights.json", *(["DONE"] if done else [])]
        for name in files:
            (folder / name).write_text(json.dumps({"value": value}))
            os.utime(folder / name, (self.now - age_s, self.now - age_s))
        os.utime(folder, (self.now - age_s, self.now - age_s))
        return folder

    def look(self, after_s: float = 1.0) -> None:
        self.now += after_s
        self.watcher.look()

    def has_ended(self) -> bool:
        return self.watcher.ended

    def seen(self) -> list[Checkpoint]:
        return self.sightings.seen()

    def groups(self) -> dict[str, GroupState]:
        with self.store.reader(self.run.id) as reader:
            return {reader.seen(group.seen).name: group.state for group in reader.groups()}

    def whys(self) -> dict[str, str | None]:
        with self.store.reader(self.run.id) as reader:
            return {reader.seen(group.seen).name: group.why for group in reader.groups()}

    def events(self) -> list[tuple[str, str]]:
        with self.store.reader(self.run.id) as reader:
            return [(event.kind, event.message) for event in reader.events()]

    def evaluate(self, best: Callable[[Checkpoint], bool] = lambda seen: False, count: int = 100) -> None:
        """Evaluate what is queued, `count` groups at most, through the machine."""
        done: list[Evaluated] = []
        for _ in range(2 * count):
            _, claimed, _ = self.controller.complete(done, "host:0:1:1", 1, kinds=EVALUATE_ONLY)
            done = []
            if not claimed:
                return
            work = claimed[0]
            assert isinstance(work, ClaimedEvaluation)
            task, group = work.job, work.group.id
            if task.task:
                result = EvalResult(
                    identity=work.seen.identity,
                    task_identity=task.identity,
                    study=task.study,
                    statistics={},
                    created_at=0.0,
                )
                done = [Evaluated(job=task.id, group=group, token=task.token, result=result)]
            else:
                with self.store.reader(self.run.id) as reader:
                    former = reader.best_group(work.group.suite)
                aggregated = Evaluated(
                    job=task.id,
                    group=group,
                    token=task.token,
                    values={},
                    best=best(work.seen),
                    former=None if former is None else former.id,
                )
                done = [aggregated]
        self.controller.complete(done)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_ready_checkpoints_are_told_once_in_the_order_of_their_writing(world: World) -> None:
    world.write(20, age_s=-2.0)
    world.write(10, age_s=-1.0)
    world.write(30, done=False)
    world.look(5.0)
    assert [seen.name for seen in world.seen()] == ["step_10", "step_20"]
    world.look()
    assert len(world.seen()) == 2
    assert world.watcher.wait_s <= 1.25, "one is not finished yet"
    world.write(30, age_s=0.0)
    world.look()
    assert [seen.step for seen in world.seen()] == [10, 20, 30]


def test_weak_identities_of_two_runs_differ(world: World, tmp_path: Path) -> None:
    world.write(1)
    world.look(5.0)
    (seen,) = world.seen()
    assert seen.weak
    assert seen.identity.startswith(f"{world.run.id}:listing:")


def test_a_checkpoint_that_was_there_before_the_run_is_backfill(world: World) -> None:
    world.write(1, age_s=100.0)
    world.write(2, age_s=-1.0)
    world.look(5.0)
    with world.store.reader(world.run.id) as reader:
        priorities = {reader.seen(group.seen).name: group.priority for group in reader.groups()}
    assert priorities == {"step_1": 3, "step_2": 1}


def test_what_came_while_nobody_looked_is_not_taken_for_older_than_the_run(world: World) -> None:
    world.look()
    world.now += 3600
    world.write(1, age_s=1800.0)
    world.watch()
    world.look()
    with world.store.reader(world.run.id) as reader:
        assert [group.priority for group in reader.groups()] == [1]


def test_damaged_ones_are_put_aside_and_seen_again_when_mended(world: World) -> None:
    world.watch("safetensors")
    torn = world.root / "model_7.safetensors"
    torn.write_bytes(b"\x10")
    os.utime(torn, (NOW, NOW))
    world.look()
    assert world.seen() == []
    world.look(6.0)
    (seen,) = world.seen()
    assert seen.state is CheckpointState.QUARANTINED
    assert seen.error is not None
    assert [kind for kind, _ in world.events()] == ["quarantined"]
    world.look(100.0)
    assert len(world.seen()) == 1
    header = b"{}      "
    torn.write_bytes(len(header).to_bytes(8, "little") + header)
    world.look()
    assert [seen.state for seen in world.seen()] == [CheckpointState.QUARANTINED, CheckpointState.READY]


def test_one_that_cannot_be_read_stops_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "phyla.watcher.directory_watcher.take"
    real = take_snapshot

    def take(root: Path, found: Any, *rest: Any) -> Path:
        if found.name == "step_1":
            raise PermissionError(13, "Permission denied")
        return real(root, found, *rest)

    monkeypatch.setattr(module, take)
    world.write(1)
    world.write(2)
    world.look(5.0)
    assert {seen.name: seen.state.value for seen in world.seen()} == {"step_1": "quarantined", "step_2": "ready"}
    world.look()
    assert len(world.seen()) == 2
    monkeypatch.setattr(module, real)
    world.look(61.0)
    assert [seen.state.value for seen in world.seen()] == ["quarantined", "ready", "ready"]


def test_vanished_ones_are_gone_unless_a_snapshot_holds_them(world: World) -> None:
    shutil.rmtree(world.write(0))
    world.write(1)
    world.look(5.0)
    shutil.rmtree(world.root / "step_1")
    world.look()
    assert world.groups() == {"step_1": GroupState.QUEUED}
    world.evaluate()
    world.watcher.tend()
    assert [seen.state for seen in world.seen()] == [CheckpointState.GONE]
    assert world.groups() == {"step_1": GroupState.COMPLETE}
    assert list(world.snapshots.iterdir()) == []


def test_without_snapshots_vanished_ones_are_gone_before_their_turn(world: World) -> None:
    world.watch(mode="none")
    world.write(1)
    world.look(5.0)
    shutil.rmtree(world.root / "step_1")
    world.look()
    assert world.groups() == {"step_1": GroupState.GONE}
    assert world.whys() == {"step_1": "step_1 was deleted before its evaluation"}
    world.write(1)
    world.look(5.0)
    assert [seen.state for seen in world.seen()] == [CheckpointState.GONE, CheckpointState.READY]


def test_the_same_files_that_come_back_are_seen_again(world: World) -> None:
    world.watch(mode="none")
    folder = world.write(1)
    world.look(5.0)
    folder.rename(world.root.parent / "aside")
    world.look()
    (world.root.parent / "aside").rename(folder)
    world.look()
    assert [seen.state for seen in world.seen()] == [CheckpointState.GONE, CheckpointState.READY]


def test_one_that_a_worker_found_gone_is_not_told_again_and_again(world: World) -> None:
    world.watch(mode="none")
    world.write(1)
    world.look(5.0)
    _, claimed, _ = world.controller.complete((), "host:0:1:1", 1, kinds=EVALUATE_ONLY)
    work = claimed[0]
    assert isinstance(work, ClaimedEvaluation)
    job = work.job
    world.controller.fail(Failure(job=job.id, token=job.token, error="not mounted here", gone=work.seen.name))
    for _ in range(3):
        world.look()
    assert [seen.state for seen in world.seen()] == [CheckpointState.GONE]


def test_a_directory_that_is_not_mounted_does_not_pass_for_an_empty_one(world: World) -> None:
    world.watch(mode="none")
    world.write(1)
    world.look(5.0)
    world.root.rename(world.root.parent / "elsewhere")
    world.look()
    world.look()
    assert world.groups() == {"step_1": GroupState.QUEUED}
    assert [kind for kind, _ in world.events()] == ["unreadable"]


def test_the_loss_of_a_directory_without_checkpoints_is_noted_once_each_time(world: World) -> None:
    world.watch()
    for _ in range(2):
        world.root.mkdir(exist_ok=True)
        world.look()
        world.root.rmdir()
        world.look()
        world.look()
    assert [kind for kind, _ in world.events()] == ["unreadable"] * 2


def test_an_overwritten_checkpoint_is_another_one_and_a_rewind_begins_a_branch(world: World) -> None:
    world.write(10)
    world.look(5.0)
    world.write(20, age_s=0.0)
    world.look()
    world.write(10, 1.0, age_s=0.0)
    world.look()
    seen = world.seen()
    assert [(each.step, each.branch) for each in seen] == [(10, 0), (20, 0), (10, 1)]
    assert len({each.identity for each in seen}) == 3
    assert [kind for kind, _ in world.events() if kind == "rewound"] == ["rewound"]


def copied(world: World, steps: list[int], *, apart_s: float = 1.0) -> None:
    """Write checkpoints in an order, and with the times, of a copy or an upload."""
    for at, step in enumerate(steps):
        world.write(step, age_s=-apart_s * at)


def branches(world: World) -> dict[str, int]:
    return {each.name: each.branch for each in world.seen()}


def newest(world: World) -> int:
    """Return the step of the checkpoint up to which everything is evaluated."""
    with world.store.reader(world.run.id) as reader:
        complete = reader.backlog("s").complete
        assert complete is not None
        return reader.seen(complete).step


SHUFFLED = [300, 100, 500, 200, 400]


@pytest.mark.parametrize("apart_s", [1.0, 0.0, -1.0], ids=["shuffled", "equal times", "backwards"])
def test_steps_decide_what_is_newer_not_the_times_of_a_copy(world: World, apart_s: float) -> None:
    copied(world, SHUFFLED, apart_s=apart_s)
    world.look(20.0)
    assert [each.step for each in world.seen()] == sorted(SHUFFLED)
    assert branches(world) == {f"step_{step}": 0 for step in SHUFFLED}
    assert world.events() == []
    world.evaluate()
    assert newest(world) == 500


def test_a_copy_that_settles_piece_by_piece_is_one_run(world: World) -> None:
    """As the first look sees files whose times are those of the copy, and takes each once it is quiet."""
    for at, step in enumerate(SHUFFLED):
        world.write(step, age_s=-1.0 * at, done=False)
    world.look(0.0)
    for step in SHUFFLED:
        (world.root / f"step_{step}" / "DONE").write_text("")
        world.look()
        world.look(6.0)
    assert [each.step for each in world.seen()] == SHUFFLED
    assert set(branches(world).values()) == {0}
    assert world.events() == []
    world.evaluate()
    assert newest(world) == 500


def test_what_is_repaired_or_comes_back_is_no_rewind(world: World) -> None:
    world.watch(mode="none")
    copied(world, [100, 200, 500])
    world.write(150, age_s=1.0, done=False)
    world.look(20.0)
    world.look(20.0)
    (world.root / "step_100").rename(world.root.parent / "aside")
    world.look()
    (world.root.parent / "aside").rename(world.root / "step_100")
    world.look()
    world.write(150, age_s=0.0)
    world.look(20.0)
    assert sorted(each.step for each in world.seen() if each.usable) == [100, 150, 200, 500]
    assert {each.branch for each in world.seen()} == {0}
    assert "rewound" not in [kind for kind, _ in world.events()]


def test_a_copy_that_arrives_at_once_while_others_are_watched_is_no_rewind(world: World) -> None:
    world.write(300)
    world.look(5.0)
    copied(world, [500, 100, 400, 200])
    world.look(20.0)
    assert set(branches(world).values()) == {0}
    assert world.events() == []


@pytest.mark.parametrize("restart", [True, False])
def test_writing_all_again_as_touch_and_restoring_do_is_no_rewind(world: World, restart: bool) -> None:
    copied(world, sorted(SHUFFLED))
    world.look(20.0)
    if restart:
        world.watch()
    copied(world, SHUFFLED)
    world.look(20.0)
    seen = world.seen()
    assert [each.step for each in seen] == sorted(SHUFFLED) * 2
    assert {each.branch for each in seen} == {0}
    assert world.events() == []


def test_what_is_copied_beside_a_run_that_was_watched_before_is_no_rewind(world: World) -> None:
    copied(world, [400, 500])
    world.look(20.0)
    world.watch()
    copied(world, [200, 100, 300])
    world.look(20.0)
    assert set(branches(world).values()) == {0}
    assert world.events() == []
    world.evaluate()
    assert newest(world) == 500


@pytest.mark.parametrize("restart", [True, False])
def test_a_step_that_is_written_again_is_a_rewind(world: World, restart: bool) -> None:
    copied(world, sorted(SHUFFLED))
    world.look(20.0)
    if restart:
        world.watch()
        world.look()
    world.write(200, 1.0, age_s=0.0)
    world.look()
    world.write(300, 1.0, age_s=0.0)
    world.look()
    assert [(each.step, each.branch) for each in world.seen()[5:]] == [(200, 1), (300, 1)]
    assert [kind for kind, _ in world.events()] == ["rewound"]


def test_a_lower_step_that_appears_while_others_are_watched_is_a_rewind(world: World) -> None:
    copied(world, [100, 200])
    world.look(20.0)
    world.write(150, age_s=0.0)
    world.look()
    world.write(250, age_s=0.0)
    world.look()
    assert branches(world) == {"step_100": 0, "step_200": 0, "step_150": 1, "step_250": 1}
    assert [kind for kind, _ in world.events()] == ["rewound"]


def test_checkpoints_without_a_step_come_by_their_times_and_before_those_with_one(world: World) -> None:
    for name, age_s in (("last", -3.0), ("best", -1.0), ("step_100", -2.0)):
        folder = world.write(100, age_s=age_s)
        if name != "step_100":
            folder.rename(world.root / name)
    world.write(100, age_s=-2.0)
    world.look(20.0)
    assert [each.name for each in world.seen()] == ["best", "last", "step_100"]
    assert world.events() == []


def test_snapshots_that_nothing_needs_are_removed_also_those_of_a_crash(world: World) -> None:
    for step in (1, 2, 3):
        world.write(step, age_s=-float(step))
    world.look(5.0)
    (world.snapshots / ".tmp-step_9@0123456789abcdef.77").mkdir()
    (world.snapshots / "step_9@0123456789abcdef").mkdir()
    world.watcher.tend()
    assert len(list(world.snapshots.iterdir())) == 3
    world.evaluate(best=lambda seen: seen.step == 2)
    world.watcher.tend()
    (left,) = world.snapshots.iterdir()
    assert left.name.startswith("step_2@")
    link = world.best / "s"
    assert link.is_symlink()
    assert json.loads((link / "weights.json").read_text()) == {"value": 0.0}


@pytest.mark.parametrize(("mode", "full"), [("link", False), ("copy", False), ("link", True)])
def test_what_is_needed_again_gets_its_snapshot_back(
    world: World, mode: Mode, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    world.watch(mode=mode)
    first = world.write(1)
    world.write(2)
    world.look()
    world.evaluate(best=lambda seen: seen.step == 2)
    world.watcher.tend()
    assert [path.name.partition("@")[0] for path in world.snapshots.iterdir()] == ["step_2"]
    again = phyla.Suite("s", (replace(accuracy, version="2"),), objective=SUITE.objective)
    world.controller = Controller(world.store, world.run.id, WatchRules(suites=(again,)))
    world.sightings = Sightings(world.store, world.run, [again])
    world.sightings.backfill()
    world.watch(mode=mode)
    world.look()
    with monkeypatch.context() as patched:
        if full:
            patched.setattr(os, "link", refuse)
        world.watcher.tend()
    world.now += 60.0 if full else 0.0
    world.watcher.tend()
    shutil.rmtree(first)
    world.look()
    assert set(world.groups().values()) == {GroupState.QUEUED}
    world.evaluate(best=lambda seen: seen.step == 1)
    world.watcher.tend()
    assert json.loads((world.best / "s" / "weights.json").read_text()) == {"value": 0.0}


def test_snapshots_on_a_file_system_that_fails_do_not_end_the_watch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path) -> Any:
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    world.write(1)
    world.look()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "is_dir", fails)
        patched.setattr(Path, "iterdir", fails)
        world.watcher.tend()
    ((kind, message),) = world.events()
    assert kind == "snapshots"
    assert "mounted or exported anew" in message
    assert Path(world.seen()[0].path).exists()


@pytest.mark.parametrize("mode", ["link", "copy"])
@pytest.mark.parametrize("copied", [False, True])
def test_snapshots_are_found_again_in_a_home_that_was_moved(world: World, mode: Mode, copied: bool) -> None:
    world.watch(mode=mode)
    folders = [world.write(step, step) for step in (1, 2)]
    world.look(5.0)
    home = world.snapshots.parent
    moved = home.with_name("moved")
    if copied:
        shutil.copytree(home, moved)  # as a move to another file system does
        shutil.rmtree(home)
    else:
        home.rename(moved)
    for folder in folders:
        shutil.rmtree(folder)
    world.snapshots, world.best = moved / "snapshots", moved / "best"
    world.watch(mode=mode)
    world.look()
    world.watcher.tend()
    sources = DirectorySources(world.root)
    for seen, step in zip(world.seen(), (1, 2), strict=True):
        assert json.loads((sources.path(seen) / "weights.json").read_text()) == {"value": step}
        sources.check(seen)
        assert Path(seen.path).is_relative_to(moved)
    assert world.groups() == dict.fromkeys(("step_1", "step_2"), GroupState.QUEUED)


def train(trial: phyla.Trial) -> None:
    """Write one file."""
    for _ in trial.steps():
        pass
    (trial.checkpoint_dir / "w").write_text("1")
    trial.report(x=1.0)


@pytest.mark.parametrize("watched", ["directory", "study"])
def test_links_to_the_best_that_cannot_be_made_are_told_once(world: World, watched: str, tmp_path: Path) -> None:
    tend = world.watcher.tend
    if watched == "study":
        strategy = phyla.RandomSearch(members=1, total_steps=1)
        study = phyla.Study("t", {"x": phyla.Float(0.0, 1.0)}, phyla.Minimize("x"), strategy, train, home=tmp_path)
        study.run(workers=0)
        world.store = open_store(f"sqlite:///{tmp_path / 'phyla.db'}")
        world.run = world.store.create_study("t-watch", {}, kind=StudyKind.STUDY, source=1)
        rules = WatchRules(suites=(SUITE,))
        world.controller = Controller(world.store, world.run.id, rules, source=1)
        world.sightings = Sightings(world.store, world.run, [SUITE])
        watcher = StudyWatcher(world.sightings, world.store, 1, checkpoints=tmp_path, best=world.best)
        watcher.look()
        tend = watcher.tend
    else:
        world.write(1)
        world.look(5.0)
    world.evaluate(best=lambda seen: True)
    world.best.parent.mkdir(exist_ok=True)
    world.best.write_text("in the way")
    for _ in range(3):
        tend()
    told = [message for kind, message in world.events() if kind == "best"]
    assert len(told) == 1
    check_facts(told[0], world.best)
    world.store.close()


@pytest.mark.parametrize("number", [errno.EXDEV, errno.ENOSPC])
def test_where_links_fail_originals_are_read_with_a_warning_unless_they_never_work(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*paths: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    world.write(1)
    world.write(2)
    if number == errno.EXDEV:
        with raises(ConfigurationError, "--snapshots", "link=DIR"):
            world.look(5.0)
        assert not world.seen()
        return
    world.look(5.0)
    assert [(seen.snapshot, seen.state) for seen in world.seen()] == [(False, CheckpointState.READY)] * 2
    ((kind, message),) = world.events()
    assert kind == "no-snapshots"
    assert "No space left" in message
    check_facts(message, "snapshots")
    monkeypatch.undo()
    world.write(3)
    world.look(5.0)
    assert [seen.snapshot for seen in world.seen()] == [False, False, True]


def test_the_marker_ends_it_once_nothing_is_unfinished(world: World) -> None:
    world.write(1)
    world.write(2, done=False)
    (world.root / "FINISHED").write_text("")
    world.look(5.0)
    assert not world.has_ended()
    world.look(20.0)
    assert world.has_ended()
    state = {seen.name: seen.state.value for seen in world.seen()}
    assert state == {"step_1": "ready", "step_2": "quarantined"}
    world.evaluate()
    run = world.store.find_study("job")
    assert run is not None
    assert (run.state, run.message) == (StudyState.COMPLETED, "training wrote FINISHED")


def test_idling_ends_it(world: World) -> None:
    world.watch(idle_s=60.0)
    world.write(1)
    world.look(5.0)
    world.look(59.0)
    assert not world.has_ended()
    world.look(2.0)
    assert world.has_ended()


def test_idling_begins_when_the_directory_exists(world: World) -> None:
    world.watch(idle_s=60.0)
    world.root.rmdir()
    world.look(1000.0)
    world.look(1000.0)
    assert not world.has_ended()
    world.root.mkdir()
    world.look(59.0)
    assert not world.has_ended()
    world.look(2.0)
    assert world.has_ended()


def test_the_final_checkpoint_is_evaluated_whatever_the_policy(tmp_path: Path) -> None:
    world = World(tmp_path, phyla.Suite("s", (accuracy,), policy=phyla.Policy(every=5)))
    world.look()
    for step in range(3):
        world.write(step, age_s=0.0)
        world.look()
    assert list(world.groups().values()) == [GroupState.QUEUED, GroupState.SKIPPED, GroupState.SKIPPED]
    (world.root / "FINISHED").write_text("")
    world.look()
    world.evaluate()
    assert list(world.groups().values()) == [GroupState.COMPLETE, GroupState.SKIPPED, GroupState.COMPLETE]


def test_sources_prefer_the_snapshot_and_notice_every_change(world: World) -> None:
    folder = world.write(1)
    world.look(5.0)
    (seen,) = world.seen()
    sources = DirectorySources(world.root)
    assert sources.path(seen) == Path(seen.path) != folder
    shutil.rmtree(Path(seen.path).parent)
    assert sources.path(seen) == folder
    sources.check(seen)
    (folder / "weights.json").write_text("overwritten")
    with pytest.raises(CheckpointChanged, match="during evaluation"):
        sources.check(seen)
    with pytest.raises(CheckpointChanged, match="before its evaluation"):
        sources.path(seen)
    shutil.rmtree(folder)
    with pytest.raises(CheckpointGone, match="deleted during evaluation"):
        sources.check(seen)


def test_a_link_that_is_overwritten_in_place_counts_as_changed(world: World) -> None:
    folder = world.write(1)
    world.look(5.0)
    (seen,) = world.seen()
    sources = DirectorySources(world.root)
    sources.path(seen)
    (folder / "weights.json").write_text("overwritten in place")
    with pytest.raises(CheckpointChanged, match="overwritten in place"):
        sources.check(seen)


def test_a_change_is_looked_at_again_when_the_store_was_busy(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals: list[Exception] = []
    observe = Sightings.observe

    def refuse_once(controller: Sightings, found: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return observe(controller, found)

    monkeypatch.setattr(Sightings, "observe", refuse_once)
    whole = [world.write(step).rename(tmp_path / f"step_{step}") for step in (1, 2, 3)]
    thread = WatchThread([world.watch()], poll_s=1000.0)
    thread.start()
    # Once the second one is seen, events arrive; the third one comes by a single event.
    for number, folder in enumerate(whole, 1):
        if number == len(whole):
            refusals.append(StoreBusy("busy"))
        folder.rename(world.root / folder.name)
        until(lambda number=number: len(world.seen()) == number, f"checkpoint {number}")
    thread.stop()
    assert not refusals
    assert thread.error is None


def test_while_the_store_is_away_snapshots_are_made_and_told_later(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.look()
    with monkeypatch.context() as patched:
        for name in ("observe", "seen", "gone", "note", "drain", "held"):
            patched.setattr(Sightings, name, away)
        for step, value in ((1, 0.1), (2, 0.2), (2, 0.3), (3, 0.4)):
            folder = world.write(step, value)
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    world.look()
            shutil.rmtree(folder)
        world.root.rename(tmp_path / "unmounted")
        with pytest.raises(StoreUnavailable):
            world.look()
    world.look()
    world.watcher.tend()
    (tmp_path / "unmounted").rename(world.root)
    world.look()
    world.watcher.tend()
    assert [(seen.name, seen.usable and seen.snapshot) for seen in world.seen()] == [
        ("step_1", True),
        ("step_2", True),
        ("step_2", True),
        ("step_3", True),
    ]
    texts = [(Path(seen.path) / "weights.json").read_text() for seen in world.seen()]
    assert [json.loads(text)["value"] for text in texts] == [0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize("mode", ["link", "copy"])
def test_a_watch_that_is_killed_while_its_store_is_away_loses_no_snapshot(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    world.watch(mode=mode)
    world.write(1, 0.1)
    for _ in range(2):
        world.look()
    assert len(world.seen()) == 1
    with monkeypatch.context() as patched:
        for name in ("observe", "seen", "gone", "note", "drain", "held"):
            patched.setattr(Sightings, name, away)
        for step, value in ((2, 0.2), (3, 0.3), (4, 0.4), (4, 0.5)):
            folder = world.write(step, value)
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    world.look()
            if (step, value) in ((2, 0.2), (4, 0.4)):
                shutil.rmtree(folder)  # as training does that keeps its last ones
    (world.watcher.snapshots / ".tmp-step_9@0123456789abcdef.x" / "step_9").mkdir(parents=True)
    (world.watcher.snapshots / "step_9@0123456789abcdef").mkdir()

    world.watch(mode=mode)
    world.root.rename(tmp_path / "unmounted")
    world.look()  # nothing can be told yet, and nothing is removed
    world.watcher.tend()
    (tmp_path / "unmounted").rename(world.root)
    for _ in range(3):
        world.look()
        world.watcher.tend()
    found = [(seen.name, seen.step, seen.usable and seen.snapshot) for seen in world.seen()]
    assert found == [
        ("step_1", 1, True),
        ("step_2", 2, True),
        ("step_3", 3, True),
        ("step_4", 4, True),
        ("step_4", 4, True),
    ]
    texts = [(Path(seen.path) / "weights.json").read_text() for seen in world.seen()]
    assert [json.loads(text)["value"] for text in texts] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert {seen.branch for seen in world.seen()[:4]} == {0}
    left = {path.name for path in world.watcher.snapshots.iterdir()}
    assert not any(name.startswith((".tmp-", "step_9")) for name in left)


def test_a_snapshot_that_was_written_to_through_its_links_is_not_taken_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.look()
    with monkeypatch.context() as patched:
        for name in ("observe", "seen", "gone", "note", "drain", "held"):
            patched.setattr(Sightings, name, away)
        folder = world.write(1, 0.1)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                world.look()
    (folder / "weights.json").write_text('{"value": 0.25, "more": "than before"}')  # the same file
    shutil.rmtree(folder)
    world.watch()
    for _ in range(2):
        world.look()
        world.watcher.tend()
    assert world.seen() == []


def test_what_was_told_though_the_answer_was_lost_is_told_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    observe = Sightings.observe

    def untold(*_: object) -> None:
        raise StoreUnavailable("away")

    def told_in_vain(sightings: Sightings, found: Any, **options: Any) -> None:
        observe(sightings, found, **options)
        raise ConnectionLost("cut")

    world.look()
    with monkeypatch.context() as patched:
        for value, replacement in ((0.1, untold), (0.2, told_in_vain)):
            patched.setattr(Sightings, "observe", replacement)
            shutil.rmtree(world.root / "step_1", ignore_errors=True)
            world.write(1, value)
            with pytest.raises(StoreUnavailable):
                world.look()
    world.look()
    assert [seen.name for seen in world.seen()] == ["step_1", "step_1"]


def test_versions_that_were_told_though_the_answer_was_lost_are_told_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    observe = Sightings.observe
    answers: list[Callable[..., None]] = []

    def answered(sightings: Sightings, found: Any, **options: Any) -> None:
        (answers.pop(0) if answers else observe)(sightings, found, **options)

    def untold(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    def told_in_vain(sightings: Sightings, found: Any, **options: Any) -> None:
        observe(sightings, found, **options)
        raise ConnectionLost("cut")

    world.look()
    monkeypatch.setattr(Sightings, "observe", answered)
    for value, answer in ((0.1, untold), (0.2, told_in_vain)):
        shutil.rmtree(world.root / "step_1", ignore_errors=True)
        world.write(1, value)
        answers.append(answer)
        with pytest.raises(StoreUnavailable):
            world.look()
        world.watcher.tend()
    world.look()
    texts = [(Path(seen.path) / "weights.json").read_text() for seen in world.seen()]
    assert [json.loads(text)["value"] for text in texts] == [0.1, 0.2]


def test_the_snapshot_of_what_is_committed_late_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[Callable[[], None]] = []
    observe, held = Sightings.observe, Sightings.held

    def cut(sightings: Sightings, found: Any, **options: Any) -> None:
        late.append(lambda: observe(sightings, [*found], **options))
        raise ConnectionLost("cut")

    def held_before(sightings: Sightings) -> Any:
        answer = held(sightings)
        late.pop()()
        return answer

    world.look()
    world.write(1)
    with monkeypatch.context() as patched:
        patched.setattr(Sightings, "observe", cut)
        patched.setattr(Sightings, "held", held_before)
        with pytest.raises(ConnectionLost):
            world.look()
        world.watcher.tend()
    world.look()
    (seen,) = world.seen()
    assert Path(seen.path).exists()


def test_what_was_taken_while_the_store_was_away_is_told_before_an_idle_watch_ends(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.watch(idle_s=30.0)
    world.write(1)
    world.look()
    world.write(2)
    with monkeypatch.context() as patched:
        patched.setattr(Sightings, "seen", away)
        with pytest.raises(StoreUnavailable):
            world.look()
    world.root.rename(tmp_path / "moved")
    world.look(after_s=60.0)
    assert world.has_ended()
    assert [seen.name for seen in world.seen()] == ["step_1", "step_2"]


def test_a_second_lock_names_who_has_the_first(tmp_path: Path) -> None:
    path = tmp_path / "home" / "job.lock"
    refused = pytest.raises(RunFollowed, match=rf"process {os.getpid()}\b")
    with lock(path, "job"), refused, lock(path, "job"):
        raise AssertionError("two processes follow one run")
    with lock(path, "job"):
        assert holder(path) is not None


def test_what_the_store_refuses_of_one_checkpoint_puts_only_that_one_aside(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        world.write(step, age_s=step)
    real = world.sightings.observe

    def observe(found: Any, **how: Any) -> None:
        if any(one.name == "step_2" and one.error is None for one in found):
            raise ValueError("not this one")
        real(found, **how)

    monkeypatch.setattr(world.sightings, "observe", observe)
    world.look()
    assert {seen.name: seen.state for seen in world.seen()} == {
        "step_1": CheckpointState.READY,
        "step_2": CheckpointState.QUARANTINED,
        "step_3": CheckpointState.READY,
    }
    (aside,) = [seen for seen in world.seen() if seen.state is CheckpointState.QUARANTINED]
    assert "not this one" in (aside.error or "")
    monkeypatch.undo()
    world.look()
    assert [seen.name for seen in world.seen() if seen.name == "step_2"] == ["step_2"]
    world.look(60)
    assert [seen.state for seen in world.seen() if seen.name == "step_2"][-1] is CheckpointState.READY


def test_what_the_store_refuses_altogether_is_told_once_and_stops_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write(1)
    world.write(2)
    real = world.sightings.observe

    def observe(found: Any, **how: Any) -> None:
        if any(one.name == "step_2" for one in found):
            raise UnicodeEncodeError("utf-8", "step_2\udcff", 6, 7, "surrogates not allowed")
        real(found, **how)

    monkeypatch.setattr(world.sightings, "observe", observe)
    for _ in range(3):
        world.look()
    world.write(3)
    world.look()
    assert sorted(seen.name for seen in world.seen()) == ["step_1", "step_3"]
    (event,) = [message for kind, message in world.events() if kind == "quarantined"]
    check_facts(event, "step_2", "UnicodeEncodeError")


def test_an_empty_directory_says_what_is_awaited_until_something_was_seen(world: World) -> None:
    world.look()
    awaited = world.watcher.describe_missing()
    assert awaited is not None
    check_facts(awaited, world.root)
    assert "with DONE in it" in awaited
    assert "a file FINISHED" in awaited
    world.write(1, done=False)
    world.look()
    check_facts(world.watcher.describe_missing(), "step_1", "marker")
    world.write(1)
    world.look()
    assert world.watcher.describe_missing() is None


def test_a_directory_of_other_things_says_which_format_is_awaited(world: World) -> None:
    world.watch("torch")
    (world.root / "notes.md").write_text("x")
    world.look()
    awaited = world.watcher.describe_missing() or ""
    check_facts(awaited, world.root)
    check_facts(awaited, "--format")


def test_the_directories_below_that_have_checkpoints_are_named(tmp_path: Path) -> None:
    kind = get_format("auto")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/events.txt").write_text("x")
    assert describe_below(tmp_path, kind) is describe_below(tmp_path / "absent", kind) is None
    save(tmp_path / "epoch_1/step_1/a.pt", b"1")
    below = describe_below(tmp_path, kind) or ""
    check_facts(below, tmp_path / "epoch_1")
    assert "quiet" not in below
    save(tmp_path / "epoch_2/step_1/a.pt", b"1")
    save(tmp_path / "epoch_3/step_1/a.pt", b"1")
    check_facts(describe_below(tmp_path, kind) or "", 3, tmp_path / "epoch_1", "--format quiet", f"{tmp_path}/*/")
    save(tmp_path / "b.pt", b"1")
    assert describe_below(tmp_path, kind) is describe_below(tmp_path / "b.pt", kind) is None


@pytest.mark.parametrize(
    ("names", "facts"),
    [
        (
            ("epoch_1_step_100", "epoch_1_step_200", "epoch_2_step_100"),
            ("epoch_1_step_200", "epoch_2_step_100", r"--step 'epoch_(?P<step>\d+)'"),
        ),
        (("epoch=1-iter=50", "epoch=10-iter=50"), ("epoch=10-iter=50", r"--step 'epoch=(?P<step>\d+)'")),
        (("epoch=0-step=100", "epoch=1-step=200", "epoch=10-step=1100"), None),
        (("epoch_1", "epoch_2", "step_1"), None),
    ],
)
def test_steps_that_begin_again_in_each_epoch_are_noted_once(
    world: World, names: tuple[str, ...], facts: tuple[str, ...] | None
) -> None:
    """By steps alone, the second epoch would silently count as older than the first."""
    for name in names:
        save(world.root / name / "weights.json", name.encode())
        save(world.root / name / "DONE", b"")
        world.look()
    notes = [message for kind, message in world.events() if kind == "restart"]
    assert len(notes) == (facts is not None)
    for note in notes:
        check_facts(note, *facts or ())


def test_a_rule_for_steps_is_not_questioned() -> None:
    rule = StepFrom.parse(r"epoch_(?P<step>\d+)")
    assert rule.describe_restart(["epoch_1_step_2", "epoch_2_step_1"]) is None


def test_a_watch_one_directory_too_high_names_the_one_below(world: World) -> None:
    save(world.root / "below/a.pt", b"1")
    world.watch("torch")
    world.look()
    check_facts(world.watcher.describe_missing() or "", world.root / "below", "torch")


def test_a_watcher_that_starts_while_somebody_asks_who_watches_gets_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    assert holder(path) is None
    with lock(path, "run"):
        assert f"process {os.getpid()} on" in (holder(path) or "")
    assert holder(path) is None
    asking = os.open(path, os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    release = threading.Timer(0.06, os.close, [asking])
    release.start()
    with lock(path, "run"):
        release.join()
