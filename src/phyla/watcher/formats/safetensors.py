"""Files of safetensors, and directories of them."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import IO, ClassVar, final

from phyla.watcher.format import Candidate, Check, CheckpointFormat, Verdict
from phyla.watcher.formats.weights import (
    SAFETENSORS_ENDING,
    SAFETENSORS_INDEX,
    check_folder,
    tensors,
    weight_files,
)
from phyla.watcher.listing import Root


@final
@dataclass(frozen=True, kw_only=True)
class Safetensors(CheckpointFormat):
    """Files named `*.safetensors`, sets of them with an index, and directories of either.

    The header of a file says how long it must be, to the byte. An index names its shards and which
    tensors are in each, and is written after them. What `save_pretrained` wrote directly into the root has
    its configuration and tokenizer, too.
    """

    name: ClassVar[str] = "safetensors"
    awaits: ClassVar[str] = "files *.safetensors, or directories of them"
    endings: ClassVar[tuple[str, ...]] = (SAFETENSORS_ENDING,)
    rank: ClassVar[int] = 2

    @classmethod
    def folders(cls, root: Root) -> Mapping[str, Check]:
        endings = (SAFETENSORS_ENDING, SAFETENSORS_INDEX)
        return {folder: check_folder for folder in root.folders if root.has(folder, endings)}

    @classmethod
    def files(cls, root: Root) -> Iterable[Candidate]:
        return weight_files(root, cls.endings, SAFETENSORS_INDEX)

    @classmethod
    def check_content(cls, name: str, file: IO[bytes]) -> Verdict | None:
        if not name.endswith(SAFETENSORS_ENDING):
            return None
        try:
            ranges = tensors(file, name)
        except (ValueError, LookupError, TypeError) as error:
            return Verdict.partial(f"{name} is cut off or damaged: {error}")
        wanted = file.tell() + max((end for _, end in ranges.values()), default=0)
        size = file.seek(0, os.SEEK_END)
        if size != wanted:
            return Verdict.partial(f"{name} has {size} bytes where its header says {wanted}")
        return Verdict.complete(f"{name} has the {wanted} bytes that its header says")
