"""`phyla check`: tests whether a training function does what populations need."""

import contextlib
import sys
from typing import Annotated

from typer import Context, Exit, Option

from phyla.cli import options
from phyla.cli.output import print_json
from phyla.cli.run import chosen_study
from phyla.formatting import format_count
from phyla.terminal import show as print

WIDTH = 10
"""Columns of a verdict, and of the name of a check."""


def check(
    ctx: Context,
    file: options.StudyFile,
    steps: Annotated[
        int | None, Option(min=1, help="Steps of one trial.", show_default="those of the study, at most 10")
    ] = None,
    workers: Annotated[int, Option(min=0, max=1, help="1 trains in fresh processes, 0 in this process.")] = 1,
    study: options.Chosen = None,
    as_json: options.AsJson = False,
) -> None:
    """Test a training function in short experiments, and report its mistakes. The study is not touched.

    The experiments run in fresh processes and a temporary directory. The exit status is 1 if a check failed.
    """
    from phyla.study.checking.check import checks, steps_of
    from phyla.study.checking.evidence import function_name

    out, results = sys.stdout, []
    # Output of the file and of training must not mix with the results.
    with (
        options.interruptible(lambda: "Interrupted; the check leaves no files"),
        contextlib.redirect_stdout(sys.stderr),
    ):
        chosen = chosen_study(ctx, file, study)
        if not as_json:
            length = format_count(steps_of(chosen) if steps is None else steps, "step")
            name = function_name(chosen)
            print(f"checking {name} of study {chosen.name!r} with trials of {length}", file=out, flush=True)
        for checked in checks(chosen, steps=steps, workers=workers, note=print):
            results.append(checked)
            if not as_json:
                change = f"\nchange: {checked.change}" if checked.change else ""
                text = f"{checked.text}{change}".replace("\n", f"\n{'':{2 * WIDTH}}")
                print(f"{checked.verdict:{WIDTH}}{checked.kind:{WIDTH}}{text}", file=out, flush=True)
    failed = [checked for checked in results if checked.verdict == "FAIL"]
    if as_json:
        print_json(results)
    else:
        unknown = sum(checked.verdict == "not known" for checked in results)
        unsure = f", {unknown} not known" if unknown else ""
        print(f"{len(failed)} of {format_count(len(results), 'check')} failed{unsure}")
    if failed:
        raise Exit(options.EXIT_FAILED)
