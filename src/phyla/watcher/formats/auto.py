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
from phyla.watcher.formats.step_source import StepFrom
from phyla.watcher.listing import Listing, Place, Root


@final
@dataclass(frozen=True, kw_only=True)
class Auto(CheckpointFormat):
    """Everything that other formats recognize, and files of weights: `endings` are those without a format.

    What a directory holds decides. One named `checkpoint-N` waits for its `trainer_state.json`; if none comes
    in the quiet period and nothing else in it is the Trainer's, it is judged by its weights alone. Other
    directories with weights directly in them, or in `mp_rank_*`, are ready when none is cut off and they are
    quiet. Everything else (logs, configuration, directories of runs) is no checkpoint.
    """

    name: ClassVar[str] = "auto"
    awaits: ClassVar[str] = "what PyTorch, safetensors, the Trainer of transformers or Orbax write"
    endings: ClassVar[tuple[str, ...]] = (
        *(".npz", ".npy", ".msgpack", ".h5", ".hdf5", ".keras"),
        *(".pkl", ".pickle", ".gguf", ".eqx", ".onnx"),
    )
    rank: ClassVar[int] = 3

    def candidates(self, root: Root) -> Iterable[Candidate]:
        layouts = Layouts(root)
        return [layouts.wrap(candidate) for candidate in self._entries(root)]

    def _entries(self, root: Root) -> Iterable[Candidate]:
        kinds = load_formats()
        checks: dict[str, Check] = {}
        for kind in reversed(kinds):
            checks.update(kind.folders(root))
        endings = tuple(ending for kind in kinds for ending in kind.endings)
        for folder in root.folders:
            if root.is_closed(folder) and StepFrom().of_name(folder) is not None:
                # It is reported with the reason; other closed directories, such as lost+found, are ignored.
                yield Candidate.entry(folder, check_all)
            elif folder in checks:
                yield Candidate.entry(folder, checks[folder])
            elif any(is_near(path, endings) for path in root.inside(folder)):
                yield Candidate.entry(folder, _weights_somewhere)
        paths: set[str] = set()
        for candidate in chain.from_iterable(kind.files(root) for kind in kinds):
            if paths.isdisjoint(candidate.paths):
                paths.update(candidate.paths)
                yield candidate


def _weights_somewhere(root: Place, listed: Listing) -> Verdict:
    return worst([check_parts(root, listed), Verdict.settling("it is unknown which files belong to it")])
