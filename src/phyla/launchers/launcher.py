"""What a launcher is, which one is used, what it tells a worker process, and which GPUs that process sees."""

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, final

from phyla import plugins, settings
from phyla.client import Client
from phyla.errors import ConfigurationError
from phyla.records import JsonObject
from phyla.worker import Launch

GROUP = "phyla.launchers"

BEATS = struct.Struct("<qqd")
"""What a worker writes where its supervisor can see it: signs of progress, work it handed in, and the time in
seconds since the epoch when its running eval task takes too long, 0 for never."""

# Exit statuses of workers, with none of which training code is likely to exit.
EXIT_CANNOT_START = 113  # The training code cannot be loaded: trying again would not help.
EXIT_STORE_FAILED = 114  # The database was lost: the trial is not to blame.
EXIT_CHECKPOINTS_ABSENT = 115  # The directory of the checkpoints is gone: the trial is in the queue again.
EXIT_OUTDATED = 116  # Settings or suites of the study were changed; its work is handed in.


@final
@dataclass(frozen=True, kw_only=True)
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
        environment: variables that training code gets; `{member}` in them stands for the trial's member.
        python_path: entries for `sys.path`; by default those of the supervisor.
        name: of the worker; this, `log` and `beat_file` are given when its process is started.
        beat_file: where the worker counts its progress, as `BEATS`.
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
    gin_bindings: Sequence[str] = ()
    python_path: Sequence[str] = field(default_factory=lambda: [entry or str(Path.cwd()) for entry in sys.path])
    name: str = ""
    log: str = ""
    beat_file: str = ""

    @property
    def study(self) -> str:
        """Name of the study, or of the first one."""
        return next(iter(self.configs))

    def to_json(self) -> str:
        """Write it as one line of JSON."""
        return json.dumps(vars(self))

    @staticmethod
    def from_json(text: str) -> "WorkerSpec":
        """Read what `to_json` wrote."""
        return WorkerSpec(**json.loads(text))


class Launcher(Protocol):
    """Starts worker processes, wherever that is, and keeps them going until their work ends.

    It is named under the entry point group `phyla.launchers`. A worker is `python -m phyla.launchers.process`
    with its spec on standard input.

    Args:
        client: speaks with the studies.
        specs: one per worker.
        launch: names the workers; they inherit its lock.
        environments: extra environment variables, one mapping per worker.
        logs: directory for what the workers print.
        renew_s: how often leases are renewed.
        stall_timeout_s: seconds without a step, a report or a finished trial before a worker is ended, counted
            from its first request on; None never ends one.
        on_tick: called many times a second, for live displays.
        on_interrupt: called for each interrupt inside the signal handler, so it must be brief.
    """

    def __init__(
        self,
        client: Client,
        specs: Sequence[WorkerSpec],
        *,
        launch: Launch,
        environments: Sequence[Mapping[str, str]],
        logs: Path,
        renew_s: float,
        stall_timeout_s: float | None,
        on_tick: Callable[[], None] = ...,
        on_interrupt: Callable[[], None] = ...,
    ) -> None: ...

    def run(self) -> bool:
        """Work until the study ends; return False when a person interrupted it.

        Raises:
            StudyFailed: workers cannot start, or die again and again.
            CheckpointsAbsent: the directory of the checkpoints is gone.
            StudyChanged: settings or suites were changed, and workers cannot take them over.
            StoreError: the database failed.
        """
        ...


def get_launcher() -> type[Launcher]:
    """Return the launcher that `PHYLA_LAUNCHER` names, by default `local`."""
    name = settings.launcher()
    found = plugins.of_group(GROUP)
    if name not in found:
        raise ConfigurationError(
            f"PHYLA_LAUNCHER={name!r}: no such launcher is installed; choose one of: {', '.join(sorted(found))}"
        )
    kind: type[Launcher] = found[name].load()
    return kind


def gpu_environments(workers: int, gpus_per_worker: float) -> list[dict[str, str]]:
    """Return one environment per worker, with `CUDA_VISIBLE_DEVICES` set if GPUs are wanted.

    `gpus_per_worker` is a whole number, or a fraction that lets workers share: 0.5, 0.25, ...
    """
    if gpus_per_worker == 0:
        return [{} for _ in range(workers)]
    whole = float(gpus_per_worker).is_integer()
    share = 1 if whole else round(1 / gpus_per_worker) if 0 < gpus_per_worker < 1 else 0
    if gpus_per_worker < 0 or not share or (not whole and abs(share * gpus_per_worker - 1) > 1e-9):
        raise ConfigurationError(
            f"gpus_per_worker={gpus_per_worker!r}: use a whole number, or a fraction 1/n such as 0.5"
        )
    gpus = visible_gpus()
    each = int(gpus_per_worker) if whole else 1
    needed = -(-workers // share) * each
    if needed > len(gpus):
        raise ConfigurationError(
            f"{workers} workers with gpus_per_worker={gpus_per_worker:g} need {needed} GPUs, but {len(gpus)} "
            f"are visible ({', '.join(gpus) or 'none'}); use fewer workers or a fraction such as 0.5"
        )
    firsts = [index // share * each for index in range(workers)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(gpus[first : first + each])} for first in firsts]


def visible_gpus() -> list[str]:
    """Return the GPUs that the environment names, else those that `nvidia-smi` lists."""
    named, command = settings.visible_gpus(), shutil.which("nvidia-smi")
    if named is not None or command is None:
        return named or []
    listed = subprocess.run([command, "-L"], capture_output=True, text=True, check=False).stdout
    return [str(index) for index, line in enumerate(listed.splitlines()) if line.startswith("GPU ")]
