"""`phyla gc`: delete the checkpoints that nobody needs any more."""

from typing import Annotated

import typer

from phyla.cli import options
from phyla.cli.output import show as print


def gc(
    study: options.StudyName,
    explain: Annotated[bool, typer.Option("--explain", help="List what is kept, and why.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing.")] = False,
    home: options.Home = None,
    storage: options.Storage = None,
    checkpoints: options.Checkpoints = None,
    as_json: options.AsJson = False,
) -> None:
    """Delete the checkpoints that nobody needs any more; workers do the same from time to time."""
    from phyla.cli.output import add_row, console, print_json, table
    from phyla.cli.words import counted, size
    from phyla.study import maintain

    maintenance = maintain(study, home=home, storage=storage, checkpoints=checkpoints)
    found = maintenance.retention()
    collected = None if dry_run else maintenance.collect()
    going = sum(row.size_bytes for row in found.collectable)
    if as_json:
        print_json(
            {
                "study": study,
                "formula": maintenance.explain_retention(),
                "bound": found.bound,
                "kept": [
                    {"checkpoint": row.name, "step": row.step, "size_bytes": row.size_bytes, "why": why}
                    for row, why in found.kept
                ],
                "dry_run": dry_run,
                "deleted": [row.name for row in found.collectable]
                if collected is None
                else list(collected.deleted),
                "freed_bytes": going if collected is None else collected.freed_bytes,
            }
        )
        return
    if explain:
        print(maintenance.explain_retention())
        made = table(
            "checkpoint", "step", "size", "kept because", right=("step", "size"), elastic=("kept because",)
        )
        for row, why in found.kept:
            add_row(made, row.name, row.step, size(row.size_bytes), why)
        if found.kept:
            console().print(made)
    total = sum(row.size_bytes for row, _ in found.kept)
    print(f"kept {counted(len(found.kept), 'checkpoint')} ({size(total)}), of at most {found.bound}")
    if collected is None:
        names = f": {', '.join(row.name for row in found.collectable)}" if found.collectable else ""
        print(f"would delete {counted(len(found.collectable), 'checkpoint')} ({size(going)}){names}")
    else:
        names = f": {', '.join(collected.deleted)}" if collected.deleted else ""
        print(
            f"deleted {counted(len(collected.deleted), 'checkpoint')}, {size(collected.freed_bytes)} freed{names}"
        )
