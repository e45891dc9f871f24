"""Which GPUs each local worker sees."""

import shutil
import subprocess
from collections.abc import Sequence

from phyla import settings
from phyla.errors import ConfigurationError


def gpu_environments(
    workers: int, gpus_per_worker: float, visible: Sequence[str] | None = None
) -> list[dict[str, str]]:
    """Return one environment per worker, with `CUDA_VISIBLE_DEVICES` set if GPUs are wanted.

    Args:
        workers: number of workers.
        gpus_per_worker: a whole number, or a fraction that lets workers share: 0.5, 0.25, ...
        visible: names of the GPUs; by default those of the environment, else those `nvidia-smi` lists.
    """
    if gpus_per_worker == 0:
        return [{} for _ in range(workers)]
    whole = float(gpus_per_worker).is_integer()
    share = 1 if whole else round(1 / gpus_per_worker) if 0 < gpus_per_worker < 1 else 0
    if gpus_per_worker < 0 or not share or (not whole and abs(share * gpus_per_worker - 1) > 1e-9):
        raise ConfigurationError(
            f"gpus_per_worker={gpus_per_worker!r}: use a whole number, or a fraction 1/n such as 0.5"
        )
    gpus = list(visible) if visible is not None else visible_gpus()
    needed = workers * int(gpus_per_worker) if whole else -(-workers // share)
    if needed > len(gpus):
        raise ConfigurationError(
            f"{workers} workers with gpus_per_worker={gpus_per_worker:g} need {needed} GPUs, but {len(gpus)} "
            f"are visible ({', '.join(gpus) or 'none'}); use fewer workers or a fraction such as 0.5"
        )
    if not whole:
        return [{"CUDA_VISIBLE_DEVICES": gpus[index // share]} for index in range(workers)]
    each = int(gpus_per_worker)
    return [
        {"CUDA_VISIBLE_DEVICES": ",".join(gpus[index * each : (index + 1) * each])} for index in range(workers)
    ]


def visible_gpus() -> list[str]:
    """Return the GPUs that the environment names, else those that `nvidia-smi` lists."""
    named, command = settings.visible_gpus(), shutil.which("nvidia-smi")
    if named is not None or command is None:
        return named or []
    listed = subprocess.run([command, "-L"], capture_output=True, text=True, check=False).stdout
    return [str(index) for index, line in enumerate(listed.splitlines()) if line.startswith("GPU ")]
