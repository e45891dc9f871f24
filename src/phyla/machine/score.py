"""A group becomes the fitness of the trial whose checkpoint it evaluated."""

import math
from dataclasses import replace
from typing import Any

from phyla.machine.commands import Command, RaiseElites, SetElite, SetStudyState, UpdateMember, UpdateTrial
from phyla.machine.evaluation_view import EvalView
from phyla.machine.rules import RECENT, Rules
from phyla.machine.view import View
from phyla.records import Group, GroupState, Member, Scored, StudyState, TrialRecord, json_number


def score(view: EvalView, rules: Rules | None, group: Group) -> list[Command]:
    """Return what the end of a group changes in its study; nothing unless a population waits for it.

    A complete group gives the trial its fitness, and the member too while it still trains on that trial's
    weights. A partial one, or one whose checkpoint is gone, is never a fitness.
    """
    population = view.population()
    if population is None or rules is None or rules.suite_fitness is None or group.trial is None:
        return []
    if group.suite != rules.suite_fitness.suite:
        return []
    trial = population.locked_trial(group.trial)
    if trial is None:
        return []
    member = population.locked_member(trial.member)
    estimate: Any = group.values.get(rules.suite_fitness.metric)
    if group.state is not GroupState.COMPLETE or estimate is None:
        return _unscored(view, rules, group, trial, member, missing=estimate is None)
    value = float(estimate["value"])
    stderr = None if estimate["stderr"] is None else float(estimate["stderr"])
    name = f"{group.suite}/{rules.suite_fitness.metric}"
    facts: Any = trial.metrics
    count = 1
    if trial.fitness is not None:
        count = int(facts.get(f"{name}/measurements", 1)) + 1
        stderr = _combined(facts.get(f"{name}/stderr"), stderr, count)
        value = trial.fitness + (value - trial.fitness) / count
    order = rules.objective.order(value)
    metrics = {**trial.metrics, name: json_number(value), f"{name}/measurements": count}
    if stderr is not None:
        metrics[f"{name}/stderr"] = json_number(stderr)
    commands: list[Command] = [UpdateTrial(replace(trial, fitness=value, order=order, metrics=metrics))]
    changed = _with_score(population, member, trial, value, order, stderr, count, rules)
    if changed != member:
        commands.append(UpdateMember(changed))
    if rules.strategy.keeps.elites:
        elite = population.elite(member.index)
        if elite is not None and elite.trial == trial.id:
            again = replace(elite, fitness=value, order=order, measurements=count, stderr=stderr)
            commands.append(SetElite(member.index, again if again.can_donate else None))
        if not rules.strategy.synchronous:
            commands.append(RaiseElites(member.index))
    return commands


def _combined(before: float | str | None, now: float | None, count: int) -> float | None:
    """Return the standard error of the mean of `count` measurements, from that of all but the last."""
    if before is None or now is None:
        return None
    return math.sqrt((float(before) * (count - 1)) ** 2 + now**2) / count


def _with_score(
    population: View,
    member: Member,
    trial: TrialRecord,
    value: float,
    order: float,
    stderr: float | None,
    count: int,
    rules: Rules,
) -> Member:
    assert trial.checkpoint is not None
    assert trial.reached_step is not None
    scored = Scored(
        trial=trial.id,
        member=member.index,
        checkpoint=trial.checkpoint,
        index=trial.checkpoint_index,
        step=trial.reached_step,
        params=trial.params,
        fitness=value,
        order=order,
        measurements=count,
        stderr=stderr,
    )
    changed = member
    if member.head is not None and member.head.trial == trial.id:
        changed = replace(changed, head=scored)
    published = member.published
    if published is not None and published.trial == trial.id:
        return replace(changed, published=scored)
    newer = published is None or published.trial < trial.id
    if rules.strategy.synchronous or not newer or not _descends(population, member, trial, rules):
        return changed
    return replace(changed, published=scored, recent=(*member.recent, value)[-RECENT:])


def _descends(population: View, member: Member, trial: TrialRecord, rules: Rules) -> bool:
    """Return whether the member's newest weights come from this trial of its own."""
    if member.current_trial is not None and population.trial(member.current_trial).jump_from is not None:
        # It is just taking over another's weights.
        return False
    at = member.head.trial if member.head else None
    depth = rules.suite_fitness.max_lag + 2 if rules.suite_fitness else 1
    for _ in range(depth):
        if at is None or at == trial.id:
            return at == trial.id
        record = population.trial(at)
        if record.jump_from is not None:
            return False
        at = record.parent
    return False


def _unscored(
    view: EvalView, rules: Rules, group: Group, trial: TrialRecord, member: Member, *, missing: bool
) -> list[Command]:
    fitness = rules.suite_fitness
    population = view.population()
    assert fitness is not None
    assert population is not None
    commands: list[Command] = []
    if group.replicate > 0 and member.published is not None and member.published.trial == trial.id:
        # It could not be confirmed, so nobody may take it over.
        commands.append(UpdateMember(replace(member, published=None)))
    elite = population.elite(member.index) if rules.strategy.keeps.elites else None
    if group.replicate > 0 and elite is not None and elite.trial == trial.id:
        commands.append(SetElite(member.index, None))
    if group.state is GroupState.COMPLETE and missing:
        known = ", ".join(sorted(group.values)) or "nothing"
        message = (
            f"suite {group.suite!r} gives no aggregate {fitness.metric!r}, which FromSuite names; it gives {known}"
        )
        return [*commands, SetStudyState(StudyState.FAILED, message)]
    in_a_row = view.partial_in_a_row(group.suite) + 1
    if in_a_row >= fitness.max_partial and population.study().state is StudyState.RUNNING:
        message = (
            f"{in_a_row} groups of suite {group.suite!r} in a row ended partial, the last on trial {trial.id}: "
            f"{group.why}. Without fitness the population cannot go on. Nothing is lost: mend the cause, then "
            "resume the study."
        )
        commands.append(SetStudyState(StudyState.FAILED, message))
    return commands
