"""Arguments of commands: the placeholders in braces, and how they are filled in."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple, TypeAlias

from phyla.checkpoints import MANIFEST_NAME
from phyla.errors import ConfigurationError
from phyla.space import Scalar, Space
from phyla.validation import nearest, suggestion

Argument: TypeAlias = "str | Sequence[Argument]"
"""One argument, or a list of arguments that is left out when one of its values is absent."""

FIXED = (
    *("source", "save_to", "metrics", "params_file", "working_dir", "seed", "member", "trial"),
    *("start_step", "end_step", "steps", "gpus"),
)
"""Placeholders besides those of the hyperparameters; `{hydra}` fills in several arguments at once."""
HYDRA = "hydra"
MACHINES = ("nodes", "gpus_per_node", "node_rank", "master_addr", "master_port")
"""Placeholders of a command with `resources`; the last three differ from machine to machine."""


class Field(NamedTuple):
    """A placeholder: its name, and of `{source:*.pth}` the pattern."""

    name: str
    pattern: str = ""

    def __str__(self) -> str:
        return f"{{{self.name}{self.pattern and f':{self.pattern}'}}}"


class Absent(Exception):
    """A value that is absent in this trial."""


def parts(text: str) -> Iterator[str | Field]:
    """Split a text into plain text and placeholders.

    Raises:
        ConfigurationError: it has a single brace, or a placeholder that cannot have a pattern.
    """
    try:
        for plain, name, pattern, conversion in Formatter().parse(text):
            if plain:
                yield plain
            if name is not None:
                if conversion or (pattern and name != "source"):
                    raise ConfigurationError(
                        f"{text!r}: only {{source:PATTERN}} takes a pattern, as in {{source:*.pth}}; write other "
                        "braces twice"
                    )
                yield Field(name, pattern or "")
    except ValueError as error:
        raise ConfigurationError(f"{text!r}: {error}; write it twice if it is not a placeholder") from error


def fields_of(argument: Argument) -> Iterator[Field]:
    """Iterate over the placeholders of an argument, and of all in it."""
    for part in parts(argument) if isinstance(argument, str) else argument:
        if isinstance(part, Field):
            yield part
        elif not isinstance(argument, str):
            yield from fields_of(part)


def normalize(argument: object) -> Argument:
    """Return an argument with tuples for lists."""
    if isinstance(argument, str):
        if Field(HYDRA) in fields_of(argument) and argument != str(Field(HYDRA)):
            raise ConfigurationError(
                f"Command(...): {argument!r}: {{hydra}} becomes several arguments, so it has to be one by itself"
            )
        return argument
    if isinstance(argument, Sequence) and not isinstance(argument, bytes):
        return tuple(map(normalize, argument))
    raise ConfigurationError(f"Command(...): {argument!r} is not a text; write {str(argument)!r}")


def check(arguments: Sequence[Argument], texts: Sequence[str], space: Space, more: Sequence[str] = ()) -> None:
    """Reject placeholders that a search space does not fill in."""
    parameters, reserved = space.parameters, (*FIXED, HYDRA, *more)
    for name in parameters:
        if name in reserved:
            raise ConfigurationError(
                f"Command(...): the hyperparameter {name!r} collides with the placeholder {{{name}}}; rename "
                f"it, or put it into a group, as in 'model/{name}'"
            )
    known = (*parameters, *reserved)
    for field in fields_of((*arguments, *texts)):
        if field.name not in known:
            hint = "" if nearest(field.name, known) else ". Write other braces twice"
            if field.name in MACHINES:
                hint = ". It belongs to trials on several machines; give resources, as in {'nodes': 4, 'gpus': 8}"
            raise ConfigurationError(
                f"Command(...): there is no placeholder {field}; {suggestion(field.name, known)}{hint}"
            )
    for argument in arguments:
        for field in fields_of(argument) if isinstance(argument, str) else ():
            if field.name in parameters and parameters[field.name].when is not None:
                raise ConfigurationError(
                    f"Command(...): {field} is not active in every trial; put {argument!r} into a list of its "
                    f"own, such as [{argument!r}], which is left out then"
                )


def text_of(value: Scalar) -> str | None:
    """Return the value of a hyperparameter as an argument: `true` and `false` for booleans; None is absent.

    Negative numbers have no exponent: argparse takes `-1e-05` for an option.
    """
    if isinstance(value, float) and value < 0:
        return f"{Decimal(repr(value)):f}"
    return value if value is None or isinstance(value, str) else dump(value)


def dump(value: Any) -> str:
    """Return a value as JSON that is YAML, too: there, `1e-05` without a point is a text (YAML 1.1)."""
    tokens = r'"(?:[^"\\]|\\.)*"|(?<![.\d])\d+(?=e)'
    return re.sub(tokens, lambda found: found[0] + ("" if found[0][0] == '"' else ".0"), json.dumps(value))


def name_placeholders(text: str) -> str:
    """Return a text about the `trial` of a training function in the words of a command: its placeholders."""
    text = text.replace("trial.measuring", "{steps} is 0")
    names = {"checkpoint_dir": "save_to"}
    pattern = r"trial\.(?:params\['(.+?)'\]|(\w+)(?:\.path)?)"
    return re.sub(pattern, lambda match: f"{{{match[1] or names.get(match[2], match[2])}}}", text)


def escape(text: str) -> str:
    """Return a text that `fill` turns into this one: its braces are not placeholders."""
    return text.replace("{", "{{").replace("}", "}}")


def locate(folder: str, base: Path) -> str:
    """Return a text with placeholders for a directory, below `base` if it is relative."""
    if isinstance(next(parts(folder), None), Field):
        return folder
    return str(Path(escape(str(base)), folder))


def fill(text: str, values: Mapping[str, str | None], quote: Callable[[str], str] = str) -> str:
    """Return a text with its placeholders filled in; `Absent` if a value is absent in this trial.

    `quote` escapes a value for the syntax of the text, such as that of globs.
    """
    done = []
    for part in parts(text):
        if isinstance(part, str):
            done.append(part)
            continue
        value = values[part.name]
        if value is None:
            raise Absent(str(part))
        done.append(quote(str(newest(Path(value), part.pattern)) if part.pattern else value))
    return "".join(done)


def fill_arguments(
    arguments: Sequence[Argument], values: Mapping[str, str | None], params: Mapping[str, Scalar]
) -> list[str]:
    """Return the arguments of one trial; lists in which a value is absent are left out."""
    done: list[str] = []
    for argument in arguments:
        if not isinstance(argument, str):
            with suppress(Absent):
                done += fill_arguments(argument, values, params)
        elif argument == str(Field(HYDRA)):
            done += hydra_overrides(params, values["working_dir"] or "")
        else:
            done.append(fill(argument, values))
    return done


def newest(folder: Path, pattern: str) -> Path:
    """Return the file that matches and was written last; if no file matches, such a directory.

    Raises:
        ConfigurationError: nothing matches; the message lists the files.
    """
    there = [path for path in sorted(folder.glob(pattern)) if path.name != MANIFEST_NAME]
    if found := [path for path in there if path.is_file()] or [path for path in there if path.is_dir()]:
        return max(found, key=age)
    names = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST_NAME)
    listing = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    raise ConfigurationError(
        f"nothing matches {Field('source', pattern)}: the checkpoint to load from has {listing}; change the "
        f"pattern, or save such a file into {{save_to}} (it is in {folder})"
    )


def age(path: Path) -> tuple[int, list[int]]:
    """Return a key that sorts files, the newest last: when it was written, then the numbers in its path.

    File systems cannot order files that are written within a few milliseconds. A directory is as old as the newest
    file in it: a copy of a checkpoint keeps the times of files only.
    """
    files = [file for file in path.rglob("*") if file.is_file()] or [path]
    written_ns = max(file.stat().st_mtime_ns for file in files)
    return written_ns, [int(number) for number in re.findall(r"\d+", str(path))]


def hydra_overrides(params: Mapping[str, Scalar], working_dir: str) -> list[str]:
    """Return hyperparameters as Hydra's command line takes them, and where Hydra's own output goes.

    Values are quoted by its grammar: https://hydra.cc/docs/advanced/override_grammar/basic.
    """
    overrides = [f"++{name.replace('/', '.')}={_hydra_value(value)}" for name, value in params.items()]
    return [*overrides, f"hydra.run.dir={_hydra_value(working_dir)}"]


def _hydra_value(value: Scalar) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    # Backslashes are escapes only before these; "${" would start an interpolation.
    quoted = re.sub(r"(\\*)('|\$\{|\Z)", lambda match: match[1] * 2 + ("\\" if match[2] else "") + match[2], value)
    return f"'{quoted}'"
