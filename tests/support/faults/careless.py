"""What a program of the toy study does first where its disk is recorded: it prints what it was promised.

It may be made careless, and what is rare in a short run is made frequent: collections, checkpoints of the
database's log, and flushes of several files at the same time.
"""

import os
from collections.abc import Sequence
from typing import Any

import phyla.checkpoints.local
import phyla.store.sql.sqlite
from phyla.checkpoints.disk import Disk
from phyla.client import Client
from phyla.controller import Controller
from phyla.machine import Accepted, Claimed, Completion, Evaluated

PREFIX = b"told: "
_complete = Controller.complete


def _promising(
    self: Controller,
    completions: Sequence[Completion | Evaluated],
    worker: str | None = None,
    count: int = 0,
    **more: Any,
) -> Any:
    """Complete and claim; then print what was promised by this."""
    answer = _complete(self, completions, worker, count, **more)
    accepted, claimed, _ = answer
    words = [f"completed {done.job} {done.fitness!r}" for done in accepted if isinstance(done, Accepted)]
    words += [f"claimed {work.trial.id} {work.trial.token}" for work in claimed if isinstance(work, Claimed)]
    os.write(2, PREFIX + ",".join(words).encode() + b"\n")
    return answer


def begin(careless: Sequence[str]) -> None:
    """Print promises; leave out `fsync_file`, `fsync_dir`, or the flush of a `commit`."""
    Controller.complete = _promising  # type: ignore[method-assign]  # to watch it
    Client.collect_every = property(lambda self: 3)  # type: ignore[method-assign,assignment]  # often
    phyla.checkpoints.local.FLUSHED_IN_TURN = 0
    phyla.store.sql.sqlite.PAGES_BETWEEN_CHECKPOINTS = 60
    for name in careless:
        if name == "commit":
            phyla.store.sql.sqlite.SYNCHRONOUS = "NORMAL"
        else:
            setattr(Disk, name, lambda self, path: None)
