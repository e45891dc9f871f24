"""Whatever lies there, each entry by the strictest format that knows it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, final

from phyla.watcher.contents import SAFETENSORS_ENDING, TORCH_ENDINGS, check_file
from phyla.watcher.formats import dcp, huggingface, orbax, safetensors
from phyla.watcher.formats.huggingface import STATE, step_of, trainer_judge
from phyla.watcher.formats.safetensors import Safetensors
from phyla.watcher.formats.torch import TorchFiles, check_all, is_companion
from phyla.watcher.found import Found
from phyla.watcher.listing import Listing, Root
from phyla.watcher.step import StepFrom
from phyla.watcher.survey import QUIET_S, Candidate, Judge, survey
from phyla.watcher.verdict import Finish, Verdict, worst

OTHER_ENDINGS = (
    ".npz",
    ".npy",
    ".msgpack",
    ".h5",
    ".hdf5",
    ".keras",
    ".pkl",
    ".pickle",
    ".gguf",
    ".eqx",
    ".onnx",
)
"""Of files that usually hold weights, and have no format of their own here."""
_TRAINER = frozenset({STATE, "training_args.bin"})
_WEIGHTS = (SAFETENSORS_ENDING, *TORCH_ENDINGS, *OTHER_ENDINGS)
_RANK = re.compile(r"mp_rank_\d+.*")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Auto:
    """Directories of the Trainer, Orbax, `torch.distributed.checkpoint` and safetensors, and files of weights.

    What a directory holds decides. One named `checkpoint-N` waits for its `trainer_state.json`; if none comes
    in the quiet period and nothing else in it is the Trainer's, it is judged by its weights alone. Other
    directories with weights directly in them, or in `mp_rank_*`, are ready when none is cut off and they are
    quiet. Everything else (logs, configuration, directories of runs) is no checkpoint.

    Attributes:
        quiet_s: seconds without a change after which time decides.
        step: where steps come from.
    """

    name: ClassVar[str] = "auto"
    awaits: ClassVar[str] = "what PyTorch, safetensors, the Trainer of transformers or Orbax write"
    quiet_s: float = QUIET_S
    step: StepFrom = field(default_factory=StepFrom)

    def scan(self, root: Path, *, now: float, previous: Mapping[str, Found]) -> list[Found]:
        """Look through a directory; see `CheckpointFormat.scan`."""
        return survey(self, root, now=now, previous=previous)

    def candidates(self, root: Root) -> Iterable[Candidate]:
        """Return what some format knows, and other entries that hold weights."""
        orbax_judge = orbax.orbax_judge(root)
        for folder in root.folders:
            candidate = _folder(root, folder, orbax_judge)
            if candidate is not None:
                yield candidate
        taken: set[str] = set()
        for selection in (Safetensors(), TorchFiles()):
            for candidate in selection.candidates(root):
                if candidate.paths[0] in root.files:
                    taken.update(candidate.paths)
                    yield candidate
        for name in root.files:
            if name.endswith(OTHER_ENDINGS) and name not in taken and not is_companion(name):
                yield Candidate(name=name, paths=(name,), judge=check_all)


def _folder(root: Root, folder: str, orbax_judge: Judge) -> Candidate | None:
    here = frozenset(path for path in root.inside(folder) if "/" not in path)
    step = step_of(folder)
    if root.is_closed(folder) and StepFrom().of_name(folder) is not None:
        # It is told with the reason; other directories may be nobody's business, as lost+found is.
        return Candidate(name=folder, paths=(folder,), judge=check_all)
    if step is not None and here & _TRAINER:
        return Candidate(name=folder, paths=(folder,), judge=trainer_judge(folder, step))
    if orbax.is_orbax(root, folder):
        return Candidate(name=folder, paths=(folder,), judge=orbax_judge)
    if dcp.is_distributed(root, folder):
        return Candidate(name=folder, paths=(folder,), judge=dcp.check_folder)
    known = any(path.endswith((SAFETENSORS_ENDING, ".index.json")) for path in here)
    if known and step is not None:
        return Candidate(name=folder, paths=(folder,), judge=_perhaps_trainer)
    if known:
        return Candidate(name=folder, paths=(folder,), judge=safetensors.check_folder)
    if any(path.endswith(_WEIGHTS) and _is_near(path) for path in root.inside(folder)):
        return Candidate(name=folder, paths=(folder,), judge=_weights_somewhere)
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
