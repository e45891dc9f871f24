"""EvaluationData: the evaluation of the checkpoints of one run, and what its figures share."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

from phyla.evaluation import Cell, GroupValues, Lag, SuiteOutline
from phyla.records import EvalEvent, Group, Seen, StudyRecord, shown
from phyla.report.words import counted, duration, number, plain, short


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class EvaluationData:
    """The evaluation of one run, as it was at one moment.

    Attributes:
        run: the run.
        suites: its suites.
        cells: the state of every eval task on every checkpoint that is shown.
        values: the aggregates of every group on those checkpoints.
        groups: all its groups, for the lag over time.
        events: regressions and the like.
        lag: how far each suite is behind.
        members: the member of every trial, in a study.
        now: when this was read, in seconds since the epoch.
        state: how it stands; by default the run's own state, which says nothing about a study.
    """

    run: StudyRecord
    suites: Sequence[SuiteOutline]
    cells: Sequence[Cell]
    values: Sequence[GroupValues]
    groups: Sequence[Group] = ()
    events: Sequence[EvalEvent] = ()
    lag: Sequence[Lag] = ()
    members: Mapping[int, int] = field(default_factory=dict)
    now: float
    state: str | None = None

    def __repr__(self) -> str:
        return f"<EvaluationData of {self.run.name!r}: {len(self.checkpoints):,} checkpoints>"

    @cached_property
    def checkpoints(self) -> list[Seen]:
        """The checkpoints that are shown, in the order in which they were seen."""
        found = {cell.seen.id: cell.seen for cell in self.cells}
        return sorted(found.values(), key=lambda seen: seen.number)

    def suite(self, name: str) -> SuiteOutline:
        """Return a suite by name; of one that was removed only the name is known."""
        return next((suite for suite in self.suites if suite.name == name), SuiteOutline(name=name))

    def cells_of(self, suite: str) -> list[Cell]:
        """Return the cells of a suite; repetitions are left out."""
        return [cell for cell in self.cells if cell.suite == suite and cell.replicate == 0]

    def values_of(self, suite: str) -> list[GroupValues]:
        """Return the aggregates of a suite by number of the checkpoint; repetitions are left out."""
        found = [one for one in self.values if one.group.suite == suite and one.group.replicate == 0]
        return sorted(found, key=lambda one: one.seen.number)

    def regressions(self, suite: str) -> dict[int, list[str]]:
        """Return the messages of regressions by the id of the checkpoint."""
        found: dict[int, list[str]] = {}
        for event in self.events:
            if event.kind == "regression" and event.suite == suite and event.seen is not None:
                found.setdefault(event.seen, []).append(event.message)
        return found

    @property
    def counts(self) -> dict[str, int]:
        """How many shown cells are in each state; repetitions do not count."""
        return Counter(cell.status.value for cell in self.cells if cell.replicate == 0)

    @property
    def lag_words(self) -> list[str]:
        """How far each suite is behind, in words."""
        return [f"{lag.suite}: {_behind(lag)}" for lag in self.lag]

    def series(self, seen: Seen) -> str:
        """Return the line that a checkpoint lies on: its member and branch; empty without either."""
        member = self.members.get(seen.trial or 0)
        parts = [] if member is None else [f"member {member}"]
        if seen.branch:
            parts.append(f"branch {seen.branch}")
        if seen.index and member is None:
            parts.append(f"model {seen.index}")
        return ", ".join(parts)


def _behind(lag: Lag) -> str:
    if lag.checkpoints:
        steps = "" if lag.steps is None or lag.complete is None else f" and {lag.steps:,} steps"
        return f"{counted(lag.checkpoints, 'checkpoint')}{steps} behind, the oldest for {duration(lag.oldest_s)}"
    return "nothing is evaluated yet" if lag.complete is None else f"up to date at step {lag.complete:,}"


def measured(value: float, stderr: float | None) -> str:
    """Return a number and its standard error as a person reads it."""
    return number(value) if stderr is None else f"{number(value)} ± {number(float(f'{stderr:.2g}'))}"


def step_of(seen: Seen) -> str:
    """Return the step of a checkpoint in words."""
    return f"step {seen.step:,}" if seen.step >= 0 else "unknown step"


def place(seen: Seen) -> int:
    """Return where a checkpoint lies on an axis of steps; by its number if its step is not known."""
    return seen.step if seen.step >= 0 else seen.number


def checkpoint_words(seen: Seen) -> str:
    """Return a checkpoint in words, as Plotly's HTML."""
    index = f"[{seen.index}]" if seen.index else ""
    branch = f", branch {seen.branch}" if seen.branch else ""
    return f"{plain(short(shown(seen.name) + index, 60))}, {step_of(seen)}{branch}"
