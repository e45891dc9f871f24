"""Retention: which checkpoints to keep, and why. All others are collectable."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from phyla.machine.view import Reader
from phyla.records import Checkpoint, CheckpointState, TrialRecord
from phyla.strategies import front_of, lowest_generation, thinned

KEPT = 2
"""States with a score that are kept of each member."""

ALL = 2**31 - 1
"""No limit of trials."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """The rules of retention as plain data, so that any process can collect.

    Attributes:
        population_size: number of members.
        generations: as `Strategy.keeps_generations`.
        elites: as `Strategy.keeps_best`.
        lead: by how many generations members may be ahead of the slowest one, for the bound.
        keep_best: best checkpoints that are kept besides those in use.
        keep_front: with trade-offs, checkpoints of the front that are kept at most.
        keep_every_steps: milestones; None keeps none.
        tradeoffs: whether the objective has a Pareto front.
        suites: the number of suites.
        suite: name of the suite that gives fitness; None if training reports it.
        max_lag: how many checkpoints of a member may wait for that suite.
    """

    population_size: int
    generations: int
    elites: bool
    lead: int
    keep_best: int
    keep_front: int
    keep_every_steps: int | None
    tradeoffs: bool
    suites: int
    suite: str | None
    max_lag: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCheckpoints:
    """A study's live checkpoints, kept and collectable.

    Attributes:
        kept: checkpoints to keep, each with the reason.
        collectable: all others, oldest first.
        bound: the most that can be kept, without milestones.
    """

    kept: tuple[tuple[Checkpoint, str], ...]
    collectable: tuple[Checkpoint, ...]
    bound: int


def retention(view: Reader, keeping: Keeping) -> KeptCheckpoints:
    """Apply the rules of retention to a study's live checkpoints."""
    held = view.held_checkpoints()
    best = {trial.checkpoint for trial in _best(view, keeping)}
    in_use = (
        "in use: newest of its member, published, best of its member, parent of running work, or being evaluated"
    )
    is_best = "on the Pareto front" if keeping.tradeoffs else f"one of the best {keeping.keep_best}"
    every = keeping.keep_every_steps
    since = _oldest_generation(view, keeping)
    kept: list[tuple[Checkpoint, str]] = []
    collectable: list[Checkpoint] = []
    for checkpoint in view.checkpoints(CheckpointState.LIVE):
        if checkpoint.name in held:
            kept.append((checkpoint, in_use))
        elif since is not None and checkpoint.trial and view.trial(checkpoint.trial).generation >= since:
            kept.append((checkpoint, f"generation {since} or later, whose trials may still be chosen"))
        elif checkpoint.name in best:
            kept.append((checkpoint, is_best))
        elif every is not None and checkpoint.step % every == 0:
            kept.append((checkpoint, f"milestone: step {checkpoint.step} is a multiple of {every}"))
        else:
            collectable.append(checkpoint)
    return KeptCheckpoints(kept=tuple(kept), collectable=tuple(collectable), bound=bound(keeping))


def _best(view: Reader, keeping: Keeping) -> list[TrialRecord]:
    """Return the best trials, or the front; its trials are never collected, so the live ones suffice."""
    if not keeping.tradeoffs:
        return list(view.best_trials(keeping.keep_best))
    return select_front(view.best_trials(ALL), keeping.keep_front)


def select_front(trials: Sequence[TrialRecord], limit: int) -> list[TrialRecord]:
    """Return the Pareto front, best in the first goal first; at most `limit`, the least crowded."""
    front = front_of(trials)
    if len(front) <= limit:
        return front
    vectors = np.asarray([trial.criteria.orders for trial in front if trial.criteria is not None])
    return [front[place] for place in thinned(vectors, limit)]


def _oldest_generation(view: Reader, keeping: Keeping) -> int | None:
    """Return the first generation whose trials the strategy may still choose; None if it never chooses trials."""
    if not keeping.generations:
        return None
    lowest = lowest_generation([member for member in view.members() if not member.retired])
    return None if lowest is None else max(0, lowest - keeping.generations)


def bound(keeping: Keeping) -> int:
    """Return the most checkpoints of a study that can be in use or best.

    The newest of each member, which is also its newest state; its other published states, including those that
    wait for the suite that gives fitness; the parent and the progress of each running trial; the best, or the kept
    part of the Pareto front; the best of each suite. Milestones, and checkpoints that other suites evaluate, are
    extra.
    """
    size = keeping.population_size
    states = (KEPT if keeping.suite is None else KEPT + keeping.max_lag + 1) * size
    elites = size if keeping.elites else 0
    # Progress saved in a generation counts as a trial of it, and the head is counted already.
    chosen = 2 * size * (keeping.generations + keeping.lead - 1) if keeping.generations else 0
    best = keeping.keep_front if keeping.tradeoffs else keeping.keep_best
    return 2 * size + states + chosen + elites + best + keeping.suites


def explain(keeping: Keeping) -> str:
    """Return the formula of the bound and its value as text."""
    published = f" + the {KEPT - 1} before that each published"
    if keeping.suite is not None:
        published += f" + up to {keeping.max_lag + 1} of each that wait for suite {keeping.suite!r}"
    if keeping.generations:
        published += f" + the last {keeping.generations} generations"
    if keeping.elites:
        published += " + the best that each published"
    if keeping.suites:
        published += " + the best of each suite"
    front = f"the Pareto front, at most {keeping.keep_front} of it"
    best = front if keeping.tradeoffs else f"best {keeping.keep_best}"
    milestones = f" + every {keeping.keep_every_steps} steps" if keeping.keep_every_steps else ""
    most = f"{bound(keeping)}{', milestones not counted' if milestones else ''}"
    return (
        f"kept = newest of each member{published} + parent and progress of each running trial + {best}"
        f"{milestones}; at most {most}, for a population of {keeping.population_size}"
    )
