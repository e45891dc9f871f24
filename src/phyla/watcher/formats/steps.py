"""Checkpoints of several files, grouped by the step in their names."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, final

from phyla.errors import ConfigurationError
from phyla.watcher.format import Candidate, CheckpointFormat, Verdict, check_all, worst
from phyla.watcher.formats.step_source import DIGITS_AT_MOST, StepFrom
from phyla.watcher.listing import Listing, Place, Root

PLACE = "{step}"


@final
@dataclass(frozen=True, kw_only=True)
class Steps(CheckpointFormat):
    """Files or directories whose names fit templates such as `params_{step}` and `optimizer_{step}.npz`.

    A checkpoint has a name for each template with the same step. It is ready when all are there, none
    shows that it is cut off, and nothing changed for the quiet period. The digits tell the step, unless `step`
    says otherwise.

    Attributes:
        templates: names of entries of the root, each with `{step}` once, where digits stand.
    """

    name: ClassVar[str] = "steps"
    templates: tuple[str, ...] = ("params_{step}", "checkpoint_{step}")

    def __post_init__(self) -> None:
        object.__setattr__(self, "templates", tuple(self.templates))
        if not self.templates or any(text.count(PLACE) != 1 or "/" in text for text in self.templates):
            raise ConfigurationError(
                f"templates {self.templates!r}: write names with {PLACE} once and no slash: ['params_{PLACE}']"
            )

    @property
    def awaits(self) -> str:
        return f"entries named {' and '.join(self.templates)}"

    def step_rule(self, name: str) -> str:
        return "the digits where its template has {step}" if self.step == StepFrom() else self.step.rule(name)

    def candidates(self, root: Root) -> Iterable[Candidate]:
        by_digits: dict[str, dict[str, str]] = {}
        for template in self.templates:
            before, _, after = template.partition(PLACE)
            fits = re.compile(rf"{re.escape(before)}(\d{{1,{DIGITS_AT_MOST}}}){re.escape(after)}")
            for entry in (*root.folders, *root.files):
                named = fits.fullmatch(entry)
                if named:
                    by_digits.setdefault(named.group(1), {})[template] = entry
        for digits, paths in by_digits.items():
            missing = [text.replace(PLACE, digits) for text in self.templates if text not in paths]
            yield Candidate(
                self.templates[0].replace(PLACE, digits),
                tuple(sorted(paths.values())),
                partial(_check, missing),
                int(digits) if self.step == StepFrom() else None,
            )


def _check(missing: list[str], root: Place, listed: Listing) -> Verdict:
    if missing:
        return Verdict.partial(f"{missing[0]} is missing")
    return worst([check_all(root, listed), Verdict.settling("all of its files are there")])
