"""Evaluations as TensorBoard event files, rewritten as a whole each time.

TensorBoard drops points whose step is lower than one that it has read before. So that points may come late, or be
corrected, all are written again, by step, into a new directory that takes the place of the old one.
"""

import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

from phyla.errors import UsageError
from phyla.evaluation import Point
from phyla.integrations.trackers import check_writable
from phyla.integrations.trackers.tensorboard import SUFFIX, EventFiles, check_installed, folder_name


def write_tensorboard(points: Iterable[Point], run: str, directory: Path) -> int:
    """Write points as event files, one TensorBoard run for each series; return how many numbers there are.

    The standard error of `NAME` is `NAME_stderr`.

    Repeated evaluations are left out. Where several checkpoints of a series have the same step, the newest that
    has a value counts. Checkpoints whose step is not known are left out beside others, and else placed by their
    number.

    Args:
        points: ordered as `Evaluations.points` yields them.
        run: name of the run.
        directory: TensorBoard's log directory; what it holds of this run is replaced, and nothing else.

    Raises:
        ImportError: tensorboardX is not installed; `pip install "phyla[tensorboard]"`.
        UsageError: the directory cannot be written, or holds files of that name that are not ours.
    """
    with replacing(run, directory) as folder:
        return _write(points, folder_name(run), EventFiles(folder, draft=True))


@contextmanager
def replacing(run: str, directory: Path) -> Iterator[Path]:
    """Yield an empty log directory; the event files that are written to it replace those of a run.

    It raises what `write_tensorboard` raises.
    """
    old = ours(run, directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".phyla-", dir=directory) as folder:
            staged, former = Path(folder, "new"), Path(folder, "old")
            staged.mkdir()
            former.mkdir()
            yield staged
            for path in old:
                path.rename(former / path.name)
            for path in sorted(staged.iterdir()):
                path.rename(directory / path.name)
    except OSError as error:
        raise UsageError(f"cannot write {directory}: {error.strerror or error}") from error


def series(base: str, point: Point) -> str:
    """Return the TensorBoard run that a point belongs to."""
    name = f"{base}@branch{point.branch}" if point.branch else base
    if point.member is not None:
        return f"{name}/member{point.member}"
    return f"{name}@model{point.index}" if point.index else name


def tag(point: Point) -> str:
    """Return the name of a point in TensorBoard."""
    if point.task is not None:
        return f"{point.suite}/{point.task}/{point.name}"
    return f"{point.suite}/partial/{point.name}" if point.partial else f"{point.suite}/{point.name}"


def scalars(points: Iterable[Point], prefix: str = "") -> dict[str, float]:
    """Return values by tag, and standard errors, where they are known, as `TAG_stderr`."""
    values = {}
    for point in points:
        name = f"{prefix}{tag(point)}"
        values[name] = point.value
        if point.stderr is not None:
            values[f"{name}_stderr"] = point.stderr
    return values


def ours(run: str, directory: Path) -> list[Path]:
    """Return the files of an earlier export of a run; raises as `write_tensorboard` does, and writes nothing."""
    check_installed()
    check_writable(directory, "name another one")
    mine = re.compile(re.escape(folder_name(run)) + r"(@(branch|model)\d+)*")
    paths = [path for path in directory.glob("*") if mine.fullmatch(path.name)]
    for path in paths:
        inside = [path] if not path.is_dir() else [file for file in path.rglob("*") if not file.is_dir()]
        for file in inside:
            if not file.name.endswith(SUFFIX):
                raise UsageError(f"{file} was not written by this export; choose another directory")
    return paths


def _write(points: Iterable[Point], base: str, files: EventFiles) -> int:
    """Write every series; return how many numbers there are."""
    first = (point for point in points if point.replicate == 0)
    count = 0
    for name, group in groupby(first, key=lambda point: series(base, point)):
        placed = list(group)
        if any(point.step >= 0 for point in placed):
            placed = [point for point in placed if point.step >= 0]
        for step, at in groupby(placed, key=lambda point: point.step if point.step >= 0 else point.number):
            # Of points with the same tag the last one counts.
            newest = {tag(point): point for point in at}
            written_at = max(point.written_at for point in newest.values())
            values = scalars(newest.values())
            files.write(name, step, written_at, values.items())
            count += len(values)
        files.close()
    return count
