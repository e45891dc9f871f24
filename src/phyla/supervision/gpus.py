"""Assignment of GPUs to workers."""

import functools
import logging
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

from phyla import settings
from phyla.errors import ConfigurationError

LOG = logging.getLogger("phyla")
AUTO: Final = "auto"
VISIBLE = "CUDA_VISIBLE_DEVICES"
Gpus: TypeAlias = float | Literal["auto"]
"""GPUs per worker: `auto` for one each, shared if there are too few; see `gpu_environments`."""


def gpu_environments(
    workers: int, gpus_per_worker: Gpus, gpus: Sequence[str] | None = None
) -> list[dict[str, str]]:
    """Return an environment per worker, with `CUDA_VISIBLE_DEVICES` set if it uses GPUs.

    Args:
        workers: the number of workers.
        gpus_per_worker: `auto` assigns one each, or shares evenly, with a warning, if there are fewer GPUs than
            workers; a whole number assigns that many each; with a fraction workers share: 0.5, 0.25, ...
        gpus: the available GPUs; None for all visible ones.

    Raises:
        ConfigurationError: there are too few GPUs, or the number is invalid.
    """
    if gpus_per_worker == 0:
        return [{} if gpus is None else _seeing(gpus) for _ in range(workers)]
    if gpus_per_worker == AUTO:
        return _one_each(workers, visible_gpus() if gpus is None else gpus)
    is_number = isinstance(gpus_per_worker, (int, float)) and not isinstance(gpus_per_worker, bool)
    number = float(gpus_per_worker) if is_number else -1.0
    whole = number.is_integer()
    share = 1 if whole else round(1 / number) if 0 < number < 1 else 0
    if number < 0 or not share or (not whole and abs(share * number - 1) > 1e-9):
        raise ConfigurationError(
            f"gpus_per_worker={gpus_per_worker!r}: use 'auto', a whole number, or a fraction 1/n such as 0.5"
        )
    available = visible_gpus() if gpus is None else gpus
    per_worker = int(number) if whole else 1
    needed = -(-workers // share) * per_worker
    if needed > len(available):
        raise ConfigurationError(
            f"{workers} workers with gpus_per_worker={number:g} need {needed} GPUs, but {len(available)} "
            f"are visible ({', '.join(available) or 'none'}); use fewer workers or a fraction such as 0.5"
        )
    starts = [index // share * per_worker for index in range(workers)]
    return [_seeing(available[first : first + per_worker]) for first in starts]


def _one_each(workers: int, gpus: Sequence[str]) -> list[dict[str, str]]:
    if not gpus:
        return [{} for _ in range(workers)]
    if workers > len(gpus):
        share = -(-workers // len(gpus))
        LOG.warning(
            "%d workers share %d GPU%s (%s), up to %d on each. For one each, start %d (workers=%d, --workers %d); "
            "to share without this warning, set gpus_per_worker=%.3g (--gpus-per-worker %.3g)",
            *(workers, len(gpus), "" if len(gpus) == 1 else "s", ", ".join(gpus), share),
            *(len(gpus), len(gpus), len(gpus), 1 / share, 1 / share),
        )
    return [_seeing([gpus[index % len(gpus)]]) for index in range(workers)]


def seen_gpus(environment: Mapping[str, str], pool: Sequence[str]) -> list[str]:
    """Return the GPUs of the pool that a worker with this environment sees."""
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
    """Return the GPUs that `nvidia-smi` lists, which takes a second; none if it hangs."""
    try:
        listed = subprocess.run([command, "-L"], capture_output=True, text=True, check=False, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        LOG.warning("no GPUs are used: %s; name them with CUDA_VISIBLE_DEVICES", error)
        return []
    return [str(index) for index, line in enumerate(listed.splitlines()) if line.startswith("GPU ")]
