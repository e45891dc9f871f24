"""Deletes a study from a SQL database."""

from collections.abc import Sequence

import sqlalchemy as sa

from phyla.errors import StateError
from phyla.records import StudyRecord
from phyla.store.sql.backend import Session
from phyla.store.sql.scope import given
from phyla.store.sql.tables import (
    EVALUATED,
    attempts,
    checkpoints,
    eval_events,
    eval_groups,
    eval_results,
    jobs,
    marks,
    members,
    reports,
    starts,
    studies,
)

_STUDY, _NOW = given("study"), given("now")
# With the studies that watch it.
_IDS = sa.select(studies.c.id).where(sa.or_(studies.c.id == _STUDY, studies.c.source == _STUDY))
_a, _s = attempts.c, checkpoints.c
_HELD = sa.select(_a.worker, _a.expires_at).where(_a.study.in_(_IDS), _a.state == "running", _a.expires_at > _NOW)
_ELSEWHERE = sa.exists().where(EVALUATED, _s.identity == eval_results.c.identity, _s.study.not_in(_IDS))
_DELETIONS = (
    # From what refers to others to what is referred to.
    eval_results.delete().where(eval_results.c.study.in_(_IDS), ~_ELSEWHERE),
    attempts.delete().where(_a.job.in_(sa.select(jobs.c.id).where(jobs.c.study.in_(_IDS)))),
    *(
        table.delete().where(table.c.study.in_(_IDS))
        for table in (marks, reports, jobs, eval_groups, checkpoints, eval_events, starts, members)
    ),
    studies.delete().where(studies.c.source == _STUDY),
    studies.delete().where(studies.c.id == _STUDY),
)


def delete_study(session: Session, study: StudyRecord, now: float, worker: str | None) -> None:
    """Delete a study, those that watch it and all their rows, inside a transaction that is alone on the study.

    Raises:
        StateError: another worker holds a lease that has not run out.
    """
    held = session.run(_HELD, {"study": study.id, "now": now}).fetchall()
    _check_unheld(study.name, [(holder, expires_at - now) for holder, expires_at in held], worker)
    for deletion in _DELETIONS:
        session.run(deletion, {"study": study.id})


def _check_unheld(study: str, held: Sequence[tuple[str, float]], worker: str | None) -> None:
    """Refuse while a worker besides this one holds a lease; `held` has each holder and the seconds left."""
    others: dict[str, float] = {}
    for holder, left_s in held:
        if holder != worker:
            others[holder] = max(left_s, others.get(holder, 0.0))
    if not others:
        return
    names = ", ".join(sorted(others)[:3]) + (", ..." if len(others) > 3 else "")
    count = "a worker is" if len(others) == 1 else f"{len(others)} workers are"
    raise StateError(
        f"study {study!r} was not deleted: {count} training or evaluating it ({names}). Stop them first; a worker "
        f"that died holds its lease for {max(others.values()):.0f} s more"
    )
