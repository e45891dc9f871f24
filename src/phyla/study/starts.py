"""What members start from, as a user gives it."""

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike

from phyla.errors import ConfigurationError, SpaceError
from phyla.machine import Rules
from phyla.records import StartFrom


def checked_starts(
    given: Sequence[str | PathLike[str] | StartFrom] | str | PathLike[str] | StartFrom, rules: Rules
) -> tuple[StartFrom, ...]:
    """Return the entries of `start_from`, with hyperparameters as the space holds them.

    Raises:
        ConfigurationError: it is no list, it has more entries than there are members, or one makes no sense.
        SpaceError: the space does not allow its hyperparameters.
    """
    if isinstance(given, str | PathLike | StartFrom) or not isinstance(given, Sequence):
        raise ConfigurationError(f"start_from={given!r}: must be a list, as in start_from=[{given!r}]")
    entries = [StartFrom.of(entry) for entry in given]
    size = rules.strategy.population_size
    if len(entries) > size:
        raise ConfigurationError(
            f"start_from has {len(entries)} entries for a population of {size}: the last {len(entries) - size} "
            "would never be used; leave them out, or use more members"
        )
    checked = []
    for number, entry in enumerate(entries):
        try:
            checked.append(replace(entry, params=rules.space.check_part(entry.params)))
        except SpaceError as error:
            raise SpaceError(f"start_from[{number}]: {error}") from error
    return tuple(checked)
