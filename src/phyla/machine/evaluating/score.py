"""The score of a trial: from its reports, or from the suite that evaluated its checkpoint."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from phyla.errors import ends_only_call
from phyla.machine.commands import Command, Insert, SetStudyState, Update
from phyla.machine.published_states import give_no_score, replace_score
from phyla.machine.requests import NotJudged
from phyla.machine.rules import Rules, TrainRules
from phyla.machine.view import View
from phyla.records import (
    EvalEvent,
    Group,
    GroupState,
    JobKind,
    JobState,
    Member,
    Objective,
    Scored,
    StudyState,
    TrialRecord,
    Worth,
    escape_name,
    json_number,
    worth,
)
from phyla.validation import suggestion

FINALIST = "finalist"
"""Why no policy may skip an evaluation: a final waits for it."""
SAME_SAMPLES = "same-samples"
"""Kind of the event for a repeated evaluation with identical results."""


@contextmanager
def judging(trial: int) -> Iterator[None]:
    """Raise `NotJudged` with the trial for whatever its fitness rule or the objective raises."""
    try:
        yield
    except BaseException as error:
        if not ends_only_call(error):
            raise
        raise NotJudged(f"trial {trial}") from error


def judged_values(scored: Scored | TrialRecord, objective: Objective) -> Mapping[str, float]:
    """Return the metrics behind a fitness."""
    if scored.criteria is not None:
        return scored.criteria.values
    assert scored.fitness is not None
    return {objective.goals[0].metric: scored.fitness}


def mean_with(before: Mapping[str, float], values: Mapping[str, float], count: int, objective: Objective) -> Worth:
    """Return the score of the mean of `count` measurements, from the mean of all but the last and the last."""
    means = {name: mean + (values[name] - mean) / count for name, mean in before.items()}
    return worth(means, objective)


def score(view: View, rules: Rules, group: Group) -> list[Command]:
    """Return the commands after the end of a group; none unless a population waits for it.

    A complete group gives the trial its fitness, and the member too while it still trains on that trial's
    weights. A partial group, or a group whose checkpoint is gone, gives no fitness.
    """
    if not isinstance(rules, TrainRules) or rules.suite_fitness is None:
        return []
    if group.guaranteed == FINALIST:
        return _record_measurement(view, rules, group)
    if group.trial is None or group.suite != rules.suite_fitness.suite:
        return []
    trial = view.locked_trial(group.trial)
    if trial is None:
        return []
    member = view.locked_member(trial.member)
    names = rules.aggregates
    missing = [name for name in names.values() if group.values.get(name) is None]
    if group.state is not GroupState.COMPLETE or missing:
        return _end_without_score(view, rules, group, trial, member, missing)
    pool = _pool_groups(view, group, names)
    with judging(trial.id):
        judgement = worth(pool.means, rules.objective)
    metrics = dict(trial.metrics)
    for metric, name in names.items():
        metrics[f"{group.suite}/{name}"] = json_number(pool.means[metric])
        metrics[f"{group.suite}/{name}/measurements"] = pool.count
        metrics.pop(f"{group.suite}/{name}/stderr", None)
        stderr = pool.stderrs[metric]
        if stderr is not None:
            metrics[f"{group.suite}/{name}/stderr"] = json_number(stderr)
    judged = replace(trial, metrics=metrics, **judgement)
    commands: list[Command] = [Update(judged), *_say_same(view, group, pool)]
    # The standard error of a fitness of several metrics is unknown.
    stderr = next(iter(pool.stderrs.values())) if judged.criteria is None else None
    changed = _with_score(member, judged, stderr, pool.evaluations)
    if changed != member:
        commands.append(Update(changed))
    return commands


@dataclass(slots=True)
class _Pool:
    """The mean of the evaluations of one checkpoint, and its standard error, by metric of the objective.

    `count` evaluations are in the mean; the others repeat one of them. `same` names the eval tasks that drew the
    same samples again in some of the evaluations in the mean.
    """

    evaluations: int
    count: int = 0
    means: dict[str, float] = field(default_factory=dict)
    stderrs: dict[str, float | None] = field(default_factory=dict)
    same: set[str] = field(default_factory=set)


def _record_measurement(view: View, rules: TrainRules, group: Group) -> list[Command]:
    """Return the measurement of a final that an evaluation is."""
    seen = view.seen(group.seen)
    trial = None if seen.trial is None else view.trial(seen.trial)
    if trial is None:
        return []
    with judging(trial.id):
        judgement = _worth_of(group, rules) if group.state is GroupState.COMPLETE else None
    measured = TrialRecord(
        id=view.new_job_id(),
        study=trial.study,
        member=trial.member,
        generation=trial.generation,
        kind=JobKind.FINAL,
        state=JobState.FAILED if judgement is None else JobState.COMPLETED,
        parent=trial.id,
        parent_checkpoint=trial.checkpoint,
        parent_index=trial.checkpoint_index,
        params_from=trial.id,
        params=trial.params,
        start_step=seen.step,
        end_step=seen.step,
        reached_step=seen.step,
        seed=0,
        checkpoint=trial.checkpoint,
        checkpoint_index=trial.checkpoint_index,
        reason={"decision": "final", "suite": group.suite, "replicate": group.replicate},
        error=None if judgement is not None else group.why or f"its evaluation is {group.state}",
        created_at=group.created_at,
        started_at=group.created_at,
        ended_at=view.now(),
        age=trial.age,
        **(judgement or Worth(fitness=None, order=None, criteria=None)),
    )
    return [Insert(measured)]


def _worth_of(group: Group, rules: TrainRules) -> Worth | None:
    """Return the score that one evaluation gives; None if an aggregate is missing."""
    names = rules.aggregates
    if any(group.values.get(name) is None for name in names.values()):
        return None
    return worth({metric: _estimate(group, name)[0] for metric, name in names.items()}, rules.objective)


def _pool_groups(view: View, group: Group, names: Mapping[str, str]) -> _Pool:
    """Pool a newly completed group with the earlier ones, except exact repetitions."""
    earlier = [
        other
        for other in view.groups_of(group.seen)
        if (other.suite, other.trial, other.state) == (group.suite, group.trial, GroupState.COMPLETE)
        and other.id != group.id
        and all(name in other.values for name in names.values())
    ]
    pool, pooled = _Pool(1 + len(earlier)), list[Group]()
    for measurement in sorted([*earlier, group], key=lambda measurement: measurement.replicate):
        if any(
            all(measurement.values[name] == before.values[name] for name in names.values()) for before in pooled
        ):
            continue
        same = {task for before in pooled for task in _same_samples(view, measurement, before)}
        pooled.append(measurement)
        pool.same |= same
        pool.count += 1
        for metric, name in names.items():
            value, now = _estimate(measurement, name)
            mean, before = pool.means.get(metric, 0.0), pool.stderrs.get(metric, 0.0)
            pool.means[metric] = mean + (value - mean) / pool.count
            parts = None if before is None or now is None else (before * (pool.count - 1), now)
            # Measurements that share samples are not independent.
            pool.stderrs[metric] = parts and (sum(parts) if same else math.hypot(*parts)) / pool.count
    return pool


def _estimate(group: Group, name: str) -> tuple[float, float | None]:
    stored: Any = group.values[name]
    return float(stored["value"]), None if stored["stderr"] is None else float(stored["stderr"])


def _same_samples(view: View, group: Group, before: Group) -> set[str]:
    """Return the eval tasks of which a shard recorded the same samples as before, to the bit."""
    now, then = _samples(view, group), _samples(view, before)
    return {shard[0] for shard, samples in now.items() if samples and samples == then.get(shard)}


def _samples(view: View, group: Group) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Return the stored moments of samples that vary, by shard; constant samples cannot show a repetition."""
    identity, samples = view.seen(group.seen).identity, {}
    for job in view.group_jobs(group.id):
        if job.kind is JobKind.EVALUATE and job.state is JobState.COMPLETED:
            for result in view.ledger(identity, job.identity, group.replicate, job.shards):
                recorded: Any = result.statistics
                varying = {
                    name: statistic for name, statistic in recorded.items() if statistic.get("state", {}).get("m2")
                }
                samples[job.task, job.identity, result.shard] = varying
    return samples


def _say_same(view: View, group: Group, pool: _Pool) -> list[Command]:
    """Record, once per suite, that a repeated evaluation gave identical results."""
    repeated = pool.count < pool.evaluations
    repetitions = ((past.kind, past.suite) == (SAME_SAMPLES, group.suite) for past in view.events())
    if not (repeated or pool.same) or any(repetitions):
        return []
    which = "" if repeated else f"eval task {', '.join(map(repr, sorted(pool.same)))} of "
    follows = "that does not count as another measurement" if repeated else "the standard error does not shrink"
    message = (
        f"{which}suite {group.suite!r} gave exactly the same results when "
        f"{escape_name(view.seen(group.seen).name)} was evaluated again, so {follows}. Draw samples with "
        "evaluation.seed, which is another one each time; if nothing is drawn, leave out remeasure"
    )
    study, seen, now = view.study().id, group.seen, view.now()
    event = EvalEvent(
        study=study, kind=SAME_SAMPLES, seen=seen, suite=group.suite, message=message, created_at=now
    )
    return [Insert(event)]


def _with_score(member: Member, trial: TrialRecord, stderr: float | None, evaluations: int) -> Member:
    """Return a member with the score of a trial in its state of that trial."""
    states = filter(None, (*member.states, member.head))
    state = next((state for state in states if state.trial == trial.id), None)
    if state is None:
        return member
    scored = replace(
        state,
        fitness=trial.fitness,
        order=trial.order,
        criteria=trial.criteria,
        measurements=evaluations,
        stderr=stderr,
    )
    if member.head is not None and member.head.trial == trial.id:
        member = replace(member, head=scored)
    return replace_score(member, scored)


def _end_without_score(
    view: View, rules: TrainRules, group: Group, trial: TrialRecord, member: Member, missing: Sequence[str]
) -> list[Command]:
    fitness = rules.suite_fitness
    assert fitness is not None
    commands: list[Command] = []
    changed = give_no_score(member, trial.id, group.replicate)
    if changed != member:
        commands.append(Update(changed))
    if group.state is GroupState.COMPLETE and missing:
        known = suggestion(missing[0], sorted(group.values))
        message = (
            f"suite {group.suite!r} gives no aggregate {' and no aggregate '.join(map(repr, missing))}, which "
            f"{'the objective' if fitness.metric is None else 'FromSuite'} names; {known}"
        )
        return [*commands, SetStudyState(StudyState.FAILED, message)]
    in_a_row = view.partial_in_a_row(group.suite) + 1
    if in_a_row >= fitness.max_partial and view.study().state is StudyState.RUNNING:
        message = (
            f"{in_a_row} groups of suite {group.suite!r} in a row ended partial, the last on trial {trial.id}: "
            f"{group.why}. Without fitness the population cannot go on. Completed trials are kept, and "
            "running ones finish. Fix the cause, then resume the study."
        )
        commands.append(SetStudyState(StudyState.FAILED, message))
    return commands
