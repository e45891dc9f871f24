"""Anything, once it has not changed for a while."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, final

from phyla.watcher.found import Found
from phyla.watcher.listing import Listing, Root
from phyla.watcher.step import StepFrom
from phyla.watcher.survey import QUIET_S, Candidate, survey
from phyla.watcher.verdict import Verdict


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """Any file or directory in the root, whatever is in it: the last resort.

    A writer that pauses for longer than the quiet period is not told from one that has finished.

    Attributes:
        quiet_s: seconds without a change after which a checkpoint is ready.
        step: where steps come from.
    """

    name: ClassVar[str] = "quiet"
    awaits: ClassVar[str] = "any file or directory, once nothing about it changes any more"
    quiet_s: float = QUIET_S
    step: StepFrom = field(default_factory=StepFrom)

    def scan(self, root: Path, *, now: float, previous: Mapping[str, Found]) -> list[Found]:
        """Look through a directory; see `CheckpointFormat.scan`."""
        return survey(self, root, now=now, previous=previous)

    def candidates(self, root: Root) -> Iterable[Candidate]:
        """Return all entries."""
        for entry in (*root.folders, *root.files):
            yield Candidate(name=entry, paths=(entry,), judge=_judge)


def _judge(root: Path, listed: Listing) -> Verdict:
    return Verdict.settling("only time tells")
