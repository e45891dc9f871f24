"""Facts in messages: names, values, paths, and what repairs a mistake. Sentences are left to the transcripts."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

E = TypeVar("E", bound=BaseException)


@contextmanager
def raises(kind: type[E] | tuple[type[E], ...], *facts: object) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error of this type, whose message has these facts."""
    with pytest.raises(kind) as caught:
        yield caught
    check_facts(str(caught.value), *facts)


def check_facts(text: object, *facts: object) -> None:
    """Expect that a text, or lines, have each of these, not as a part of a longer word or number."""
    assert [fact for fact in facts if not _has(str(text), str(fact))] == [], text


def _has(text: str, fact: str) -> bool:
    begin, end = (r"(?<!\w)" if fact[:1].isalnum() else ""), (r"(?!\w)" if fact[-1:].isalnum() else "")
    return re.search(begin + re.escape(fact) + end, text) is not None
