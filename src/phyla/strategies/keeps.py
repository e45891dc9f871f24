"""Which checkpoints a strategy may still choose, besides what members are at and what they published."""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Keeps:
    """What is not collected on behalf of a strategy.

    Attributes:
        generations: trials of the last so many generations of every member, counted back from the member that
            has completed the fewest; 0 keeps none.
        elites: the best that each member published.
        lead: by how many generations members may be ahead of that one, for the bound.
    """

    generations: int = 0
    elites: bool = False
    lead: int = 1


NOTHING = Keeps()
"""Nothing besides what members are at and what they published, as most strategies need."""
