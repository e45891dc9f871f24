"""`phyla watch`: evaluate every checkpoint that a training job writes."""

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, final

from rich.text import Text
from typer import Argument, Context, Exit, Option

from phyla.cli import options
from phyla.cli.live import Screen
from phyla.cli.output import picked, print_json, print_table
from phyla.cli.output import show as print
from phyla.cli.words import counted, duration, value
from phyla.errors import UsageError
from phyla.records import said_by, shown

if TYPE_CHECKING:
    from phyla.records import Goal, Group
    from phyla.study import Change, Watched
    from phyla.study.targets import Planned

STOPPING = "stopping: running eval tasks go back to the queue; press Ctrl-C again to stop at once"
VALUES_SHOWN = 3
STYLES = {"partial": "red", "gone": "yellow", "quarantined": "yellow", "complete": "green", "skipped": "dim"}


def watch(
    ctx: Context,
    paths: Annotated[list[str], Argument(metavar="DIR...", help="Directories of checkpoints; or a study's name.")],
    suite: Annotated[list[str], Option(metavar="SUITES", help="file.py, file.py:name, module:name or file.toml.")],
    workers: Annotated[int, Option(min=0, help="Worker processes; 0 evaluates in this process.")] = 2,
    name: Annotated[str | None, Option(help="Name of the run.", show_default="made from the directory")] = None,
    format: Annotated[str, Option(help="What checkpoints look like; also marker=NAME, steps=TEMPLATE.")] = "auto",  # noqa: A002
    step: Annotated[
        str | None,
        Option(
            help="Where steps come from: a regular expression with a group `step`, or json:FILE#KEY.",
            show_default="the number after step, iter, checkpoint or epoch in the name, else the last one",
        ),
    ] = None,
    quiet: Annotated[
        float | None,
        Option(
            min=0, metavar="SECONDS", help="Time without changes after which it is finished.", show_default="30"
        ),
    ] = None,
    snapshots: Annotated[
        str, Option(metavar="HOW[=DIR]", help="How checkpoints stay readable: link, copy or none.")
    ] = "link",
    content: Annotated[bool, Option("--content", help="Compare checkpoints by what is in them.")] = False,
    done: Annotated[str, Option(help="File in the directory that says that training has ended.")] = "DONE",
    idle: Annotated[
        float | None, Option(min=0, metavar="SECONDS", help="End when nothing new came for this long.")
    ] = None,
    once: Annotated[bool, Option("--once", help="Take what is there, evaluate it, and end.")] = False,
    poll: Annotated[float, Option(min=0.05, metavar="SECONDS", help="Longest time between two looks.")] = 10,
    gpus_per_worker: options.Gpus = 0,
    gin: options.Gin = None,
    alert: Annotated[bool, Option("--alert", help="Print regressions as they are found.")] = False,
    plan: Annotated[bool, Option("--plan", help="Print what would be computed, and change nothing.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Evaluate every checkpoint that a training job writes, until it ends. Ctrl-C stops it."""
    from phyla.study.files import chosen_suites
    from phyla.study.targets import plan as planned
    from phyla.study.watching import watch as follow
    from phyla.watcher import Following, get_format

    name_of_format, _, files = format.partition("=")
    if files and name_of_format not in ("marker", "steps"):
        raise UsageError(f"--format {format}: only marker and steps take names of files")
    how, _, snapshot_dir = snapshots.partition("=")
    given = {
        "step": step,
        "quiet_s": quiet,
        "marker": files if name_of_format == "marker" else None,
        "templates": files.split(",") if files and name_of_format == "steps" else None,
    }
    common: dict[str, Any] = {
        "name": name,
        **options.where(ctx),
        "format": name_of_format,
        "options": {key: value for key, value in given.items() if value},
        "following": Following(
            snapshots=how,  # type: ignore[arg-type]  # checked by Following itself
            content=content,
            done=done,
            idle_s=idle or None,
            once=once,
        ),
    }
    suites = chosen_suites(suite)
    if plan:
        _print_plan(planned(paths, suites, workers, **common), workers, as_json=as_json)
        return
    objectives = {each.name: each.objective for each in suites}
    kind = get_format(name_of_format, **common["options"])
    interrupted = "Interrupted; eval tasks that were running start over. The same command resumes it"
    display = ChangeDisplay(objectives, as_json=as_json, alert=alert, step_rule=kind.step_rule)
    with options.interruptible(lambda: interrupted), closing(display):
        watched = follow(
            paths,
            suites,
            workers,
            **common,
            snapshot_dir=snapshot_dir or None,
            poll_s=poll,
            gpus_per_worker=gpus_per_worker,
            gin_bindings=gin or (),
            on_change=display.show,
            on_interrupt=display.interrupted,
        )
    raise Exit(finish(watched, as_json=as_json))


def _print_plan(rows: "list[Planned]", workers: int, *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    print_table(
        {
            **picked(row, "run", "suite"),
            "eval task": row.task,
            ">to compute": row.cells,
            ">known": row.known,
            "each": None if row.mean_s is None else f"{row.mean_s:.3g} s",
            "together": None if row.seconds is None else duration(row.seconds),
        }
        for row in rows
    )
    known = [row.seconds for row in rows if row.seconds is not None]
    total = f", about {duration(sum(known))} with {counted(max(1, workers), 'worker')}" if known else ""
    unknown = any(row.cells and row.seconds is None for row in rows)
    rest = "; what never ran is not in the estimate" if unknown else ""
    print(f"{counted(sum(row.cells for row in rows), 'shard')} would be computed{total}{rest}")


@final
class ChangeDisplay:
    """Shows what happens in watched runs: lines, and counts below them on a terminal; or JSON.

    Args:
        objectives: of each suite, whose value is shown first.
        as_json: whether to print JSON.
        alert: also show regressions.
        step_rule: says where the step of a checkpoint comes from, by its name; None where no name tells it.
    """

    def __init__(
        self,
        objectives: "dict[str, Goal | None]",
        *,
        as_json: bool = False,
        alert: bool = False,
        step_rule: Callable[[str], str] | None = None,
    ) -> None:
        self._objectives = objectives
        self._as_json = as_json
        self._alert = alert
        self._step_rule = step_rule
        self._told: set[tuple[str, str]] = set()
        self._counts: Counter[str] = Counter()
        self._lag_s: float | None = None
        self._screen = Screen(self._footer, STOPPING, plain=as_json)
        self.interrupted = self._screen.interrupted
        self.close = self._screen.close

    def show(self, change: "Change") -> None:
        """Show one change."""
        seen, rule = change.seen, None
        if self._step_rule and seen and seen.trial is None and change.kind in ("seen", "quarantined"):
            rule = self._step_rule(seen.name)
        if self._as_json:
            where = {"step_from": rule} if rule is not None and change.kind == "seen" else {}
            print_json({**change_json(change), **where}, indent=None)
            return
        self._counts["seen" if change.kind == "quarantined" else change.kind] += 1
        self._lag_s = change.lag_s if change.kind == "complete" else self._lag_s
        regressed = change.event is not None and change.event.kind == "regression"
        if self._alert or not regressed:
            style = "bold red" if regressed else STYLES.get(change.kind, "")
            self._screen.print(change_line(change, self._objectives), style)
        if seen is not None and rule is not None and (change.run, rule) not in self._told:
            self._told.add((change.run, rule))
            step = f"is {rule}" if seen.step < 0 else f"is {seen.step}, {rule}"
            self._screen.print(f"{change.run}: the step of {shown(seen.name)} {step}; another rule: --step")

    def _footer(self) -> Text:
        parts = [f"{counted(self._counts['seen'], 'checkpoint')} seen"]
        parts += [f"{self._counts[kind]} {kind}" for kind in ("complete", "partial", "skipped", "gone")]
        parts += [] if self._lag_s is None else [f"lag {duration(self._lag_s)}"]
        return Text("  ".join(parts), style="bold")


def change_line(change: "Change", objectives: "dict[str, Goal | None]") -> str:
    """Return one change on one line."""
    seen, group = change.seen, change.group
    if change.event is not None:
        return f"{change.run}: {change.event.message}"
    assert seen is not None
    name = f"{change.run}: {shown(seen.name)}" + (f" (step {seen.step})" if seen.step >= 0 else "")
    if change.kind == "seen":
        return f"{name} seen"
    if change.kind == "quarantined":
        return f"{name} put aside: {said_by(seen.error)}"
    assert group is not None
    if change.kind == "complete":
        lag = "" if change.lag_s is None else f"  lag {duration(change.lag_s)}"
        return f"{name} {group.suite} complete: {_values(group, objectives.get(group.suite))}{lag}"
    return f"{name} {group.suite} {change.kind}: {group.why}"


def _values(group: "Group", objective: "Goal | None") -> str:
    values: dict[str, Any] = dict(group.values)
    main = objective.metric if objective is not None else None
    names = sorted(values, key=lambda name: (name != main, "/" in name))[:VALUES_SHOWN]
    told = "  ".join(f"{name} {value(**values[name])}" for name in names)
    left = len(values) - len(names)
    more = f"  and {left} more" if left else ""
    return f"{told or 'no values'}{more}{'  (best so far)' if group.best else ''}"


def change_json(change: "Change") -> dict[str, Any]:
    """Return one change as an object."""
    return {
        **picked(change, "run", "kind"),
        **picked(change.event, "kind", "message", "suite", "data"),
        **picked(change.seen, "step", "branch", checkpoint="name"),
        **picked(change.seen if change.kind == "quarantined" else None, why="error"),
        **picked(change.group, "suite", "why", "values", "best"),
        **picked(change if change.group is not None else None, "lag_s"),
    }


def finish(watched: "Watched", *, as_json: bool) -> int:
    """Print how it ended and return the exit status: 1 if an evaluation is missing."""
    missing = watched.missing
    if as_json:
        told = {
            "kind": "end",
            "runs": {run.name: picked(run, "state", "message") for run in watched.runs},
            "checkpoints": watched.checkpoints,
            "groups": watched.counts,
            "missing": [
                {**picked(one, "run", "suite", "state", "why"), **picked(one.seen, "step", checkpoint="name")}
                for one in missing
            ],
        }
        print_json(told, indent=None)
        return 1 if missing else 0
    groups = ", ".join(f"{count} {state}" for state, count in sorted(watched.counts.items())) or "none"
    for run in watched.runs:
        print(f"{run.name} {run.state}" + (f": {run.message}" if run.message else ""))
    print(f"{counted(watched.checkpoints, 'checkpoint')} seen; evaluations: {groups}")
    if not watched.checkpoints:
        where = ", ".join(run.location or run.name for run in watched.runs)
        print(
            f"nothing in {where} was taken for a finished checkpoint: is it the directory that holds "
            "them, and does --format (with marker=NAME or steps=NAMES) fit what is written there?",
            file=sys.stderr,
        )
    if not missing:
        return 0
    print_table(
        {
            "run": one.run,
            "checkpoint": shown(one.seen.name),
            ">step": one.seen.step if one.seen.step >= 0 else None,
            "suite": one.suite,
            "state": one.state,
            "~why": said_by(one.why),
        }
        for one in missing
    )
    print(f"{counted(len(missing), 'evaluation')} {'is' if len(missing) == 1 else 'are'} missing or partial")
    return 1
