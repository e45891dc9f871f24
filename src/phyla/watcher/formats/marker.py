"""Checkpoints that their writer marks as finished with a file of a given name."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, final

from phyla.errors import ConfigurationError
from phyla.watcher.format import Candidate, CheckpointFormat, Verdict, check_order
from phyla.watcher.listing import Listing, Place, Root

PLACE = "{name}"


@final
@dataclass(frozen=True, kw_only=True)
class Marker(CheckpointFormat):
    """Any entry of the root: a directory with the marker in it, or an entry with its marker beside it.

    The marker of `model_7.pt` beside it is called `model_7.pt.DONE`, or as `marker` says, if that has `{name}`
    in it. It must be as new as everything else, since an old marker says nothing about a file that is being
    overwritten; an older marker counts after the quiet period. Without its marker, a checkpoint waits forever.

    Attributes:
        marker: name of the marker, or a template such as `{name}.finished` or `ok_{name}`.
    """

    name: ClassVar[str] = "marker"
    marker: str = "DONE"

    def __post_init__(self) -> None:
        if not self.marker or "/" in self.marker or self.marker == PLACE or self.marker.count(PLACE) > 1:
            raise ConfigurationError(
                f"marker {self.marker!r} is not a file name; write one such as DONE, or {PLACE}.done"
            )

    @property
    def awaits(self) -> str:
        inside = "" if PLACE in self.marker else f" with {self.marker} in it, or"
        return f"any file or directory{inside} with {self._beside('NAME')} beside it"

    def candidates(self, root: Root) -> Iterable[Candidate]:
        for entry in (*root.folders, *root.files):
            beside = self._beside(entry)
            if not self._is_marker(entry):
                paths = (entry, beside) if beside in root.files else (entry,)
                yield Candidate(entry, paths, partial(self._check, entry, beside))

    def _beside(self, entry: str) -> str:
        return self.marker.replace(PLACE, entry) if PLACE in self.marker else f"{entry}.{self.marker}"

    def _is_marker(self, entry: str) -> bool:
        if PLACE not in self.marker:
            return entry == self.marker or entry.endswith(f".{self.marker}")
        before, _, after = self.marker.partition(PLACE)
        return entry.startswith(before) and entry.endswith(after) and len(entry) > len(before) + len(after)

    def _check(self, entry: str, beside: str, root: Place, listed: Listing) -> Verdict:
        inside = f"{entry}/{self.marker}"
        marks = [file for file in listed.files if file.relative in {inside, beside}]
        rest = [file for file in listed.files if file.relative not in {inside, beside}]
        if not marks:
            either = f"{inside} or " if (root / entry).is_dir() and PLACE not in self.marker else ""
            return Verdict.waiting(f"no marker {either}{beside}")
        if not rest:
            return Verdict.waiting("there is nothing but its marker")
        mark = max(marks, key=lambda file: file.modified_ns)
        return check_order(mark, Verdict.complete(f"{mark.name} is there"), rest, listed.folders_ns)
