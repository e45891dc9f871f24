"""Whatever is killed while a directory is watched, and whenever: every checkpoint gets its one result."""

import signal
from pathlib import Path

import pytest

from phyla.system.failpoints import NAMES
from watching import check_whole, run, watch_words, write

STEPS = [0, 10, 20]
WHILE_WATCHING = [
    name for name in NAMES if name.split(".")[0] in ("claim", "evaluation", "job", "reply", "snapshot", "watch")
]


@pytest.mark.parametrize("hit", [1, 2])
@pytest.mark.parametrize("name", WHILE_WATCHING)
def test_killed_at_a_failpoint_and_resumed(tmp_path: Path, name: str, hit: int) -> None:
    for step in STEPS:
        write(tmp_path / "ckpt", step)
    words = watch_words(tmp_path, "--once")
    only_once = hit == 2 and name in ("watch.after_drain", "watch.before_observe", "watch.after_observe")
    expect = 0 if only_once else -signal.SIGKILL
    run(tmp_path, words, failpoint=f"{name}=kill:{hit}", expect=expect)
    run(tmp_path, words)
    check_whole(tmp_path, STEPS)
