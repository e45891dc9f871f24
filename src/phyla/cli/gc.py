"""`phyla gc`: delete the checkpoints that are no longer needed."""

from typing import Annotated

import typer

from phyla.cli import options
from phyla.cli.output import show as print


def gc(
    ctx: typer.Context,
    study: options.StudyName,
    explain: Annotated[
        bool, typer.Option("--explain", help="Delete nothing; list what is kept, and why.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Delete the checkpoints that are no longer needed; workers do the same from time to time."""
    from phyla.cli.output import add_row, console, print_json, table
    from phyla.cli.words import counted, size
    from phyla.study import maintain

    maintenance = maintain(study, **options.where(ctx))
    found = maintenance.retention()
    collected = None if explain else maintenance.collect()
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
                "explain": explain,
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
