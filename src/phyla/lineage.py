"""Lineage, the tree of a study's trials, and Schedule, the hyperparameters along one path of it."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from operator import index
from typing import Any, final

from phyla.errors import UsageError
from phyla.records import WORST, JobKind, JobState, Json, JsonObject, TrialRecord, on_one_line, significant, strict
from phyla.validation import suggest_arguments

__all__ = ["Lineage", "Schedule", "Segment"]

SCHEMA = 1

NODE = (
    *("id", "member", "generation", "state", "parent", "jump_from", "params", "fitness"),
    *("start_step", "reached_step", "checkpoint", "reason"),
)
"""Fields of a node of the exported tree."""


@final
@dataclass(frozen=True, slots=True)
class Segment:
    """Steps, from `start_step` up to but not with `end_step`, that were trained with the same hyperparameters.

    `trial` trained them, the first one where several are merged; `member` is the member whose trial it is.
    """

    start_step: int
    end_step: int
    params: JsonObject
    trial: int
    member: int


@final
@dataclass(frozen=True, slots=True, repr=False)
class Schedule:
    """Hyperparameters by training step, the age of the weights, from fresh weights to one trial's end.

    Calling it gives the hyperparameters in force for one step. Each segment begins where the one before ended.
    """

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "segments", tuple(self.segments))
        if not self.segments:
            raise UsageError("a schedule needs at least one segment")
        for segment in self.segments:
            if segment.end_step < segment.start_step:
                steps = f"ends at step {segment.end_step}, before it starts at step {segment.start_step}"
                raise UsageError(f"the segment of trial {segment.trial} {steps}")
        for before, segment in pairwise(self.segments):
            if before.end_step != segment.start_step:
                ends = f"the one before it, of trial {before.trial}, ends at step {before.end_step}"
                starts = f"the segment of trial {segment.trial} starts at step {segment.start_step}"
                raise UsageError(f"{starts}, but {ends}")

    @classmethod
    def along(cls, ancestry: Iterable[TrialRecord]) -> "Schedule":
        """Return the schedule of a trial, given its ancestry by `parent`, root first.

        A trial that has not completed counts up to the step it is asked to reach. An import trained nothing, so
        it is no part of the schedule unless nothing follows it.
        """
        path = list(ancestry)
        if len(path) > 1 and path[0].kind is JobKind.IMPORT:
            path = path[1:]
        segments = []
        for trial in path:
            end = trial.end_step if trial.reached_step is None else trial.reached_step
            segments.append(Segment(trial.start_step, end, trial.params, trial=trial.id, member=trial.member))
        return cls(tuple(segments))

    @property
    def steps(self) -> int:
        """Number of training steps it covers."""
        return self.segments[-1].end_step - self.segments[0].start_step

    def __call__(self, step: int) -> dict[str, Json]:
        """Return the hyperparameters in force for a training step; beyond the end, the last ones."""
        first = self.segments[0].start_step
        if step < first:
            raise UsageError(f"step {step} is before the start of the schedule, step {first}")
        at = bisect_right(self.segments, step, key=lambda segment: segment.start_step) - 1
        return dict(self.segments[at].params)

    def changes(self) -> tuple[Segment, ...]:
        """Return the schedule with neighbours of equal hyperparameters merged, and no empty segment."""
        merged: list[Segment] = []
        for segment in self.segments:
            if segment.end_step == segment.start_step and len(self.segments) > 1:
                continue
            if merged and merged[-1].params == segment.params:
                merged[-1] = replace(merged[-1], end_step=segment.end_step)
            else:
                merged.append(segment)
        return tuple(merged) or self.segments[-1:]

    def names(self) -> tuple[str, ...]:
        """Return the names of all hyperparameters in it, in order of appearance."""
        return tuple(dict.fromkeys(name for segment in self.segments for name in segment.params))

    def table(self) -> str:
        """Return its changes as a table of plain text."""
        names = self.names()
        rows = [("from step", "to step", "member", "trial", *names)]
        for segment in self.changes():
            values = (_cell(segment.params[name]) if name in segment.params else "-" for name in names)
            start, end = f"{segment.start_step:,}", f"{segment.end_step:,}"
            rows.append((start, end, str(segment.member), str(segment.trial), *values))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
        )

    __str__ = table

    def __repr__(self) -> str:
        changes = len(self.changes()) - 1
        return (
            f"<Schedule of {', '.join(self.names()) or 'nothing'}: {self.steps:,} steps, "
            f"{len(self.segments):,} trial{'s' * (len(self.segments) != 1)}, "
            f"{changes:,} change{'s' * (changes != 1)}>"
        )

    def to_json(self) -> dict[str, Json]:
        """Return it as strict JSON; `from_json` reads it."""
        return {"schema": SCHEMA, "segments": [strict(asdict(segment)) for segment in self.segments]}

    @classmethod
    def from_json(cls, value: Json) -> "Schedule":
        """Return the schedule that `to_json` wrote."""
        data: Any = value if isinstance(value, Mapping) else {}
        if data.get("schema") != SCHEMA or not isinstance(data.get("segments"), list | tuple):
            shape = f"an object with schema {SCHEMA} and a list of segments"
            raise UsageError(f"a schedule must be {shape}, got {value!r:.200}")
        return cls(tuple(map(_segment, data["segments"])))


def _segment(raw: Any) -> Segment:
    try:
        start, end, trial, member = (index(raw[name]) for name in ("start_step", "end_step", "trial", "member"))
        return Segment(start, end, dict(raw["params"]), trial, member)
    except (KeyError, TypeError, ValueError):
        shape = "an object with params and the integers start_step, end_step, trial and member"
        raise UsageError(f"a segment of a schedule must be {shape}, got {raw!r:.200}") from None


def _cell(value: Json) -> str:
    return significant(value, 6) if isinstance(value, float) else on_one_line(str(value))


@final
class Lineage:
    """The origin of the weights of every training trial.

    Trials form trees by `parent`, the trial whose weights they started from. A jump leads from the trial that a
    member abandoned to the one that replaced it. It takes all trials of one study, in any order; those that only
    measure are left out. UsageError says that a trial refers to one that is not among them, or that another was
    asked about.

    Source: Li et al. 2019, arXiv 1902.01894 (trials, replay); jumps after Orion.
    """

    __slots__ = ("_trials",)

    def __init__(self, trials: Iterable[TrialRecord]) -> None:
        chosen = sorted((t for t in trials if not t.measures), key=lambda trial: trial.id)
        self._trials = {trial.id: trial for trial in chosen}
        for trial in chosen:
            for name, other in (("parent", trial.parent), ("jump_from", trial.jump_from)):
                # An origin was completed before its child was decided, so its id is smaller: no cycles.
                if other is not None and (other not in self._trials or other >= trial.id):
                    why = f"{name} {other}, which is not given as an earlier training trial"
                    raise UsageError(f"trial {trial.id} has {why}; a lineage needs all trials of the study")

    def __len__(self) -> int:
        return len(self._trials)

    def __contains__(self, trial: object) -> bool:
        return trial in self._trials

    def __iter__(self) -> Iterator[TrialRecord]:
        """Iterate over the training trials by id."""
        return iter(self._trials.values())

    def __repr__(self) -> str:
        jumps = sum(trial.jump_from is not None for trial in self)
        return f"<Lineage of {len(self):,} trials, {jumps:,} jumps>"

    def trial(self, trial: int) -> TrialRecord:
        """Return a training trial by id."""
        if trial not in self._trials:
            raise UsageError(f"there is no training trial {trial!r} in this study; it has {len(self):,} of them")
        return self._trials[trial]

    def ancestry(self, trial: int) -> tuple[TrialRecord, ...]:
        """Return the trials that trained this one's weights, root first, itself last."""
        path = [self.trial(trial)]
        while (parent := path[-1].parent) is not None:
            path.append(self._trials[parent])
        return tuple(reversed(path))

    def best(self) -> TrialRecord | None:
        """Return the completed trial with the best finite fitness, the earliest among equals; or None.

        Where goals are traded off, the best in the first goal, and among equals in the next.
        """

        def place(trial: TrialRecord) -> tuple[float, tuple[float, ...], int]:
            return _order(trial), () if trial.criteria is None else trial.criteria.orders, -trial.id

        best = max(self, key=place, default=None)
        return None if best is None or _order(best) == WORST else best

    def schedule(self, trial: int) -> Schedule:
        """Return the hyperparameters along the weights' ancestry, root to this trial; see `Schedule.along`."""
        return Schedule.along(self.ancestry(trial))

    def to_json(self) -> dict[str, Json]:
        """Return the whole lineage as strict JSON: nodes are trials, edges are of kind parent or jump."""
        edges: list[Json] = [
            {"kind": kind, "from": other, "to": trial.id}
            for trial in self
            for kind, other in (("parent", trial.parent), ("jump", trial.jump_from))
            if other is not None
        ]
        return {"schema": SCHEMA, "nodes": [_node(trial) for trial in self], "edges": edges}


def _node(trial: TrialRecord) -> Json:
    node: dict[str, Any] = {name: getattr(trial, name) for name in NODE}
    node["state"] = trial.state.value
    if trial.stop_reason is not None:
        node["stop_reason"] = trial.stop_reason
    if trial.criteria is not None:
        node["criteria"] = asdict(trial.criteria)
    return strict(node)


def _order(trial: TrialRecord) -> float:
    """Sort key; the worst for trials that have not completed, or not with a finite fitness."""
    if trial.state is not JobState.COMPLETED or trial.order is None or not math.isfinite(trial.order):
        return WORST
    return trial.order


suggest_arguments(Schedule, Segment)
