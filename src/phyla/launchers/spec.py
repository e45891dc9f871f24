"""What a worker process needs to know."""

import json
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import final

from phyla.records import JsonObject

BEATS = struct.Struct("<qqd")
"""What a worker writes where its supervisor can see it: signs of progress, work it handed in, and the time in
seconds since the epoch when its running eval task takes too long, 0 for never."""

EXIT_CANNOT_START = 113
"""Exit status of a worker whose training code cannot be loaded: trying again would not help.

No status with which training code is likely to exit.
"""

EXIT_STORE_FAILED = 114
"""Exit status of a worker that lost the database: its trial is not to blame."""

EXIT_CHECKPOINTS_ABSENT = 115
"""Exit status of a worker that does not find the directory of the checkpoints: its trial is in the queue again."""

EXIT_OUTDATED = 116
"""Exit status of a worker that handed in its work because settings or suites of the study were changed."""


def _python_path() -> tuple[str, ...]:
    return tuple(entry or str(Path.cwd()) for entry in sys.path)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One worker process of one study with a population, or of watched studies.

    A worker imports what this names, and nothing that the database names. So all of it comes from the files that
    the user gave to the supervisor.

    Attributes:
        configs: the configuration of each study by its name, as its file has it; of watched ones only the suites.
        watched: whether the studies are watched, so that nothing is trained.
        storage: URL of the store.
        work_root: directory for working directories.
        checkpoints: directory of a population's checkpoints.
        outputs: directory of arrays and files that evaluations of a population save.
        index: 0 .. workers - 1.
        kinds: what to ask for: train, evaluate, or both.
        yields: whether `trial.report()` runs an eval task that waits.
        gin_bindings: gin bindings of this worker.
        python_path: entries for `sys.path`; by default those of the supervisor.
        name: of the worker; this and the rest are given when its process is started.
        log: where full tracebacks go; empty for nowhere.
        beat_file: where the worker counts its progress, as `BEATS`.
    """

    configs: Mapping[str, JsonObject]
    watched: bool = False
    storage: str
    work_root: str
    checkpoints: str = ""
    outputs: str = ""
    index: int
    kinds: tuple[str, ...]
    yields: bool = False
    gin_bindings: tuple[str, ...] = ()
    python_path: tuple[str, ...] = field(default_factory=_python_path)
    name: str = ""
    log: str = ""
    beat_file: str = ""

    @property
    def study(self) -> str:
        """Name of the study, or of the first one."""
        return next(iter(self.configs))

    def to_json(self) -> str:
        """Write it as one line of JSON."""
        return json.dumps({each.name: getattr(self, each.name) for each in fields(self)})

    @staticmethod
    def from_json(text: str) -> "WorkerSpec":
        """Read what `to_json` wrote."""
        raw = json.loads(text)
        tuples = {name: tuple(raw[name]) for name in ("python_path", "kinds", "gin_bindings")}
        return WorkerSpec(**{**raw, **tuples})
