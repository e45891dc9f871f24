"""Building blocks of strategies: where a trial starts, with which hyperparameters, and when a member ends."""

from collections.abc import Iterator
from typing import Any, Final, Literal, TypeAlias, get_args

from phyla.records import Json, JsonObject, Member, Scored, TrialRecord
from phyla.strategies.exploit import Exploited, facts
from phyla.strategies.explore import changes_of, propose_params
from phyla.strategies.strategy import Context, History, Population, Start, Stop

BROKEN_AT_MOST = 3
"""Trials of a member that break with the same hyperparameters, before it is given up."""

Copy: TypeAlias = Literal["both", "weights", "hyperparameters"]
"""Parts of a state that a member takes over from another."""

COPIES: Final = get_args(Copy)


def steps_to_line(start: int, steps_per_trial: int | None, total_steps: int) -> int:
    """Return how many steps lead from a progress to the next grid line; with None, to the end of training."""
    remaining = max(1, total_steps - start)
    return remaining if steps_per_trial is None else min(steps_per_trial - start % steps_per_trial, remaining)


def fresh(member: Member, params: JsonObject, steps: int, **reason: Json) -> Start:
    """Start from nothing, with these hyperparameters."""
    decision = "start" if member.broken_trial is None else "replace"
    details = {"decision": decision, **reason, **replaces(member)}
    return Start(weights=None, params=params, params_from=None, steps=steps, reason=details)


def sampled(member: Member, steps: int, context: Context) -> Start:
    """Start from nothing, as the space says for this member; a replacement is drawn from the priors."""
    first = member.broken_trial is None
    return fresh(member, context.space.sample(context.rng, member=member.index if first else None), steps)


def proceed(member: Member, steps: int, **reason: Json) -> Start:
    """Go on with the member's own weights and hyperparameters."""
    assert member.head is not None
    return Start(
        weights=member.head,
        params=member.head.params,
        params_from=member.head.trial,
        steps=steps,
        reason={"decision": "continue", **reason, **replaces(member)},
    )


def explore_from(
    strategy: Any, member: Member, choice: Exploited, population: Population, context: Context
) -> Start:
    """Take over the chosen state, or keep one's own, and explore from there up to the next grid line."""
    head, copy, compared = member.head, strategy.copy, choice.reason
    assert head is not None
    donor = None if choice.donor is not None and choice.donor.trial == head.trial else choice.donor
    weights = head if donor is None or copy == "hyperparameters" else donor
    source = head if copy == "weights" else choice.params_donor or donor or head
    if source is choice.params_donor:
        compared = {**compared, "params_donor": facts(source)}
    rule = strategy.explore if choice.explore else None
    proposal = propose_params(rule, source, population, context) if rule else None
    changes = (
        proposal.changes or changes_of(source.params, proposal.params, type(rule).__name__) if proposal else {}
    )
    reason: JsonObject = {
        "decision": "exploit" if donor else "explore",
        **({"copied": copy} if donor else {}),
        "compared": {"donor": facts(donor), **compared} if donor else compared,
        "changes": changes,
        **(proposal.facts if proposal else {}),
        **replaces(member),
    }
    return Start(
        weights=weights,
        params=proposal.params if proposal else source.params,
        params_from=source.trial,
        steps=steps_to_line(max(member.progress, weights.age), strategy.steps_per_trial, strategy.total_steps),
        reason=reason,
        exploited=True,
    )


def replaces(member: Member) -> JsonObject:
    """Return which broken trial the next one replaces, for its reason."""
    return {} if member.broken_trial is None else {"replaces": member.broken_trial}


def end_if_stopped(member: Member) -> Stop | None:
    """Return the end of a member whose trial a stopping rule ended, where the same would be trained again."""
    if not member.stops or member.broken_trial is None:
        return None
    return Stop(reason={"why": "a stopping rule ended its trial", "trial": member.broken_trial})


def end_if_broken(member: Member) -> Stop | None:
    """Return the end of a member whose trial was stopped, or whose trials broke again and again; or None.

    For independent members: one that cannot be trained must not keep the others waiting.
    """
    if member.broken_trial is None or (not member.stops and member.replacements < BROKEN_AT_MOST):
        return None
    return end_if_stopped(member) or Stop(reason={"why": "its trials broke again", "trial": member.broken_trial})


def true_ancestry(trial_id: int, history: History) -> Iterator[TrialRecord]:
    """Iterate over a trial and what its member had completed before it, newest first."""
    trial = history.trial(trial_id)
    yield trial
    while (before := trial.parent if trial.jump_from is None else trial.jump_from) is not None:
        trial = history.trial(before)
        yield trial


def scored_trial(trial: TrialRecord) -> Scored:
    """Return a completed trial as others may take it over, as if its member had trained it all itself."""
    assert trial.checkpoint is not None
    age = trial.reached_age
    assert trial.reached_step is not None
    assert age is not None
    return Scored(
        trial=trial.id,
        member=trial.member,
        checkpoint=trial.checkpoint,
        index=trial.checkpoint_index,
        step=trial.reached_step,
        params=trial.params,
        fitness=trial.fitness,
        order=trial.order,
        criteria=trial.criteria,
        age=age,
        progress=age,
    )
