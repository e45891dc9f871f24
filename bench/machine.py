"""Facts about the machine, to be stored beside every measurement."""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path


def facts(where: Path | None = None) -> dict[str, str | int | bool]:
    """Return what a reader needs to judge a number.

    Args:
        where: a directory on the file system that was measured; the working directory unless named.
    """
    return {
        "cpu": _cpu(),
        "cpu_count": os.cpu_count() or 0,
        "file_system": _file_system((where or Path.cwd()).resolve()),
        "gpus": _gpus(),
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "python_optimised": "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""),
        "platform": sys.platform,
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _gpus() -> str:
    command = shutil.which("nvidia-smi")
    if command is None:
        return "none"
    named = [command, "--query-gpu=name", "--format=csv,noheader"]
    return ", ".join(subprocess.run(named, capture_output=True, text=True, check=False).stdout.split("\n")[:-1])


def _file_system(path: Path) -> str:
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown"
    best, kind = Path("/"), "unknown"
    for line in mounts.read_text().splitlines():
        _, point, this_kind, *_ = line.split()
        if path.is_relative_to(point) and len(Path(point).parts) >= len(best.parts):
            best, kind = Path(point), this_kind
    return kind
