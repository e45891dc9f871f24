"""Deletes a study from a SQL database."""

import sqlalchemy as sa

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

_STUDY = given("study")
# With the studies that watch it.
_IDS = sa.select(studies.c.id).where(sa.or_(studies.c.id == _STUDY, studies.c.source == _STUDY))
_a, _s = attempts.c, checkpoints.c
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


def delete_study(session: Session, study: int) -> None:
    """Delete a study, those that watch it and all their rows, inside a transaction that is alone on the study."""
    for deletion in _DELETIONS:
        session.run(deletion, {"study": study})
