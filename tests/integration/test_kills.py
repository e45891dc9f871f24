"""Whatever is killed, whenever: nothing is lost, doubled or leaked."""

import contextlib
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from durability import check_evaluated, check_whole, load, run, start
from effort import rarely, times
from forked import Forked
from phyla.errors import PhylaError
from phyla.records import StudyState
from phyla.system.failpoints import EXIT_STATUS, NAMES
from waiting import until

MEMBERS, TRIALS = 3, 5
OTHERS = ("delete.", "prepare.", "snapshot.", "evaluation.", "watch.", "import.", "change.", "upload.")
"""Failpoints that this study never comes to."""
RARE = ("checkpoint.during_delete", "gc.after_mark")
"""Failpoints that it comes to rarely, so that a longer study is killed there, only once."""


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(OTHERS)])
def test_killed_at_a_failpoint_and_resumed(tmp_path: Path, name: str) -> None:
    """Twice: when it is reached first, and when there is more to lose."""
    first, later = tmp_path / "first", tmp_path / ("later" if name in RARE else "first")
    trials = 12 if name in RARE else TRIALS
    for home, hit in ((first, 1), (later, 3)):
        run(home, failpoint=f"{name}=kill:{hit}", expect=-signal.SIGKILL, members=MEMBERS, trials=trials)
    for home in {first, later}:
        run(home, members=MEMBERS, trials=trials)
        check_whole(load(home), members=MEMBERS, trials=trials)


def test_serial_runs_repeat_also_when_interrupted(tmp_path: Path) -> None:
    def decisions(home: Path) -> list[tuple[object, ...]]:
        rows = load(home).trials()
        names = {row.id: (row.member, row.generation) for row in rows}
        return [
            (row.member, row.generation, names.get(row.parent or 0), str(row.params), row.seed, row.fitness)
            for row in rows
            if row.fitness is not None
        ]

    run(tmp_path / "a", members=MEMBERS, trials=TRIALS)
    run(tmp_path / "b", members=MEMBERS, trials=TRIALS)
    for hit in (3, 4, 5):
        run(
            tmp_path / "c",
            failpoint=f"reply.before=exit:{hit}",
            expect=EXIT_STATUS,
            members=MEMBERS,
            trials=TRIALS,
        )
    run(tmp_path / "c", members=MEMBERS, trials=TRIALS)
    assert decisions(tmp_path / "a") == decisions(tmp_path / "b") == decisions(tmp_path / "c")


ENDED = -1


@pytest.fixture(params=["sqlite", rarely("postgres")])
def storage(request: pytest.FixtureRequest) -> str | None:
    """Where the study is stored."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


def test_workers_that_wait_for_each_other_go_on_and_none_ends(tmp_path: Path, storage: str | None) -> None:
    run(tmp_path, members=2, trials=4, workers=2, quorum=1.0, sleep_s=0.05, storage=storage)
    results = load(tmp_path, storage)
    check_whole(results, members=2, trials=4)
    logs = [log.read_text() for log in (tmp_path / "logs" / "toy").glob("worker-*.log")]
    assert logs == ["", ""]
    assert len({attempt.worker for attempt in results.attempts()}) <= 2, "a worker was replaced"


def test_workers_that_die_after_a_commit_are_replaced(tmp_path: Path, storage: str | None) -> None:
    _replaced(tmp_path, "store.after_commit=kill:5", storage)


@pytest.mark.parametrize("name", [rarely("job.before_complete"), rarely("checkpoint.after_rename")])
def test_workers_that_die_at_a_failpoint_are_replaced(tmp_path: Path, name: str) -> None:
    _replaced(tmp_path, f"{name}=kill:5", None)


def _replaced(home: Path, failpoint: str, storage: str | None) -> None:
    run(home, failpoint=failpoint, members=MEMBERS, trials=3, workers=2, storage=storage, spares=8)
    results = load(home, storage)
    check_whole(results, members=MEMBERS, trials=3)
    assert any("SIGKILL" in (attempt.error or "") for attempt in results.attempts())


@pytest.mark.timeout(600)
def test_random_kills(tmp_path: Path, storage: str | None) -> None:
    """Workers, all workers, or the main process, again and again, in one study that runs to its end.

    In SQLite a suite scores every trial, and one of the workers only evaluates.
    """
    rng = np.random.default_rng(50)
    most = times(2 if storage else 3, 8)
    members, trials = 4, times(12, 20)
    options: dict[str, Any] = {"members": members, "trials": trials, "workers": 2, "sleep_s": 0.02}
    options |= {"storage": storage} if storage else {"evaluated": True, "evaluators": 1}
    options |= {"spares": 8}
    process = start(tmp_path, **options)
    kills, completed = 0, 0
    while kills < most:
        completed = _wait_for_progress(tmp_path, process, completed, storage)
        if completed == ENDED:
            # On a slow machine the study may be faster than whoever looks at it.
            assert kills >= most // 2, process.communicate()
            break
        workers = until(partial(_children, process.pid), "a worker is alive", process=process)
        victim = rng.choice(["worker", "all workers", "main"], p=[0.6, 0.2, 0.2])
        if victim == "main":
            process.kill()
            process.communicate()
            for worker in workers:
                psutil.wait_procs([worker], timeout=180)
                assert not worker.is_running(), "a worker outlived its supervisor"
            process = start(tmp_path, **options)
        else:
            chosen = workers if victim == "all workers" else [workers[int(rng.integers(len(workers)))]]
            for worker in chosen:
                _kill(worker.pid)
        kills += 1
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    results = load(tmp_path, storage)
    assert results.state is StudyState.COMPLETED
    check_whole(results, members=members, trials=trials)
    if not storage:
        check_evaluated(results)


def _wait_for_progress(home: Path, process: Forked, completed: int, storage: str | None) -> int:
    """Wait until the study is another completed trial further, or has ended."""

    def further() -> int:
        if process.poll() is not None:
            return ENDED
        with contextlib.suppress(PhylaError):  # not created yet
            now = load(home, storage).counts().get("completed", 0)
            if now > completed and _children(process.pid):
                return now
        return 0

    return int(until(further, "another trial is completed", process=process))


def _children(pid: int) -> list[psutil.Process]:
    try:
        # Those that may become workers have no session of their own yet.
        return [child for child in psutil.Process(pid).children() if os.getsid(child.pid) == child.pid]
    except ProcessLookupError:
        return []
    except psutil.NoSuchProcess:
        return []


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
