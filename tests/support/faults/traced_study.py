"""The toy study, as the power-cut test records it: it says what it was told, and may be made careless.

Run as a program, with the options of the toy study and perhaps what to leave out: `fsync_file`, `fsync_dir`,
`commit`. What is rare in a short run is made frequent: collections, checkpoints of the database's log, and flushes
of several files at the same time.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

import phyla.checkpoints.local
import phyla.store.sql.sqlite
import toy_study
from phyla.checkpoints.disk import Disk
from phyla.client import Client
from phyla.controller import Controller
from phyla.machine import Accepted, Claimed, Completion, Evaluated

PREFIX = b"told: "
_complete = Controller.complete


def complete(
    self: Controller,
    completions: Sequence[Completion | Evaluated],
    worker: str | None = None,
    count: int = 0,
    **more: Any,
) -> Any:
    """Complete and claim; then say what was promised by this."""
    answer = _complete(self, completions, worker, count, **more)
    accepted, claimed, _ = answer
    words = [f"completed {one.job} {one.fitness!r}" for one in accepted if isinstance(one, Accepted)]
    words += [f"claimed {one.trial.id} {one.trial.token}" for one in claimed if isinstance(one, Claimed)]
    os.write(2, PREFIX + ",".join(words).encode() + b"\n")
    return answer


def main() -> None:
    """Run the toy study."""
    Controller.complete = complete  # type: ignore[method-assign]  # to watch it
    Client.collect_every = property(lambda self: 3)  # type: ignore[method-assign,assignment]  # often
    phyla.checkpoints.local.FLUSHED_IN_TURN = 0
    phyla.store.sql.sqlite.PAGES_BETWEEN_CHECKPOINTS = 60
    for name in sys.argv[2:]:
        if name == "commit":
            phyla.store.sql.sqlite.SYNCHRONOUS = "NORMAL"
        else:
            setattr(Disk, name, lambda self, path: None)
    toy_study.main()


if __name__ == "__main__":
    main()
