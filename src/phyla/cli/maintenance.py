"""`phyla stop`, `change`, `gc`, `delete` and `doctor`: maintenance of studies."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from rich.text import Text
from typer import Argument, Context, Exit, Option

from phyla.cli import options
from phyla.cli.output import pick, print_json, print_table
from phyla.cli.run import chosen_study
from phyla.errors import UsageError
from phyla.formatting import format_count, size
from phyla.terminal import console
from phyla.terminal import show as print

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def stop(ctx: Context, study: options.StudyName) -> None:
    """Stop a study: its workers finish their trials and exit."""
    from phyla.study.maintaining.maintain import maintain

    maintenance = maintain(study, options.places(ctx))
    maintenance.stop("stopped by a user")
    maintenance.note(options.user_name(), "stopped the study")
    print(f"stopped {study}: its workers finish their trials and exit")
    again = maintenance.places.command("change", study)
    print(f"to resume it, run its study file again; to resume it without workers on this machine: {again}")


def change(
    ctx: Context,
    study: Annotated[str, Argument(metavar="FILE|STUDY", help="The changed study file; or the name of a study.")],
    fresh: Annotated[
        bool, Option("--fresh", help="New members start from scratch, not from the best ones.")
    ] = False,
    of_file: options.Chosen = None,
) -> None:
    """Store the changed settings of a study file, or resume a study by name. This trains nothing.

    A study that was stopped or has failed may then continue. Stop its workers first, and restart them afterwards.
    """
    from phyla.study import load_study
    from phyla.study.maintaining.maintain import maintain

    if Path(study).suffix in (".py", ".toml"):
        chosen = chosen_study(ctx, Path(study), of_file)
        changed = chosen.change(newcomers="fresh" if fresh else "best")
        for setting in changed:
            print(f"{setting.name} was changed from {setting.before} to {setting.after}")
        print(f"{chosen.name} has the settings of {study}{'' if changed else ' already'}")
        most = chosen.rules.strategy.member_steps
        members = chosen.results().members() if changed and most else ()
        beyond = sum(not member.retired and member.progress > (most or 0) for member in members)
        if beyond:
            subject = format_count(beyond, "member has", "members have")
            print(f"{subject} already trained more than {most} steps: no further trials, the last scores count")
        return
    maintenance = maintain(study, options.places(ctx))
    if maintenance.resume():
        maintenance.note(options.user_name(), "resumed the study")
        results = load_study(study, **options.where(ctx))
        named, _, _ = str(results.study().config.get("train") or "").rpartition(":")
        again = maintenance.places.command("run", named if named.endswith(".py") else "FILE")
        print(f"{study} may continue; start workers with: {again} --study {study}")
    else:
        print(f"{study} is already running; to change it, give the changed study file")


def gc(
    ctx: Context,
    study: options.StudyName,
    explain: Annotated[
        bool, Option("--explain", help="Delete nothing; list the checkpoints that are kept, and why.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Delete checkpoints that are no longer needed, as workers do from time to time."""
    from phyla.study.maintaining.maintain import maintain

    maintenance = maintain(study, options.places(ctx))
    retention = maintenance.retention()
    if explain:
        deleted = [row.name for row in retention.collectable if not row.weak]
        freed_bytes = sum(row.size_bytes for row in retention.collectable if not row.weak)
    else:
        collected = maintenance.collect()
        deleted, freed_bytes = list(collected.deleted), collected.freed_bytes
    if as_json:
        print_json(
            {
                "study": study,
                "formula": maintenance.explain_retention(),
                "bound": retention.bound,
                "kept": [
                    {**pick(row, "step", "size_bytes", checkpoint="name"), "why": why}
                    for row, why in retention.kept
                ],
                "explain": explain,
                "deleted": deleted,
                "freed_bytes": freed_bytes,
            }
        )
        return
    if explain:
        print(maintenance.explain_retention())
        print_table(
            ("checkpoint", ">step", ">size", "~kept because"),
            ((row.name, row.step, size(row.size_bytes), why) for row, why in retention.kept),
        )
    total = size(sum(row.size_bytes for row, _ in retention.kept))
    print(f"kept {format_count(len(retention.kept), 'checkpoint')} ({total}), of at most {retention.bound}")
    count, freed = format_count(len(deleted), "checkpoint"), size(freed_bytes)
    done = f"would delete {count} ({freed})" if explain else f"deleted {count}, {freed} freed"
    print(": ".join([done, ", ".join(deleted)] if deleted else [done]))
    if any(row.weak for row in (*(row for row, _ in retention.kept), *retention.collectable)):
        print("the clients that made the checkpoints of this study keep and delete the files")


def delete(
    ctx: Context,
    name: Annotated[str, Argument(metavar="NAME", help="Name of the study, or of the watched run.")],
    yes: Annotated[
        str | None, Option("--yes", metavar="NAME", help="Its name again; without it, the command asks.")
    ] = None,
) -> None:
    """Delete a study with its checkpoints, or a watched run; never the checkpoints of a watched directory."""
    from phyla.study.maintaining import delete as deleting

    places = options.places(ctx)
    doomed = deleting.look_at(name, places)
    typed = yes
    if typed is None:
        print(f"deleting {name} would delete: {doomed.words}")
        if not sys.stdin.isatty():
            raise UsageError(f"nothing was deleted; to delete it, add --yes {name}")
        print("Type the name to delete it: ", end="", flush=True)
        typed = sys.stdin.readline().strip()
    if typed != name:
        raise UsageError(f"nothing was deleted: the name is {name!r}, got {typed!r}")
    deleted, remaining = deleting.delete(name, places)
    print(f"deleted {name}: {deleted.words} freed")
    for path in remaining:
        print(f"not deleted: {path}")


def doctor(
    ctx: Context,
    name: Annotated[
        str | None, Argument(metavar="NAME", help="Only this study or watched run.", show_default="everything")
    ] = None,
    adopt: Annotated[
        bool,
        Option("--adopt", help="Assign the directory of --checkpoints to study NAME; deletes nothing."),
    ] = False,
    digests: Annotated[bool, Option("--digests", help="Read every byte of every checkpoint.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Check the installation, the home, the store, studies and watched runs; only --adopt changes anything."""
    from phyla.study.maintaining.doctor import CheckResult, examine
    from phyla.study.maintaining.maintain import maintain

    if adopt:
        if name is None:
            raise UsageError("--adopt: name the study, as in phyla doctor STUDY --adopt")
        maintenance = maintain(name, options.places(ctx))
        print(maintenance.adopt(), file=sys.stderr if as_json else sys.stdout)
    findings = []
    for found in examine(options.places(ctx), name, digests=digests):
        finding = replace(found, text=options.add_places(found.text, ("delete", "doctor")))
        findings.append(finding)
        if not as_json:
            line = Text(f"{finding.verdict:<5}", style=STYLES[finding.verdict])
            line.append(f"{finding.about}: {finding.text}", style="default")
            console().print(line, soft_wrap=True)
            if finding.advice:
                print(f"     {finding.advice}")
    if as_json:
        print_json(findings)
    if any(finding.verdict is CheckResult.FAIL for finding in findings):
        raise Exit(options.EXIT_FAILED)
