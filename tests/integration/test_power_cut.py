"""A power cut at any moment loses nothing that was promised.

Killing a process cannot show this: what it wrote is in the system's memory and survives it. So runs of the toy
study are recorded, call by call, and played into a model of a disk that forgets what was not flushed; what the
disk would hold after a cut is written to a directory, opened, checked and sometimes resumed.
"""

import contextlib
import hashlib
import json
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import forked
import phyla
import toy_study
from careless import PREFIX, begin
from durability import check_whole, keep_identity
from effort import rarely, times
from failing_disk import FailingDisk
from forgetful_disk import Bytes, Call, Change, Disk, Keep, Names, Tree, read, restore
from phyla.errors import PhylaError, StudyNotFound
from phyla.records import JobState
from phyla.settings import child_environment

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="records the system calls of Linux"),
    # The recording, and the server of programs with such disks, are not made by each process of tests.
    pytest.mark.xdist_group("failing disk"),
]

MEMBERS, TRIALS = 3, 4
LEASE_S = 5.0
"""Where a cut takes the names of new files, nothing says that a worker is gone, and its lease has to end."""
INTERRUPTIONS = ("checkpoint.after_rename=kill:5", "gc.after_mark=kill:2", "")
"""One run after the other: two are killed, so that there is something to recover while recording."""


def storage(home: Path) -> str:
    """Return the URL of the database: in a directory that phyla has to make."""
    return f"sqlite:///{home}/deep/store/phyla.db"


def options(home: Path) -> str:
    """Return the options of the toy study."""
    more = {"storage": storage(home), "members": MEMBERS, "trials": TRIALS, "lease_s": LEASE_S}
    return json.dumps({"home": str(home), **more})


# --- recording


@dataclass
class Promises:
    """What workers were told so far, and therefore must never be lost."""

    claimed: dict[int, int] = field(default_factory=dict)
    completed: dict[int, float] = field(default_factory=dict)

    def hear(self, line: bytes) -> None:
        for words in line.decode().strip().split(","):
            match words.split():
                case ["claimed", trial, token]:
                    self.claimed[int(trial)] = int(token)
                case ["completed", trial, fitness]:
                    self.completed[int(trial)] = float(fitness)


@dataclass
class Recording:
    """The calls of some processes, one after the other, that worked on one home."""

    home: Path
    calls: list[Call]

    def play(self) -> Iterator[tuple[str, Disk, Promises]]:
        """Stop before each call, and at the end; the promises are those given by then."""
        disk, promises = Disk(self.home), Promises()
        for call in self.calls:
            yield call.kind, disk, promises
            if call.kind != "t":
                disk.apply(call)
            elif call.data.startswith(PREFIX):
                promises.hear(call.data.removeprefix(PREFIX))
        yield "end", disk, promises
        assert disk.tree() == read(self.home), "the model differs from what really happened"


def record(base: Path, *, failpoints: Sequence[str] = ("",), careless: Sequence[str] = ()) -> Recording:
    """Record the toy study, which some failpoints kill, one in each process."""
    home = (base / "home").resolve()
    home.mkdir()
    recorder = FailingDisk(base / "disk", home)
    for failpoint in failpoints:
        environment = child_environment({"PHYLA_FAILPOINT": failpoint})
        first = partial(begin, careless)
        process = recorder.start([toy_study.__file__, options(home)], env=environment, first=first)
        output, errors = process.communicate(timeout=120)
        assert (process.wait() < 0) if failpoint else (process.wait() == 0), output + errors
    return Recording(home, recorder.recorded())


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return record(tmp_path_factory.mktemp("recording"), failpoints=INTERRUPTIONS)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory in memory, if there is one: the disks after the cuts need not survive one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="phyla-", dir=memory if memory.is_dir() else None) as path:
        yield Path(path).resolve()


# --- cuts


def nothing(change: Change) -> float:
    """A system that writes only when it is asked to."""
    return 0.0


def names_only(change: Change) -> float:
    """A system that writes its journal at once and data late."""
    return float(isinstance(change, Names))


def content_only(change: Change) -> float:
    """A system that writes data at once and its journal late."""
    return float(not isinstance(change, Names))


def everything(change: Change) -> float:
    """A cut that comes when all is written; like a kill."""
    return 1.0


def some(rng: np.random.Generator) -> Keep:
    """A system that writes as it likes, and was writing when the cut came."""
    likely = rng.choice([0.1, 0.5, 0.9])
    torn = rng.choice([0.0, 0.2])

    def keep(change: Change) -> float:
        if isinstance(change, Bytes) and rng.random() < torn:
            return float(rng.random())
        return float(rng.random() < likely)

    return keep


class Examiner:
    """Writes what a cut left to a directory and checks it; the same tree and promises only once."""

    def __init__(self, base: Path) -> None:
        self.home = base / "after"
        self.examined = 0
        self._seen: set[bytes] = set()

    def examine(self, tree: Tree, promises: Promises) -> None:
        digest = hashlib.sha256(repr(promises).encode())
        for path, content in tree.items():
            digest.update(path.encode() + b"\0" + (b"/" if content is None else hashlib.sha256(content).digest()))
        key = digest.digest()
        if key in self._seen:
            return
        self._seen.add(key)
        self.examined += 1
        shutil.rmtree(self.home, ignore_errors=True)
        restore(tree, self.home)
        check(self.home, promises)


def check(home: Path, promises: Promises, *, finished: bool = False) -> None:
    """Check that a home holds a whole study with everything that was promised."""
    try:
        results = phyla.load_study("toy", home=home, storage=storage(home))
    except StudyNotFound:
        assert not promises.claimed, "a study that was being worked on is gone"
        return
    try:
        with contextlib.closing(sqlite3.connect(home / "deep/store/phyla.db")) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert database.execute("PRAGMA foreign_key_check").fetchall() == []
        trials = {row.id: row for row in results.trials()}
        for trial, token in promises.claimed.items():
            assert trial in trials, f"trial {trial} was claimed and is lost"
            assert trials[trial].token >= token, f"claim {token} of trial {trial} is lost"
        for trial, fitness in promises.completed.items():
            assert trials[trial].state is JobState.COMPLETED, f"the completion of trial {trial} is lost"
            assert trials[trial].fitness == fitness
        check_whole(results, members=MEMBERS, trials=TRIALS, finished=finished)
    finally:
        results._store.close()


FLUSHES = ("f", "end")
"""What lasts changes when one of these returns; promises only grow in between, so just before is the best time."""


def _examine_all(recording: Recording, examiner: Examiner, keep: Keep = nothing) -> Promises:
    """Cut the power wherever it may make a difference; return what was promised in the end."""
    for upcoming, disk, promises in recording.play():
        if upcoming in FLUSHES:
            examiner.examine(disk.left(keep), promises)
    return promises


def test_all_that_was_not_flushed_is_gone(recording: Recording, scratch: Path) -> None:
    examiner = Examiner(scratch)
    promises = _examine_all(recording, examiner)
    assert len(promises.completed) == MEMBERS * TRIALS
    assert examiner.examined > 50


@pytest.mark.parametrize("keep", [names_only, content_only, rarely(everything)])
def test_all_of_one_kind_was_written(recording: Recording, scratch: Path, keep: Keep) -> None:
    examiner = Examiner(scratch)
    _examine_all(recording, examiner, keep)
    assert examiner.examined > 50


@pytest.mark.parametrize("seed", range(times(1, 3)))
def test_some_of_what_was_not_flushed_was_written(recording: Recording, scratch: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    examiner = Examiner(scratch)
    for upcoming, disk, promises in recording.play():
        if upcoming in FLUSHES or rng.random() < 0.01:
            examiner.examine(disk.left(some(rng)), promises)
    assert examiner.examined > 100


def test_what_is_left_can_be_resumed(recording: Recording, scratch: Path) -> None:
    flushes = sum(upcoming in FLUSHES for upcoming, _, _ in recording.play())
    chosen = np.linspace(3, flushes, times(6, 10), dtype=int).tolist()
    rng = np.random.default_rng(2)
    seen = 0
    for upcoming, disk, promises in recording.play():
        seen += upcoming in FLUSHES
        if upcoming in FLUSHES and seen in chosen:
            home = scratch / str(seen)
            restore(disk.left(nothing if chosen.index(seen) % 2 else some(rng)), home)
            # After a power cut the file is the same one, which a restored one is not.
            keep_identity(home / "deep" / "store" / "phyla.db")
            forked.run([toy_study.__file__, options(home)], check=True)
            check(home, promises, finished=True)


@pytest.mark.parametrize(
    ("careless", "found"),
    [
        ("fsync_file", "is not what was committed|cannot be read"),
        ("fsync_dir", "live checkpoint .* is gone"),
        ("commit", "is lost|is gone"),
    ],
)
def test_a_flush_that_is_left_out_is_found(tmp_path: Path, scratch: Path, careless: str, found: str) -> None:
    careless_recording = record(tmp_path, careless=[careless])
    examiner = Examiner(scratch)
    with pytest.raises((AssertionError, PhylaError), match=found):
        _examine_all(careless_recording, examiner)
