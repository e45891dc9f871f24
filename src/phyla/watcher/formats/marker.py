"""Checkpoints that their writer marks as finished with a file of a given name."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, final

from phyla.errors import ConfigurationError
from phyla.watcher.contents import newest, settled
from phyla.watcher.found import Found
from phyla.watcher.listing import Listing, Root
from phyla.watcher.step import StepFrom
from phyla.watcher.survey import QUIET_S, Candidate, Judge, survey
from phyla.watcher.verdict import Verdict

PLACE = "{name}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """Any entry of the root: a directory with the marker in it, or an entry with its marker beside it.

    The marker of `model_7.pt` beside it is called `model_7.pt.DONE`, or as `marker` says, if that has `{name}`
    in it. It must be as new as everything else, so that an old one does not vouch for a file that is
    being overwritten. Without its marker a checkpoint waits for ever.

    Attributes:
        marker: name of the marker, or a template such as `{name}.finished` or `ok_{name}`.
        quiet_s: seconds without a change after which a marker counts that is older than the rest.
        step: where steps come from.
    """

    name: ClassVar[str] = "marker"
    marker: str = "DONE"
    quiet_s: float = QUIET_S
    step: StepFrom = field(default_factory=StepFrom)

    def __post_init__(self) -> None:
        if not self.marker or "/" in self.marker or self.marker == PLACE or self.marker.count(PLACE) > 1:
            raise ConfigurationError(
                f"marker {self.marker!r} is no name of a file; write one such as DONE, or {PLACE}.done"
            )

    @property
    def awaits(self) -> str:
        """What it takes for a checkpoint, in words."""
        inside = "" if PLACE in self.marker else f" with {self.marker} in it, or"
        return f"any file or directory{inside} with {self._beside('NAME')} beside it"

    def scan(self, root: Path, *, now: float, previous: Mapping[str, Found]) -> list[Found]:
        """Look through a directory; see `CheckpointFormat.scan`."""
        return survey(self, root, now=now, previous=previous)

    def candidates(self, root: Root) -> Iterable[Candidate]:
        """Return all entries that are no markers themselves."""
        entries = [*root.folders, *root.files]
        for entry in entries:
            beside = self._beside(entry)
            if not self._is_marker(entry, entries):
                paths = (entry, beside) if beside in root.files else (entry,)
                yield Candidate(name=entry, paths=paths, judge=self._judge(entry, beside))

    def _beside(self, entry: str) -> str:
        return self.marker.replace(PLACE, entry) if PLACE in self.marker else f"{entry}.{self.marker}"

    def _is_marker(self, entry: str, entries: list[str]) -> bool:
        if PLACE not in self.marker:
            return entry == self.marker or entry.endswith(f".{self.marker}")
        before, _, after = self.marker.partition(PLACE)
        return entry.startswith(before) and entry.endswith(after) and len(entry) > len(before) + len(after)

    def _judge(self, entry: str, beside: str) -> Judge:
        def judge(root: Path, listed: Listing) -> Verdict:
            inside = f"{entry}/{self.marker}"
            marks = [file for file in listed.files if file.relative in {inside, beside}]
            rest = [file for file in listed.files if file.relative not in {inside, beside}]
            if not marks:
                wanted = (
                    f"{inside} or {beside}" if (root / entry).is_dir() and PLACE not in self.marker else beside
                )
                return Verdict.waiting(f"there is no marker {wanted}")
            if not rest:
                return Verdict.waiting("there is nothing but its marker")
            mark, late = newest(marks), newest(rest)
            if late.modified_ns > mark.modified_ns:
                return Verdict.settling(
                    f"{late.name} was written after {mark.name}: it may be overwritten right now"
                )
            return settled(Verdict.complete(f"{mark.name} is there"), mark, listed.folders_ns)

        return judge
