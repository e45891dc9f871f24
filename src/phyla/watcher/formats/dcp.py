"""Directories of `torch.distributed.checkpoint`."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

from phyla.watcher.contents import closed_by
from phyla.watcher.files import Listing, Root
from phyla.watcher.format import Candidate, CheckpointFormat, Verdict
from phyla.watcher.weights import check_distributed

RENAME_SLACK_NS = 2 * 10**9
"""Between the last write to a file that is flushed and then renamed, and the renaming."""


@final
@dataclass(frozen=True, kw_only=True)
class Distributed(CheckpointFormat):
    """Directories with `.metadata` and `__RANK_NUMBER.distcp`, directly in the root.

    The coordinator writes `.metadata.tmp` after every rank has written its data, flushes it and renames
    it (`FileSystemWriter.finish`, torch 2.13). Saving over an old checkpoint leaves the old `.metadata`
    there until then, so it must be newer than the data, and the data as long as it says.
    """

    name: ClassVar[str] = "dcp"
    awaits: ClassVar[str] = "directories of torch.distributed.checkpoint, once .metadata is in them"

    def candidates(self, root: Root) -> Iterable[Candidate]:
        """Return the directories that hold such files."""
        return [Candidate.entry(folder, check_folder) for folder in root.folders if is_distributed(root, folder)]


def is_distributed(root: Root, folder: str) -> bool:
    """Return whether a directory itself holds files that only such a save writes."""
    endings = (".distcp", ".metadata", ".metadata.tmp")
    return any("/" not in path and path.endswith(endings) for path in root.inside(folder))


def check_folder(root: Path, listed: Listing) -> Verdict:
    """Return whether a directory is whole, by its `.metadata`."""
    folder, below = listed.folder()
    files = {path: file for path, file in below.items() if "/" not in path}
    verdict = check_distributed(root / folder, files)
    closing = files.get(".metadata")
    if closing is None:
        return verdict
    return closed_by(closing, verdict, folders_ns=listed.folders_ns, slack_ns=RENAME_SLACK_NS)
