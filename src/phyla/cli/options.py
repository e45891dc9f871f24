"""Options of all commands, and those that several share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

if TYPE_CHECKING:
    from phyla.study import Places, Study

PLACES = ("--home", "--storage", "--checkpoints")
"""Options of `phyla` itself, which may also follow the command."""

StudyName: TypeAlias = Annotated[str, typer.Argument(metavar="STUDY", help="Name of the study.")]
RunName: TypeAlias = Annotated[
    str, typer.Argument(metavar="RUN", help="Name of the study, or of the watched run.")
]
Chosen: TypeAlias = Annotated[
    str | None, typer.Option(help="Name of the study, if the file has several.", show_default=False)
]
Kinds: TypeAlias = Annotated[
    str, typer.Option(help="What the workers do, where there are suites: train, evaluate, or both.")
]
Gpus: TypeAlias = Annotated[
    float, typer.Option(min=0, help="GPUs that each worker sees; 0.5 lets two workers share one.")
]
Home: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Where studies live.", show_default="what the file says, else PHYLA_HOME, else .phyla"
    ),
]
Storage: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The store.",
        show_default="SQLite in --home; else what the file says, else PHYLA_STORAGE, else SQLite in the home",
    ),
]
Checkpoints: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="All studies' checkpoints.",
        show_default="checkpoints in --home; else what the file says, else checkpoints in the home",
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def where(ctx: typer.Context) -> dict[str, Any]:
    """Return what `--home`, `--storage` and `--checkpoints` say, as keyword arguments."""
    given = ctx.find_root().params
    home, storage, checkpoints = (given[name.removeprefix("--")] for name in PLACES)
    return {
        "home": None if home is None else Path(home),
        "storage": storage,
        "checkpoints": None if checkpoints is None else Path(checkpoints),
    }


def stores(ctx: typer.Context) -> dict[str, Any]:
    """Return what `--home` and `--storage` say, as keyword arguments."""
    return {name: value for name, value in where(ctx).items() if name != "checkpoints"}


def places(ctx: typer.Context) -> "Places":
    """Return where studies live."""
    from phyla.study import Places

    return Places.of(**where(ctx))


def place(ctx: typer.Context, study: "Study") -> None:
    """Let a study of a file live where the options say."""
    from dataclasses import replace

    from phyla.study import Places

    given = where(ctx)
    if given["home"] is not None:
        study.places = Places.of(given["home"], given["storage"])
    elif given["storage"] is not None:
        study.places = replace(study.places, storage=given["storage"])
    if given["checkpoints"] is not None:
        study.places = replace(study.places, checkpoint_root=given["checkpoints"].expanduser().absolute())
