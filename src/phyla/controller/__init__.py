"""The stateless decision maker: load, decide, commit, one transaction each."""

from phyla.controller.configuration import (
    check_extension,
    check_unchanged,
    differences,
    from_config,
    keeping_of,
    known_to,
    resized,
    suite_differences,
    suites_from,
    to_config,
)
from phyla.controller.controller import TRAIN_ONLY, Controller, mark_deleting
from phyla.controller.evaluations import RunController

__all__ = [
    "TRAIN_ONLY",
    "Controller",
    "RunController",
    "check_extension",
    "check_unchanged",
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
