"""The command line, called in this process."""

from typing import Protocol


class Phyla(Protocol):
    """`phyla WORDS`: returns what was printed, of an error what it printed there."""

    def __call__(self, *words: object, code: int = 0) -> str: ...
