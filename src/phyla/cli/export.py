"""`phyla export`: a study for other programs."""

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phyla.cli import options

if TYPE_CHECKING:
    from phyla.evaluation import Point
    from phyla.study import Evaluations, Results

Rows = list[dict[str, Any]]


class What(StrEnum):
    """What can be exported."""

    TRIALS = "trials"
    LINEAGE = "lineage"
    SCHEDULE = "schedule"
    REPORTS = "reports"
    EVALUATIONS = "evaluations"


class Format(StrEnum):
    """How it is written."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    TENSORBOARD = "tensorboard"


def export(
    ctx: typer.Context,
    study: options.RunName,
    what: Annotated[
        What | None,
        typer.Option(help="What to export.", show_default="trials; evaluations with parquet or tensorboard"),
    ] = None,
    written: Annotated[Format, typer.Option("--format", help="How to write it.")] = Format.JSON,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The file; TensorBoard's log directory.", show_default="standard output"
        ),
    ] = None,
    trial: Annotated[
        int | None,
        typer.Option(help="The trial whose schedule or reports to export.", show_default="the best; all reports"),
    ] = None,
    suite: Annotated[str | None, typer.Option(help="Only evaluations of this suite.", show_default="all")] = None,
    arrays: Annotated[
        bool, typer.Option("--arrays", help="Of evaluations, also saved arrays, as histograms.")
    ] = False,
) -> None:
    """Export trials, the lineage, a schedule, reported metrics, or what was measured of checkpoints."""
    from phyla.cli.output import to_json, write_file
    from phyla.errors import UsageError
    from phyla.study import load_evaluations, load_study

    for_evaluations = written in (Format.PARQUET, Format.TENSORBOARD)
    what = what or (What.EVALUATIONS if for_evaluations else What.TRIALS)
    if trial is not None and what not in (What.SCHEDULE, What.REPORTS):
        raise UsageError(f"--trial goes with --what schedule or --what reports, not with {what}")
    if what is not What.EVALUATIONS:
        for option, given in (
            (f"--format {written}", for_evaluations),
            ("--suite", suite is not None),
            ("--arrays", arrays),
        ):
            if given:
                raise UsageError(f"{option} goes with --what evaluations, not with {what}")
    if what is What.EVALUATIONS:
        found = load_evaluations(study, **options.where(ctx))
        _evaluations(found, written, output, suite=suite, arrays=arrays)
        return
    results = load_study(study, **options.where(ctx))
    if written is Format.JSON:
        text = to_json(_value(results, what, trial)) + "\n"
    else:
        text = _csv(_rows(results, what, trial))
    if output is None:
        _write(text)
    else:
        write_file(output, lambda path: path.write_text(text), replace=False)


def _evaluations(
    found: "Evaluations", written: Format, output: Path | None, *, suite: str | None, arrays: bool
) -> None:
    """Write what was measured, point by point; a long history needs little memory."""
    from phyla.cli.output import write_file
    from phyla.errors import UsageError

    if output is None and written in (Format.PARQUET, Format.TENSORBOARD):
        place = "FILE" if written is Format.PARQUET else "DIR"
        raise UsageError(f"--format {written} needs --output {place}: a terminal cannot show it")
    if suite is not None:
        found.suite(suite)
    points = found.points(suite, arrays=arrays)
    try:
        if output is None:
            for piece in _texts(points, written):
                _write(piece)
        elif written is Format.TENSORBOARD:
            if suite is not None:
                raise UsageError(
                    "--suite does not go with --format tensorboard: its files hold all suites of a run"
                )
            found.write_tensorboard(output, arrays=arrays)
        elif written is Format.PARQUET:
            from phyla.integrations.parquet import write_parquet

            write_file(output, lambda path: write_parquet(points, path), replace=False)
        else:
            write_file(output, lambda path: _write_texts(path, _texts(points, written)), replace=False)
    except ImportError as error:
        raise UsageError(str(error)) from error


def _write_texts(path: Path, texts: Iterable[str]) -> None:
    with path.open("w") as file:
        file.writelines(texts)


def _texts(points: "Iterable[Point]", written: Format) -> Iterator[str]:
    """Return points as text, piece by piece."""
    from phyla.evaluation import point_row
    from phyla.records import strict

    if written is Format.JSON:
        begin = "["
        for point in points:
            yield f"{begin}\n  {json.dumps(strict(point_row(point)), allow_nan=False)}"
            begin = ","
        yield "[]\n" if begin == "[" else "\n]\n"
        return
    names: list[str] = []
    for point in points:
        row = point_row(point)
        text = io.StringIO()
        writer = csv.DictWriter(text, list(row), lineterminator="\n")
        if not names:
            names = list(row)
            writer.writeheader()
        writer.writerow({name: _cell(value) for name, value in row.items()})
        yield text.getvalue()


def _value(results: "Results", what: What, trial: int | None) -> Any:
    if what is What.LINEAGE:
        return results.lineage().to_json()
    if what is What.SCHEDULE:
        return results.schedule(trial).to_json()
    return _rows(results, what, trial)


def _rows(results: "Results", what: What, trial: int | None) -> Rows:
    from phyla.study.results import trial_row

    match what:
        case What.TRIALS:
            return [trial_row(row) for row in results.trials()]
        case What.LINEAGE:
            lineage: Any = results.lineage().to_json()
            return list(lineage["edges"])
        case What.SCHEDULE:
            return [
                {
                    "start_step": segment.start_step,
                    "end_step": segment.end_step,
                    "trial": segment.trial,
                    "member": segment.member,
                    **{f"params.{name}": value for name, value in segment.params.items()},
                }
                for segment in results.schedule(trial).segments
            ]
        case What.REPORTS | What.EVALUATIONS:
            return _reports(results, trial)


def _reports(results: "Results", trial: int | None) -> Rows:
    from phyla.errors import UsageError

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


def _csv(rows: Rows) -> str:
    names = dict.fromkeys(name for row in rows for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(names), lineterminator="\n")
    if names:
        writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return text.getvalue()


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (Mapping, list, tuple)) else value


def _write(text: str) -> None:
    """Write data as it is into a pipe or a file; on a terminal with control characters made visible."""
    from phyla.cli.output import visible

    print(visible(text) if sys.stdout.isatty() else text, end="")
