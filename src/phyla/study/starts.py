"""What members start from, as a user gives it."""

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from phyla.errors import ConfigurationError, SpaceError
from phyla.records import StartFrom
from phyla.space import Space


def checked_starts(
    given: Sequence[str | PathLike[str] | StartFrom] | str | PathLike[str] | StartFrom, space: Space
) -> tuple[StartFrom, ...]:
    """Return the entries of `start_from`, with hyperparameters as the space holds them.

    Raises:
        ConfigurationError: it is no list, or an entry makes no sense.
        SpaceError: the space does not allow its hyperparameters.
    """
    if isinstance(given, str | PathLike | StartFrom) or not isinstance(given, Sequence):
        raise ConfigurationError(f"start_from={given!r}: must be a list, as in start_from=[{given!r}]")
    entries = [StartFrom.of(entry) for entry in given]
    checked = []
    for number, entry in enumerate(entries):
        try:
            checked.append(replace(entry, params=space.check_part(entry.params)))
        except SpaceError as error:
            raise SpaceError(f"start_from[{number}]: {error}") from error
    return tuple(checked)


def check_usable(entries: Sequence[StartFrom], population_size: int) -> None:
    """Refuse entries that cannot be imported into a new study; one that exists has imported its own already.

    Raises:
        ConfigurationError: there are more than members.
        CheckpointError: one of them is no checkpoint.
    """
    from phyla.checkpoints import look_at_source

    if len(entries) > population_size:
        raise ConfigurationError(
            f"start_from has {len(entries)} entries for a population of {population_size}: the last "
            f"{len(entries) - population_size} would never be used; leave them out, or use more members"
        )
    for entry in entries:
        look_at_source(Path(entry.path))
