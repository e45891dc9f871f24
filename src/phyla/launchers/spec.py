"""What a worker process needs to know."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import final

from phyla.records import Json, JsonObject

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


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One worker process of one study, or of runs that are watched.

    A worker imports what this names, and nothing that the database names. So all of it comes from the files that
    the user gave to the supervisor.

    Attributes:
        study: name of the study; empty where `runs` are given.
        runs: names of the runs that are watched; none for a study's own workers.
        storage: URL of its store.
        checkpoints: directory of its checkpoints.
        work_root: directory for working directories.
        train: reference of the training function; None where nothing is trained.
        setup: reference of the setup function, or None.
        index: 0 .. workers - 1.
        beat_file: where the worker counts its progress, as `BEATS`.
        python_path: entries for `sys.path`.
        name: of the worker; given when its process is started.
        outputs: directory of arrays and files that evaluations save.
        kinds: what to ask for: train, evaluate, or both.
        yields: whether `trial.report()` runs an eval task that waits.
        gin_bindings: gin bindings of this worker.
        log: where full tracebacks go; empty for nowhere.
        config: the study's configuration, as its study file has it; empty where `runs` are given.
        suites: the suites of each run, as its suite file has them.
    """

    study: str
    storage: str
    checkpoints: str
    work_root: str
    train: str | None
    setup: str | None
    index: int
    beat_file: str
    python_path: tuple[str, ...]
    name: str = ""
    runs: tuple[str, ...] = ()
    outputs: str = ""
    kinds: tuple[str, ...] = ("train",)
    yields: bool = False
    gin_bindings: tuple[str, ...] = ()
    log: str = ""
    config: JsonObject = field(default_factory=dict)
    suites: Mapping[str, Sequence[Json]] = field(default_factory=dict)

    def to_json(self) -> str:
        """Write it as one line of JSON."""
        return json.dumps({each.name: getattr(self, each.name) for each in fields(self)})

    @staticmethod
    def from_json(text: str) -> "WorkerSpec":
        """Read what `to_json` wrote."""
        raw = json.loads(text)
        tuples = {name: tuple(raw[name]) for name in ("python_path", "runs", "kinds", "gin_bindings")}
        return WorkerSpec(**{**raw, **tuples})
