"""`phyla trials`: the trials of a study as a table or as a tree.

The tree stays readable with thousands of trials. A trial that has one continuation only is joined with it,
`trials 4..9`. Where several start from one trial, the one that leads furthest goes on at the same level, and the
others branch off before it: the depth then grows with the logarithm of the number of trials only.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, final

from rich.text import Text
from rich.tree import Tree
from typer import Context, Option

from phyla.cli import options
from phyla.cli.output import console, print_json, print_table
from phyla.cli.output import show as print
from phyla.errors import UsageError
from phyla.records import JobState, TrialRecord, said_by
from phyla.words import counted, fitness, infeasible, params

if TYPE_CHECKING:
    from phyla.lineage import Lineage
    from phyla.study import Results


def trials(
    ctx: Context,
    study: options.StudyName,
    member: Annotated[int | None, Option(help="Only this member's.")] = None,
    state: Annotated[
        JobState | None, Option(help="Only those in this state; those stopped early are cancelled, too.")
    ] = None,
    last: Annotated[int | None, Option(min=1, help="Only the last N of them.")] = None,
    sort: Annotated[Literal["trial", "fitness"], Option(help="By id, or the best first.")] = "trial",
    tree: Annotated[
        str | None,
        Option(
            metavar="best|all|TRIAL",
            help="Draw which trial came from which: the way to the best or to another one, or all of them.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the trials of a study, or draw them as a tree."""
    from phyla.study import load_study
    from phyla.study.results import trial_row

    results = load_study(study, **options.where(ctx))
    if tree is not None:
        if (member, state, last, sort) != (None, None, None, "trial"):
            raise UsageError("--tree excludes --member, --state, --last and --sort")
        _draw(results, tree, as_json=as_json)
        return
    size = results.study().population_size
    if member is not None and not 0 <= member < size:
        raise UsageError(f"--member {member}: study {study!r} has members 0 to {size - 1}")
    chosen = [one for one in results.trials() if member in (None, one.member) and state in (None, one.state)]
    if last is not None:
        chosen = chosen[-last:]
    if sort == "fitness":
        chosen.sort(key=lambda trial: (trial.order is None, -(trial.order or 0.0), trial.id))
    if as_json:
        print_json([trial_row(trial) for trial in chosen])
    elif chosen:
        print_table(map(_row, chosen), ["red" if trial.state is JobState.FAILED else "" for trial in chosen])
    else:
        print(f"study {study!r} has no such trials" if results.counts() else f"study {study!r} has no trials yet")


def _row(trial: TrialRecord) -> dict[str, object]:
    from phyla.strategies import describe

    text, told = describe(trial.reason), trial.state.value
    if trial.stop_reason is not None:
        # A rule stopped it early: it is not just cancelled.
        text, told = f"{describe(trial.stop_reason)} ({text})", "stopped"
    elif trial.error and trial.state is not JobState.COMPLETED:
        text = f"{said_by(trial.error)} ({text})"
    if infeasible(trial):
        text = f"{infeasible(trial)} ({text})"
    return {
        ">trial": trial.id,
        ">member": trial.member,
        ">gen": trial.generation,
        "state": told if trial.kind == "train" else f"{trial.state} ({trial.kind})",
        ">parent": trial.parent,
        "steps": f"{trial.start_step} -> {_end(trial)}",
        ">fitness": fitness(trial),
        "~hyperparameters": params(trial.params),
        "~decision": text,
    }


def _end(trial: TrialRecord) -> int:
    return trial.end_step if trial.reached_step is None else trial.reached_step


def _draw(results: "Results", tree: str, *, as_json: bool) -> None:
    if tree not in ("best", "all") and not tree.isdecimal():
        raise UsageError(f"--tree {tree}: give best, all, or the number of a trial")
    found = results.lineage()
    if tree.isdecimal():
        found.trial(int(tree))
    if as_json:
        print_json(found.to_json())
    elif len(found):
        console().print(drawn(results.name, found, Shown.of(found, tree)), soft_wrap=True)
    else:
        print(f"study {results.name!r} has no trials yet")


@final
class Shown(NamedTuple):
    """Trials of a lineage that are drawn; those that go on at the same level; and the one it is all about."""

    trials: frozenset[int]
    path: frozenset[int]
    mark: int | None

    @classmethod
    def of(cls, lineage: "Lineage", which: str) -> "Shown":
        """Return what to draw.

        `best`: the way to the best trial, and the trials that took over the state of one on that way; `all`; or a
        trial: the way to it, and everything that started from it.
        """
        best = lineage.best()
        mark = int(which) if which.isdecimal() else best and best.id
        path = frozenset(trial.id for trial in lineage.ancestry(mark)) if mark is not None else frozenset()
        if which == "all" or mark is None:
            return cls(frozenset(trial.id for trial in lineage), path, mark)
        if which == "best":
            jumped = (child for trial in path for child in lineage.children(trial) if child.jump_from is not None)
            return cls(path.union(child.id for child in jumped), path, mark)
        after = [mark]
        for started in after:
            after += (child.id for child in lineage.children(started))
        return cls(path.union(after), path, mark)


def drawn(study: str, lineage: "Lineage", shown: Shown) -> Tree:
    """Return the tree of a study's lineage."""
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
        node = branch.add(_label(chain, shown, hidden, prefix))
        if main is not None:
            open_branches.append((branch, main, "then "))
        open_branches += [(node, child, "") for child in reversed(visible) if child is not main]
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


def _label(chain: Sequence[TrialRecord], shown: Shown, hidden: int, prefix: str) -> Text:
    from phyla.strategies import describe

    first, last = chain[0], chain[-1]
    name = f"trial {first.id} (member {first.member})"
    if len(chain) > 1:
        name = f"trials {first.id}..{last.id} ({len(chain)} of member {first.member})"
    text = Text(f"{prefix}{name}", style="bold" if last.id in shown.path else "")
    text.append(f" steps {first.start_step} -> {_end(last)}")
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
