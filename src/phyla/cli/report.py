"""`phyla report`: a study on one page."""

from pathlib import Path
from typing import Annotated

import typer

from phyla.cli import options


def report(
    study: options.StudyName,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file; replaced.", show_default="STUDY.html")
    ] = None,
    home: options.Home = None,
    storage: options.Storage = None,
    checkpoints: options.Checkpoints = None,
) -> None:
    """Write a report as one HTML file that works offline: figures, schedule, members, what failed."""
    from phyla.cli.output import write_file
    from phyla.report import write_report
    from phyla.study import load_study

    data = load_study(study, home=home, storage=storage, checkpoints=checkpoints).data()
    target = output or Path(f"{study}.html")
    write_file(target, lambda path: write_report(data, path), force=True)
    print(target)
