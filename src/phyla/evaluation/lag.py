"""How far evaluation is behind training."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

from phyla.records import Group, GroupState, Seen


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far one suite is behind. What was skipped, failed or is gone delays nothing and does not count.

    Attributes:
        suite: name of the suite.
        newest: step of the newest checkpoint that is evaluated or still can be; None without any.
        complete: step of the newest checkpoint whose group is complete; None without any.
        checkpoints: checkpoints newer than that one that wait for their evaluation or are being evaluated.
        steps: how many steps the newest of them is ahead; 0 without any, None if a step is not known or training
            was rewound in between.
        oldest_s: seconds that the oldest of them has waited; 0 without any.
        waiting: all groups that wait or are being evaluated, including older checkpoints and repetitions.
    """

    suite: str
    newest: int | None
    complete: int | None
    checkpoints: int
    steps: int | None
    oldest_s: float
    waiting: int


def lag(suite: str, groups: Iterable[Group], seen: Callable[[int], Seen], now: float) -> Lag:
    """Say how far a suite is behind.

    Args:
        suite: name of the suite.
        groups: its groups, in any order.
        seen: returns a checkpoint by id; called for at most three of them.
        now: seconds since the epoch.
    """
    groups = list(groups)
    queued = [group for group in groups if group.state is GroupState.QUEUED]
    # Ids of a run's checkpoints rise in the order in which they were seen.
    complete = max((group.seen for group in groups if group.state is GroupState.COMPLETE), default=0)
    behind = {group.seen for group in queued if group.replicate == 0 and group.seen > complete}
    last = seen(complete) if complete else None
    newest = seen(max(behind)) if behind else last
    return Lag(
        suite=suite,
        newest=None if newest is None else newest.step,
        complete=None if last is None else last.step,
        checkpoints=len(behind),
        steps=_ahead(newest, last) if behind else 0,
        oldest_s=max(0.0, now - seen(min(behind)).seen_at) if behind else 0.0,
        waiting=len(queued),
    )


def _ahead(newest: Seen | None, last: Seen | None) -> int | None:
    if newest is None or newest.step < 0:
        return None
    if last is None:
        return newest.step
    return None if last.step < 0 or last.branch != newest.branch else max(0, newest.step - last.step)
