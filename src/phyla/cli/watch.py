"""`phyla watch`: evaluate every checkpoint that a training job writes."""

from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Exit, Option

from phyla.cli import options
from phyla.cli.feed import ChangeDisplay, finish
from phyla.cli.output import console, picked, print_json, table
from phyla.cli.output import show as print
from phyla.cli.words import counted, duration
from phyla.errors import UsageError

if TYPE_CHECKING:
    from phyla.study.planning import Planned


def watch(
    ctx: Context,
    paths: Annotated[
        list[str], Argument(metavar="DIR...", help="Directories that hold checkpoints; or the name of a study.")
    ],
    suite: Annotated[
        list[str], Option(metavar="SUITES", help="file.py, file.py:name, module:name or file.toml; several times.")
    ],
    workers: Annotated[int, Option(min=0, help="Worker processes; 0 evaluates in this process.")] = 2,
    name: Annotated[str | None, Option(help="Name of the run.", show_default="made from the directory")] = None,
    format: Annotated[  # noqa: A002
        str,
        Option(
            metavar="FORMAT", help="What checkpoints look like; marker=NAME and steps=TEMPLATE name their files."
        ),
    ] = "auto",
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
            min=0,
            metavar="SECONDS",
            help="Without changes before a checkpoint counts as finished.",
            show_default="30",
        ),
    ] = None,
    snapshots: Annotated[
        str,
        Option(
            metavar="HOW[=DIR]",
            help="How checkpoints are kept readable: link, copy or none; DIR is on their file system.",
        ),
    ] = "link",
    content: Annotated[
        bool, Option("--content", help="Compare checkpoints by their content, which is read in full.")
    ] = False,
    done: Annotated[str, Option(help="File in the directory that says that training has ended.")] = "DONE",
    idle: Annotated[
        float | None,
        Option(min=0, metavar="SECONDS", help="End when nothing new came for this long.", show_default="never"),
    ] = None,
    once: Annotated[bool, Option("--once", help="Take what is there, evaluate it, and end.")] = False,
    poll: Annotated[float, Option(min=0.05, metavar="SECONDS", help="Longest time between two looks.")] = 10,
    gpus_per_worker: options.Gpus = 0,
    gin: Annotated[
        list[str] | None, Option(help="A gin binding of all workers; several times.", show_default=False)
    ] = None,
    alert: Annotated[bool, Option("--alert", help="Print regressions as they are found.")] = False,
    plan: Annotated[bool, Option("--plan", help="Print what would be computed, and change nothing.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Evaluate every checkpoint that a training job writes, until it ends. Ctrl-C stops it."""
    from phyla.study.planning import plan as planned
    from phyla.study.suites import chosen_suites
    from phyla.study.watching import watch as follow
    from phyla.watcher import Following, get_format

    name_of_format, _, files = format.partition("=")
    how, _, snapshot_dir = snapshots.partition("=")
    given = {"step": step, "quiet_s": quiet, **_files(name_of_format, files)}
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
    try:
        with ChangeDisplay(objectives, as_json=as_json, alert=alert, step_rule=kind.step_rule) as display:
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
    except KeyboardInterrupt:
        raise options.interrupted(
            "Interrupted; eval tasks that were running start over. The same command resumes it"
        ) from None
    raise Exit(finish(watched, as_json=as_json))


def _files(name: str, files: str) -> dict[str, Any]:
    """Return what a format's files are called, as options of the format."""
    if files and name not in ("marker", "steps"):
        raise UsageError(f"--format {name}={files}: only marker and steps take names of files")
    return {"marker": files} if name == "marker" else {"templates": files.split(",") if files else None}


def _print_plan(rows: "list[Planned]", workers: int, *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    table_rows = (
        {
            **picked(row, "run", "suite"),
            "eval task": row.task,
            "to compute": row.cells,
            "known": row.known,
            "each": None if row.mean_s is None else f"{row.mean_s:.3g} s",
            "together": None if row.seconds is None else duration(row.seconds),
        }
        for row in rows
    )
    console().print(table(table_rows, right=("to compute", "known")))
    known = [row.seconds for row in rows if row.seconds is not None]
    total = f", about {duration(sum(known))} with {counted(max(1, workers), 'worker')}" if known else ""
    unknown = any(row.cells and row.seconds is None for row in rows)
    print(
        f"{counted(sum(row.cells for row in rows), 'shard')} would be computed{total}"
        + ("; what never ran is not in the estimate" if unknown else "")
    )
