"""`phyla watch`: evaluate every checkpoint that a training job writes."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Exit, Option

from phyla.cli import options
from phyla.cli.live import ChangeDisplay
from phyla.cli.output import picked, print_json, print_table
from phyla.cli.output import show as print
from phyla.errors import UsageError
from phyla.records import said_by, shown
from phyla.words import counted, duration, step

if TYPE_CHECKING:
    from phyla.study import Watched
    from phyla.study.targets import Planned


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
    of_format: dict[str, Any] = {"step": step, "quiet_s": quiet}
    if files:
        of_format |= {"marker": files} if name_of_format == "marker" else {"templates": files.split(",")}
    common: dict[str, Any] = {
        "name": name,
        **options.where(ctx),
        "format": name_of_format,
        "options": {key: value for key, value in of_format.items() if value},
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
    interrupted = "Interrupted; eval tasks that were running start over. The same command resumes it"
    display = ChangeDisplay(
        {each.name: each.objective for each in suites},
        as_json=as_json,
        alert=alert,
        step_rule=get_format(name_of_format, **common["options"]).step_rule,
    )
    with options.interruptible(lambda: interrupted), display:
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
    times = [[None if its is None else duration(its) for its in (row.mean_s, row.seconds)] for row in rows]
    print_table(
        ("run", "suite", "eval task", ">to compute", ">known", "each", "together"),
        ((row.run, row.suite, row.task, row.cells, row.known, *its) for row, its in zip(rows, times, strict=True)),
    )
    known = [row.seconds for row in rows if row.seconds is not None]
    total = f", about {duration(sum(known))} with {counted(max(1, workers), 'worker')}" if known else ""
    unknown = any(row.cells and row.seconds is None for row in rows)
    rest = "; what never ran is not in the estimate" if unknown else ""
    print(f"{counted(sum(row.cells for row in rows), 'shard')} would be computed{total}{rest}")


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
    for run in watched.runs:
        print(f"{run.name} {run.state}" + (f": {run.message}" if run.message else ""))
    groups = ", ".join(f"{count} {state}" for state, count in sorted(watched.counts.items())) or "none"
    print(f"{counted(watched.checkpoints, 'checkpoint')} seen; evaluations: {groups}")
    if not watched.checkpoints:
        where = ", ".join(run.location or run.name for run in watched.runs)
        print(
            f"nothing in {where} was taken for a finished checkpoint: is it the directory that holds "
            "them, and does --format (with marker=NAME or steps=NAMES) fit what is written there?",
            file=sys.stderr,
        )
    print_table(
        ("run", "checkpoint", ">step", "suite", "state", "~why"),
        (
            (one.run, shown(one.seen.name), step(one.seen.step), one.suite, one.state, said_by(one.why))
            for one in missing
        ),
    )
    if missing:
        print(f"{counted(len(missing), 'evaluation is', 'evaluations are')} missing or partial")
    return 1 if missing else 0
