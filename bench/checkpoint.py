"""What committing a checkpoint costs, next to writing and flushing the same bytes without phyla.

Run from the repository: `PYTHONPATH=src python bench/checkpoint.py`.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from machine import facts
from phyla.checkpoints import LocalCheckpoints

MIB = 2**20
SMALL_BYTES = 300
SMALL_FSYNCS = 4
"""Flushes of a small commit: the file, the manifest, the staged directory, the root."""


def write(path: Path, size_mib: int, block: bytes) -> None:
    with path.open("wb", buffering=0) as file:
        for _ in range(size_mib):
            file.write(block)


def flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def timed(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def large(folder: Path, size_mib: int, repeats: int) -> dict[str, object]:
    block = os.urandom(MIB)
    checkpoints = LocalCheckpoints(folder / "large")
    plain_file = folder / "plain.bin"
    plain_s: list[float] = []
    phyla_s: list[float] = []

    def plain() -> None:
        write(plain_file, size_mib, block)
        flush(plain_file)

    def with_phyla() -> None:
        staged = checkpoints.stage("1.1")
        write(staged / "weights.bin", size_mib, block)
        checkpoints.commit("1.1", step=1, now=0.0)

    def without_once() -> float:
        seconds = timed(plain)
        plain_file.unlink()
        return seconds

    def including_once() -> float:
        seconds = timed(with_phyla)
        checkpoints.delete("1.1")
        return seconds

    for round_index in range(repeats + 1):
        # Whoever comes first in a round pays for freeing what the one before it wrote: they take turns.
        if round_index % 2:
            without, including = without_once(), including_once()
        else:
            including, without = including_once(), without_once()
        if round_index:  # the first round pays for memory that the page cache never had before
            plain_s.append(without)
            phyla_s.append(including)
    return {
        "size_mib": size_mib,
        "plain_s": plain_s,
        "phyla_s": phyla_s,
        "ratio": median(one / other for one, other in zip(phyla_s, plain_s, strict=True)),
    }


def small(folder: Path, repeats: int) -> dict[str, object]:
    content = os.urandom(SMALL_BYTES)
    checkpoints = LocalCheckpoints(folder / "small")
    floor_dir = folder / "floor"
    floor_dir.mkdir()
    commit_s: list[float] = []
    floor_s: list[float] = []

    def floor(index: int) -> None:
        # The same for the disk, with as little Python as can be: a second file, a rename, four flushes.
        inner = floor_dir / f"{index}.tmp"
        flush(inner / "weights.bin")
        (inner / "manifest").write_bytes(content)
        flush(inner / "manifest")
        flush(inner)
        inner.rename(floor_dir / str(index))
        flush(floor_dir)

    for index in range(repeats):
        inner = floor_dir / f"{index}.tmp"
        inner.mkdir()
        (inner / "weights.bin").write_bytes(content)
        floor_s.append(timed(partial(floor, index)))
        name = f"{index}.1"
        (checkpoints.stage(name) / "weights.bin").write_bytes(content)
        commit_s.append(timed(partial(checkpoints.commit, name, step=1, now=0.0)))
    return {
        "size_bytes": SMALL_BYTES,
        "fsyncs": SMALL_FSYNCS,
        "commit_ms": 1000 * median(commit_s),
        "floor_ms": 1000 * median(floor_s),
        "above_floor_ms": 1000 * (median(commit_s) - median(floor_s)),
    }


def many(folder: Path, files: int, repeats: int) -> dict[str, object]:
    """Commit many small files: as phyla does, and flushed one after the other without phyla."""
    checkpoints = LocalCheckpoints(folder / "many")
    commit_s: list[float] = []
    in_turn_s: list[float] = []
    use_s: list[float] = []
    use_again_s: list[float] = []

    def save(where: Path) -> list[Path]:
        saved = [where / f"part-{index % 10}" / f"{index}.bin" for index in range(files)]
        for index in range(10):
            (where / f"part-{index}").mkdir(parents=True)
        for path in saved:
            path.write_bytes(os.urandom(SMALL_BYTES))
        return saved

    def in_turn(saved: list[Path]) -> None:
        for path in saved:
            flush(path)

    for index in range(repeats):
        plain = folder / f"plain-{index}"
        in_turn_s.append(timed(partial(in_turn, save(plain))))
        shutil.rmtree(plain)
        name = f"{index}.1"
        save(checkpoints.stage(name))
        commit_s.append(timed(partial(checkpoints.commit, name, step=1, now=0.0)))
        use_s.append(timed(partial(checkpoints.use, name)))
        use_again_s.append(timed(partial(checkpoints.use, name)))
        checkpoints.delete(name)
    return {
        "files": files,
        "commit_s": median(commit_s),
        "flushes_in_turn_s": median(in_turn_s),
        "first_use_s": median(use_s),
        "next_use_s": median(use_again_s),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--small-repeats", type=int, default=200)
    parser.add_argument("--files", type=int, default=10_000, help="small files in one checkpoint")
    parser.add_argument("--folder", type=Path, default=None, help="measure on this file system")
    parser.add_argument("--out", type=Path, default=Path("bench/results/checkpoint.json"))
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="phyla-bench-", dir=options.folder))
    try:
        machine = facts(folder)
        tiny = small(folder, options.small_repeats)
        lots = many(folder, options.files, options.repeats)
        big = large(folder, options.size_mib, options.repeats)
    finally:
        shutil.rmtree(folder)
    for title, numbers in (("machine", machine), ("small", tiny), ("many", lots), ("large", big)):
        print(title)
        for key, value in numbers.items():
            print(f"  {key:16} {value}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    found = {"machine": machine, "small": tiny, "many": lots, "large": big}
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
