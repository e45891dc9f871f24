"""`phyla doctor`: is everything as it should be?"""

from typing import Annotated

import typer

from phyla.cli import options

EXIT_FAILED = 1
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Only this study or watched run.", show_default="everything"),
    ] = None,
    home: options.Home = None,
    storage: options.Storage = None,
    checkpoints: options.Checkpoints = None,
    as_json: options.AsJson = False,
) -> None:
    """Check the installation, the home, the store, and all studies and watched runs; changes nothing."""
    from rich.text import Text

    from phyla.cli.output import console, print_json
    from phyla.study import Places
    from phyla.study.checkup import Verdict, examine

    places = Places.of(home, storage, checkpoints)
    failed = False
    findings = []
    out = console()
    for finding in examine(places, name):
        failed = failed or finding.verdict is Verdict.FAIL
        findings.append(finding)
        if not as_json:
            line = Text(f"{finding.verdict:<5}", style=_STYLES[finding.verdict])
            line.append(f"{finding.about}: {finding.text}", style="default")
            out.print(line, soft_wrap=True)
            if finding.advice:
                out.print(Text(f"     {finding.advice}"), soft_wrap=True)
    if as_json:
        print_json(
            [
                {"verdict": one.verdict, "about": one.about, "text": one.text, "advice": one.advice}
                for one in findings
            ]
        )
    if failed:
        raise typer.Exit(EXIT_FAILED)
