"""Whatever lies there, each entry by the strictest format that knows it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import ClassVar, final

from phyla.watcher.contents import SAFETENSORS_ENDING, TORCH_ENDINGS, check_file
from phyla.watcher.files import Listing, Root
from phyla.watcher.format import Candidate, Check, CheckpointFormat, Finish, Verdict, worst
from phyla.watcher.formats import dcp, huggingface, orbax, safetensors
from phyla.watcher.formats.torch import TorchFiles
from phyla.watcher.step import StepFrom
from phyla.watcher.weights import check_all, is_companion, weight_files

OTHER_ENDINGS = (
    *(".npz", ".npy", ".msgpack", ".h5", ".hdf5", ".keras"),
    *(".pkl", ".pickle", ".gguf", ".eqx", ".onnx"),
)
"""Of files that usually hold weights, and have no format of their own here."""
_TRAINER = frozenset({huggingface.STATE, "training_args.bin"})
_WEIGHTS = (SAFETENSORS_ENDING, *TORCH_ENDINGS, *OTHER_ENDINGS)
_RANK = re.compile(r"mp_rank_\d+.*")


@final
@dataclass(frozen=True, kw_only=True)
class Auto(CheckpointFormat):
    """Directories of the Trainer, Orbax, `torch.distributed.checkpoint` and safetensors, and files of weights.

    What a directory holds decides. One named `checkpoint-N` waits for its `trainer_state.json`; if none comes
    in the quiet period and nothing else in it is the Trainer's, it is judged by its weights alone. Other
    directories with weights directly in them, or in `mp_rank_*`, are ready when none is cut off and they are
    quiet. Everything else (logs, configuration, directories of runs) is no checkpoint.
    """

    name: ClassVar[str] = "auto"
    awaits: ClassVar[str] = "what PyTorch, safetensors, the Trainer of transformers or Orbax write"

    def candidates(self, root: Root) -> Iterable[Candidate]:
        """Return what some format knows, and other entries that hold weights."""
        check_orbax = orbax.checks(root)
        for folder in root.folders:
            check = _check_of(root, folder, check_orbax)
            if check is not None:
                yield Candidate.entry(folder, check)
        taken: set[str] = set()
        single = weight_files(root, (SAFETENSORS_ENDING,), safetensors.INDEX)
        for candidate in chain(single, TorchFiles().candidates(root)):
            taken.update(candidate.paths)
            yield candidate
        for name in root.files:
            if name.endswith(OTHER_ENDINGS) and name not in taken and not is_companion(name):
                yield Candidate.entry(name, check_all)


def _check_of(root: Root, folder: str, check_orbax: Check) -> Check | None:
    """Return how to check a directory; None for one that holds no checkpoint."""
    here = frozenset(path for path in root.inside(folder) if "/" not in path)
    is_trainers = huggingface.step_of(folder) is not None
    if root.is_closed(folder) and StepFrom().of_name(folder) is not None:
        # It is told with the reason; other directories may be nobody's business, as lost+found is.
        return check_all
    if is_trainers and here & _TRAINER:
        return huggingface.check_folder
    if orbax.is_orbax(root, folder):
        return check_orbax
    if dcp.is_distributed(root, folder):
        return dcp.check_folder
    if any(path.endswith((SAFETENSORS_ENDING, ".index.json")) for path in here):
        return _perhaps_trainer if is_trainers else safetensors.check_folder
    if any(path.endswith(_WEIGHTS) and _is_near(path) for path in root.inside(folder)):
        return _weights_somewhere
    return None


def _is_near(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return not is_companion(name) and (not folder or _RANK.fullmatch(folder) is not None)


def _perhaps_trainer(root: Path, listed: Listing) -> Verdict:
    verdict = safetensors.check_folder(root, listed)
    if verdict.finish is Finish.COMPLETE:
        return Verdict.settling(f"the Trainer may still write {huggingface.STATE} ({verdict.why})")
    return verdict


def _weights_somewhere(root: Path, listed: Listing) -> Verdict:
    files = [file for file in listed.files if file.name.endswith(_WEIGHTS)]
    verdict = worst(check_file(root / file.relative, file.size_bytes) for file in files)
    return worst([verdict, Verdict.settling("nothing tells which files belong to it")])
