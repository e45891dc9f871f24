"""Directories of `torch.distributed.checkpoint`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, final

from phyla.watcher.contents import RENAME_SLACK_NS, check_distributed, settled
from phyla.watcher.found import Found
from phyla.watcher.listing import Listing, Root
from phyla.watcher.step import StepFrom
from phyla.watcher.survey import QUIET_S, Candidate, survey
from phyla.watcher.verdict import Verdict


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Distributed:
    """Directories with `.metadata` and `__RANK_NUMBER.distcp`, directly in the root.

    The coordinator writes `.metadata.tmp` after every rank has written its data, flushes it and renames
    it (`FileSystemWriter.finish`, torch 2.13). Saving over an old checkpoint leaves the old `.metadata`
    there until then, so it must be newer than the data, and the data as long as it says.

    Attributes:
        quiet_s: seconds without a change after which time decides.
        step: where steps come from.
    """

    name: ClassVar[str] = "dcp"
    awaits: ClassVar[str] = "directories of torch.distributed.checkpoint, once .metadata is in them"
    quiet_s: float = QUIET_S
    step: StepFrom = field(default_factory=StepFrom)

    def scan(self, root: Path, *, now: float, previous: Mapping[str, Found]) -> list[Found]:
        """Look through a directory; see `CheckpointFormat.scan`."""
        return survey(self, root, now=now, previous=previous)

    def candidates(self, root: Root) -> Iterable[Candidate]:
        """Return the directories that hold such files."""
        for folder in root.folders:
            if is_distributed(root, folder):
                yield Candidate(name=folder, paths=(folder,), judge=check_folder)


def is_distributed(root: Root, folder: str) -> bool:
    """Return whether a directory itself holds files that only such a save writes."""
    return any(
        "/" not in path and path.endswith((".distcp", ".metadata", ".metadata.tmp"))
        for path in root.inside(folder)
    )


def check_folder(root: Path, listed: Listing) -> Verdict:
    """Return whether a directory is whole, by its `.metadata`."""
    folder = listed.files[0].relative.partition("/")[0]
    files = {path: file for path, file in listed.below(folder).items() if "/" not in path}
    verdict = check_distributed(root / folder, files)
    if ".metadata" not in files:
        return verdict
    return settled(verdict, files[".metadata"], listed.folders_ns, slack_ns=RENAME_SLACK_NS)
