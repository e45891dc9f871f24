"""One start of a study: by which command, which code, with which packages, on which machine."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from phyla.records.json import JsonObject

DIFFERS = {"the training code": "code", "the commit": "commit", "the machine": "machine"}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """One start of `Study.run`.

    Attributes:
        at: when, in seconds since the epoch.
        facts: `command`, `directory`, `code`, `commit`, `packages`, `variables`, `machine` and the like.
        diff: what differed from the commit in tracked files; None if nothing did, or it is not known.
    """

    id: int = 0
    study: int
    at: float
    facts: JsonObject
    diff: str | None = None

    @property
    def commit(self) -> str:
        """The beginning of the commit, and whether tracked files differed from it; a dash without one."""
        facts: Any = self.facts
        if facts["commit"] is None:
            return "-"
        return f"{facts['commit'][:10]}{' + changes' if facts['changed'] else ''}"

    @property
    def command(self) -> str:
        """The command line."""
        words: Any = self.facts["command"]
        return shlex.join(words)

    def differs(self, before: "RunStart | None") -> list[str]:
        """Return the differences from the previous start, in words."""
        if before is None:
            return []
        old: Any = before.facts
        new: Any = self.facts
        words = [label for label, name in DIFFERS.items() if old[name] != new[name]]
        if old["commit"] == new["commit"] and before.diff != self.diff:
            words.append("uncommitted changes")
        was, now = old["packages"], new["packages"]
        names = (name for name in sorted({*was, *now}) if was.get(name) != now.get(name))
        return [*words, *(f"{name} {was.get(name, 'absent')} -> {now.get(name, 'absent')}" for name in names)]


def with_differences(starts: Sequence[RunStart]) -> list[tuple[RunStart, str]]:
    """Return starts, each with its differences from the previous one, in words."""
    befores: list[RunStart | None] = [None, *starts]
    return [(start, ", ".join(start.differs(before))) for before, start in zip(befores, starts, strict=False)]
