"""Named places where a test can stop the process, to show that a restart loses nothing.

A failpoint is armed by `PHYLA_FAILPOINT` or by `arm`, with `name=action[:hit]`: `kill` ends the process as a power
cut would, `exit` ends it with status 17, `raise` raises `FailpointReached`; `hit` is the arrival that acts,
counted from 1. A process has at most one.
"""

import os
import re
import signal
from collections.abc import Iterator
from itertools import count

from phyla import settings
from phyla.errors import ConfigurationError

EXIT_STATUS = 17
NAMES = (
    *("change.after_commit", "change.before_commit"),  # of another configuration, with all that follows from it
    *("checkpoint.after_flush", "checkpoint.after_manifest", "checkpoint.after_rename"),  # in this order
    *("checkpoint.before_delete", "checkpoint.before_flush"),
    "checkpoint.during_delete",  # it lost its final name, its bytes are still there
    *("claim.after_commit", "claim.before_commit"),
    "delete.after_mark",  # a study is marked as being deleted, its files are untouched
    "evaluation.before_result",  # an eval task has run, its files are on disk
    "gc.after_mark",  # checkpoints are marked as deleting, their bytes are untouched
    "import.after_checkpoint",  # it is committed, the store does not know it yet
    "import.after_commit",  # every member has its start
    "import.after_copy",  # to a private name, or linked
    "import.before_commit",  # every checkpoint is committed, its members do not have it yet
    "import.before_copy",
    "job.before_complete",  # finished work is about to be submitted, its checkpoint is on disk
    *("prepare.after_rename", "prepare.before_rename"),  # a prepared checkpoint gets its name
    "reply.before",  # the request took effect
    *("snapshot.after_link", "snapshot.after_rename", "snapshot.before_link", "snapshot.before_rename"),
    *("store.after_commit", "store.before_commit"),  # any transaction that writes
    "upload.after_files",
    "upload.after_manifest",  # the store does not know it yet
    *("upload.before_files", "upload.during_files"),
    "watch.after_drain",  # the final checkpoint of the watched study is guaranteed
    *("watch.after_observe", "watch.before_observe"),  # the observed checkpoints are in the store
)
_armed: dict[str, tuple[str, Iterator[int]]] = {}
"""By name: the action, and a counter that is at 1 when it acts; taking the next number is atomic."""


class FailpointReached(RuntimeError):
    """An armed failpoint with the action `raise` was reached."""


def arm(spec: str) -> None:
    """Arm one failpoint in this process, instead of the one armed before.

    Raises:
        ConfigurationError: the name or the action is unknown, or `hit` is not a positive integer.
    """
    match = re.fullmatch(r"([a-z._]+)=(kill|exit|raise)(?::0*([1-9]\d*))?", spec)
    if match is None or match[1] not in NAMES:
        raise ConfigurationError(
            f"failpoint {spec!r} is invalid; write name=action[:hit], where action is kill, exit or raise "
            f"and hit counts from 1, for example reply.before=kill:2; choose from {', '.join(NAMES)}"
        )
    disarm()
    _armed[match[1]] = match[2], count(int(match[3] or 1), -1)


def disarm() -> None:
    """Forget the armed failpoint."""
    _armed.clear()


def failpoint(name: str) -> None:
    """Stop here if a test asked for it.

    Raises:
        LookupError: the name is not in `NAMES`, armed or not, so that the list stays true.
        FailpointReached: this failpoint is armed with `raise`.
    """
    if name not in NAMES:
        raise LookupError(f"failpoint {name!r} is not in phyla.system.failpoints.NAMES; add it")
    armed = _armed.get(name)
    if armed is None or next(armed[1]) != 1:
        return
    if armed[0] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if armed[0] == "exit":
        os._exit(EXIT_STATUS)
    raise FailpointReached(f"failpoint {name}")


if spec := settings.failpoint():
    arm(spec)
