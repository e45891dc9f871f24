"""What phyla needs from a place that keeps checkpoints."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final

from phyla.checkpoints.manifest import Manifest


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A checkpoint that is complete and on disk.

    Attributes:
        name: under which it was committed.
        path: its directory; nobody writes there again.
        step: age of the weights.
        digest: identity of the content.
        size_bytes: bytes of its files together, without the manifest.
        file_count: number of its files, without the manifest.
    """

    name: str
    path: Path
    step: int
    digest: str
    size_bytes: int
    file_count: int


class CheckpointRepository(Protocol):
    """Keeps checkpoints by name.

    A name is used for one attempt only (see `attempt_name`): at most one caller stages and commits it.
    Calls about different names may come from any threads and processes at once.

    Every method raises `UsageError` for a name that is not letters, digits and `._-`, and
    `CheckpointStorageFailed` where the storage itself fails (full, read-only, no permission).
    """

    @property
    def prefix(self) -> str:
        """Six hexadecimal digits that the names of this store's checkpoints contain; see `attempt_name`."""
        ...

    def check_owner(self) -> None:
        """Make sure that the place is there and the study's.

        Raises:
            CheckpointsAbsent: it is not there, cannot be read, or something else is in its place.
        """
        ...

    def stage(self, name: str) -> Path:
        """Return a new empty directory to save into; what an earlier call of that name left is removed."""
        ...

    def commit(self, name: str, *, step: int, now: float) -> Committed:
        """Make what was staged durable and visible under its name, all at once.

        When it returns, the checkpoint survives a power cut. When it raises, nothing is visible
        under the name and the staged files are still there, to be discarded.

        Args:
            name: a name that was staged.
            step: age of the weights.
            now: seconds since the epoch (UTC), for the manifest.

        Raises:
            NoCheckpoint: no file was saved.
            CheckpointMissing: nothing was staged under this name.
            CheckpointError: the name is taken, a file was still being written, or there is
                something that a checkpoint cannot hold.
        """
        ...

    def recover(self, name: str) -> Committed | None:
        """Read back a commit whose result was lost with its caller; None when it never happened.

        Raises:
            CheckpointMissing: the manifest or a file is gone.
            CheckpointCorrupt: the manifest or a size is not what was committed.
        """
        ...

    def path(self, name: str) -> Path:
        """Return the directory of a committed checkpoint.

        Raises:
            CheckpointMissing: there is none of that name.
        """
        ...

    def manifest(self, name: str) -> Manifest:
        """Return the manifest of a committed checkpoint.

        Raises:
            CheckpointMissing: there is none of that name, or it lost its manifest.
            CheckpointCorrupt: the manifest is damaged.
        """
        ...

    def use(self, name: str, digest: str | None = None, *, again: bool = False) -> Path:
        """Return the directory of a committed checkpoint that is about to be read, if it is what was committed.

        Names and sizes are compared every time, digests when this object first uses the checkpoint.

        Args:
            name: its name.
            digest: identity of its content, as it was recorded; None if that is not known.
            again: compare digests even if this object has used the checkpoint before.

        Raises:
            CheckpointMissing: there is no directory of that name.
            CheckpointCorrupt: its files are not what was committed.
        """
        ...

    def check(self, name: str) -> Manifest:
        """Compare names and sizes with the manifest, without reading content.

        Raises:
            CheckpointMissing: the checkpoint or one of its files is gone.
            CheckpointCorrupt: the manifest is damaged, a size differs, or a file is not listed there.
        """
        ...

    def verify(self, name: str) -> Manifest:
        """Read every byte and compare it with the manifest.

        Raises:
            CheckpointMissing: the checkpoint or one of its files is gone.
            CheckpointCorrupt: a file differs from the manifest, or is not listed there.
        """
        ...

    def delete(self, *names: str) -> int:
        """Remove checkpoints, and return the bytes that this freed; 0 for those gone already."""
        ...

    def discard(self, name: str) -> None:
        """Remove what was staged under a name, if anything."""
        ...

    def deleting(self) -> tuple[str, ...]:
        """Return the names whose deletion was begun and never finished, sorted; `delete` finishes them."""
        ...

    def names(self) -> tuple[str, ...]:
        """Return the names of the committed checkpoints, sorted."""
        ...

    def staged(self) -> tuple[str, ...]:
        """Return the names that are staged and not committed, sorted."""
        ...
