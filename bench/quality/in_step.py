"""Members of recorded populations, which train in step: phyla's own decisions, without a store and files."""

import math
from dataclasses import replace

from phyla.records import Member, Scored
from phyla.strategies import Start


def advance(member: Member, start: Start, score: float, size: int) -> Member:
    """Return a member of a population of that size that has completed the trial that it started."""
    progress = member.progress + start.steps
    age = (0 if start.weights is None else start.weights.age) + start.steps
    scored = Scored(
        trial=member.generation * size + member.index,
        member=member.index,
        checkpoint="",
        index=0,
        step=age,
        params=start.params,
        fitness=score,
        order=score if math.isfinite(score) else -math.inf,
        age=age,
        progress=progress,
    )
    return replace(
        member,
        progress=progress,
        generation=member.generation + 1,
        decided_at=member.progress if start.exploited else member.decided_at,
        head=scored,
        states=(scored,),
    )
