"""Building blocks of strategies: where a trial starts, with which hyperparameters, and when a member ends."""

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

from phyla.errors import SpaceError
from phyla.records import Json, JsonObject, Member, Scored, TrialRecord, TrialState
from phyla.space import Space
from phyla.strategies.strategy import Context, History, Population, Start, Stop

BROKEN_AT_MOST = 3
"""Trials of a member that break with the same hyperparameters, before it is given up."""

Copy: TypeAlias = Literal["both", "weights", "hyperparameters"]
"""What a member takes over from another."""

COPIES: Final = get_args(Copy)


def steps_to_line(start: int, steps_per_trial: int | None, total_steps: int) -> int:
    """Return how many steps lead from a progress to the next grid line; with None, to the end of training."""
    left = max(1, total_steps - start)
    return left if steps_per_trial is None else min(steps_per_trial - start % steps_per_trial, left)


def steps_left(member: Member, steps_per_trial: int | None, total_steps: int) -> int:
    """Return the steps of a member's next trial: `steps_per_trial`, or what is left; None for all that is left."""
    left = total_steps - member.progress
    return left if steps_per_trial is None else min(steps_per_trial, left)


def fresh(member: Member, params: JsonObject, steps: int, **reason: Json) -> Start:
    """Start from nothing, with these hyperparameters."""
    decision = "start" if member.broken_trial is None else "replace"
    told = {"decision": decision, **reason, **replaces(member)}
    return Start(weights=None, params=params, params_from=None, steps=steps, reason=told)


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


def explored(
    strategy: Any,
    member: Member,
    donor: Scored | None,
    population: Population,
    context: Context,
    compared: JsonObject,
) -> Start:
    """Take over a donor's state, or keep one's own, and explore from there up to the next grid line.

    The strategy has `copy`, `explore`, `steps_per_trial` and `total_steps`; `compared` goes into the reason.
    """
    head, copy = member.head, strategy.copy
    assert head is not None
    weights = head if donor is None or copy == "hyperparameters" else donor
    source = head if donor is None or copy == "weights" else donor
    found = strategy.explore.propose(source, population, context) if strategy.explore else None
    reason: JsonObject = {
        "decision": "exploit" if donor else "explore",
        **({"copied": copy} if donor else {}),
        "compared": compared,
        "changes": found.changes if found else {},
        **(found.facts if found else {}),
        **replaces(member),
    }
    return Start(
        weights=weights,
        params=found.params if found else source.params,
        params_from=source.trial,
        steps=steps_to_line(max(member.progress, weights.age), strategy.steps_per_trial, strategy.total_steps),
        reason=reason,
        exploited=True,
    )


def check_params(space: Space, params: Mapping[str, object], where: str, advice: str) -> None:
    """Refuse hyperparameters in a strategy's settings that the space does not allow.

    Raises:
        SpaceError: says where they are, what is wrong with them, and what to do.
    """
    try:
        space.validate(params)
    except SpaceError as error:
        raise SpaceError(f"{where}: {error}. {advice}") from error


def replaces(member: Member) -> JsonObject:
    """Return which broken trial the next one replaces, for its reason."""
    return {} if member.broken_trial is None else {"replaces": member.broken_trial}


def stopped(member: Member) -> Stop | None:
    """Return the end of a member whose trial a stopping rule ended; None if none did.

    For strategies that would only have the same hyperparameters trained again.
    """
    if not member.stops or member.broken_trial is None:
        return None
    return Stop(reason={"why": "a stopping rule ended its trial", "trial": member.broken_trial})


def given_up(member: Member) -> Stop | None:
    """Return the end of a member whose trial was stopped, or whose trials broke again and again; or None.

    For strategies whose members are independent: one that cannot be trained must not keep the others waiting.
    """
    if member.broken_trial is None or member.replacements < BROKEN_AT_MOST:
        return stopped(member)
    return stopped(member) or Stop(reason={"why": "its trials broke again", "trial": member.broken_trial})


def awaits_score(member: Member) -> bool:
    """Return whether a member's newest trial still waits for the suite that gives its fitness."""
    return member.head is not None and not member.head.judged


def before(trial: TrialRecord, history: History) -> TrialRecord | None:
    """Return the true ancestor of a trial, what its member had completed before; None if there is none."""
    ancestor = trial.parent if trial.jump_from is None else trial.jump_from
    return None if ancestor is None else history.trial(ancestor)


def scored_trial(trial: TrialRecord) -> Scored | None:
    """Return a completed trial as a decision may start from it; None if it has not completed.

    Its progress is the age of its weights, as if its member had trained them itself.
    """
    if trial.state is not TrialState.COMPLETED or trial.checkpoint is None or trial.reached_step is None:
        return None
    age = trial.age + max(0, trial.reached_step - trial.start_step)
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
