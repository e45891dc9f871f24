"""Deletes a study from a SQL database."""

from collections.abc import Iterator

import sqlalchemy as sa

from phyla.store.leases import check_unheld
from phyla.store.sql.backend import Cursor
from phyla.store.sql.statements import NOW, STUDY
from phyla.store.sql.tables import (
    attempts,
    checkpoints,
    eval_attempts,
    eval_events,
    eval_groups,
    eval_results,
    eval_tasks,
    marks,
    members,
    reports,
    runs,
    seen_checkpoints,
    studies,
    trials,
)

_RUNS = sa.select(runs.c.id).where(runs.c.study == STUDY)


def delete_study(
    cursor: Cursor, dialect: sa.Dialect, study: int, name: str, now: float, worker: str | None
) -> None:
    """Delete a study, its run and all their rows, inside a transaction that is alone on the study.

    Raises:
        StateError: another worker holds a lease that has not run out.
    """
    a, e = attempts.c, eval_attempts.c
    running: sa.ColumnElement[str] = sa.literal_column("'running'")
    training = sa.select(a.worker, a.expires_at).where(a.study == STUDY, a.state == running, a.expires_at > NOW)
    evaluating = sa.select(e.worker, e.expires_at).where(e.run.in_(_RUNS), e.state == running, e.expires_at > NOW)
    held: list[tuple[str, float]] = []
    for select in (training, evaluating):
        cursor.execute(str(select.compile(dialect=dialect)), {"k_study": study, "k_now": now})
        held += [(holder, expires_at - now) for holder, expires_at in cursor.fetchall()]
    check_unheld(name, held, worker)
    for statement in _deletions():
        cursor.execute(str(statement.compile(dialect=dialect)), {"k_study": study})


def _deletions() -> Iterator[sa.Delete]:
    """Yield the statements, from what refers to others to what is referred to."""
    seen = seen_checkpoints.c
    elsewhere = sa.exists().where(seen.identity == eval_results.c.identity, seen.run.not_in(_RUNS))
    yield eval_results.delete().where(eval_results.c.run.in_(_RUNS), ~elsewhere)
    for table in (eval_attempts, eval_tasks, eval_groups, eval_events, seen_checkpoints):
        yield table.delete().where(table.c.run.in_(_RUNS))
    for table in (runs, marks, reports, checkpoints, attempts, trials, members):
        yield table.delete().where(table.c.study == STUDY)
    yield studies.delete().where(studies.c.id == STUDY)
