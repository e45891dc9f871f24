"""Deletes a study from a SQL database."""

import sqlalchemy as sa

from phyla.records import StudyRecord
from phyla.store.leases import check_unheld
from phyla.store.sql.backend import Session
from phyla.store.sql.scope import given
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

_STUDY, _NOW = given("study"), given("now")
_RUNS = sa.select(runs.c.id).where(runs.c.study == _STUDY)
_a, _e, _s = attempts.c, eval_attempts.c, seen_checkpoints.c
_HELD = (
    sa.select(_a.worker, _a.expires_at).where(_a.study == _STUDY, _a.state == "running", _a.expires_at > _NOW),
    sa.select(_e.worker, _e.expires_at).where(_e.run.in_(_RUNS), _e.state == "running", _e.expires_at > _NOW),
)
_ELSEWHERE = sa.exists().where(_s.identity == eval_results.c.identity, _s.run.not_in(_RUNS))
_DELETIONS = (
    # From what refers to others to what is referred to.
    eval_results.delete().where(eval_results.c.run.in_(_RUNS), ~_ELSEWHERE),
    eval_attempts.delete().where(_e.task.in_(sa.select(eval_tasks.c.id).where(eval_tasks.c.run.in_(_RUNS)))),
    *(
        table.delete().where(table.c.run.in_(_RUNS))
        for table in (eval_tasks, eval_groups, eval_events, seen_checkpoints)
    ),
    attempts.delete().where(_a.trial.in_(sa.select(trials.c.id).where(trials.c.study == _STUDY))),
    *(
        table.delete().where(table.c.study == _STUDY)
        for table in (runs, marks, reports, checkpoints, trials, members)
    ),
    studies.delete().where(studies.c.id == _STUDY),
)


def delete_study(session: Session, study: StudyRecord, now: float, worker: str | None) -> None:
    """Delete a study, its run and all their rows, inside a transaction that is alone on the study.

    Raises:
        StateError: another worker holds a lease that has not run out.
    """
    held: list[tuple[str, float]] = []
    for statement in _HELD:
        found = session.run(statement, {"study": study.id, "now": now}).fetchall()
        held += [(holder, expires_at - now) for holder, expires_at in found]
    check_unheld(study.name, held, worker)
    for deletion in _DELETIONS:
        session.run(deletion, {"study": study.id})
