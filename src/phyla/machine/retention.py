"""Which checkpoints are kept, and why. Everything else may be collected."""

from dataclasses import dataclass
from typing import final

from phyla.machine.rules import Rules
from phyla.machine.view import View
from phyla.records import Checkpoint


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """One look at a study's live checkpoints.

    Attributes:
        kept: checkpoint and why it is kept.
        collectable: the others, oldest first.
        bound: how many can be kept at most, milestones not counted.
    """

    kept: tuple[tuple[Checkpoint, str], ...]
    collectable: tuple[Checkpoint, ...]
    bound: int


def retention(view: View, rules: Rules) -> Retention:
    """Apply the formula to a study's live checkpoints."""
    held = view.held_checkpoints()
    best = {trial.checkpoint for trial in view.best_trials(rules.keep_best)}
    every = rules.keep_every_steps
    kept: list[tuple[Checkpoint, str]] = []
    collectable: list[Checkpoint] = []
    for checkpoint in view.live_checkpoints():
        if checkpoint.name in held:
            kept.append((checkpoint, "in use: newest of its member, published, or parent of running work"))
        elif checkpoint.name in best:
            kept.append((checkpoint, f"one of the best {rules.keep_best}"))
        elif every is not None and checkpoint.step % every == 0:
            kept.append((checkpoint, f"milestone: step {checkpoint.step} is a multiple of {every}"))
        else:
            collectable.append(checkpoint)
    return Retention(kept=tuple(kept), collectable=tuple(collectable), bound=bound(view.size, rules))


def bound(population_size: int, rules: Rules) -> int:
    """Return how many checkpoints of a study can be in use or best at most.

    Newest of each member; what it published, where that lags; the parent and the progress of each running
    trial; the best ones.
    """
    published = population_size if rules.strategy.synchronous else 0
    return 3 * population_size + published + rules.keep_best


def explain(population_size: int, rules: Rules) -> str:
    """Return the formula and its value in words."""
    published = " + what each published" if rules.strategy.synchronous else ""
    milestones = f" + every {rules.keep_every_steps} steps" if rules.keep_every_steps else ""
    return (
        f"kept = newest of each member{published} + parent and progress of each running trial + best "
        f"{rules.keep_best}{milestones}; at most {bound(population_size, rules)}"
        f"{', milestones not counted' if milestones else ''}, for a population of {population_size}"
    )
