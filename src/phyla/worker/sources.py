"""Where the checkpoints are read that are evaluated."""

from pathlib import Path
from typing import Protocol, final

from phyla.checkpoints import CheckpointRepository
from phyla.errors import CheckpointError
from phyla.records import Seen


class Sources(Protocol):
    """Where the bytes of checkpoints are."""

    def path(self, seen: Seen) -> Path:
        """Return where a checkpoint is read.

        Raises:
            CheckpointError: it is gone, or no longer what was seen.
        """
        ...

    def check(self, seen: Seen) -> None:
        """Make sure, after it was read, that it still is what was seen.

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

    def __init__(self, repository: CheckpointRepository) -> None:
        self._repository = repository

    def path(self, seen: Seen) -> Path:
        """Return a checkpoint's directory.

        Raises:
            CheckpointsAbsent: the directory of all of them is gone.
            CheckpointError: it is gone, or a file of it is gone or has another size.
        """
        self.check(seen)
        return self._repository.path(seen.name)

    def check(self, seen: Seen) -> None:
        """Make sure that it still is what was committed.

        Raises:
            CheckpointsAbsent: the directory of all of them is gone.
            CheckpointError: it is gone, or a file of it is gone or has another size.
        """
        try:
            self._repository.check(seen.name)
        except CheckpointError:
            self._repository.check_owner()
            raise
