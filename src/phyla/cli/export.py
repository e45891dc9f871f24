"""`phyla export`: a study for other programs."""

import csv
import io
import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phyla.cli import options

if TYPE_CHECKING:
    from phyla.study import Results

Rows = list[dict[str, Any]]


class What(StrEnum):
    """What can be exported."""

    TRIALS = "trials"
    LINEAGE = "lineage"
    SCHEDULE = "schedule"
    REPORTS = "reports"


class Format(StrEnum):
    """How it is written."""

    JSON = "json"
    CSV = "csv"


def export(
    study: options.StudyName,
    what: Annotated[What, typer.Option(help="What to export.")] = What.TRIALS,
    written: Annotated[Format, typer.Option("--format", help="How to write it.")] = Format.JSON,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file.", show_default="standard output")
    ] = None,
    trial: Annotated[
        int | None,
        typer.Option(help="The trial whose schedule or reports to export.", show_default="the best; all reports"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    home: options.Home = None,
    storage: options.Storage = None,
) -> None:
    """Export trials, the lineage, a schedule or reported metrics as JSON or CSV."""
    from phyla.cli.output import to_json, write_file
    from phyla.errors import UsageError
    from phyla.study import load_study

    if trial is not None and what not in (What.SCHEDULE, What.REPORTS):
        raise UsageError(f"--trial goes with --what schedule or --what reports, not with {what}")
    results = load_study(study, home=home, storage=storage)
    if written is Format.JSON:
        text = to_json(_value(results, what, trial)) + "\n"
    else:
        text = _csv(_rows(results, what, trial))
    if output is None:
        print(text, end="")
    else:
        write_file(output, lambda path: path.write_text(text), force=force)


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
        case What.REPORTS:
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
