"""`phyla report`: a study on one page."""

from pathlib import Path
from typing import Annotated

import typer

from phyla.cli import options
from phyla.cli.output import show as print


def report(
    ctx: typer.Context,
    study: options.RunName,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file; replaced.", show_default="STUDY.html")
    ] = None,
) -> None:
    """Write a report as one HTML file that works offline: figures, schedule, members, what failed."""
    from phyla.cli.output import write_file
    from phyla.errors import RunNotFound, StudyNotFound
    from phyla.study import Evaluations, Results, load_evaluations, load_study

    target = output or Path(f"{study}.html")
    results: Results | None = None
    evaluations: Evaluations | None = None
    try:
        results = load_study(study, **options.where(ctx))
    except StudyNotFound as error:
        try:
            evaluations = load_evaluations(study, **options.where(ctx))
        except RunNotFound:
            raise error from None
    found = results or evaluations
    assert found is not None
    write_file(target, found.write_report, replace=True)
    print(target)
