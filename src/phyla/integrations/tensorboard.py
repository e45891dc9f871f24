"""What was measured as TensorBoard's event files, rebuilt as a whole each time.

TensorBoard drops points whose step is lower than one that it has read before. So that points may come late, or be
corrected, all are written again, by step, into a new directory that takes the place of the old one.
"""

import re
import tempfile
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from phyla.errors import UsageError
from phyla.evaluation import Point, PointKind
from phyla.integrations.trackers.tensorboard import (
    SUFFIX,
    VERSION,
    check_installed,
    folder_name,
    summary,
    write_event,
)

if TYPE_CHECKING:
    from phyla.integrations.trackers import Value


def write_tensorboard(points: Iterable[Point], run: str, directory: Path, *, now: float) -> int:
    """Write points as event files, one TensorBoard run for each series; return how many points there are.

    Repeated evaluations are left out. Where several checkpoints of a series have the same step, the newest that
    has a value counts. Checkpoints whose step is not known are placed by their number.

    Args:
        points: ordered as `Evaluations.points` yields them.
        run: name of the run.
        directory: TensorBoard's log directory; what it holds of this run is replaced, and nothing else.
        now: seconds since the epoch; names the files.

    Raises:
        ImportError: tensorboardX is not installed; `pip install "phyla[tensorboard]"`.
        UsageError: the directory cannot be written, or holds files of that name that are not ours.
    """
    return replace_tensorboard(run, directory, lambda folder: _write(points, folder_name(run), folder, now))


def replace_tensorboard(run: str, directory: Path, write: Callable[[Path], int]) -> int:
    """Let a function write a run's event files into an empty log directory; they replace those of the run.

    Returns what the function returns, how many points there are. It raises what `write_tensorboard` raises.
    """
    # Tells what to install before anything is made.
    check_installed()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        old = _ours(directory, folder_name(run))
        with tempfile.TemporaryDirectory(prefix=".phyla-", dir=directory) as folder:
            staged = Path(folder)
            count = write(staged / "new")
            (staged / "old").mkdir()
            for path in old:
                path.rename(staged / "old" / path.name)
            for path in sorted((staged / "new").iterdir()) if count else ():
                path.rename(directory / path.name)
    except OSError as error:
        raise UsageError(f"cannot write {directory}: {error.strerror or error}") from error
    return count


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


def _ours(directory: Path, base: str) -> list[Path]:
    """Return what an earlier export left of a run; refuse anything else that is in it."""
    mine = re.compile(re.escape(base) + r"(@(branch|model)\d+)*")
    found = [path for path in directory.iterdir() if mine.fullmatch(path.name)]
    for path in found:
        inside = [path] if not path.is_dir() else [file for file in path.rglob("*") if not file.is_dir()]
        for file in inside:
            if not file.name.endswith(SUFFIX):
                raise UsageError(f"{file} was not written by this export; choose another directory")
    return found


def _write(points: Iterable[Point], base: str, folder: Path, now: float) -> int:
    """Write every series into a folder of its own; return how many points there are."""
    from tensorboardX import RecordWriter

    first = (point for point in points if point.replicate == 0)
    count = 0
    drafts: list[Path] = []
    for name, its in groupby(first, key=lambda point: series(base, point)):
        target = folder / name
        target.mkdir(parents=True)
        # Not under its final name: a TensorBoard that looks meanwhile must not take it for a run.
        drafts.append(target / "draft")
        writer = RecordWriter(str(drafts[-1]))
        try:
            write_event(writer, wall_time=now, file_version=VERSION)
            for step, at in groupby(its, key=lambda point: point.step if point.step >= 0 else point.number):
                # Of points with the same tag the last one counts.
                newest = {(tag(point), point.kind is PointKind.HISTOGRAM): point for point in at}
                written_at = max(point.written_at for point in newest.values())
                made = summary(map(named, newest.values()))
                write_event(writer, step=step, wall_time=written_at, summary=made)
                count += len(newest)
            writer.flush()
        finally:
            writer.close()
    for draft in drafts:
        draft.rename(draft.with_name(f"events.out.tfevents.{now:.6f}{SUFFIX}"))
    return count


def named(point: Point) -> "tuple[str, Value]":
    """Return the tag of a point, and its number or histogram."""
    if point.bins is not None:
        return f"{tag(point)}/histogram", point.bins
    assert point.value is not None
    return tag(point), point.value
