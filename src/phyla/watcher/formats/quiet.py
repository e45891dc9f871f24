"""Anything, once it has not changed for a while."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, final

from phyla.watcher.format import Candidate, CheckpointFormat, Verdict
from phyla.watcher.listing import Listing, Place, Root


@final
@dataclass(frozen=True, kw_only=True)
class Quiet(CheckpointFormat):
    """Any file or directory in the root, whatever is in it: the last resort.

    A writer that pauses for longer than the quiet period counts as finished.
    """

    name: ClassVar[str] = "quiet"
    awaits: ClassVar[str] = "any file or directory, once nothing about it changes any more"

    def candidates(self, root: Root) -> Iterable[Candidate]:
        return [Candidate.entry(entry, _check) for entry in (*root.folders, *root.files)]


def _check(root: Place, listed: Listing) -> Verdict:
    return Verdict.settling("only time tells")
