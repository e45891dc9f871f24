"""`phyla doctor`: is everything as it should be?"""

import sys
from typing import Annotated

import typer

from phyla.cli import options
from phyla.cli.output import show as print

EXIT_FAILED = 1
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Only this study or watched run.", show_default="everything"),
    ] = None,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt",
            help="Give the checkpoint directory to study NAME after its store was copied; deletes nothing.",
        ),
    ] = False,
    digests: Annotated[bool, typer.Option("--digests", help="Read every byte of every checkpoint.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Check the installation, the home, the store, studies and watched runs; only --adopt changes anything."""
    from rich.text import Text

    from phyla.cli.output import console, print_json
    from phyla.errors import UsageError
    from phyla.study import maintain
    from phyla.study.checkup import Verdict, examine

    places = options.places(ctx)
    if adopt:
        if name is None:
            raise UsageError("--adopt: name the study, as in phyla doctor STUDY --adopt")
        maintenance = maintain(name, **options.where(ctx))
        print(maintenance.adopt(), file=sys.stderr if as_json else sys.stdout)
    failed = False
    findings = []
    out = console()
    for finding in examine(places, name, digests=digests):
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
