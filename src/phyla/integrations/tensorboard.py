"""What was measured as TensorBoard's event files, rebuilt as a whole each time.

TensorBoard drops points whose step is lower than one that it has read before. So that points may come late, or be
corrected, all are written again, by step, into a new directory that takes the place of the old one.
"""

import re
import tempfile
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from phyla.errors import UsageError
from phyla.evaluation import Point, PointKind

if TYPE_CHECKING:
    from tensorboardX.proto.summary_pb2 import Summary

SUFFIX: Final = ".phyla"
"""End of the names of the files that we write: nothing else is ever replaced."""

VERSION: Final = "brain.Event:2"


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
    try:
        import tensorboardX  # noqa: F401  # tells what to install before anything is made
    except ImportError as error:
        raise ImportError('TensorBoard files need tensorboardX: pip install "phyla[tensorboard]"') from error
    base = re.sub(r"[^\w.@-]", "_", run)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        old = _ours(directory, base)
        with tempfile.TemporaryDirectory(prefix=".phyla-", dir=directory) as folder:
            staged = Path(folder)
            count = _write(points, base, staged / "new", now)
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
    from tensorboardX.proto.event_pb2 import Event

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
            writer.write(Event(wall_time=now, file_version=VERSION).SerializeToString())
            for step, at in groupby(its, key=lambda point: point.step if point.step >= 0 else point.number):
                # Of points with the same tag the last one counts.
                newest = {(tag(point), point.kind is PointKind.HISTOGRAM): point for point in at}
                written_at = max(point.written_at for point in newest.values())
                summary = _summary(newest.values())
                writer.write(Event(step=step, wall_time=written_at, summary=summary).SerializeToString())
                count += len(newest)
            writer.flush()
        finally:
            writer.close()
    for draft in drafts:
        draft.rename(draft.with_name(f"events.out.tfevents.{now:.6f}{SUFFIX}"))
    return count


def _summary(points: Iterable[Point]) -> "Summary":
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.summary import histogram_raw, scalar

    made = Summary()
    for point in points:
        bins = point.bins
        if bins is None:
            made.MergeFrom(scalar(tag(point), point.value))
        else:
            ends = {
                "min": bins.low,
                "max": bins.high,
                "num": bins.n,
                "sum": bins.total,
                "sum_squares": bins.squares,
            }
            buckets = {"bucket_limits": bins.limits, "bucket_counts": bins.counts}
            made.MergeFrom(histogram_raw(f"{tag(point)}/histogram", **ends, **buckets))
    return made
