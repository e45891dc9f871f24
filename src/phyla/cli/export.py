"""`phyla export` and `phyla report`: a study for other programs, and on one page."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from typer import Context, Option

from phyla.cli import options
from phyla.cli.output import csv_lines, picked, to_json, visible, write_file
from phyla.cli.output import show as print
from phyla.errors import UsageError

if TYPE_CHECKING:
    from phyla.study import Evaluations, Results

Rows = list[dict[str, Any]]


What: TypeAlias = Literal["trials", "lineage", "schedule", "reports", "evaluations"]
Format: TypeAlias = Literal["json", "csv", "parquet", "tensorboard"]


def export(
    ctx: Context,
    study: options.RunName,
    what: Annotated[
        What | None, Option(help="What to export.", show_default="trials; evaluations with parquet or tensorboard")
    ] = None,
    written: Annotated[Format, Option("--format", help="How to write it.")] = "json",
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="The file; TensorBoard's log directory.", show_default="standard output"),
    ] = None,
    trial: Annotated[
        int | None,
        Option(help="The trial whose schedule or reports to export.", show_default="the best; all reports"),
    ] = None,
    suite: Annotated[str | None, Option(help="Only evaluations of this suite.", show_default="all")] = None,
    arrays: Annotated[bool, Option("--arrays", help="Of evaluations, also saved arrays, as histograms.")] = False,
) -> None:
    """Export trials, the lineage, a schedule, reported metrics, or what was measured of checkpoints."""
    from phyla.study import load_evaluations, load_study

    for_evaluations = written in ("parquet", "tensorboard")
    what = what or ("evaluations" if for_evaluations else "trials")
    if trial is not None and what not in ("schedule", "reports"):
        raise UsageError(f"--trial goes with --what schedule or --what reports, not with {what}")
    if what != "evaluations":
        for option, given in (
            (f"--format {written}", for_evaluations),
            ("--suite", suite is not None),
            ("--arrays", arrays),
        ):
            if given:
                raise UsageError(f"{option} goes with --what evaluations, not with {what}")
    if what == "evaluations":
        found = load_evaluations(study, **options.where(ctx))
        _evaluations(found, written, output, suite=suite, arrays=arrays)
        return
    results = load_study(study, **options.where(ctx))
    if written == "csv":
        rows = _rows(results, what, trial)
        _write(csv_lines(rows, dict.fromkeys(name for row in rows for name in row)), output)
        return
    value: Any
    match what:
        case "lineage":
            value = results.lineage().to_json()
        case "schedule":
            value = results.schedule(trial).to_json()
        case _:
            value = _rows(results, what, trial)
    _write([to_json(value), "\n"], output)


def _evaluations(
    found: "Evaluations", written: Format, output: Path | None, *, suite: str | None, arrays: bool
) -> None:
    """Write what was measured, point by point; a long history needs little memory."""
    from phyla.evaluation import point_row

    if output is None and written in ("parquet", "tensorboard"):
        place = "FILE" if written == "parquet" else "DIR"
        raise UsageError(f"--format {written} needs --output {place}: a terminal cannot show it")
    if suite is not None:
        found.suite(suite)
    points = found.points(suite, arrays=arrays)
    try:
        if written == "tensorboard":
            if suite is not None:
                raise UsageError(
                    "--suite does not go with --format tensorboard: its files hold all suites of a run"
                )
            assert output is not None
            found.write_tensorboard(output, arrays=arrays)
        elif written == "parquet":
            from phyla.integrations.parquet import write_parquet

            assert output is not None
            write_file(output, lambda path: write_parquet(points, path), replace=False)
        else:
            rows = map(point_row, points)
            _write(csv_lines(rows) if written == "csv" else _json_lines(rows), output)
    except ImportError as error:
        raise UsageError(str(error)) from error


def _json_lines(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield rows as one list of JSON, a line each."""
    begin = "["
    for row in rows:
        yield f"{begin}\n  {to_json(row, indent=None)}"
        begin = ","
    yield "[]\n" if begin == "[" else "\n]\n"


def _write(texts: Iterable[str], output: Path | None) -> None:
    """Write data as it is into a pipe or a file; on a terminal with control characters made visible."""
    if output is None:
        for text in texts:
            sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
        return

    def write(path: Path) -> None:
        with path.open("w") as file:
            file.writelines(texts)

    write_file(output, write, replace=False)


def _rows(results: "Results", what: What, trial: int | None) -> Rows:
    from phyla.study.rows import trial_row

    match what:
        case "trials":
            return [trial_row(row) for row in results.trials()]
        case "lineage":
            lineage: Any = results.lineage().to_json()
            return list(lineage["edges"])
        case "schedule":
            return [
                {
                    **picked(segment, "start_step", "end_step", "trial", "member"),
                    **{f"params.{name}": value for name, value in segment.params.items()},
                }
                for segment in results.schedule(trial).segments
            ]
        case _:
            return _reports(results, trial)


def _reports(results: "Results", trial: int | None) -> Rows:
    known = {row.id: row.member for row in results.trials()}
    if trial is not None and trial not in known:
        raise UsageError(f"--trial {trial}: study {results.name!r} has no such trial")
    return [
        {
            "trial": chosen,
            "member": known[chosen],
            "step": report.step,
            **{f"metrics.{name}": value for name, value in report.metrics.items()},
        }
        for chosen in ([trial] if trial is not None else known)
        for report in results.reports(chosen)
    ]


def report(
    ctx: Context,
    study: options.RunName,
    output: Annotated[
        Path | None, Option("--output", "-o", help="The file; replaced.", show_default="STUDY.html")
    ] = None,
) -> None:
    """Write a report as one HTML file that works offline: figures, schedule, members, what failed."""
    target = output or Path(f"{study}.html")
    write_file(target, options.opened(ctx, study).write_report, replace=True)
    print(target)
