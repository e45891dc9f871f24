"""What a supervisor tells its worker processes, and which GPUs each of them sees."""

import functools
import json
import logging
import math
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Final, Literal, TypeAlias, final

from phyla import settings, study_modules
from phyla.errors import ConfigurationError
from phyla.machine import ANY_GPUS
from phyla.records import JsonObject

LOG = logging.getLogger("phyla")
AUTO: Final = "auto"
VISIBLE = "CUDA_VISIBLE_DEVICES"

Gpus: TypeAlias = float | Literal["auto"]
"""GPUs of each worker: `auto` for one, or as many as there are to share; see `gpu_environments`."""

PERSON = "interrupted by a person"
GRACE_S = 30.0
"""Seconds that a run which a signal stops waits for training and eval tasks that do not notice."""
STOP_AHEAD_S = 60.0
"""How long before the end of its time, at most, a run asks its workers to save and stop."""

BEATS = struct.Struct("<qqd")
"""What a worker writes where its supervisor can see it: signs of progress, work it handed in, and the time in
seconds since the epoch when its running eval task takes too long, 0 for never."""
LAST_WORDS = slice(BEATS.size + 1, 4096)
"""Where it writes, behind its orders, why phyla failed in it: its log may be out of reach then."""


@final
class Exit(IntEnum):
    """Exit statuses of workers, with none of which training code is likely to exit."""

    CANNOT_START = 113  # The training code cannot be loaded: trying again would not help.
    STORE_FAILED = 114  # The database was lost: the trial is not to blame.
    CHECKPOINTS_ABSENT = 115  # The directory of the checkpoints is gone: the trial is in the queue again.
    OUTDATED = 116  # Settings or suites of the study were changed; its work is handed in.
    NO_TIME = 117  # Nothing is expected to end in the time that is left.
    LEFT = 118  # Its work was done, and something that it had started kept it alive; its last line says what.
    SPOILED = 119  # phyla failed in a process that user code has changed; the reason is beside its beats.


@final
@dataclass(frozen=True, kw_only=True)
class Term:
    """When a run has to stop.

    Attributes:
        stop_signal: a signal that asks it to, besides SIGINT, SIGTERM and SIGHUP; None for no other.
        limit_s: seconds that it may last; None for no limit.
        grace_s: seconds that what runs has to stop after a signal, before it is ended.
        began_at: when it began, in seconds since the epoch.
    """

    stop_signal: int | None = None
    limit_s: float | None = None
    grace_s: float = GRACE_S
    began_at: float = field(default_factory=settings.system_clock)

    @property
    def ends_at(self) -> float:
        """When workers that are still running are ended, in seconds since the epoch."""
        return math.inf if self.limit_s is None else self.began_at + self.limit_s

    @property
    def stops_at(self) -> float:
        """When workers are asked to save and stop, in seconds since the epoch."""
        return self.ends_at if self.limit_s is None else self.ends_at - min(STOP_AHEAD_S, self.limit_s / 10)

    @property
    def deaf(self) -> str:
        """Say that something did not stop in time."""
        return (
            f"did not stop within {self.grace_s:g} s, and was ended; what it did since its last save is repeated. "
            "Look at trial.should_stop, or raise grace_s (--grace) if saving takes longer"
        )

    def over(self, *, wholly: bool) -> str:
        """Say that the time is over, or that too little of it is left."""
        how = "is over" if wholly else "leaves too little time for more work"
        return f"the time limit of {0 if self.limit_s is None else self.limit_s:g} s {how}"

    @property
    def signals(self) -> tuple[int, ...]:
        """The signals that ask it to stop."""
        more = [] if self.stop_signal is None else [self.stop_signal]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup makes it
            more.append(signal.SIGHUP)
        return (signal.SIGINT, signal.SIGTERM, *more)


@final
@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """One worker process of one study with a population, or of watched studies.

    A worker imports what this names, and nothing that the database names. So all of it comes from the files that
    the user gave to the supervisor.

    Attributes:
        configs: the configuration of each study by its name, as its file has it; of watched ones only the suites.
        outputs: directory of arrays and files that evaluations of a population save.
        kinds: what to ask for: train, evaluate, or both.
        yields: whether `trial.report()` runs an eval task that waits.
        environment: variables that training code gets; `{member}` in them stands for the trial's member.
        gpus: least and greatest number of GPUs that an eval task may ask for.
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
    files: Mapping[str, str] = field(default_factory=study_modules.known)
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


def gpu_environments(
    workers: int, gpus_per_worker: Gpus, gpus: Sequence[str] | None = None
) -> list[dict[str, str]]:
    """Return one environment per worker, with `CUDA_VISIBLE_DEVICES` set if GPUs are wanted.

    Args:
        workers: how many there are.
        gpus_per_worker: `auto` gives one each, and shares evenly, with a warning, where there are fewer GPUs than
            workers; a whole number gives that many each; a fraction lets workers share: 0.5, 0.25, ...
        gpus: which GPUs there are; None for all visible ones.

    Raises:
        ConfigurationError: there are too few GPUs for that, or the number makes no sense.
    """
    if gpus_per_worker == 0:
        return [{} if gpus is None else _seeing(gpus) for _ in range(workers)]
    if gpus_per_worker == AUTO:
        return _one_each(workers, visible_gpus() if gpus is None else gpus)
    number = isinstance(gpus_per_worker, (int, float)) and not isinstance(gpus_per_worker, bool)
    given = float(gpus_per_worker) if number else -1.0
    whole = given.is_integer()
    share = 1 if whole else round(1 / given) if 0 < given < 1 else 0
    if given < 0 or not share or (not whole and abs(share * given - 1) > 1e-9):
        raise ConfigurationError(
            f"gpus_per_worker={gpus_per_worker!r}: use 'auto', a whole number, or a fraction 1/n such as 0.5"
        )
    found = visible_gpus() if gpus is None else gpus
    each = int(given) if whole else 1
    needed = -(-workers // share) * each
    if needed > len(found):
        raise ConfigurationError(
            f"{workers} workers with gpus_per_worker={given:g} need {needed} GPUs, but {len(found)} "
            f"are visible ({', '.join(found) or 'none'}); use fewer workers or a fraction such as 0.5"
        )
    firsts = [index // share * each for index in range(workers)]
    return [_seeing(found[first : first + each]) for first in firsts]


def _one_each(workers: int, gpus: Sequence[str]) -> list[dict[str, str]]:
    if not gpus:
        return [{} for _ in range(workers)]
    if workers > len(gpus):
        share = -(-workers // len(gpus))
        LOG.warning(
            "%d workers share %d GPU%s (%s), up to %d on each. For one each, start %d (workers=%d, --workers %d); "
            "if sharing is meant, say so with gpus_per_worker=%.3g (--gpus-per-worker %.3g)",
            *(workers, len(gpus), "" if len(gpus) == 1 else "s", ", ".join(gpus), share),
            *(len(gpus), len(gpus), len(gpus), 1 / share, 1 / share),
        )
    return [_seeing([gpus[index % len(gpus)]]) for index in range(workers)]


def seen_gpus(environment: Mapping[str, str], pool: Sequence[str]) -> list[str]:
    """Return the GPUs that a worker with this environment sees, where there are those of the pool."""
    named = environment.get(VISIBLE)
    return list(pool) if named is None else [gpu for gpu in named.split(",") if gpu]


def _seeing(gpus: Sequence[str]) -> dict[str, str]:
    return {VISIBLE: ",".join(gpus)}


def visible_gpus() -> list[str]:
    """Return the GPUs that the environment names, else those that `nvidia-smi` lists."""
    named, command = settings.visible_gpus(), shutil.which("nvidia-smi")
    if named is not None or command is None:
        return named or []
    return _listed(command)


@functools.cache
def _listed(command: str) -> list[str]:
    """Return the GPUs that `nvidia-smi` lists, which takes it a second; none where it hangs."""
    try:
        listed = subprocess.run([command, "-L"], capture_output=True, text=True, check=False, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        LOG.warning("no GPUs are used: %s; name them with CUDA_VISIBLE_DEVICES", error)
        return []
    return [str(index) for index, line in enumerate(listed.splitlines()) if line.startswith("GPU ")]
