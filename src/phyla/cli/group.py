"""How the command line is read: places may follow the command, and removed commands say what replaced them."""

from typing import Any

import typer
from typer.core import TyperGroup

from phyla.cli.options import PLACES

GONE = {
    "continue": "phyla replay STUDY --continue STEPS",
    "evaluate": "phyla worker SUITES.py",
    "lineage": "phyla trials STUDY --tree best",
    "resize": "phyla change STUDY --population N",
    "resume": "phyla run FILE.py, which resumes a study (phyla change STUDY, to start no workers)",
}
"""Commands of earlier versions, and what replaced them."""


class Commands(TyperGroup):
    """The commands."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Put the options of `phyla` itself first, wherever they are."""
        first: list[str] = []
        rest: list[str] = []
        left = iter(args)
        for word in left:
            if word == "--":
                rest += [word, *left]
            elif word in PLACES:
                value = next(left, None)
                if value is None:
                    ctx.fail(f"Option '{word}' requires an argument.")
                first += [word, value]
            elif word.partition("=")[0] in PLACES:
                first.append(word)
            else:
                rest.append(word)
        return super().parse_args(ctx, [*first, *rest])

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
        """Find the command; of one that is gone say what replaced it."""
        if args and args[0] in GONE:
            ctx.fail(f"there is no command {args[0]!r} any more. Use: {GONE[args[0]]}")
        return super().resolve_command(ctx, args)
