"""Leases: the one table of transitions, and what happens when an attempt fails. Pure."""

from phyla.leases.retry import Quarantine, Retry, after_failure
from phyla.leases.transitions import TRANSITIONS, check_transition, diagram

__all__ = ["TRANSITIONS", "Quarantine", "Retry", "after_failure", "check_transition", "diagram"]
