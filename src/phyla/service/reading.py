"""The queries that a service answers, each in one transaction of its store."""

from collections.abc import Mapping, Sequence
from typing import Any

from phyla import queries
from phyla.client import sort_out
from phyla.machine import awaits_imports
from phyla.store import Query
from phyla.study.maintaining.disk_usage import checkpoint_sizes
from phyla.study.maintaining.recover import outputs_in_vain
from phyla.study.results.course import course, histories
from phyla.study.results.findings import findings
from phyla.study.results.given_up import given_up
from phyla.study.results.progress import progress
from phyla.study.results.story import read_story
from phyla.study.results.tracker_rows import tracked_trials
from phyla.study.results.watched_runs import run_news
from phyla.study.running.messages import achieved
from phyla.study.watching.plan import known_shards
from phyla.watcher.study_watcher import produced_after

_STUDY = (queries.study, queries.summary, queries.members, queries.starts, queries.time_spent, queries.events)
_TRIALS = (
    *(queries.trials, queries.attempts, queries.running, queries.recent, queries.broken_trials),
    *(queries.ancestry, queries.reports),
)
_CHECKPOINTS = (
    *(queries.checkpoints, queries.best, queries.retention, sort_out, awaits_imports, checkpoint_sizes),
)
_EVALUATION = (
    *(
        queries.job,
        queries.next_eval_job,
        queries.eval_jobs,
        queries.waiting,
        queries.groups,
        queries.ended_groups,
    ),
    *(queries.group_results, queries.evaluated, queries.newest_complete, queries.in_use, queries.lags),
    queries.in_evaluation,
    *(queries.seen, queries.newest_seen, outputs_in_vain, known_shards, produced_after),
)
_SHOWN = (progress, course, histories, findings, given_up, read_story, tracked_trials, run_news, achieved)
_ALL: Sequence[Query[..., Any]] = (*_STUDY, *_TRIALS, *_CHECKPOINTS, *_EVALUATION, *_SHOWN)
QUERIES: Mapping[str, Query[..., Any]] = {query.__name__: query for query in _ALL}
"""Every remote query by name."""
