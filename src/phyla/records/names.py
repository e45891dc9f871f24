r"""Names of files as text that every database holds and every terminal shows.

A file system allows any bytes in a name but `/` and NUL. Python reads bytes that are not UTF-8 as lone surrogates,
which no database and no encoder accepts. Both functions write them, and each backslash, as an escape that
`restore_name` undoes: the byte 0xff becomes `\xff`.
"""

import re
from typing import Annotated, Any

_UNSTORABLE = re.compile(r"[\\\0\ud800-\udfff]")
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(\\))")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_BYTES = 0xDC00
"""What Python adds to a byte that is not UTF-8."""
_JOINER = "\u200d"
"""Stands inside emoji, and does nothing elsewhere."""


def storable(name: str) -> str:
    """Return a name as every database can hold it; `restore_name` gives it back."""
    return _UNSTORABLE.sub(lambda match: _escape(match[0]), name)


def storable_text(text: str) -> str:
    """Return text for a person, such as an error, as every database can hold it; backslashes stay as they are."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def escape_name(name: str) -> str:
    """Return a name on one line, with an escape for whatever a terminal would obey or could not show."""
    if name.isprintable() and "\\" not in name:
        return name
    return "".join(_escape(c) if c == "\\" or not (c.isprintable() or c == _JOINER) else c for c in name)


def on_one_line(text: str) -> str:
    """Return text with line breaks and other control characters written out, as Python's `ascii` does."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def restore_name(text: str) -> str:
    """Return the name of which `storable` or `escape_name` made a text."""
    return _ESCAPE.sub(_restore, text) if "\\" in text else text


def _escape(character: str) -> str:
    if character == "\\":
        return "\\\\"
    code = ord(character)
    if _BYTES + 0x80 <= code <= _BYTES + 0xFF:
        return f"\\x{code - _BYTES:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _restore(match: "re.Match[str]") -> str:
    byte, short, long, backslash = match.groups()
    if backslash:
        return "\\"
    if byte:
        code = int(byte, 16)
        return chr(code if code < 0x80 else _BYTES + code)
    code = int(short or long, 16)
    return chr(code) if code <= 0x10FFFF else match[0]


class _Escaped:
    """Makes pydantic write and read a name as `storable` does."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        written = core_schema.plain_serializer_function_ser_schema(
            storable, return_schema=core_schema.str_schema()
        )
        return core_schema.no_info_after_validator_function(restore_name, handler(source), serialization=written)


FileName = Annotated[str, _Escaped()]
"""A name or path as the file system has it; it travels escaped, so that any bytes arrive."""
