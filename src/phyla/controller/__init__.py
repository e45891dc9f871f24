"""The stateless decision maker: load, decide, commit, one transaction each."""

from phyla.controller.configuration import (
    check_extension,
    check_unchanged,
    command_differences,
    differences,
    from_config,
    keeping_of,
    known_to,
    resized,
    suite_differences,
    suites_from,
    to_config,
)
from phyla.controller.controller import EVALUATE_ONLY, TRAIN_ONLY, Controller
from phyla.controller.sightings import Sightings
from phyla.controller.upkeep import mark_deleting

__all__ = [
    "EVALUATE_ONLY",
    "TRAIN_ONLY",
    "Controller",
    "Sightings",
    "check_extension",
    "check_unchanged",
    "command_differences",
    "differences",
    "from_config",
    "keeping_of",
    "known_to",
    "mark_deleting",
    "resized",
    "suite_differences",
    "suites_from",
    "to_config",
]
