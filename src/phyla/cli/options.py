"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

StudyName: TypeAlias = Annotated[str, typer.Argument(metavar="STUDY", help="Name of the study.")]
RunName: TypeAlias = Annotated[
    str, typer.Argument(metavar="RUN", help="Name of the study, or of the watched run.")
]
Home: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where studies live.", show_default="PHYLA_HOME, else .phyla"),
]
Storage: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="URL", help="The store.", show_default="PHYLA_STORAGE, else SQLite in the home"),
]
FileHome: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Where studies live.", show_default="what the file says, else PHYLA_HOME, else .phyla"
    ),
]
FileStorage: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The store.",
        show_default="SQLite in --home; else what the file says, else PHYLA_STORAGE, else SQLite in the home",
    ),
]
FileCheckpoints: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="All studies' checkpoints.",
        show_default="checkpoints in --home; else what the file says, else checkpoints in the home",
    ),
]
Checkpoints: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="All studies' checkpoints, if the study was made with checkpoints=.",
        show_default="checkpoints in the home",
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
