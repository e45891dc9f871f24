"""Whatever is killed while a directory is watched, and whenever: every checkpoint gets its one result."""

import signal
from pathlib import Path

import pytest

from effort import rarely
from phyla.system.failpoints import NAMES
from watching import check_whole, run, watch_words, write

STEPS = [0, 10, 20]
WHILE_WATCHING = [
    name for name in NAMES if name.split(".")[0] in ("claim", "evaluation", "job", "reply", "snapshot", "watch")
]


ELSEWHERE = (
    *("snapshot.after_link", "snapshot.before_link", "snapshot.before_rename"),  # unit/watcher/test_snapshots.py
    *("claim.before_commit", "reply.before"),  # test_kills.py; here, claim.after_commit
)
"""Failpoints at which processes are killed in other tests, too."""
ONCE = ("watch.after_drain", "watch.before_observe", "watch.after_observe")
"""Failpoints that such a watch comes to once."""


@pytest.mark.parametrize("name", [rarely(name) if name in ELSEWHERE else name for name in WHILE_WATCHING])
def test_killed_at_a_failpoint_and_resumed(tmp_path: Path, name: str) -> None:
    """Twice: when it is reached first, and in the next run when it is reached again."""
    for step in STEPS:
        write(tmp_path / "ckpt", step)
    words = watch_words(tmp_path, "--once")
    for hit in (1,) if name in ONCE else (1, 2):
        run(tmp_path, words, failpoint=f"{name}=kill:{hit}", expect=-signal.SIGKILL)
    run(tmp_path, words)
    check_whole(tmp_path, STEPS)
