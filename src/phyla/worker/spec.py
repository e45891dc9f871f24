"""Messages between a supervisor and its worker processes."""

import json
import math
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import final

from phyla import study_modules
from phyla.machine import ANY_GPUS
from phyla.records import JsonObject

BEATS = struct.Struct("<qqd")
"""A worker's record for its supervisor: counts of progress and of submitted jobs, and the time in seconds since
the epoch when its running eval task takes too long, 0 for never."""
LAST_WORDS = slice(BEATS.size + 1, 4096)
"""Place, after its orders, for the reason why phyla failed: its log may be unreachable then."""


@final
class Exit(IntEnum):
    """Exit statuses of workers, chosen to be unlikely in training code."""

    CANNOT_START = 113  # The user's code cannot be loaded: a retry helps only once its files are repaired.
    STORE_FAILED = 114  # The database was lost: the trial is not to blame.
    CHECKPOINTS_ABSENT = 115  # The directory of the checkpoints is gone: the trial is in the queue again.
    OUTDATED = 116  # Settings or suites of the study were changed; its work is submitted.
    NO_TIME = 117  # No job is expected to end in the remaining time.
    LEFT = 118  # Its work was done, but threads or processes of user code kept it alive; its last line names them.
    SPOILED = 119  # phyla failed in a process that user code has changed; the reason is beside its beats.


@final
@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """One worker process of one study with a population, or of watched studies.

    A worker imports only names from here, never from the database: they all come from the user's files.

    Attributes:
        configs: the configuration of each study by its name, as its file has it; of watched ones only the suites.
        outputs: directory of arrays and files that evaluations of a population save.
        kinds: kinds of work: train, evaluate, or both.
        yields: whether `trial.report()` runs an eval task that waits.
        environment: variables that training code gets; `{member}` in them stands for the trial's member.
        gpus: minimum and maximum number of GPUs that an eval task may request.
        stops_at: when it has to stop, in seconds since the epoch, and how long its run may last: `run_s`.
        argv: the command line that the study file sees.
        files: the study files of the supervisor, by module name.
        name: of the worker; this, `log` and `beat_file` are given when its process is started.
        beat_file: where the worker counts its progress, as `BEATS`; then one byte that tells it to end, see
            `phyla.worker.Closing`; then `LAST_WORDS`.
    """

    configs: Mapping[str, JsonObject]
    watched: bool = False
    storage: str
    work_root: str
    checkpoints: str = ""
    outputs: str = ""
    index: int = 0
    kinds: Sequence[str]
    yields: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: Sequence[int] = ANY_GPUS
    labels: Sequence[str] = ()
    stop_signal: int | None = None
    stops_at: float | None = None
    run_s: float = math.inf
    save_every_s: float | None = None
    argv: Sequence[str] = field(default_factory=lambda: list(sys.argv))
    files: Mapping[str, str] = field(default_factory=study_modules.list_files)
    python_path: Sequence[str] = field(default_factory=lambda: [entry or str(Path.cwd()) for entry in sys.path])
    name: str = ""
    log: str = ""
    beat_file: str = ""

    def to_json(self) -> str:
        """Write it as one line of JSON."""
        return json.dumps(vars(self))

    @staticmethod
    def from_json(text: str) -> "WorkerSpec":
        """Read what `to_json` wrote."""
        return WorkerSpec(**json.loads(text))
