"""TensorBoard event files, written while a study runs: one TensorBoard run per member."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

from phyla.integrations import trackers
from phyla.integrations.trackers import Row, TrackedStudy, Tracker, check_writable
from phyla.settings import system_clock

if TYPE_CHECKING:
    from tensorboardX import RecordWriter
    from tensorboardX.proto.summary_pb2 import Summary

    from phyla.integrations.trackers import Value

SUFFIX: Final = ".phyla"
"""Suffix of the files that phyla writes: no other file is ever replaced."""

VERSION: Final = "brain.Event:2"


@final
class EventFiles:
    """TensorBoard's runs below one directory, a file each.

    With `draft`, files get their names when they are closed: a TensorBoard that looks meanwhile must not take them
    for runs.
    """

    def __init__(self, folder: Path, *, draft: bool = False) -> None:
        self._folder = folder
        self._draft = draft
        self._writers: dict[str, tuple[RecordWriter, Path]] = {}

    def write(self, run: str, step: int, at: float, values: "Iterable[tuple[str, Value]]") -> None:
        """Append the values of a run at a step."""
        _write_event(self._writer(run), step=step, wall_time=at, summary=_summary(values))

    def _writer(self, run: str) -> "RecordWriter":
        if run not in self._writers:
            from tensorboardX import RecordWriter

            target = self._folder / run
            target.mkdir(parents=True, exist_ok=True)
            now = system_clock()
            file = target / f"events.out.tfevents.{now:.6f}{SUFFIX}"
            writer = RecordWriter(str(target / "draft" if self._draft else file))
            _write_event(writer, wall_time=now, file_version=VERSION)
            self._writers[run] = writer, file
        return self._writers[run][0]

    def flush(self) -> None:
        """Flush to the disk."""
        for writer, _ in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Close all files; later writes to a run start a new file."""
        writers, self._writers = self._writers, {}
        for writer, file in writers.values():
            writer.close()
            if self._draft:
                (file.parent / "draft").rename(file)


@final
class TensorBoard(Tracker):
    """Writes event files to `PLACE/STUDY/memberN`, by default in `tensorboard` in the home.

    A point that comes later than one of a higher step is left out: TensorBoard does not show it. `phyla export`
    writes it in its place.
    """

    name: ClassVar[str] = "tensorboard"

    def __init__(self, place: str | None = None, *, draft: bool = False) -> None:
        check_installed()
        self.place = None if place is None else str(Path(place).expanduser().absolute())
        self._draft = draft
        self._last: dict[tuple[int, str], int] = {}

    def environment(self, study: TrackedStudy) -> Mapping[str, str]:
        folder = self._folder(study)
        for path in chain([folder], folder.glob("member*")):
            check_writable(path, "name another one, as in tensorboard=DIR")
        return {}

    def open(self, study: TrackedStudy) -> None:
        self._last.clear()
        self._files = EventFiles(self._folder(study), draft=self._draft)

    def _folder(self, study: TrackedStudy) -> Path:
        return Path(self.place or study.home / "tensorboard") / folder_name(study.name)

    def log(self, rows: Sequence[Row]) -> None:
        for row in rows:
            values = [(name, value) for name, value in row.values.items() if self._is_next(row, name)]
            if row.note is not None:
                values.append(("phyla/lineage", row.note))
            self._files.write(f"member{row.member}", row.progress, row.at, values)
        self._files.flush()

    def _is_next(self, row: Row, name: str) -> bool:
        key = row.member, name
        fits = self._draft or row.progress >= self._last.get(key, row.progress)
        if fits:
            self._last[key] = row.progress
        return fits

    def close(self) -> None:
        self._files.close()


def folder_name(run: str) -> str:
    """Return the name of a study's directory."""
    return re.sub(r"[^\w.@-]", "_", run)


def check_installed() -> None:
    """Raise ImportError with the command to install it."""
    trackers.check_installed("the tracker tensorboard", "tensorboardX", extra="tensorboard")


def _write_event(writer: "RecordWriter", **fields: Any) -> None:
    from tensorboardX.proto.event_pb2 import Event

    writer.write(Event(**fields).SerializeToString())


def _summary(values: "Iterable[tuple[str, Value]]") -> "Summary":
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.summary import scalar, text

    summary = Summary()
    for name, value in values:
        if isinstance(value, str):
            summary.MergeFrom(text(name, value))
        else:
            entry = scalar(name, 0.0)
            # Given to `scalar`, each nan would print a warning that names nothing.
            entry.value[0].simple_value = float(value)
            summary.MergeFrom(entry)
    return summary
