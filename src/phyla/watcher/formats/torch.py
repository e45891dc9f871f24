"""Single files of `torch.save`, and sets of them with an index."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, final

from phyla.watcher.contents import TORCH_ENDINGS, check_file
from phyla.watcher.formats.shards import is_shard, sharded
from phyla.watcher.found import Found
from phyla.watcher.listing import Listing, Root
from phyla.watcher.step import StepFrom
from phyla.watcher.survey import QUIET_S, Candidate, survey
from phyla.watcher.verdict import Verdict, worst

_COMPANION = re.compile(
    r"(training_args|optimizer|scheduler|scaler|rng_state|random_states)(_?\d+)*\.(bin|pt|pth|pkl)"
)


def is_companion(name: str) -> bool:
    """Return whether a file lies beside weights and has none itself, as `optimizer.pt` does."""
    return _COMPANION.fullmatch(name) is not None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFiles:
    """Files named `*.pt`, `*.pth`, `*.ckpt` or `*.bin`, directly in the root.

    `torch.save` writes straight to the final name. Its archive ends with a directory of its members, which
    is there only at the end, and describes every storage that must be in it. Files of the layout
    before that say how long they must be. Whatever else has such a name is ready when it is quiet.

    Attributes:
        quiet_s: seconds without a change after which time decides.
        step: where steps come from.
    """

    name: ClassVar[str] = "torch"
    awaits: ClassVar[str] = "files *.pt, *.pth, *.ckpt or *.bin"
    quiet_s: float = QUIET_S
    step: StepFrom = field(default_factory=StepFrom)

    def scan(self, root: Path, *, now: float, previous: Mapping[str, Found]) -> list[Found]:
        """Look through a directory; see `CheckpointFormat.scan`."""
        return survey(self, root, now=now, previous=previous)

    def candidates(self, root: Root) -> Iterable[Candidate]:
        """Return sets with an index, and single files of any other name."""
        groups, taken = sharded(root, ".bin.index.json")
        yield from groups
        for name in root.files:
            if name.endswith(TORCH_ENDINGS) and not (name in taken or is_companion(name) or is_shard(name)):
                yield Candidate(name=name, paths=(name,), judge=check_all)


def check_all(root: Path, listed: Listing) -> Verdict:
    """Return the worst verdict on the files themselves; which others there should be, nothing tells."""
    return worst(check_file(root / file.relative, file.size_bytes) for file in listed.files)
