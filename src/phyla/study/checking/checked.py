"""What a check found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, final

Verdict: TypeAlias = Literal["ok", "warn", "FAIL", "not known"]


@final
@dataclass(frozen=True, slots=True)
class Checked:
    """What one check found.

    Attributes:
        kind: `runs`, `objective`, `end`, `equal`, `source`, `steps`, `resume`, `complete`, `random`, `parameter`,
            `weights`, `noise` or `cost`.
        verdict: `ok`, `warn`, `FAIL` or `not known`.
        text: what was found; of `not known`, why. Further lines have the end of what a command
            printed that failed.
        change: what to do about it; empty if nothing.
        about: name of the hyperparameter, of `parameter`; of the metric, of `noise` with several objectives.
        numbers: what was measured, of `noise`: `measurements`, `noise` and its relative `uncertainty`, `members`
            and their `spread`, and the `gain` of a trial; None for what is not known.
    """

    kind: str
    verdict: Verdict
    text: str
    change: str = ""
    about: str = ""
    numbers: Mapping[str, float | None] = field(default_factory=dict)
