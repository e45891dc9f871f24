"""Resting: an eval task that fails with the same error on two checkpoints pauses, so that it does not fail on all.

Only failures are stored: each claim computes from them which eval tasks rest.
"""

import math
import re
from collections.abc import Sequence

from phyla.machine.commands import Command, Insert, Update
from phyla.machine.evaluating.score import FINALIST
from phyla.machine.jobs import change_state
from phyla.machine.view import Reader, View
from phyla.records import LOG_FOLLOWS, EvalEvent, EvalJob, JobState, MemberState, StudyState, summarize_error

REST_AFTER = 2
"""Checkpoints on which an eval task fails with the same error before it rests."""
REST_S = 60.0
REST_SHARE = 10.0
"""The rest lasts ten times as long as the failing attempt, and at least `REST_S` seconds."""
_NUMBER = re.compile(r"[0-9a-f]*\d[0-9a-f.]*")


def asleep(view: Reader) -> frozenset[str]:
    """Return the identities of resting eval tasks; each is tried periodically, on one checkpoint at a time."""
    return frozenset(identity for identity, failed in _alike(view).items() if _rests(view, failed))


def begin_rest(view: View, job: EvalJob) -> list[Command]:
    """Record, once, that an eval task rests after the failure of one of its shards."""
    failed = _alike(view, job)[job.identity]
    seen = [failure.seen for failure in failed]
    if len({*seen}) != REST_AFTER or job.seen in seen[1:]:
        return []
    suite = view.group(job.group).suite
    message = (
        f"eval task {job.task!r} of suite {suite!r} rests, since it failed with the same error on {REST_AFTER} "
        f"checkpoints: {summarize_error(job.error)}. It is tried on another one now and then, and takes up the "
        "others once it succeeds"
    )
    study, now = view.study().id, view.now()
    return [Insert(EvalEvent(study=study, kind="resting", suite=suite, message=message, created_at=now))]


def is_ending(view: Reader) -> bool:
    """Return whether no more checkpoints will come."""
    if view.study().watched:
        return view.study().state is StudyState.DRAINING
    return all(member.retired or member.state is MemberState.DONE for member in view.members())


def give_up(view: View, job: EvalJob) -> Update:
    """Give up a shard of a resting eval task at the end of the study."""
    failed = _alike(view)[job.identity]
    count = len({failure.seen for failure in failed})
    error = summarize_error(failed[0].error)
    why = f"not tried: it failed with the same error on {count} other checkpoints: {error}"
    return Update(change_state(job, JobState.FAILED, error=why, ended_at=view.now()))


def _alike(view: Reader, *just_failed: EvalJob) -> dict[str, list[EvalJob]]:
    """Return the shards that failed with the same error as the last one, newest first, by eval task identity.

    Failures before a success do not count, nor those of a suite that a population or its final waits for, whose
    failures stop the study.
    """
    by_task: dict[str, list[EvalJob]] = {}
    for job in (*just_failed, *view.failed_evaluations()):
        failures = by_task.setdefault(job.identity, [])
        if not failures or _without_numbers(job.error) == _without_numbers(failures[0].error):
            failures.append(job)
    for identity, failures in by_task.items():
        if len({job.seen for job in failures}) < REST_AFTER:
            continue
        since = view.last_result_at(identity) or 0.0
        if view.group(failures[0].group).guaranteed in ("fitness", FINALIST):
            since = math.inf
        by_task[identity] = [job for job in failures if (job.ended_at or 0.0) > since]
    return by_task


def _rests(view: Reader, failed: Sequence[EvalJob]) -> bool:
    checkpoints = len({job.seen for job in failed})
    if checkpoints < REST_AFTER:
        return False
    last, ended_at = failed[0], failed[0].ended_at or 0.0
    took_s = last.failures * (ended_at - (last.started_at or ended_at))
    if checkpoints > REST_AFTER if is_ending(view) else view.now() < ended_at + max(REST_S, REST_SHARE * took_s):
        return True
    running = (view.job(attempt.job) for attempt in view.running())
    return any(isinstance(job, EvalJob) and job.identity == last.identity for job in running)


def _without_numbers(error: str | None) -> str:
    text = summarize_error(error).partition("; the full traceback")[0].partition(LOG_FOLLOWS)[0]
    return _NUMBER.sub("#", text)
