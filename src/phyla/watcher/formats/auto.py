"""Any entry of the root, by the strictest format that recognizes it."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, final

from phyla.watcher.format import (
    Candidate,
    Check,
    CheckpointFormat,
    Verdict,
    check_all,
    load_formats,
    worst,
)
from phyla.watcher.formats.layouts import Layouts, check_parts, is_near
from phyla.watcher.formats.siblings import Siblings, endings, join_ranks
from phyla.watcher.formats.step_source import StepFrom
from phyla.watcher.formats.torch import TorchFiles
from phyla.watcher.listing import Listing, Place, Root


@final
@dataclass(frozen=True, kw_only=True)
class Auto(CheckpointFormat):
    """Everything that other formats recognize, and files of weights: `endings` are those without a format.

    What a directory holds decides. One named `checkpoint-N` waits for its `trainer_state.json`; if none comes
    in the quiet period and nothing else in it is the Trainer's, it is judged by its weights alone. Other
    directories with weights directly in them, or in parts such as `mp_rank_*`, are ready when they have all files
    that the ones before have; the first, when it is quiet. Files of several ranks are one checkpoint. Everything
    else (logs, configuration, directories of runs) is no checkpoint.
    """

    name: ClassVar[str] = "auto"
    awaits: ClassVar[str] = "what PyTorch, safetensors, the Trainer of transformers or Orbax write"
    endings: ClassVar[tuple[str, ...]] = (
        *(".npz", ".npy", ".msgpack", ".h5", ".hdf5", ".keras"),
        *(".pkl", ".pickle", ".gguf", ".eqx", ".onnx"),
    )
    rank: ClassVar[int] = 3

    def candidates(self, root: Root) -> Iterable[Candidate]:
        rule = self.step if self.step.file is None else StepFrom()
        closed, others = self._folders(root)
        files, ranks = join_ranks(self._files(root))
        siblings = Siblings(root, [*others, *ranks], rule)
        layouts = Layouts(root, rule)
        return [layouts.wrap(candidate) for candidate in (*closed, *siblings.wrapped(), *files)]

    def _folders(self, root: Root) -> tuple[list[Candidate], list[Candidate]]:
        """Return the directories whose format has a file that is written last, and the others."""
        kinds = load_formats()
        checks: dict[str, Check] = {}
        others = {folder: check for kind in reversed(kinds) for folder, check in kind.folders(root).items()}
        closing = [kind for kind in kinds if kind.rank < TorchFiles.rank]
        for kind in reversed(closing):
            checks.update(kind.folders(root))
        for folder in root.folders:
            if root.is_closed(folder) and StepFrom().of_name(folder) is not None:
                # It is reported with the reason; other closed directories, such as lost+found, are ignored.
                checks[folder] = check_all
            elif folder not in others and any(is_near(path, endings()) for path in root.inside(folder)):
                others[folder] = _weights_somewhere
        return (
            [Candidate.entry(*pair) for pair in checks.items()],
            [Candidate.entry(folder, check) for folder, check in others.items() if folder not in checks],
        )

    def _files(self, root: Root) -> Iterable[Candidate]:
        paths: set[str] = set()
        for candidate in chain.from_iterable(kind.files(root) for kind in load_formats()):
            if paths.isdisjoint(candidate.paths):
                paths.update(candidate.paths)
                yield candidate


def _weights_somewhere(root: Place, listed: Listing) -> Verdict:
    return worst([check_parts(root, listed), Verdict.settling("it is unknown which files belong to it")])
