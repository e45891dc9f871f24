"""Single files of `torch.save`, and sets of them with an index."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, final

from phyla.watcher.contents import TORCH_ENDINGS
from phyla.watcher.files import Root
from phyla.watcher.format import Candidate, CheckpointFormat
from phyla.watcher.weights import weight_files


@final
@dataclass(frozen=True, kw_only=True)
class TorchFiles(CheckpointFormat):
    """Files named `*.pt`, `*.pth`, `*.ckpt` or `*.bin`, directly in the root.

    `torch.save` writes straight to the final name. Its archive ends with a directory of its members, which
    is there only at the end, and describes every storage that must be in it. Files of the layout
    before that say how long they must be. Whatever else has such a name is ready when it is quiet.
    """

    name: ClassVar[str] = "torch"
    awaits: ClassVar[str] = "files *.pt, *.pth, *.ckpt or *.bin"

    def candidates(self, root: Root) -> Iterable[Candidate]:
        """Return sets with an index, and single files of any other name."""
        return weight_files(root, TORCH_ENDINGS, ".bin.index.json")
