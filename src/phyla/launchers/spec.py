"""What a worker process needs to know."""

import json
import struct
from dataclasses import asdict, dataclass
from typing import final

BEATS = struct.Struct("<qq")
"""What a worker writes where its supervisor can see it: signs of progress, and trials it handed in."""

EXIT_CANNOT_START = 3
"""Exit status of a worker whose training code cannot be loaded: trying again would not help."""


EXIT_STORE_FAILED = 4
"""Exit status of a worker that lost the database: its trial is not to blame."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One worker process of one study.

    Attributes:
        study: name of the study.
        storage: URL of its store.
        checkpoints: directory of its checkpoints.
        work_root: directory for working directories.
        train: reference of the training function.
        setup: reference of the setup function, or None.
        index: 0 .. workers - 1.
        beat_file: where the worker counts its progress, as `BEATS`.
        python_path: entries for `sys.path`.
    """

    study: str
    storage: str
    checkpoints: str
    work_root: str
    train: str
    setup: str | None
    index: int
    beat_file: str
    python_path: tuple[str, ...]

    def to_json(self) -> str:
        """Write it as one line of JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "WorkerSpec":
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        return WorkerSpec(**{**fields, "python_path": tuple(fields["python_path"])})
