"""The matrix of checkpoints and eval tasks, read from the store page by page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from phyla import plugins
from phyla.evaluation import Cell, GroupValues, SuiteOutline, cell, current_tasks, group_values
from phyla.records import EvalTaskRecord, Group, GroupState, RunRecord, Seen

if TYPE_CHECKING:
    from phyla.store import EvalReader, Store

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


@final
class Matrix:
    """Every checkpoint of a run against every eval task.

    Args:
        store: where the run is remembered.
        run: the run.
    """

    def __init__(self, store: "Store", run: RunRecord) -> None:
        self._store = store
        self._run = run

    def rows(
        self, suites: Sequence[SuiteOutline], *, decode: bool = True, everything: bool = True
    ) -> Iterator[MatrixRow]:
        """Yield the rows of all checkpoints, oldest first.

        Args:
            suites: those that are wanted.
            decode: also what was measured, not only what became of it.
            everything: also what suites left behind that the run no longer has.
        """
        after = 0
        while True:
            with self._store.evaluations(self._run) as reader:
                page = reader.all_seen(after=after, limit=PAGE)
                rows = [_row(reader, seen, suites, decode=decode, everything=everything) for seen in page]
            if not page:
                return
            yield from rows
            after = page[-1].id

    def rows_of(
        self, ids: Sequence[int], suites: Sequence[SuiteOutline], *, decode: bool = True, everything: bool = True
    ) -> Iterator[MatrixRow]:
        """Yield the rows of some checkpoints, by their ids in the order given; the rest as for `rows`."""
        for start in range(0, len(ids), PAGE):
            with self._store.evaluations(self._run) as reader:
                rows = [
                    _row(reader, reader.seen(one), suites, decode=decode, everything=everything)
                    for one in ids[start : start + PAGE]
                ]
            yield from rows


def _row(
    reader: "EvalReader", seen: Seen, wanted: Sequence[SuiteOutline], *, decode: bool, everything: bool
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
            tasks = {} if group is None else current_tasks(reader.group_tasks(group.id))
            # An eval task that the suite no longer has still has its results.
            for name in dict.fromkeys((*(task.name for task in suite.tasks), *tasks)):
                shards = tasks.get(name, [])
                cells.append(_cell(reader, seen, group, suite, name, shards, decode=decode))
            if group is not None and group.state in (GroupState.COMPLETE, GroupState.PARTIAL):
                values.append(group_values(seen, group))
    return MatrixRow(seen=seen, cells=cells, values=values)


def _cell(
    reader: "EvalReader",
    seen: Seen,
    group: Group | None,
    suite: SuiteOutline,
    name: str,
    shards: Sequence[EvalTaskRecord],
    *,
    decode: bool,
) -> Cell:
    if not decode or group is None or not shards:
        return cell(seen, group, suite, name, shards)
    first = shards[0]
    results = reader.results(seen.identity, first.identity, group.replicate, first.shards)
    return cell(seen, group, suite, name, shards, results, plugins.loaded_class)
