"""Named places where a test may stop the process, to prove that a restart loses nothing.

A failpoint is armed by `PHYLA_FAILPOINT` or by `arm`, with `name=action[:hit]`: `kill` ends the
process as a power cut would, `exit` ends it with status 17, `raise` raises `FailpointReached`;
`hit` counts from 1 and says which arrival acts. Unarmed, a failpoint costs one look-up in a dict.

The armed failpoint is the only mutable state of this module: a process has one or none.
"""

import os
import re
import signal
import threading
from dataclasses import dataclass, field

from phyla import settings
from phyla.errors import ConfigurationError

ACTIONS = ("kill", "raise", "exit")
EXIT_STATUS = 17

MEANINGS = {
    "change.after_commit": "another configuration is in the store, and the population follows it",
    "change.before_commit": "another configuration is about to be committed, with all that follows from it",
    "checkpoint.after_flush": "every file of the staged checkpoint is on disk, its manifest is not written",
    "checkpoint.after_manifest": "the staged checkpoint is complete and on disk, under its private name",
    "checkpoint.after_rename": "the checkpoint has its final name, which is not flushed yet",
    "checkpoint.before_delete": "a checkpoint is about to be deleted, nothing is touched",
    "checkpoint.before_flush": "training has saved, nothing of it is flushed",
    "checkpoint.during_delete": "the checkpoint lost its final name, its bytes are still there",
    "claim.after_commit": "a claim is in the store, the worker does not know it yet",
    "claim.before_commit": "a claim is decided, nothing of it is in the store",
    "delete.after_mark": "a study is marked as being deleted, its files are untouched",
    "evaluation.before_result": "an eval task has run, what it saved is on disk, the store does not know it yet",
    "gc.after_mark": "checkpoints are marked as deleting, their bytes are untouched",
    "import.after_checkpoint": "a checkpoint from elsewhere is committed, the store does not know it yet",
    "import.after_commit": "every member has its imported start",
    "import.after_copy": "a checkpoint from elsewhere is copied or linked under its private name",
    "import.before_commit": "every imported checkpoint is committed, its members do not have it yet",
    "import.before_copy": "the study exists, nothing is imported yet",
    "job.before_complete": "finished work is about to be handed in, what it left is on disk",
    "reply.before": "a request took effect, its answer is not sent",
    "snapshot.after_link": "every file of a snapshot is linked or copied, under its private name",
    "snapshot.after_rename": "a snapshot has its final name",
    "snapshot.before_link": "the private directory of a snapshot is made, nothing is in it",
    "snapshot.before_rename": "a snapshot is complete and compared with what was found, under its private name",
    "store.after_commit": "any writing transaction was committed",
    "store.before_commit": "any writing transaction is about to be committed",
    "upload.after_files": "every file of a checkpoint is on the object store, its manifest is not",
    "upload.after_manifest": "a checkpoint is on the object store, the store does not know it yet",
    "upload.before_files": "a checkpoint is complete on this machine, nothing of it is on the object store",
    "upload.during_files": "one file of a checkpoint is on the object store",
    "watch.after_drain": "a watched study is draining, its final checkpoint is guaranteed",
    "watch.after_observe": "checkpoints that were found are in the store",
    "watch.before_observe": "checkpoints were found, nothing of it is in the store",
}
NAMES = tuple(sorted(MEANINGS))


class FailpointReached(RuntimeError):
    """An armed failpoint with the action `raise` was reached."""


@dataclass
class _Armed:
    name: str
    action: str
    hits_left: int
    lock: threading.Lock = field(default_factory=threading.Lock)


def _parse(spec: str) -> _Armed:
    name, _, rest = spec.partition("=")
    if name not in MEANINGS:
        raise ConfigurationError(f"no failpoint is called {name!r}; choose one of: {', '.join(NAMES)}")
    found = re.fullmatch(rf"({'|'.join(ACTIONS)})(?::0*([1-9]\d*))?", rest)
    if found is None:
        raise ConfigurationError(
            f"failpoint {spec!r} is not understood; write name=action[:hit], where action is one of "
            f"{', '.join(ACTIONS)} and hit counts from 1, for example {name}=kill:2"
        )
    return _Armed(name, found[1], int(found[2] or 1))


_from_environment = settings.failpoint()
_armed: _Armed | None = _parse(_from_environment) if _from_environment else None


def arm(spec: str) -> None:
    """Arm one failpoint in this process, instead of the one armed before.

    Raises:
        ConfigurationError: the name or the action is unknown, or `hit` is not a positive integer.
    """
    global _armed
    _armed = _parse(spec)


def disarm() -> None:
    """Forget the armed failpoint."""
    global _armed
    _armed = None


def failpoint(name: str) -> None:
    """Stop here if a test asked for it.

    Raises:
        LookupError: the name is not in `NAMES`, armed or not, so that the list stays true.
        FailpointReached: this failpoint is armed with `raise`.
    """
    if name not in MEANINGS:
        raise LookupError(f"failpoint {name!r} is not in phyla.failpoints.MEANINGS; add it with its meaning")
    armed = _armed
    if armed is None or armed.name != name:
        return
    with armed.lock:
        armed.hits_left -= 1
        if armed.hits_left != 0:
            return
    if armed.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if armed.action == "exit":
        os._exit(EXIT_STATUS)
    raise FailpointReached(f"failpoint {name} ({MEANINGS[name]})")
