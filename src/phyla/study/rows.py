"""Trials, and the matrix of checkpoints and eval tasks, as rows of tables and of JSON."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, final

from phyla import plugins
from phyla.evaluation import Cell, GroupValues, SuiteOutline, cell, current_tasks, group_values
from phyla.records import EvalJob, Group, GroupState, Seen, TrialRecord
from phyla.strategies import describe

if TYPE_CHECKING:
    import pandas as pd

    from phyla.store import Reader, Store

PAGE = 200
"""Checkpoints that are read in one transaction."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRow:
    """One checkpoint with what is known of it.

    Attributes:
        seen: the checkpoint.
        cells: what became of every eval task on it.
        values: the aggregates of its groups.
    """

    seen: Seen
    cells: list[Cell]
    values: list[GroupValues]


def matrix_rows(
    store: "Store",
    study: int,
    ids: Sequence[int],
    suites: Sequence[SuiteOutline],
    *,
    decode: bool = True,
    everything: bool = True,
) -> Iterator[MatrixRow]:
    """Yield what is known of some checkpoints, page by page.

    Args:
        store: where they are remembered.
        study: whose they are.
        ids: their ids, in the order of the rows.
        suites: those that are wanted.
        decode: also what was measured, not only what became of it.
        everything: also what suites left behind that the study no longer has.
    """
    for start in range(0, len(ids), PAGE):
        with store.reader(study) as reader:
            rows = [
                _row(reader, reader.seen(one), suites, decode=decode, everything=everything)
                for one in ids[start : start + PAGE]
            ]
        yield from rows


def _row(
    reader: "Reader", seen: Seen, wanted: Sequence[SuiteOutline], *, decode: bool, everything: bool
) -> MatrixRow:
    groups = sorted(reader.groups_of(seen.id), key=lambda group: (group.replicate, group.id))
    names = {suite.name for suite in wanted}
    former = dict.fromkeys(group.suite for group in groups if everything and group.suite not in names)
    cells: list[Cell] = []
    values: list[GroupValues] = []
    for suite in (*wanted, *(SuiteOutline(name=name) for name in former)):
        own = [group for group in groups if group.suite == suite.name]
        wanted_groups: Sequence[Group | None] = own or [None]
        for group in wanted_groups:
            tasks = {} if group is None else current_tasks(reader.group_jobs(group.id))
            # An eval task that the suite no longer has still has its results.
            for name in dict.fromkeys((*(task.name for task in suite.tasks), *tasks)):
                shards = tasks.get(name, [])
                cells.append(_cell(reader, seen, group, suite, name, shards, decode=decode))
            if group is not None and group.state in (GroupState.COMPLETE, GroupState.PARTIAL):
                values.append(group_values(seen, group))
    return MatrixRow(seen=seen, cells=cells, values=values)


def _cell(
    reader: "Reader",
    seen: Seen,
    group: Group | None,
    suite: SuiteOutline,
    name: str,
    shards: Sequence[EvalJob],
    *,
    decode: bool,
) -> Cell:
    if not decode or group is None or not shards:
        return cell(seen, group, suite, name, shards)
    first = shards[0]
    results = reader.ledger(seen.identity, first.identity, group.replicate, first.shards)
    return cell(seen, group, suite, name, shards, results, plugins.loaded_class)


def cell_row(one: Cell) -> dict[str, Any]:
    """Return a cell as a row; its values as an object by name."""
    estimate = one.estimate
    return {
        **_of_checkpoint(one.seen),
        "suite": one.suite,
        "task": one.task,
        "replicate": one.replicate,
        "status": one.status.value,
        "why": one.why,
        "partial": one.partial,
        "metric": one.metric,
        "value": None if estimate is None else estimate.value,
        "stderr": None if estimate is None else estimate.stderr,
        "n": one.n,
        "values": {name: asdict(found) for name, found in one.values.items()},
        **({"unread": one.unread} if one.unread else {}),
        "shards": one.shards,
        "shards_done": one.shards_done,
        "duration_s": one.duration_s,
        "attempts": one.attempts,
        "worker": one.worker,
        "written_at": one.seen.written_at,
        "evaluated_at": one.evaluated_at,
    }


def values_row(one: GroupValues) -> dict[str, Any]:
    """Return the aggregates of a group as a row; its values as an object by name."""
    return {
        **_of_checkpoint(one.seen),
        "suite": one.group.suite,
        "replicate": one.group.replicate,
        "partial": one.partial,
        "why": one.group.why,
        "best": one.best,
        "values": {name: asdict(found) for name, found in one.values.items()},
        "ended_at": one.group.ended_at,
    }


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with a column per value instead of an object of them."""
    values = row.pop("values")
    row.pop("unread", None)
    return {
        **row,
        **{f"values.{name}": found["value"] for name, found in values.items()},
        **{f"stderr.{name}": found["stderr"] for name, found in values.items() if found["stderr"] is not None},
    }


def _of_checkpoint(seen: Seen) -> dict[str, Any]:
    return {
        "step": seen.step,
        "branch": seen.branch,
        "checkpoint": seen.name,
        "index": seen.index,
        "number": seen.number,
        "trial": seen.trial,
    }


def trial_row(trial: TrialRecord) -> dict[str, Any]:
    """Return a trial as one flat row."""
    return {
        "trial": trial.id,
        "member": trial.member,
        "generation": trial.generation,
        "kind": trial.kind.value,
        "state": trial.state.value,
        "fitness": trial.fitness,
        "start_step": trial.start_step,
        "end_step": trial.end_step,
        "reached_step": trial.reached_step,
        "parent": trial.parent,
        "jump_from": trial.jump_from,
        "decision": describe(trial.reason),
        "seed": trial.seed,
        "attempts": trial.token,
        "failures": trial.failures,
        "error": trial.error,
        "stop_reason": None if trial.stop_reason is None else describe(trial.stop_reason),
        "checkpoint": trial.checkpoint,
        "worker": trial.worker,
        "created_at": trial.created_at,
        "started_at": trial.started_at,
        "ended_at": trial.ended_at,
        **{f"params.{name}": value for name, value in trial.params.items()},
        **{f"metrics.{name}": value for name, value in trial.metrics.items()},
        **_criteria_columns(trial),
    }


def _criteria_columns(trial: TrialRecord) -> dict[str, Any]:
    """Return what several metrics were judged as; the values may be means of what was reported."""
    if trial.criteria is None:
        return {}
    values = {f"criteria.{name}": value for name, value in trial.criteria.values.items()}
    return {**values, "infeasible": trial.criteria.infeasible}


def frame(rows: Iterable[dict[str, Any]], *times: str) -> "pd.DataFrame":
    """Return rows as a pandas table, with columns that hold times as such.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError('dataframe() needs pandas: pip install "phyla[pandas]"') from error
    made = pd.DataFrame(list(rows))
    for column in times:
        if column in made:
            made[column] = pd.to_datetime(made[column], unit="s", utc=True)
    return made
