"""The `checkpoint-N` directories of the Trainer in Hugging Face's transformers."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, final

from phyla.watcher.contents import newest, settled
from phyla.watcher.formats.weights import weights
from phyla.watcher.found import Found
from phyla.watcher.listing import Listing, Root
from phyla.watcher.step import StepFrom
from phyla.watcher.survey import QUIET_S, Candidate, Judge, survey
from phyla.watcher.verdict import Finish, Verdict

STATE = "trainer_state.json"
_NAME = re.compile(r"checkpoint-(\d{1,18})")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFace:
    """Directories named `checkpoint-N`, directly in the root.

    The Trainer writes straight into the final directory: weights, optimizer, random state, and
    `trainer_state.json` last (`Trainer._save_checkpoint`, transformers 5.23; older ones alike). A checkpoint
    is ready when that file can be read and agrees with N, and the weights are whole and older. Older
    versions wrote to `tmp-checkpoint-N` first, which is ignored.

    Attributes:
        quiet_s: seconds without a change after which time decides.
        step: where steps come from; by default N.
    """

    name: ClassVar[str] = "huggingface"
    awaits: ClassVar[str] = "directories checkpoint-N, once trainer_state.json is in them"
    quiet_s: float = QUIET_S
    step: StepFrom = field(default_factory=StepFrom)

    def scan(self, root: Path, *, now: float, previous: Mapping[str, Found]) -> list[Found]:
        """Look through a directory; see `CheckpointFormat.scan`."""
        return survey(self, root, now=now, previous=previous)

    def candidates(self, root: Root) -> Iterable[Candidate]:
        """Return the directories with such a name."""
        for folder in root.folders:
            step = step_of(folder)
            if step is not None:
                yield Candidate(name=folder, paths=(folder,), judge=trainer_judge(folder, step))


def step_of(folder: str) -> int | None:
    """Return the step in the name of a directory; None where the Trainer gives no such name."""
    named = _NAME.fullmatch(folder)
    return int(named.group(1)) if named else None


def trainer_judge(folder: str, step: int) -> Judge:
    """Return what looks into the directory of one step."""

    def judge(root: Path, listed: Listing) -> Verdict:
        files = listed.below(folder)
        if STATE not in files:
            return Verdict.partial(f"{STATE} is missing, which is written last")
        try:
            told = json.loads((root / folder / STATE).read_bytes())["global_step"]
        except (ValueError, LookupError, TypeError) as error:
            return Verdict.partial(f"{STATE} is cut off or damaged: {error}")
        if told != step:
            return Verdict.partial(f"{STATE} says step {told!r}, its directory says {step}")
        found = weights(root / folder, files)
        if found is None:
            return Verdict.partial(
                "there are no weights in it: no *.safetensors or *.bin file, no index, no distributed checkpoint"
            )
        late = newest(found.files)
        if found.verdict.finish is Finish.COMPLETE and late.modified_ns > files[STATE].modified_ns:
            return Verdict.settling(f"{late.name} was written after {STATE}: it may be overwritten right now")
        return settled(found.verdict, files[STATE], listed.folders_ns)

    return judge
