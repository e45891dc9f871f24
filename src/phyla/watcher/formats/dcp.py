"""Directories of `torch.distributed.checkpoint`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from phyla.watcher.format import Check, CheckpointFormat, Verdict, check_file, check_order, worst
from phyla.watcher.formats.weights import check_distributed
from phyla.watcher.listing import Listing, Place, Root

RENAME_SLACK_NS = 2 * 10**9
"""Between the last write to a file that is flushed and then renamed, and the renaming."""

_REST, _OF_LIGHTNING = "meta.pt", ".ckpt"


@final
@dataclass(frozen=True, kw_only=True)
class Distributed(CheckpointFormat):
    """Directories with `.metadata` and `__RANK_NUMBER.distcp`, directly in the root.

    The coordinator writes `.metadata.tmp` after every rank has written its data, flushes it and renames
    it (`FileSystemWriter.finish`, torch 2.13). Saving over an old checkpoint leaves the old `.metadata`
    there until then, so it must be newer than the data, and the data as long as it says. Lightning writes the rest
    of its state after that, into `NAME.ckpt/meta.pt` (`FSDPStrategy.save_checkpoint`, lightning 2.6).
    """

    name: ClassVar[str] = "dcp"
    awaits: ClassVar[str] = "directories of torch.distributed.checkpoint, once .metadata is in them"

    @classmethod
    def folders(cls, root: Root) -> Mapping[str, Check]:
        endings = (".distcp", ".metadata", ".metadata.tmp")
        return {folder: _check for folder in root.folders if root.has(folder, endings)}


def _check(root: Place, listed: Listing) -> Verdict:
    folder, below = listed.folder()
    files = {path: file for path, file in below.items() if "/" not in path}
    verdict = check_distributed(root / folder, files)
    closing = files.get(".metadata")
    if closing is None:
        return verdict
    rest = files.get(_REST)
    if rest is not None:
        verdict = worst([verdict, check_file(root / folder / _REST, rest.size_bytes)])
        verdict, closing = check_order(rest, verdict, [closing]), rest
    elif folder.endswith(_OF_LIGHTNING):
        verdict = worst([verdict, Verdict.settling(f"Lightning may still write {_REST}")])
    return check_order(closing, verdict, folders_ns=listed.folders_ns, slack_ns=RENAME_SLACK_NS)
