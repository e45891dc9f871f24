"""Files of safetensors, and directories of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

from phyla.watcher.contents import SAFETENSORS_ENDING, closed_by
from phyla.watcher.files import Listing, Root
from phyla.watcher.format import Candidate, CheckpointFormat, Verdict
from phyla.watcher.weights import weight_files, weights

INDEX = ".safetensors.index.json"


@final
@dataclass(frozen=True, kw_only=True)
class Safetensors(CheckpointFormat):
    """Files named `*.safetensors`, sets of them with an index, and directories of either.

    The header of a file says how long it must be, to the byte. An index names its shards and which
    tensors are in each, and is written after them.
    """

    name: ClassVar[str] = "safetensors"
    awaits: ClassVar[str] = "files *.safetensors, or directories of them"

    def candidates(self, root: Root) -> Iterable[Candidate]:
        """Return directories that hold such files, sets with an index, and single files of any other name."""
        endings = (SAFETENSORS_ENDING, INDEX)
        for folder in root.folders:
            if any(path.endswith(endings) and "/" not in path for path in root.inside(folder)):
                yield Candidate.entry(folder, check_folder)
        yield from weight_files(root, (SAFETENSORS_ENDING,), INDEX)


def check_folder(root: Path, listed: Listing) -> Verdict:
    """Return whether the weights in a directory are whole, by their headers and their index."""
    folder, files = listed.folder()
    found = weights(root / folder, files)
    if found is None:
        return Verdict.partial("there are no weights in it")
    if found.index is None:
        return found.verdict
    return closed_by(found.index, found.verdict, folders_ns=listed.folders_ns)
