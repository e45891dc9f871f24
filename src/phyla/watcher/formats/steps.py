"""Checkpoints of several files, told apart by the step in their names."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, final

from phyla.errors import ConfigurationError
from phyla.watcher.contents import check_file
from phyla.watcher.found import Found
from phyla.watcher.listing import Listing, Root
from phyla.watcher.step import DIGITS_AT_MOST, StepFrom
from phyla.watcher.survey import QUIET_S, Candidate, Judge, survey
from phyla.watcher.verdict import Verdict, worst

PLACE = "{step}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Files or directories whose names fit templates such as `params_{step}` and `optimizer_{step}.npz`.

    A checkpoint has a name for each template with the same step. It is ready when all are there, none
    shows that it is cut off, and nothing changed for the quiet period.

    Attributes:
        templates: names of entries of the root, each with `{step}` once, where digits stand.
        quiet_s: seconds without a change after which time decides.
        step: where steps come from; by default the digits.
    """

    name: ClassVar[str] = "steps"
    templates: tuple[str, ...] = ("params_{step}", "checkpoint_{step}")
    quiet_s: float = QUIET_S
    step: StepFrom = field(default_factory=StepFrom)

    def __post_init__(self) -> None:
        object.__setattr__(self, "templates", tuple(self.templates))
        if not self.templates or any(text.count(PLACE) != 1 or "/" in text for text in self.templates):
            raise ConfigurationError(
                f"templates {self.templates!r} are not understood: write a list of names, each with {PLACE} once "
                "and no slash, for example ['params_{step}', 'optimizer_{step}']"
            )

    @property
    def awaits(self) -> str:
        """What it takes for a checkpoint, in words."""
        return f"entries named {' and '.join(self.templates)}"

    def scan(self, root: Path, *, now: float, previous: Mapping[str, Found]) -> list[Found]:
        """Look through a directory; see `CheckpointFormat.scan`."""
        return survey(self, root, now=now, previous=previous)

    def candidates(self, root: Root) -> Iterable[Candidate]:
        """Return every step that at least one entry is named after."""
        entries = [*root.folders, *root.files]
        by_digits: dict[str, dict[str, str]] = {}
        for template in self.templates:
            before, _, after = template.partition(PLACE)
            fits = re.compile(rf"{re.escape(before)}(\d{{1,{DIGITS_AT_MOST}}}){re.escape(after)}")
            for entry in entries:
                named = fits.fullmatch(entry)
                if named:
                    by_digits.setdefault(named.group(1), {})[template] = entry
        for digits, paths in by_digits.items():
            missing = [text.replace(PLACE, digits) for text in self.templates if text not in paths]
            yield Candidate(
                name=self.templates[0].replace(PLACE, digits),
                paths=tuple(sorted(paths.values())),
                judge=_judge(missing),
                step=int(digits) if self.step == StepFrom() else None,
            )


def _judge(missing: list[str]) -> Judge:
    def judge(root: Path, listed: Listing) -> Verdict:
        if missing:
            return Verdict.partial(f"{missing[0]} is missing")
        verdict = worst(check_file(root / file.relative, file.size_bytes) for file in listed.files)
        return worst([verdict, Verdict.settling("all of its files are there")])

    return judge
