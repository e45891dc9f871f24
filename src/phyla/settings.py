"""The one place that reads the environment and the system's clock.

Every variable phyla looks at is listed here; the docs list the same (tested).

Attributes:
    PHYLA_HOME: default directory of studies (default `.phyla`).
    PHYLA_STORAGE: store URL instead of the SQLite file in the home; not looked at when a home was named.
    PHYLA_TOKEN: token for the service, where the store is one.
    PHYLA_TOKEN_FILE: file with that token.
    PHYLA_VERIFY_BYTES: size of the largest checkpoint whose digests are verified before it is used (default
        10**10); of larger ones only names and sizes are.
    PHYLA_CACHE: directory of this machine's copies of checkpoints that are on an object store (default `cache` in
        the home).
    PHYLA_CACHE_BYTES: how many bytes of such copies to keep (default 10**10); copies in use may exceed it.
    PHYLA_FAILPOINT: `name=action[:hit]`, where action is `kill`, `raise` or `exit`; for tests of
        durability only.
    PHYLA_RAY_BUNDLE: set by the launcher `ray` for trials on several machines: what each reserves besides GPUs, as
        JSON (default `{"CPU": 1}`).
    PHYLA_SAVE_EVERY_S: set while a trial is trained: seconds after which training is to save progress.
    PHYLA_STUDY_FILES: set in processes that work on studies: the files, for processes that training starts.
    PHYLA_WORKER: set by the supervisor in worker processes, which may not start workers themselves. What they
        start inherits it, and is ended with them.
"""

import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import TypeAlias

from phyla.errors import ConfigurationError

DEFAULT_HOME = ".phyla"

SAVE_EVERY = "PHYLA_SAVE_EVERY_S"
STUDY_FILES = "PHYLA_STUDY_FILES"
RAY_ADDRESS, RAY_BUNDLE = "RAY_ADDRESS", "PHYLA_RAY_BUNDLE"

DEFAULT_VERIFY_BYTES = 10**10
DEFAULT_CACHE_BYTES = 10**10

AWAKE_S = 2.0  # that count between two readings of `awake_clock`, at most
Clock: TypeAlias = Callable[[], float]
"""Tells seconds since the epoch (UTC): the system's time, or a virtual one in tests and simulations."""


def system_clock() -> float:
    """Return the system's time in seconds since the epoch (UTC)."""
    return time.time()


def awake_clock() -> Clock:
    """Return a clock for time limits that hardly counts suspended time of this process; read it often."""
    last, passed_s = time.monotonic(), 0.0

    def read() -> float:
        nonlocal last, passed_s
        now = time.monotonic()
        last, passed_s = now, passed_s + min(AWAKE_S, now - last)
        return passed_s

    return read


def home() -> Path:
    """Return the folder where studies live when no other was named."""
    return Path(os.environ.get("PHYLA_HOME") or DEFAULT_HOME)


def is_home_named() -> bool:
    """Return whether the environment names that folder."""
    return bool(os.environ.get("PHYLA_HOME"))


def storage() -> str | None:
    """Return the store URL from the environment, if there is one."""
    return os.environ.get("PHYLA_STORAGE") or None


def storage_name(url: str) -> str:
    """Return what a message calls a store URL: its variable, if it is the one in the environment."""
    return "PHYLA_STORAGE" if url == storage() else "storage"


def token() -> str | None:
    """Return the token for a service, from a variable or a file; None where neither is named.

    Raises:
        ConfigurationError: the file cannot be read, or what is given is no token.
    """
    file, value = os.environ.get("PHYLA_TOKEN_FILE"), os.environ.get("PHYLA_TOKEN", "").strip()
    if value or not file:
        return _token(value, "PHYLA_TOKEN") or None
    try:
        found = token_in(Path(file))
    except OSError as error:
        raise ConfigurationError(f"PHYLA_TOKEN_FILE={file}: cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"PHYLA_TOKEN_FILE={file}: is not text in UTF-8; save it as UTF-8") from error
    if not found:
        raise ConfigurationError(f"PHYLA_TOKEN_FILE={file}: is empty; write the token into it")
    return found


def has_token_in_variable() -> bool:
    """Return whether the token is in a variable, and so the same as long as this process runs."""
    return bool(os.environ.get("PHYLA_TOKEN", "").strip())


def token_in(file: Path) -> str:
    """Return the token that a file has.

    Raises:
        ConfigurationError: what it has is no token.
        OSError: it cannot be read.
        UnicodeDecodeError: it is not text.
    """
    return _token(file.read_text("utf-8-sig").strip(), str(file))


def _token(text: str, source: str) -> str:
    """Return a token that a header can have; the message does not show one that it cannot."""
    if not all("!" <= letter <= "~" for letter in text):
        raise ConfigurationError(
            f"{source}: a token is one word of ASCII characters; give it as phyla token create printed it"
        )
    return text


def verify_bytes() -> int:
    """Return the size of the largest checkpoint whose digests are verified before it is used.

    Raises:
        ConfigurationError: the environment says something else than a number of bytes.
    """
    return _bytes("PHYLA_VERIFY_BYTES", DEFAULT_VERIFY_BYTES)


def cache() -> Path | None:
    """Return the directory of copies of remote checkpoints that the environment names, if it does."""
    value = os.environ.get("PHYLA_CACHE")
    return Path(value).expanduser().absolute() if value else None


def cache_bytes() -> int:
    """Return how many bytes of copies of remote checkpoints are kept.

    Raises:
        ConfigurationError: the environment says something else than a number of bytes.
    """
    return _bytes("PHYLA_CACHE_BYTES", DEFAULT_CACHE_BYTES)


def _bytes(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    if not value:
        return default
    if not value.isdecimal():
        raise ConfigurationError(f"{name}={value!r}: must be a number of bytes, such as 10000000000")
    return int(value)


def failpoint() -> str | None:
    """Return the failpoint that the environment arms, if any."""
    return os.environ.get("PHYLA_FAILPOINT") or None


def open_closed_output() -> None:
    """Discard the output of a process that was started without the stream, as with `>&-`; Python has None then."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, io.TextIOWrapper(io.FileIO(os.devnull, "w"), encoding="utf-8"))


def prepare_output() -> None:
    """Make this process write each line at once, into files and pipes, too, and escape what is not valid text."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace", line_buffering=True)


THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def thread_environment(workers: int) -> dict[str, str]:
    """Return how many threads numerical libraries may use in each of `workers` processes of this machine.

    Left alone, each would use every core, and they would slow each other down. Variables that are already set stay
    unchanged.
    """
    if any(name in os.environ for name in THREADS):
        return {}
    return dict.fromkeys(THREADS, str(max(1, (os.cpu_count() or 1) // workers)))


def study_files() -> str | None:
    """Return the study files of the process that started this one, as `phyla.study_modules` writes them."""
    return os.environ.get(STUDY_FILES)


def set_study_files(files: str | None) -> None:
    """Pass the study files on to the processes that this one starts."""
    if files is None:
        os.environ.pop(STUDY_FILES, None)
    else:
        os.environ[STUDY_FILES] = files


def in_worker() -> bool:
    """Return whether this process was started as a worker."""
    return bool(os.environ.get("PHYLA_WORKER"))


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a child process: ours, with `extra` on top."""
    return {**os.environ, **extra}


@contextmanager
def environment(extra: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the block; processes started inside inherit them."""
    before = {name: os.environ.get(name) for name in extra}
    os.environ.update(extra)
    wandb = sys.modules.get("wandb.sdk.wandb_setup")
    session = None if wandb is None else wandb.singleton()
    if session is not None and session.settings_if_loaded is not None:
        # W&B reads the environment once a process, and warns where it has changed since.
        session.settings_if_loaded.update_from_env_vars(dict(extra))
        session._settings_environ = dict(os.environ)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


RECORDED = (
    *("CUDA_", "CUBLAS_", "JAX_", "MKL_", "NCCL_", "OMP_", "OPENBLAS_", "PHYLA_", "PYTHON", "PYTORCH_"),
    *("SLURM_", "TF_", "TORCH", "XLA_"),
)
"""Beginnings of the names of variables that are stored with a study."""
SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
"""Parts of the names of variables and options whose values are never stored."""


def recorded_environment() -> dict[str, str]:
    """Return the variables that are stored with a study, by name; never those whose names look like secrets."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(RECORDED) and not SECRET.search(name) and name != STUDY_FILES
    }


def columns() -> int | None:
    """Return the width of output in columns from the environment (`COLUMNS`); None if unset."""
    value = os.environ.get("COLUMNS", "")
    return int(value) if value.isdecimal() and int(value) > 0 else None


def mlflow_uri() -> str | None:
    """Return the tracking URI from MLflow's own variable, if set."""
    return os.environ.get("MLFLOW_TRACKING_URI") or None


OF_STEP = re.compile("SLURM_(?!CONF|JOB_(ID|NAME)|JOBID|CLUSTER|JWT|MPI_TYPE|SUBMIT|ARRAY|DEBUG)")
"""Names of Slurm's variables that describe a step or its place in a job, and that a step in it would inherit."""
OF_USER = re.compile("SQUEUE_|SCANCEL_|SRUN_CPUS_PER_TASK")
"""Names of variables that change which jobs Slurm's commands list and cancel, and the size of a step."""


def slurm_nodes() -> int | None:
    """Return how many nodes the job of Slurm has in which this process runs; None outside of a job."""
    nodes = os.environ.get("SLURM_JOB_NUM_NODES", "")
    return int(nodes) if os.environ.get("SLURM_JOB_ID") and nodes.isdecimal() else None


def slurm_step() -> list[str]:
    """Return the names of variables of Slurm that a further step of the job should not inherit."""
    return [name for name in os.environ if OF_STEP.match(name)]


def slurm_environment() -> dict[str, str]:
    """Return our environment for commands of Slurm, which take defaults of their options from it.

    It has no such defaults for commands that list and cancel jobs, and no variables of an allocation around this
    process. The user's defaults for new jobs remain, such as SBATCH_ACCOUNT.
    """
    return {name: value for name, value in os.environ.items() if not (OF_STEP.match(name) or OF_USER.match(name))}


def ray_address() -> str | None:
    """Return the address of a Ray cluster from Ray's own variable, if set."""
    return os.environ.get(RAY_ADDRESS) or None


def ray_bundle() -> dict[str, float]:
    """Return what a trial on several machines reserves on each node of Ray, besides GPUs."""
    bundle: dict[str, float] = json.loads(os.environ.get(RAY_BUNDLE) or '{"CPU": 1}')
    return bundle


NO_GPU = ("nodevfiles", "none", "void")


def visible_gpus() -> list[str] | None:
    """Return the GPUs named by `CUDA_VISIBLE_DEVICES`, or None when it is not set.

    As in CUDA, a negative number, or a name such as NoDevFiles that clusters set, hides itself and what follows.
    """
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    named = (part.strip() for part in value.split(",") if part.strip())
    return list(dict.fromkeys(takewhile(lambda gpu: gpu[0] != "-" and gpu.lower() not in NO_GPU, named)))
