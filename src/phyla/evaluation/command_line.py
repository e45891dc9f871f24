"""Commands as a user declares them: arguments with fields in braces, which no shell sees."""

import re
import shlex
from collections.abc import Collection, Sequence
from string import Formatter

from phyla.errors import ConfigurationError
from phyla.validation import suggestion


def split_command(
    of: str, command: object, fields: Collection[str], example: tuple[str, str, str]
) -> tuple[str, ...]:
    """Return the arguments of a command.

    Args:
        of: the beginning of the call that has it, for messages.
        command: a list of arguments, or one string.
        fields: the names that may be in braces.
        example: a program and two arguments, for messages.

    Raises:
        ConfigurationError: it is empty, needs a shell, or has another field.
    """
    arguments = _split(f"{of}command={command!r})", command, example)
    for argument in arguments:
        _check_fields(argument, f"{of}command=...): {argument!r}", fields)
    return arguments


def _check_fields(argument: str, where: str, fields: Collection[str]) -> None:
    try:
        if any(re.search(r"\d{4}", spec or "") for _, _, spec, _ in Formatter().parse(argument)):
            raise ValueError("a field is padded to at most 999 characters")
        argument.format(**dict.fromkeys(fields, "1"))
    except KeyError as error:
        why = f"there is no field {{{error.args[0]}}}; {suggestion(error.args[0], fields)}"
    except (AttributeError, IndexError, ValueError) as error:
        why = f"{error}; choose from {', '.join(map(repr, fields))}"
    else:
        return
    raise ConfigurationError(f"{where}: {why}. Write other braces twice")


def _split(where: str, command: object, example: tuple[str, str, str]) -> tuple[str, ...]:
    if not isinstance(command, str):
        if not isinstance(command, Sequence) or not command or not all(isinstance(text, str) for text in command):
            words = [f"./{example[0]}.sh", *example[1:]]
            raise ConfigurationError(f"{where}: give a list of texts, such as {words}")
        return tuple(command)
    lexer = shlex.shlex(command, posix=False, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        quoted, split = list(lexer), tuple(shlex.split(command))
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    if not split:
        raise ConfigurationError(f"{where}: it is empty")
    for word in quoted:
        if set(word) <= set(";<>|&()") or (not word.startswith("'") and ("$" in word or "`" in word)):
            program, source, target = example
            raise ConfigurationError(
                f"{where}: {word} needs a shell, and none runs commands, so that what a checkpoint is called can "
                "never be run. To use one, name it, and pass it the fields as arguments: command="
                f"""["sh", "-c", '{program} "$1" > "$2"', "sh", "{source}", "{target}"]"""
            )
    return split
