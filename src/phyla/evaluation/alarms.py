"""The regressions of a run, as events: computed from the matrix, so results may come in any order."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import NamedTuple, TypeAlias, final

from phyla.evaluation.matrix import Cell, CellStatus
from phyla.evaluation.regression import HISTORY, SURE, Measured, Regression, error_of, regressions
from phyla.evaluation.suite import outlines
from phyla.records import Checkpoint, EvalEvent, JsonObject, StudyRecord, escape_name, json_number

SeriesKey: TypeAlias = tuple[str, str, str]
"""Suite, eval task and metric."""
PROVISIONAL = "; provisional, as earlier checkpoints wait for their evaluation"


class SeriesEntry(NamedTuple):
    """One metric on one checkpoint, None while it waits, the line it is part of, and when it was evaluated."""

    seen: Checkpoint
    line: tuple[object, ...]
    measured: Measured | None
    evaluated_at: float


@final
class Regressions:
    """The watched metrics of a run on each checkpoint, and where they got worse.

    Members of a population have no regressions: most members are worse than the best.

    Args:
        run: the run; its suites say what is watched.
        members: the member that each trial belongs to, where the checkpoints are those of another study.
    """

    def __init__(self, run: StudyRecord, members: Mapping[int, int]) -> None:
        self._run = run
        self._members = members
        suites = outlines(run.config) if run.watched else ()
        self._directions = {suite.name: suite.directions for suite in suites}
        self._entries: dict[SeriesKey, dict[int, SeriesEntry]] = defaultdict(dict)

    def read(self, cells: Iterable[Cell]) -> None:
        """Take over what was measured, in place of what was known of the same eval tasks and checkpoints."""
        for cell in cells:
            for metric in self._directions.get(cell.suite, ()) if cell.replicate == 0 else ():
                entries = self._entries[cell.suite, cell.task, metric]
                entries.pop(cell.seen.id, None)
                if metric in cell.metrics or cell.status in (CellStatus.QUEUED, CellStatus.RUNNING):
                    line = cell.identity, cell.seen.index, self._members.get(cell.seen.trial or 0)
                    measured = Measured.of(cell.metrics, metric) if metric in cell.metrics else None
                    entries[cell.seen.id] = SeriesEntry(cell.seen, line, measured, cell.evaluated_at or 0.0)

    def events(self) -> list[EvalEvent]:
        """Return the regressions, by the time at which they could be seen."""
        known = [
            key for key, entries in self._entries.items() if any(entry.measured for entry in entries.values())
        ]
        metrics = Counter(suite for suite, *_ in known)
        events = [event for key in known for event in self._events(key, metrics[key[0]])]
        return sorted(events, key=lambda event: event.created_at)

    def _events(self, key: SeriesKey, metrics: int) -> Iterator[EvalEvent]:
        suite, _, metric = key
        lines: dict[tuple[object, ...], list[SeriesEntry]] = defaultdict(list)
        for entry in self._entries[key].values():
            lines[entry.line].append(entry)
        for earlier, branch in chain(*map(_branches, lines.values())):
            line = [entry for entry in (*earlier, *branch) if entry.measured]
            waits = next((_order(entry) for entry in (*earlier, *branch) if not entry.measured), None)
            measured = [entry.measured for entry in line if entry.measured]
            for fall in regressions(measured, maximize=self._directions[suite][metric], metrics=metrics):
                certain = fall.first >= HISTORY or fall.p <= SURE * error_of(metrics)
                provisional = not certain and waits is not None and waits < _order(line[fall.first])
                if line[fall.place].seen.branch == branch[0].seen.branch:
                    yield _event(self._run, key, line, fall, provisional=provisional)


def _branches(entries: Sequence[SeriesEntry]) -> Iterator[tuple[list[SeriesEntry], list[SeriesEntry]]]:
    """Yield the checkpoints of each branch by step, after those before it from which training went on."""
    known = [entry for entry in entries if entry.seen.step >= 0] or entries
    earlier: list[SeriesEntry] = []
    for _, entries_of in groupby(sorted(known, key=_order), key=lambda entry: entry.seen.branch):
        branch = list(entries_of)
        earlier = [entry for entry in earlier if _order(entry)[1] < _order(branch[0])[1]]
        yield earlier, branch
        earlier = [*earlier, *branch]


def _order(entry: SeriesEntry) -> tuple[int, int, int]:
    seen = entry.seen
    return seen.branch, seen.step if seen.step >= 0 else seen.number, seen.id


def _event(
    run: StudyRecord, key: SeriesKey, line: Sequence[SeriesEntry], fall: Regression, *, provisional: bool
) -> EvalEvent:
    suite, task, metric = key
    now, since, why = line[fall.place], line[fall.first].seen, PROVISIONAL if provisional else ""
    data: JsonObject = {
        "task": task,
        "metric": metric,
        "current": json_number(fall.current),
        "reference": json_number(fall.reference),
        "after": fall.after,
        "before": fall.before,
        "p": fall.p,
        "since": since.step,
        "step": now.seen.step,
        "name": now.seen.name,
        "provisional": provisional,
        "checkpoints": [entry.seen.id for entry in line[fall.first : fall.last + 1]],
    }
    return EvalEvent(
        study=run.id,
        kind="regression",
        seen=now.seen.id,
        suite=suite,
        message=f"regression: {suite}/{task} {metric} {_words(now.seen, fall)}{why}",
        data=data,
        # With the last of the results that it takes.
        created_at=max(entry.evaluated_at for entry in line[: fall.place + 1]),
    )


def _words(seen: Checkpoint, fall: Regression) -> str:
    where = f"step {seen.step}" if seen.step >= 0 else escape_name(seen.name)
    count = "" if fall.before < 2 else f"{fall.before} "
    before = f"{fall.reference:.4g} in the {count}checkpoint{'s' if count else ''} before"
    p = f" (p = {fall.p:.2g})" if fall.before else ""
    if fall.after == 1:
        return f"{fall.current:.4g} at {where}, against {before}{p}"
    return f"{fall.current:.4g} in the {fall.after} checkpoints up to {where}, against {before}{p}"
