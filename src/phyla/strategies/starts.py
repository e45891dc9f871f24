"""What strategies start trials from: nothing, the member's own state, or an earlier trial."""

from phyla.records import JsonObject, Member, Scored, TrialRecord, TrialState
from phyla.strategies.decision import Start, Stop
from phyla.strategies.protocol import History

BROKEN_AT_MOST = 3
"""Trials of a member that break with the same hyperparameters, before it is given up."""


def fresh(member: Member, params: JsonObject, steps: int, reason: JsonObject) -> Start:
    """Start from nothing, with these hyperparameters."""
    return Start(weights=None, params=params, params_from=None, steps=steps, reason={**reason, **replaces(member)})


def proceed(member: Member, steps: int) -> Start:
    """Go on with the member's own weights and hyperparameters."""
    assert member.head is not None
    return Start(
        weights=member.head,
        params=member.head.params,
        params_from=member.head.trial,
        steps=steps,
        reason={"decision": "continue", **replaces(member)},
    )


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

    For strategies whose members have nothing to do with each other: what cannot be trained must not keep the
    others from it.
    """
    if member.broken_trial is None or member.replacements < BROKEN_AT_MOST:
        return stopped(member)
    return stopped(member) or Stop(reason={"why": "its trials broke again", "trial": member.broken_trial})


def awaits_score(member: Member) -> bool:
    """Return whether a member's newest trial still waits for the suite that gives its fitness."""
    return member.head is not None and not member.head.judged


def before(trial: TrialRecord, history: History) -> TrialRecord:
    """Return the true ancestor of a trial that has one: what its member had completed before."""
    ancestor = trial.parent if trial.jump_from is None else trial.jump_from
    assert ancestor is not None
    return history.trial(ancestor)


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
