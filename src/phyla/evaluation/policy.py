"""Which checkpoints a suite evaluates, and how soon."""

from dataclasses import dataclass
from typing import final

from phyla.errors import ConfigurationError
from phyla.records import Priority


# Stored studies name Policy, as EvalTask and Suite, by its module.
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Which checkpoints a suite is run on. The default is all of them, newest first.

    Milestones, the final checkpoint and those that a population waits for are guaranteed: nothing here skips
    them.

    Args:
        every: only every n-th checkpoint, counted from the first.
        milestone_every: guarantee checkpoints whose step is a multiple of this many steps.
        latest: when a newer checkpoint arrives, skip those whose evaluation has not begun.
        skip_if_busy: skip a checkpoint that arrives while an earlier one is being evaluated.
        throttle_s: skip checkpoints that arrive within this many seconds of the last one queued.
        start_delay_s: evaluate no checkpoint before it is this many seconds old.
        backfill: also evaluate checkpoints that were there before the suite or one of its eval tasks, when
            nothing newer waits.

    Raises:
        ConfigurationError: a number is out of range.
    """

    every: int = 1
    milestone_every: int | None = None
    latest: bool = False
    skip_if_busy: bool = False
    throttle_s: float = 0.0
    start_delay_s: float = 0.0
    backfill: bool = True

    def __post_init__(self) -> None:
        for name, least in (("every", 1), ("milestone_every", 1), ("throttle_s", 0), ("start_delay_s", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigurationError(f"Policy({name}={value!r}): must be at least {least}")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Evaluate it. `guaranteed` says why nothing may skip it later; None when something may."""

    priority: int
    guaranteed: str | None


@final
@dataclass(frozen=True, slots=True)
class Skip:
    """Do not evaluate it; `why` is for the matrix."""

    why: str


def decide(
    policy: Policy,
    *,
    number: int,
    step: int,
    existed: bool = False,
    busy: bool = False,
    since_last_s: float | None = None,
    fitness: bool = False,
) -> Queue | Skip:
    """Decide about a checkpoint: the number of those before it, the age of its weights, and what else goes on.

    It may have existed before the suite; an earlier one may be busy being evaluated; the suite may have queued
    one some time ago; and a population may wait for it as its fitness.
    """
    if fitness:
        return Queue(priority=Priority.FRESH, guaranteed="fitness")
    every = policy.milestone_every
    milestone = "milestone" if every is not None and step >= 0 and step % every == 0 else None
    if existed and not (milestone or policy.backfill):
        return Skip("it was there before the suite, and backfill is off")
    queue = Queue(priority=Priority.BACKFILL if existed else Priority.FRESH, guaranteed=milestone)
    if milestone or existed:
        return queue
    if number % policy.every:
        return Skip(f"the suite takes every {policy.every}. checkpoint, this is number {number + 1}")
    if policy.skip_if_busy and busy:
        return Skip("an earlier checkpoint was being evaluated (skip_if_busy)")
    if since_last_s is not None and since_last_s < policy.throttle_s:
        return Skip(f"{since_last_s:.1f} s after the last one, with throttle_s={policy.throttle_s:g}")
    return queue
