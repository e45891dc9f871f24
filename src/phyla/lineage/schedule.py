"""Schedule: the piecewise constant hyperparameters along one lineage."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any, final

from phyla.errors import UsageError
from phyla.records import JobKind, Json, JsonObject, TrialRecord, strict

SCHEMA = 1

LARGEST_COUNT = 2**31 - 1
"""What the counts of optax can hold."""


@final
@dataclass(frozen=True, slots=True)
class Segment:
    """Steps that were trained with the same hyperparameters.

    Attributes:
        start_step: age of the weights at its start.
        end_step: age of the weights at its end; that step itself belongs to what follows.
        params: flat hyperparameters.
        trial: id of the trial that trained it; the first one where several are merged.
        member: the member whose trial it is.
    """

    start_step: int
    end_step: int
    params: JsonObject
    trial: int
    member: int


@final
@dataclass(frozen=True, slots=True, repr=False)
class Schedule:
    """Hyperparameters by training step, from fresh weights to one trial's end.

    Steps are the age of the weights. Calling it gives the hyperparameters in force for one step.

    Args:
        segments: consecutive segments, each beginning where the one before ended.

    Raises:
        UsageError: no segments, or segments that do not join.
    """

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "segments", tuple(self.segments))
        if not self.segments:
            raise UsageError("a schedule needs at least one segment")
        for segment in self.segments:
            if segment.end_step < segment.start_step:
                raise UsageError(
                    f"the segment of trial {segment.trial} ends at step {segment.end_step}, before it starts "
                    f"at step {segment.start_step}"
                )
        for before, segment in pairwise(self.segments):
            if before.end_step != segment.start_step:
                raise UsageError(
                    f"the segment of trial {segment.trial} starts at step {segment.start_step}, but the one "
                    f"before it, of trial {before.trial}, ends at step {before.end_step}"
                )

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
        index = bisect_right(self.segments, step, key=lambda segment: segment.start_step) - 1
        return dict(self.segments[index].params)

    def lr_lambda(self, name: str) -> Callable[[int], float]:
        """Return a hyperparameter as `torch.optim.lr_scheduler.LambdaLR` takes it: a factor per step.

        The factor is relative to the first value, which has to be the optimizer's own learning rate. Steps
        count from the schedule's start, and `scheduler.step()` has to be called after each.

        Raises:
            UsageError: it is no number throughout the schedule, or its first value is 0.
        """
        series = self.series(name)
        starts, base = [start for start, _ in series], series[0][1]
        if base == 0:
            raise UsageError(
                f"{name} starts at 0, and no factor leads from there to another value; use the schedule"
            )
        factors = [value / base for _, value in series]

        # A plain function: LambdaLR saves any other callable with its state.
        def factor(step: int) -> float:
            return factors[max(0, bisect_right(starts, step) - 1)]

        return factor

    def optax(self, name: str) -> Callable[[Any], Any]:
        """Return a hyperparameter as an optax schedule: a function of the count of updates that can be jitted.

        Counts begin with 0 at the schedule's start.

        Raises:
            UsageError: it is no number throughout the schedule, or there are more steps than a count can hold.
            ImportError: JAX is not installed.
        """
        series = self.series(name)
        if series[-1][0] > LARGEST_COUNT:
            raise UsageError(f"{name} changes at step {series[-1][0]}, and counts of optax end at {LARGEST_COUNT}")
        try:
            import jax.numpy as jnp
        except ImportError as error:
            raise ImportError("schedule.optax() needs JAX: pip install jax optax") from error
        boundaries = jnp.asarray([start for start, _ in series[1:]], dtype=jnp.int32)
        values = jnp.asarray([value for _, value in series])

        def schedule(count: Any) -> Any:
            return values[jnp.searchsorted(boundaries, count, side="right")]

        return schedule

    def series(self, name: str) -> tuple[tuple[int, float], ...]:
        """Return a numeric hyperparameter as pairs: steps since the schedule's start, value from there on."""
        first = self.segments[0].start_step
        found: list[tuple[int, float]] = []
        for segment in self.changes():
            value = segment.params.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                missing = f"has no {name!r}" if name not in segment.params else f"has {name}={value!r}, no number"
                raise UsageError(
                    f"the schedule {missing} at step {segment.start_step}; it has {', '.join(self.names())}"
                )
            if not found or found[-1][1] != value:
                found.append((segment.start_step - first, float(value)))
        return tuple(found)

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
        for one in self.changes():
            values = (_cell(one.params[name]) if name in one.params else "-" for name in names)
            rows.append((f"{one.start_step:,}", f"{one.end_step:,}", str(one.member), str(one.trial), *values))
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
        if not isinstance(value, Mapping) or value.get("schema") != SCHEMA:
            schema = value.get("schema") if isinstance(value, Mapping) else value
            raise UsageError(f"this is no schedule of schema {SCHEMA}: its schema is {schema!r}")
        entries = value.get("segments")
        if not isinstance(entries, list | tuple):
            raise UsageError(f"the segments of a schedule must be a list, got {entries!r}")
        return cls(tuple(map(_segment, entries)))


def _segment(raw: Json) -> Segment:
    if not isinstance(raw, Mapping):
        raise UsageError(f"a segment of a schedule must be an object, got {raw!r}")
    if not isinstance(raw.get("params"), Mapping):
        raise UsageError(f"the params of a segment must be an object, got {raw.get('params')!r}")
    values: dict[str, Any] = {one.name: raw.get(one.name) for one in fields(Segment)}
    for name, value in values.items():
        if name != "params" and (isinstance(value, bool) or not isinstance(value, int)):
            raise UsageError(f"{name} of a segment must be an integer, got {value!r}")
    return Segment(**values)


def _cell(value: Json) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
