"""Where the checkpoints are read that are evaluated."""

from pathlib import Path
from typing import Protocol, final

from phyla.checkpoints import LocalCheckpoints
from phyla.records import Seen


class Sources(Protocol):
    """Where the bytes of checkpoints are."""

    def path(self, seen: Seen) -> Path:
        """Return where a checkpoint is read.

        Raises:
            CheckpointError: it is gone, or no longer what was seen.
        """
        ...

    def check(self, seen: Seen, *, again: bool = False) -> None:
        """Make sure, after it was read, that it still is what was seen.

        Args:
            seen: the checkpoint.
            again: read all bytes again where they are verified, because the evaluation failed.

        Raises:
            CheckpointError: it is gone, or no longer what was seen.
        """
        ...


@final
class StudySources:
    """A study's own checkpoints, which are immutable and kept while they are evaluated.

    Args:
        repository: where they are.
    """

    def __init__(self, repository: LocalCheckpoints) -> None:
        self._repository = repository

    def path(self, seen: Seen) -> Path:
        """Return a checkpoint's directory.

        Raises:
            CheckpointsAbsent: the directory of all of them is gone.
            CheckpointMissing: it is gone.
            CheckpointCorrupt: its files are not what was committed.
        """
        return self._use(seen)

    def _use(self, seen: Seen, *, again: bool = False) -> Path:
        # The identity of one of several models in a checkpoint ends with its place.
        return self._repository.use(seen.name, seen.identity.partition("#")[0], again=again)

    def check(self, seen: Seen, *, again: bool = False) -> None:
        """Make sure that it still is what was committed.

        Args:
            seen: the checkpoint.
            again: read all bytes again, because the evaluation failed.

        Raises:
            CheckpointsAbsent: the directory of all of them is gone.
            CheckpointMissing: it is gone.
            CheckpointCorrupt: its files are not what was committed.
        """
        self._use(seen, again=again)
