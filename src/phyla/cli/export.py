"""`phyla export`, `phyla report` and `phyla compare`: studies for other programs, in a report, side by side."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from typer import Argument, Context, Option

from phyla.cli import options
from phyla.cli.output import csv_lines, pick, print_json, print_table, to_json, write_file
from phyla.errors import UsageError
from phyla.formatting import format_count, time_words
from phyla.terminal import show as print
from phyla.terminal import visible

if TYPE_CHECKING:
    from phyla.integrations.trackers import Tracker
    from phyla.report import StudyComparison
    from phyla.study import Evaluations, Results

What: TypeAlias = Literal["trials", "lineage", "schedule", "reports", "evaluations"]
Format: TypeAlias = Literal["json", "csv", "tensorboard", "wandb", "mlflow"]
Output: TypeAlias = Annotated[
    str | None,
    Option(
        "--output",
        "-o",
        metavar="PLACE",
        callback=options.output_name,
        help="The file; the directory for TensorBoard or W&B; the URI of MLflow.",
        show_default="standard output",
    ),
]


def export(
    ctx: Context,
    study: options.RunName,
    what: Annotated[
        What | None,
        Option(help="What to export.", show_default="trials; evaluations of a watched run, and with tensorboard"),
    ] = None,
    written: Annotated[Format, Option("--format", help="How to write it.")] = "json",
    output: Output = None,
    trial: Annotated[
        int | None,
        Option(help="The trial whose schedule or reports to export.", show_default="the best; all reports"),
    ] = None,
    suite: Annotated[str | None, Option(help="Only evaluations of this suite.", show_default="all")] = None,
) -> None:
    """Export trials, the lineage, a schedule, reported metrics, or evaluations of checkpoints.

    To tensorboard, wandb and mlflow, export all: training metrics, hyperparameters, lineage, evaluations.
    """
    from phyla.study import Results, load_evaluations, load_study
    from phyla.study.results.results import trial_row

    file = None if output is None else Path(output)
    if written in ("tensorboard", "wandb", "mlflow") and trial is None and suite is None:
        opened = options.open_run(ctx, study)
        population = isinstance(opened, Results)
        if (what is None and population) or (
            what in (None, "evaluations") and not population and written != "tensorboard"
        ):
            _export_runs(opened, written, output)
            return
    if written in ("wandb", "mlflow"):
        raise UsageError(
            f"--format {written} exports a whole study, or a whole watched run; leave out other options"
        )
    binary = written == "tensorboard"
    if what is None:
        trains = not binary and isinstance(options.open_run(ctx, study), Results)
        what = "trials" if trains else "evaluations"
    if trial is not None and what not in ("schedule", "reports"):
        raise UsageError(f"--trial needs --what schedule or --what reports, not {what}")
    for option, is_set in ((f"--format {written}", binary), ("--suite", suite is not None)):
        if is_set and what != "evaluations":
            raise UsageError(f"{option} needs --what evaluations, not {what}")
    if what == "evaluations":
        _export_points(load_evaluations(study, **options.where(ctx)), suite, written, file)
        return
    results = load_study(study, **options.where(ctx))
    rows: list[dict[str, Any]]
    value: Any = None
    if what == "trials":
        rows = [trial_row(row) for row in results.trials()]
    elif what == "lineage":
        value = results.lineage().to_json()
        rows = value["edges"]
    elif what == "schedule":
        schedule = results.schedule(trial)
        value = schedule.to_json()
        if trial is None:
            warn_if_best_ended_early(results)
        rows = [
            {
                **pick(segment, "start_step", "end_step", "trial", "member"),
                **_named("params", segment.params),
            }
            for segment in schedule.segments
        ]
    else:
        rows = _list_reports(results, trial)
    names = dict.fromkeys(name for row in rows for name in row)
    _write(csv_lines(rows, names) if written == "csv" else [to_json(rows if value is None else value), "\n"], file)


def _list_reports(results: "Results", trial: int | None) -> list[dict[str, Any]]:
    members = {row.id: row.member for row in results.trials()}
    if trial is not None and trial not in members:
        raise UsageError(f"--trial {trial}: study {results.name!r} has no such trial")
    return [
        {
            "trial": trial_id,
            "member": members[trial_id],
            "step": report.step,
            **_named("metrics", report.metrics),
        }
        for trial_id in (members if trial is None else [trial])
        for report in results.reports(trial_id)
    ]


def warn_if_best_ended_early(results: "Results") -> None:
    """Note on standard error if the best trial ended early, and which trial was best at the end."""
    plan: Any = results.study().config["plan"]
    best, total = results.best, plan["member_steps"]
    if best is None or total is None:
        return
    trials = results.trials()
    reached = next(trial.reached_age or 0 for trial in trials if trial.id == best.trial)
    if reached >= total:
        return
    final = [
        (trial.order, -trial.id)
        for trial in trials
        if trial.order is not None and (trial.reached_age or 0) >= total
    ]
    other = f"; the best after {total} steps is that of --trial {-max(final)[1]}" if final else ""
    where = f"ends after {reached} of {total} steps, with the best trial, {best.trial}"
    print(f"note: this schedule {where}{other}", file=sys.stderr)


def _named(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}.{name}": value for name, value in values.items()}


def _export_runs(results: "Results | Evaluations", written: Format, output: str | None) -> None:
    """Write the runs of a study, one per member, or of a watched run: complete, whatever a live tracker missed."""
    from phyla.integrations.tensorboard import replacing
    from phyla.integrations.trackers.mlflow import MLflow
    from phyla.integrations.trackers.tensorboard import TensorBoard
    from phyla.integrations.trackers.wandb import WandB
    from phyla.study.results.evaluations import Evaluations
    from phyla.study.results.tracker_rows import write_evaluations

    def write(tracker: "Tracker") -> int:
        if isinstance(results, Evaluations):
            return write_evaluations(tracker, results)
        return results.write_tracker(tracker)

    if output is None:
        raise UsageError(f"--format {written} needs --output {'URI' if written == 'mlflow' else 'DIR'}")
    try:
        if written == "tensorboard":
            with replacing(results.name, Path(output)) as folder:
                count = write(TensorBoard(str(folder), draft=True))
        elif written == "wandb":
            count = write(WandB(offline=Path(output).absolute()))
            print(f"upload it with: wandb sync {Path(output) / 'wandb'}/offline-run-*")
        else:
            count = write(MLflow(output))
    except ImportError as error:
        raise UsageError(str(error)) from error
    print(f"wrote {format_count(count, 'value')} of {results.name} to {output}")


def _export_points(evaluations: "Evaluations", suite: str | None, written: Format, output: Path | None) -> None:
    """Export evaluations point by point, so that a long history needs little memory."""
    from phyla.evaluation.points import point_row

    if suite is not None:
        evaluations.suite(suite)
    points = evaluations.points(suite)
    if written in ("json", "csv"):
        rows = map(point_row, points)
        _write(csv_lines(rows) if written == "csv" else _json_lines(rows), output)
        return
    if output is None:
        raise UsageError(f"--format {written} needs --output DIR")
    if suite is not None:
        raise UsageError("leave out --suite: --format tensorboard exports all suites of a run")
    try:
        evaluations.write_tensorboard(output)
    except ImportError as error:
        raise UsageError(str(error)) from error


def _json_lines(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield rows as one JSON list, one line per row."""
    begin = "["
    for row in rows:
        yield f"{begin}\n  {to_json(row, indent=None)}"
        begin = ","
    yield "[]\n" if begin == "[" else "\n]\n"


def _write(texts: Iterable[str], output: Path | None) -> None:
    """Write data unchanged into a pipe or a file; on a terminal, make control characters visible."""
    if output is None:
        for text in texts:
            sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
        return

    def write(path: Path) -> None:
        with path.open("w") as file:
            file.writelines(texts)

    write_file(output, write, replace=False)


def report(
    ctx: Context,
    study: options.RunName,
    output: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            callback=options.output_name,
            help="The file; an existing one is replaced.",
            show_default="STUDY.html",
        ),
    ] = None,
    baseline: Annotated[
        str | None, Option(metavar="STUDY", help="Another study, also drawn in the figure of progress.")
    ] = None,
) -> None:
    """Write a report as one HTML file that works offline: figures, schedule, members, failures."""
    from phyla.study import Results

    target, opened = output or Path(f"{study}.html"), options.open_run(ctx, study)
    write = opened.write_report
    if baseline is not None:
        other = options.open_run(ctx, baseline)
        if not isinstance(opened, Results) or not isinstance(other, Results):
            watched = study if not isinstance(opened, Results) else baseline
            raise UsageError(f"--baseline compares two studies with a population; {watched!r} is a watched run")
        write = partial(opened.write_report, baseline=other)
    write_file(target, write, replace=True)
    print(target)


def compare(
    ctx: Context,
    studies: Annotated[
        list[str],
        Argument(
            metavar="STUDY...", help="Names of studies; the name of a study with replicates means all of them."
        ),
    ],
    by: Annotated[
        Literal["steps", "time"],
        Option(help="By the total steps of all members, or by the time in which any worker was running."),
    ] = "steps",
    target: Annotated[
        float | None,
        Option(
            help="Report when each study first reaches this value.",
            show_default="the worst median of best scores",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            callback=options.output_name,
            help="Also write a report as one HTML file; an existing one is replaced.",
        ),
    ] = None,
    written: Annotated[Literal["text", "json", "csv"], Option("--format", help="How to print it.")] = "text",
) -> None:
    """Compare studies and their replicates: final values, significance, convergence, time."""
    from phyla import study

    comparison = study.compare(studies, by=by, target=target, **options.where(ctx))
    if output is not None:
        write_file(output, comparison.write_report, replace=True)
    if written == "json":
        print_json(comparison.to_json())
    elif written == "csv":
        print("".join(csv_lines(comparison.rows())), end="")
    else:
        _print_comparison(comparison)
        if output is not None:
            print(output)


def _print_comparison(comparison: "StudyComparison") -> None:
    for note in comparison.notes:
        print(note)
    styles = ["bold" if test.is_significant else "" for test in comparison.tests]
    for rows, looks in ((comparison.table_of_groups(), []), (comparison.table_of_tests(), styles)):
        print_table([*rows[0]] if rows else [], (row.values() for row in rows), looks, gap=bool(looks))
    print()
    for group in comparison.groups:
        print(f"time of {group.name}: {time_words(group.time)}")
