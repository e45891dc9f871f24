"""Where the checkpoints of a watched directory are read."""

from pathlib import Path
from typing import final

from phyla.errors import CheckpointChanged, CheckpointGone
from phyla.records import Seen, shown
from phyla.watcher.found import Found
from phyla.watcher.listing import listing
from phyla.watcher.snapshots import unchanged


@final
class DirectorySources:
    """Snapshots, and originals where there is none; both are compared with what was seen.

    Args:
        root: the watched directory.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._given: dict[int, Path] = {}

    def path(self, seen: Seen) -> Path:
        """Return where a checkpoint is read: its snapshot, or else the original if it still is what was seen.

        Raises:
            CheckpointGone: it was deleted before its turn.
            CheckpointChanged: it was written to before its turn.
        """
        original = self._root / seen.paths[0] if len(seen.paths) == 1 else self._root
        if seen.snapshot and unchanged(Path(seen.path), found_of(seen)):
            path = Path(seen.path)
        else:
            self._check_original(seen, "before its evaluation")
            path = original
        self._given[seen.id] = path
        return path

    def check(self, seen: Seen, *, again: bool = False) -> None:
        """Make sure that what was read still is what was seen.

        Raises:
            CheckpointGone: it was deleted during the evaluation.
            CheckpointChanged: it was written to during the evaluation.
        """
        given = self._given.get(seen.id)
        if given is not None and seen.snapshot and given == Path(seen.path):
            if unchanged(given, found_of(seen)):
                return
            if not given.exists():
                raise CheckpointGone(
                    f"the snapshot of checkpoint {shown(seen.name)} was deleted during evaluation"
                )
            raise CheckpointChanged(
                f"checkpoint {shown(seen.name)} was changed during evaluation: its files were overwritten in "
                "place, and a snapshot of links changes with them; use snapshots of copies for such a writer"
            )
        self._check_original(seen, "during evaluation")

    def _check_original(self, seen: Seen, when: str) -> None:
        try:
            listed = listing(self._root, seen.paths)
        except FileNotFoundError as error:
            raise CheckpointGone(f"checkpoint {shown(seen.name)} was deleted {when}") from error
        if listed.fingerprint != seen.fingerprint:
            if not listed.files:
                raise CheckpointGone(f"checkpoint {shown(seen.name)} was deleted {when}")
            raise CheckpointChanged(f"checkpoint {shown(seen.name)} was changed {when}")


def found_of(seen: Seen) -> Found:
    """Return what was found, as far as it is remembered: enough to recognize a snapshot of it."""
    return Found(
        name=seen.name,
        step=None if seen.step < 0 else seen.step,
        paths=seen.paths,
        ready=True,
        why="",
        bad=False,
        fingerprint=seen.fingerprint,
        size_bytes=seen.size_bytes,
        modified_at=seen.written_at,
        first_seen=seen.seen_at,
        unchanged_since=seen.seen_at,
    )
