"""What a scan finds: one foreign checkpoint, and whether it may be evaluated."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final

from phyla.watcher.step import StepFrom


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One checkpoint of a directory that somebody else writes to, as it was when it was looked at.

    Attributes:
        name: stable key: path relative to the root, with `/` between its parts.
        step: age of the weights, or None where nothing tells it.
        paths: files and directories that belong to it, relative to the root.
        ready: its writer has finished, as far as its format can tell.
        why: what it waits for, what is wrong with it, or what made it ready.
        bad: it is damaged or unreadable, or its writer died: not to be evaluated until that changes.
        fingerprint: changes whenever a file is added, removed, replaced, resized or written to.
        size_bytes: sum of its files.
        modified_at: newest change of its files by the file system's clock, in seconds since the epoch.
        first_seen: `now` of the scan that saw it first.
        unchanged_since: `now` of the scan that saw this fingerprint first; `modified_at` for what was
            already old when it was first seen.
        unreadable: the system refused to show it; that may end without any change of its fingerprint.
    """

    name: str
    step: int | None
    paths: tuple[str, ...]
    ready: bool
    why: str
    bad: bool
    fingerprint: str
    size_bytes: int
    modified_at: float
    first_seen: float
    unchanged_since: float
    unreadable: bool = False


class CheckpointFormat(Protocol):
    """Knows what the checkpoints of one library look like, and when one of them is finished."""

    @property
    def name(self) -> str:
        """The name it has in `FORMATS`."""
        ...

    @property
    def quiet_s(self) -> float:
        """Seconds without a change after which time decides."""
        ...

    @property
    def step(self) -> StepFrom:
        """Where steps come from."""
        ...

    @property
    def awaits(self) -> str:
        """What it takes for a checkpoint, in words."""
        ...

    def scan(self, root: Path, *, now: float, previous: Mapping[str, Found]) -> list[Found]:
        """Look through a directory, without waiting and without changing anything.

        Args:
            root: the directory that holds the checkpoints; one that does not exist holds none.
            now: seconds since the epoch; only differences between scans count.
            previous: what the last scan of this root with this format found, by name. What is ready or
                bad and has the same fingerprint is taken over without being read again.

        Returns:
            All that exist now, ready or not, by step and then by name. What was found before and is
            missing now was deleted. Steps may go backwards between scans.

        Raises:
            CheckpointStorageFailed: the root exists and cannot be listed.
        """
        ...
