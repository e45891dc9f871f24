"""Training that changes the process it runs in: phyla names what failed and what changed, and stops early."""

import errno
import io
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest

import forked
import phyla
from facts import check_facts, raises
from phyla.checkpoints.manifest import MANIFEST_NAME, Manifest
from phyla.errors import CheckpointsAbsent, NoCheckpoint, PhylaError, ProcessSpoiled
from phyla.records import AttemptState
from phyla.worker import Trial
from phyla.worker.containment.surroundings import Surroundings


def broken(*args: Any, **named: Any) -> NoReturn:
    """Replace a function of Python's own."""
    raise ZeroDivisionError("replaced")


def lower_recursion_limit() -> None:
    """Set the lowest limit that Python accepts here."""
    for limit in range(1, sys.getrecursionlimit()):
        try:
            sys.setrecursionlimit(limit)
        except RecursionError:
            continue
        return


def spoil(member: int) -> None:
    """Change this process, each member in another way."""
    if member == 0:
        lower_recursion_limit()
        json.dumps = lambda *args, **named: "{}"
        json.loads = broken
    elif member == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
    elif member == 2:
        io.open = broken
    elif member == 3:
        time.time = lambda: None  # type: ignore[assignment,return-value]
    else:
        os.closerange(3, 4096)


def train(trial: Trial) -> None:
    """Spoil the process in the first attempt; the last member in all of them."""
    for _ in trial.steps():
        pass
    (trial.checkpoint_dir / "x").write_text("1")
    trial.report(score=float(trial.member))
    first = Path(os.environ["SPOILED"], f"spoiled-{trial.member}")
    if not first.exists() or trial.member == 4:
        first.touch()
        spoil(trial.member)


def study(home: Path, train: Any, members: int) -> phyla.Study:
    strategy = phyla.RandomSearch(members, 2, steps_per_trial=2)
    return phyla.Study(
        "spoiled", phyla.Space(lr=phyla.Float(0, 1)), phyla.Maximize("score"), strategy, train, home=home
    )


CAUSES = {
    1: ("CheckpointStorageFailed: cannot commit ", "File too large", "RLIMIT_FSIZE was lowered to 10"),
    2: ("ZeroDivisionError: replaced (phyla/checkpoints/", f"io.open was replaced ({__file__}, line "),
    3: ("StoreError: ", "(phyla/store/", f"time.time was replaced ({__file__}, line "),
    4: ("StoreUnavailable: ", "Bad file descriptor (phyla/store/", "which belongs to phyla, was closed"),
}


def test_what_spoiled_a_worker_is_named_and_the_second_in_a_row_stops_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOILED", str(tmp_path))
    program = "study(Path(sys.argv[1]), train, 5).run(workers=1)"
    stopped = forked.run_with(__file__, program, tmp_path, spares=7, check=False)
    assert stopped.returncode == 1
    check_facts(stopped.stderr, "StudyFailed", "2 workers", "member 4")

    results = phyla.load_study("spoiled", home=tmp_path)
    members = {trial.id: trial.member for trial in results.trials()}
    lost: dict[int, list[str]] = {member: [] for member in members.values()}
    for attempt in results.attempts():
        if attempt.state is not AttemptState.COMPLETED:
            lost[members[attempt.job]].append(attempt.error or "")
    # A lowered recursion limit is raised again, and phyla's own files do not depend on what json became.
    assert {member: len(errors) for member, errors in lost.items()} == {0: 0, 1: 1, 2: 1, 3: 1, 4: 2}
    for member, causes in CAUSES.items():
        assert all(cause in error for cause in causes for error in lost[member]), lost[member]
        assert f"of member {member} was trained ({__file__}, line " in lost[member][0]
    assert lost[4][1] in stopped.stderr
    assert "health" not in stopped.stderr
    completed = [trial for trial in results.trials() if trial.fitness is not None]
    assert {trial.member: trial.fitness for trial in completed} == {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0}
    for trial in completed:
        assert Manifest.from_bytes((results.checkpoint(trial.id).path / MANIFEST_NAME).read_bytes()).step == 2


def test_without_workers_the_same_error_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train_here(trial: Trial) -> None:
        for _ in trial.steps():
            pass
        (trial.checkpoint_dir / "x").write_text("1")
        trial.report(score=1.0)
        monkeypatch.setattr(io, "open", broken)

    with raises(ProcessSpoiled, "trial 1", "member 0", "io.open"):
        study(tmp_path, train_here, 1).run(workers=0)


def raised_by(surroundings: Surroundings, error: Exception) -> BaseException:
    with pytest.raises(PhylaError) as caught, surroundings.guard():
        raise error
    return caught.value


def test_nothing_is_blamed_that_was_not_seen_or_has_another_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    surroundings = Surroundings()
    absent, no_checkpoint = CheckpointsAbsent("away"), NoCheckpoint("none was saved")
    full = CheckpointsAbsent("away")
    full.__cause__ = OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(json, "loads", broken)
    assert raised_by(surroundings, absent) is absent, "no user code ran"
    surroundings.call("trial 1 was trained", lambda: None)
    assert isinstance(raised_by(surroundings, absent), ProcessSpoiled)
    assert raised_by(surroundings, no_checkpoint) is no_checkpoint, "that is training's own mistake"
    assert raised_by(surroundings, full) is full, "the disk is full, whatever training did"

    monkeypatch.undo()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    surroundings = Surroundings()
    surroundings.call("trial 1 was trained", resource.setrlimit, resource.RLIMIT_FSIZE, (soft, hard))
    assert raised_by(surroundings, absent) is absent, "nothing has changed"
