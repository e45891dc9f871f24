"""Who holds a study when it is to be deleted."""

from collections.abc import Sequence

from phyla.errors import StateError

SHOWN = 3


def check_unheld(study: str, held: Sequence[tuple[str, float]], worker: str | None) -> None:
    """Refuse to delete a study that other workers are at work on.

    Args:
        study: name of the study.
        held: holder of each lease that has not run out, and the seconds until it does.
        worker: the worker whose own leases are no obstacle.

    Raises:
        StateError: another worker holds a lease.
    """
    others: dict[str, float] = {}
    for holder, left_s in held:
        if holder != worker:
            others[holder] = max(left_s, others.get(holder, 0.0))
    if not others:
        return
    names = ", ".join(sorted(others)[:SHOWN]) + (", ..." if len(others) > SHOWN else "")
    count = "a worker is" if len(others) == 1 else f"{len(others)} workers are"
    raise StateError(
        f"study {study!r} was not deleted: {count} training or evaluating it ({names}). Stop them first; a worker "
        f"that died holds its lease for {max(others.values()):.0f} s more"
    )
