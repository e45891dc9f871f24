"""The `checkpoint-N` directories of the Trainer in Hugging Face's transformers."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

from phyla.watcher.contents import closed_by
from phyla.watcher.files import Listing, Root
from phyla.watcher.format import Candidate, CheckpointFormat, Verdict
from phyla.watcher.weights import weights

STATE = "trainer_state.json"
_NAME = re.compile(r"checkpoint-(\d{1,18})")


@final
@dataclass(frozen=True, kw_only=True)
class HuggingFace(CheckpointFormat):
    """Directories named `checkpoint-N`, directly in the root.

    The Trainer writes straight into the final directory: weights, optimizer, random state, and
    `trainer_state.json` last (`Trainer._save_checkpoint`, transformers 5.23; older ones alike). A checkpoint
    is ready when that file can be read and agrees with N, and the weights are whole and older. Older
    versions wrote to `tmp-checkpoint-N` first, which is ignored.
    """

    name: ClassVar[str] = "huggingface"
    awaits: ClassVar[str] = "directories checkpoint-N, once trainer_state.json is in them"

    def candidates(self, root: Root) -> Iterable[Candidate]:
        """Return the directories with such a name."""
        return [Candidate.entry(folder, check_folder) for folder in root.folders if step_of(folder) is not None]


def step_of(folder: str) -> int | None:
    """Return the step in the name of a directory; None where the Trainer gives no such name."""
    named = _NAME.fullmatch(folder)
    return int(named.group(1)) if named else None


def check_folder(root: Path, listed: Listing) -> Verdict:
    """Return whether a directory of the Trainer is whole, by its `trainer_state.json`."""
    folder, files = listed.folder()
    if STATE not in files:
        return Verdict.partial(f"{STATE} is missing, which is written last")
    try:
        told = json.loads((root / folder / STATE).read_bytes())["global_step"]
    except (ValueError, LookupError, TypeError) as error:
        return Verdict.partial(f"{STATE} is cut off or damaged: {error}")
    if told != step_of(folder):
        return Verdict.partial(f"{STATE} says step {told!r}, its directory says {step_of(folder)}")
    found = weights(root / folder, files)
    if found is None:
        return Verdict.partial(
            "there are no weights in it: no *.safetensors or *.bin file, no index, no distributed checkpoint"
        )
    return closed_by(files[STATE], found.verdict, found.files, listed.folders_ns)
