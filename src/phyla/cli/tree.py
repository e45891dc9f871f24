"""Draws a lineage as a tree that stays readable with thousands of trials.

A trial that has one continuation only is joined with it, `trials 4..9`. Where several start from one trial, the
one that leads furthest goes on at the same level, the others branch off before it: the depth then grows with the
logarithm of the number of trials only.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from rich.text import Text
from rich.tree import Tree

from phyla.cli.words import counted, fitness, params
from phyla.records import JobState, TrialRecord, said_by

if TYPE_CHECKING:
    from phyla.lineage import Lineage


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What of a lineage is drawn.

    Attributes:
        trials: ids of the trials that are drawn.
        path: ids of the trials that go on at the same level, whatever branches off.
        mark: the trial that it is all about.
    """

    trials: frozenset[int]
    path: frozenset[int]
    mark: int | None

    @classmethod
    def all(cls, lineage: "Lineage") -> "Shown":
        """Everything."""
        best = lineage.best()
        path = _path(lineage, best.id) if best else frozenset()
        return cls(trials=frozenset(trial.id for trial in lineage), path=path, mark=best.id if best else None)

    @classmethod
    def winner(cls, lineage: "Lineage", winner: int) -> "Shown":
        """The way to the winner, and the trials that took over the state of one on that way."""
        path = _path(lineage, winner)
        around = {child.id for trial in path for child in lineage.children(trial) if child.jump_from is not None}
        return cls(trials=path | around, path=path, mark=winner)

    @classmethod
    def around(cls, lineage: "Lineage", trial: int) -> "Shown":
        """The way to a trial, and everything that started from it."""
        path = _path(lineage, trial)
        after = [trial]
        for started in after:
            after += (child.id for child in lineage.children(started))
        return cls(trials=path.union(after), path=path, mark=trial)


def _path(lineage: "Lineage", trial: int) -> frozenset[int]:
    return frozenset(one.id for one in lineage.ancestry(trial))


def drawn(study: str, lineage: "Lineage", shown: Shown) -> Tree:
    """Return the tree.

    Args:
        study: name of the study.
        lineage: where every trial came from.
        shown: what of it is drawn.
    """
    weights = _weights(lineage)
    head = f"{study}: {counted(len(lineage), 'trial')}, {counted(len(lineage.jumps), 'jump')}"
    if len(shown.trials) < len(lineage):
        head += f"; {len(shown.trials)} shown, all with --tree all"
    tree = Tree(Text(head), highlight=False)
    roots = [trial for trial in lineage.roots() if trial.id in shown.trials]
    # Branches are drawn from a stack, not by recursion: a tree may be deep.
    open_branches = [(tree, root, "") for root in reversed(roots)]
    while open_branches:
        branch, start, prefix = open_branches.pop()
        chain = _chain(lineage, shown, start)
        visible = [child for child in lineage.children(chain[-1].id) if child.id in shown.trials]
        hidden = sum(weights[child.id] for trial in chain for child in lineage.children(trial.id)) - sum(
            weights[trial.id] for trial in [*chain[1:], *visible]
        )
        main = max(visible, key=lambda child: (child.id in shown.path, weights[child.id]), default=None)
        others = [child for child in visible if child is not main]
        node = branch.add(_label(chain, shown, hidden, prefix))
        if main is not None:
            open_branches.append((branch, main, "then "))
        open_branches += [(node, child, "") for child in reversed(others)]
    return tree


def _weights(lineage: "Lineage") -> dict[int, int]:
    """Return how many trials come of each one, itself counted."""
    weights: dict[int, int] = {}
    # A child has a higher id than its parent.
    for trial in sorted(lineage, key=lambda trial: trial.id, reverse=True):
        weights[trial.id] = weights.get(trial.id, 0) + 1
        if trial.parent is not None:
            weights[trial.parent] = weights.get(trial.parent, 0) + weights[trial.id]
    return weights


def _chain(lineage: "Lineage", shown: Shown, start: TrialRecord) -> list[TrialRecord]:
    """Return a trial and those that plainly continue it, one after the other."""
    chain = [start]
    while True:
        last = chain[-1]
        children = [child for child in lineage.children(last.id) if child.id in shown.trials]
        if len(children) != 1 or children[0].jump_from is not None:
            return chain
        (child,) = children
        if (child.member, child.params, child.state) != (last.member, last.params, last.state):
            return chain
        chain.append(child)


def _label(chain: list[TrialRecord], shown: Shown, hidden: int, prefix: str) -> Text:
    from phyla.strategies import describe

    first, last = chain[0], chain[-1]
    if len(chain) == 1:
        name = f"{prefix}trial {first.id} (member {first.member})"
    else:
        name = f"{prefix}trials {first.id}..{last.id} ({len(chain)} of member {first.member})"
    end = last.end_step if last.reached_step is None else last.reached_step
    text = Text(name, style="bold" if last.id in shown.path else "")
    text.append(f" steps {first.start_step} -> {end}")
    if last.state is JobState.COMPLETED:
        text.append(f"  {fitness(last)}")
    text.append(f"  {params(first.params)}", style="dim")
    if first.parent is not None:
        text.append(f"  from trial {first.parent}")
    if first.jump_from is not None:
        text.append(f" <- jumped from trial {first.jump_from} (member {first.member})", style="yellow")
    if last.state is JobState.FAILED:
        text.append(f"  failed: {said_by(last.error)}", style="red")
    elif last.stop_reason is not None:
        text.append(f"  {describe(last.stop_reason)}", style="yellow")
    elif last.state is not JobState.COMPLETED:
        text.append(f"  {last.state}", style="cyan")
    if any(trial.id == shown.mark for trial in chain):
        text.append("  *", style="bold green")
    if hidden:
        text.append(f"  +{hidden} not shown", style="dim")
    return text
