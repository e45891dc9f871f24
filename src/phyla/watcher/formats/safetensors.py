"""Files of safetensors, and directories of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, final

from phyla.watcher.contents import SAFETENSORS_ENDING, settled
from phyla.watcher.formats.shards import index_of, is_shard, sharded
from phyla.watcher.formats.torch import check_all
from phyla.watcher.formats.weights import weights
from phyla.watcher.found import Found
from phyla.watcher.listing import Listing, Root
from phyla.watcher.step import StepFrom
from phyla.watcher.survey import QUIET_S, Candidate, survey
from phyla.watcher.verdict import Verdict

_INDEX = ".safetensors.index.json"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Safetensors:
    """Files named `*.safetensors`, sets of them with an index, and directories of either.

    The header of a file says how long it must be, to the byte. An index names its shards and which
    tensors are in each, and is written after them.

    Attributes:
        quiet_s: seconds without a change after which time decides.
        step: where steps come from.
    """

    name: ClassVar[str] = "safetensors"
    awaits: ClassVar[str] = "files *.safetensors, or directories of them"
    quiet_s: float = QUIET_S
    step: StepFrom = field(default_factory=StepFrom)

    def scan(self, root: Path, *, now: float, previous: Mapping[str, Found]) -> list[Found]:
        """Look through a directory; see `CheckpointFormat.scan`."""
        return survey(self, root, now=now, previous=previous)

    def candidates(self, root: Root) -> Iterable[Candidate]:
        """Return directories that hold such files, sets with an index, and single files of any other name."""
        for folder in root.folders:
            if any(
                path.endswith((SAFETENSORS_ENDING, _INDEX)) and "/" not in path for path in root.inside(folder)
            ):
                yield Candidate(name=folder, paths=(folder,), judge=check_folder)
        groups, taken = sharded(root, _INDEX)
        yield from groups
        for name in root.files:
            if name.endswith(SAFETENSORS_ENDING) and not (name in taken or is_shard(name)):
                yield Candidate(name=name, paths=(name,), judge=check_all)


def check_folder(root: Path, listed: Listing) -> Verdict:
    """Return whether the weights in a directory are whole, by their headers and their index."""
    folder = listed.files[0].relative.partition("/")[0]
    files = listed.below(folder)
    found = weights(root / folder, files)
    if found is None:
        return Verdict.partial("there are no weights in it")
    index = index_of(frozenset(name for name in files if "/" not in name))
    return found.verdict if index is None else settled(found.verdict, files[index], listed.folders_ns)
