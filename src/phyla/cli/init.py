"""`phyla init`: drafts a study file."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from phyla.cli.output import print_json
from phyla.errors import UsageError
from phyla.formatting import quote_command
from phyla.terminal import show as print


def init(
    script: Annotated[
        Path | None, Argument(metavar="SCRIPT", help="The training script, in any language.", show_default=False)
    ] = None,
    output: Annotated[Path, Option("--output", "-o", metavar="FILE", help="The study file to write.")] = Path(
        "study.toml"
    ),
    schema: Annotated[
        bool, Option("--schema", help="Print the JSON Schema of study files, for editors; write no file.")
    ] = False,
) -> None:
    """Write a commented study file for a training script, from its source. It never overwrites a file."""
    from phyla.study.files import draft as drafting
    from phyla.study.files import toml

    if schema:
        print_json(toml.schema())
        return
    if script is None:
        raise UsageError("name the training script, as in: phyla init train.py")
    if output.suffix != ".toml":
        raise UsageError(f"--output {output}: the name of a study file ends in .toml")
    try:
        text = drafting.draft(script, output)
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{output} exists and was not changed; give another name with --output") from None
    except OSError as error:
        raise UsageError(f"{error.filename or 'the current directory'}: {error.strerror}") from error
    print(f"wrote {output}; fill in the parts marked TODO, then: {quote_command(['phyla', 'check', str(output)])}")
