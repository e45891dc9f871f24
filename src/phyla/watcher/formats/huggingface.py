"""The `checkpoint-N` directories of the Trainer in Hugging Face's transformers."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from phyla.watcher.format import Candidate, Check, CheckpointFormat, Finish, Verdict, check_order, is_companion
from phyla.watcher.formats import weights
from phyla.watcher.listing import Listing, Place, Root

STATE = "trainer_state.json"
_NAME = re.compile(r"checkpoint-(\d{1,18})")


@final
@dataclass(frozen=True, kw_only=True)
class HuggingFace(CheckpointFormat):
    """Directories named `checkpoint-N`, directly in the root.

    The Trainer writes straight into the final directory: weights, optimizer, random state, and
    `trainer_state.json` last (`Trainer._save_checkpoint`, transformers 5.23; older ones alike). A checkpoint
    is ready when that file can be read and agrees with N, the weights are whole, and nothing is newer but what
    other ranks save, such as `rng_state_1.pth`. Older versions wrote to `tmp-checkpoint-N` first, which is
    ignored.
    """

    name: ClassVar[str] = "huggingface"
    awaits: ClassVar[str] = "directories checkpoint-N, once trainer_state.json is in them"
    rank: ClassVar[int] = 1

    def candidates(self, root: Root) -> Iterable[Candidate]:
        return [Candidate.entry(folder, _check) for folder in root.folders if _NAME.fullmatch(folder)]

    @classmethod
    def folders(cls, root: Root) -> Mapping[str, Check]:
        checks: dict[str, Check] = {}
        for folder in filter(_NAME.fullmatch, root.folders):
            inside = root.inside(folder)
            if STATE in inside or "training_args.bin" in inside:
                checks[folder] = _check
            elif root.has(folder, (weights.SAFETENSORS_ENDING, ".index.json")):
                checks[folder] = _check_without_state
        return checks


def _check(root: Place, listed: Listing) -> Verdict:
    folder, files = listed.folder()
    if STATE not in files:
        return Verdict.partial(f"{STATE} is missing, which is written last")
    try:
        state_step = json.loads((root / folder / STATE).read_bytes())["global_step"]
    except (ValueError, LookupError, TypeError) as error:
        return Verdict.partial(f"{STATE} is cut off or damaged: {error}")
    step = int(folder.rpartition("-")[2])
    if state_step != step:
        return Verdict.partial(f"{STATE} has step {state_step!r}, its directory name has {step}")
    weight_set = weights.weights(root / folder, files)
    if weight_set is None:
        return Verdict.partial(
            "it has no weights: no *.safetensors or *.bin file, no index, no distributed checkpoint"
        )
    # Other ranks may save their random state later than that.
    rest = [file for path, file in files.items() if path != STATE and not is_companion(file.name)]
    return check_order(files[STATE], weight_set.verdict, rest, listed.folders_ns)


def _check_without_state(root: Place, listed: Listing) -> Verdict:
    verdict = weights.check_folder(root, listed)
    if verdict.finish is Finish.COMPLETE:
        return Verdict.settling(f"the Trainer may still write {STATE} ({verdict.why})")
    return verdict
