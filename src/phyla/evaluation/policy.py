"""Which checkpoints a suite evaluates, and how soon."""

from dataclasses import dataclass
from typing import final

from phyla.validation import check


# Stored studies name Policy, as EvalTask and Suite, by its module.
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Which checkpoints a suite is run on. The default is all of them, newest first.

    Milestones, the final checkpoint and those that a population waits for are guaranteed: nothing here skips
    them.

    Args:
        every: only every n-th checkpoint, counted from the first, also of those that were there before.
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
        check(self, every=1, milestone_every=1, throttle_s="[0, inf)", start_delay_s="[0, inf)")

    def is_milestone(self, step: int) -> bool:
        """Return whether a checkpoint whose weights have this age is guaranteed."""
        return self.milestone_every is not None and step >= 0 and step % self.milestone_every == 0

    def skips(self, *, number: int, existed: bool, busy: bool, since_last_s: float | None) -> str | None:
        """Return why a checkpoint that nothing guarantees is not evaluated; None if it is.

        Args:
            number: how many checkpoints came before it.
            existed: whether it was there before the suite.
            busy: whether an earlier one is being evaluated.
            since_last_s: how long ago the suite queued one; None if it never did.
        """
        if number % self.every:
            return f"the suite takes one in {self.every} checkpoints, and this is number {number + 1}"
        if existed:
            return None if self.backfill else "it was there before the suite, and backfill is off"
        if self.skip_if_busy and busy:
            return "an earlier checkpoint was being evaluated (skip_if_busy)"
        if since_last_s is not None and since_last_s < self.throttle_s:
            return f"{since_last_s:.1f} s after the last one, with throttle_s={self.throttle_s:g}"
        return None
