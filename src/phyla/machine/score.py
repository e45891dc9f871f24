"""What a trial is worth: by what it reported, or by the suite that evaluated its checkpoint."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

from phyla.arguments import suggestion
from phyla.machine.commands import Command, SetStudyState, Update
from phyla.machine.rules import Rules, TrainRules
from phyla.machine.states import judged_again, unscored
from phyla.machine.view import View
from phyla.records import (
    Criteria,
    Group,
    GroupState,
    Member,
    Objective,
    Scored,
    StudyState,
    TrialRecord,
    json_number,
)


class Worth(TypedDict):
    """The fields of a trial and of a `Scored` that come from an objective."""

    fitness: float | None
    order: float | None
    criteria: Criteria | None


def worth(values: Mapping[str, float], objective: Objective) -> Worth:
    """Return what an objective makes of the metrics it needs."""
    found = objective.judge(values)
    if len(values) == 1 and not found.orders and found.infeasible is None:
        (value,) = values.values()
        if value == found.fitness or math.isnan(value):
            return Worth(fitness=found.fitness, order=found.order, criteria=None)
    criteria = Criteria(values=dict(values), orders=found.orders, infeasible=found.infeasible)
    return Worth(fitness=found.fitness, order=found.order, criteria=criteria)


def judged_values(scored: Scored | TrialRecord, objective: Objective) -> Mapping[str, float]:
    """Return the metrics that something with a fitness was judged by."""
    if scored.criteria is not None:
        return scored.criteria.values
    assert scored.fitness is not None
    return {objective.goals[0].metric: scored.fitness}


def mean_with(before: Mapping[str, float], values: Mapping[str, float], count: int, objective: Objective) -> Worth:
    """Return what the mean of `count` measurements is worth, from that of all but the last, and the last."""
    means = {name: mean + (values[name] - mean) / count for name, mean in before.items()}
    return worth(means, objective)


def score(view: View, rules: Rules, group: Group) -> list[Command]:
    """Return what the end of a group changes in its study; nothing unless a population waits for it.

    A complete group gives the trial its fitness, and the member too while it still trains on that trial's
    weights. A partial one, or one whose checkpoint is gone, is never a fitness.
    """
    if not isinstance(rules, TrainRules) or rules.suite_fitness is None or group.trial is None:
        return []
    if group.suite != rules.suite_fitness.suite:
        return []
    trial = view.locked_trial(group.trial)
    if trial is None:
        return []
    member = view.locked_member(trial.member)
    names = rules.aggregates
    estimates: dict[str, Any] = {metric: group.values.get(name) for metric, name in names.items()}
    missing = [names[metric] for metric, estimate in estimates.items() if estimate is None]
    if group.state is not GroupState.COMPLETE or missing:
        return _unscored(view, rules, group, trial, member, missing)
    measured = {metric: float(one["value"]) for metric, one in estimates.items()}
    count = 1
    found = worth(measured, rules.objective)
    if trial.fitness is not None:
        before = judged_values(trial, rules.objective)
        facts: Any = trial.metrics
        count = int(facts.get(f"{group.suite}/{next(iter(names.values()))}/measurements", 1)) + 1
        found = mean_with(before, measured, count, rules.objective)
    stderrs = {
        metric: _stderr(trial, f"{group.suite}/{names[metric]}", estimates[metric], count) for metric in names
    }
    metrics = dict(trial.metrics)
    for metric, name in names.items():
        value = found["fitness"] if found["criteria"] is None else found["criteria"].values[metric]
        metrics[f"{group.suite}/{name}"] = json_number(value)
        metrics[f"{group.suite}/{name}/measurements"] = count
        stderr = stderrs[metric]
        if stderr is not None:
            metrics[f"{group.suite}/{name}/stderr"] = json_number(stderr)
    judged = replace(trial, metrics=metrics, **found)
    commands: list[Command] = [Update(judged)]
    # Of a fitness made of several metrics the standard error is not known.
    stderr = next(iter(stderrs.values())) if judged.criteria is None else None
    changed = _with_score(member, judged, stderr, count, rules)
    if changed != member:
        commands.append(Update(changed))
    return commands


def _stderr(trial: TrialRecord, name: str, estimate: Any, count: int) -> float | None:
    """Return the standard error of an aggregate's mean over `count` measurements, of which this is the last."""
    now = None if estimate["stderr"] is None else float(estimate["stderr"])
    if now is None or count == 1:
        return now
    facts: Any = trial.metrics
    before = facts.get(f"{name}/stderr")
    return None if before is None else math.sqrt((float(before) * (count - 1)) ** 2 + now**2) / count


def _with_score(member: Member, trial: TrialRecord, stderr: float | None, count: int, rules: TrainRules) -> Member:
    """Return a member whose state of a trial has the score that the trial got."""
    state = next((one for one in (*member.states, member.head) if one and one.trial == trial.id), None)
    if state is None:
        return member
    scored = replace(
        state,
        fitness=trial.fitness,
        order=trial.order,
        criteria=trial.criteria,
        measurements=count,
        stderr=stderr,
    )
    if member.head is not None and member.head.trial == trial.id:
        member = replace(member, head=scored)
    return judged_again(member, scored)


def _unscored(
    view: View, rules: TrainRules, group: Group, trial: TrialRecord, member: Member, missing: Sequence[str]
) -> list[Command]:
    fitness = rules.suite_fitness
    assert fitness is not None
    commands: list[Command] = []
    changed = unscored(member, trial.id, group.replicate)
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
