"""Remote calls as JSON, by the type hints of the called function.

What a service offers are the methods of ordinary classes. `Call` makes of a method the model of its parameters and
the adapter of its result. Both ends use these, and so does the OpenAPI document.
"""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, final

import pydantic
from pydantic_core import PydanticSerializationError, to_json

from phyla import errors
from phyla.errors import LeaseLost, PhylaError
from phyla.machine import (
    Accepted,
    Answer,
    Claimed,
    ClaimedEvaluation,
    NoWork,
    Stopped,
    Work,
)
from phyla.records import storable_text

NUMBERS = pydantic.ConfigDict(ser_json_inf_nan="constants")
"""Scores may be nan or infinite, which Python's JSON can write."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """The answer to a completion whose lease is gone, with the reason."""

    lease_lost: str


@final
class Exchanged(pydantic.BaseModel):
    """The answer to completions and a claim: an answer per completion, the work, and why there is no more."""

    model_config = NUMBERS
    answers: list[Accepted | Stopped | Gone]
    work: list[Claimed | ClaimedEvaluation]
    rest: NoWork | None = pydantic.Field(discriminator="kind")

    @staticmethod
    def of(result: tuple[list[Answer], list[Work], NoWork | None]) -> "Exchanged":
        """Convert the result of a controller."""
        answers, work, rest = result
        plain = [Gone(lease_lost=str(answer)) if isinstance(answer, LeaseLost) else answer for answer in answers]
        return Exchanged(answers=plain, work=work, rest=rest)

    def result(self) -> tuple[list[Answer], list[Work], NoWork | None]:
        """Return the result of the controller."""
        answers = [LeaseLost(answer.lease_lost) if isinstance(answer, Gone) else answer for answer in self.answers]
        return answers, [*self.work], self.rest


@final
class Call:
    """The requests and answers of one method or query; its first parameter is not sent."""

    def __init__(self, function: Callable[..., Any]) -> None:
        hints = typing.get_type_hints(function, include_extras=True)
        self.name = function.__name__
        self.help = inspect.getdoc(function) or ""
        signature = inspect.signature(function)
        self._signature = signature.replace(parameters=[*signature.parameters.values()][1:])
        fields: dict[str, Any] = {
            name: (hints[name], ... if parameter.default is inspect.Parameter.empty else parameter.default)
            for name, parameter in self._signature.parameters.items()
        }
        title = "".join(part.title() for part in self.name.split("_"))
        strict = pydantic.ConfigDict(ser_json_inf_nan="constants", extra="forbid", title=title)
        self.parameters: type[pydantic.BaseModel] = pydantic.create_model(title, __config__=strict, **fields)
        self.exchanges = hints["return"] == tuple[list[Answer], list[Work], NoWork | None]
        self.returns: Any = Exchanged if self.exchanges else hints["return"]
        # A dataclass and a model have their own configuration.
        answer: Any = self.returns
        if dataclasses.is_dataclass(self.returns):
            answer.__pydantic_config__ = NUMBERS
        config = None if self.exchanges or dataclasses.is_dataclass(self.returns) else NUMBERS
        self._result: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(self.returns, config=config)

    def request(self, *positional: Any, **named: Any) -> bytes:
        """Return the arguments of a call as JSON."""
        arguments = self._signature.bind(*positional, **named).arguments
        written = self.parameters.model_construct(**arguments)
        how: dict[str, Any] = {"exclude_unset": True, "warnings": False}
        return _stored(lambda: written.model_dump_json(**how).encode(), lambda: written.model_dump(**how))

    def answer(self, result: Any) -> bytes:
        """Return the result of a call as JSON."""
        value = Exchanged.of(result) if self.exchanges else result
        write, plain = self._result.dump_json, self._result.dump_python
        return _stored(lambda: write(value, warnings=False), lambda: plain(value, warnings=False))

    def result(self, answer: bytes) -> Any:
        """Return the result of a call from JSON."""
        read = self._result.validate_json(answer)
        return read.result() if self.exchanges else read


def _stored(write: Callable[[], bytes], plain: Callable[[], Any]) -> bytes:
    """Return JSON with texts as a database stores them: JSON has no lone surrogates."""
    try:
        written = write()
        if rb"\u0000" not in written:
            return written
    except PydanticSerializationError:
        pass
    return to_json(_storable(plain()), inf_nan_mode="constants")


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, Mapping):
        return {_storable(name): _storable(item) for name, item in value.items()}
    return [_storable(item) for item in value] if isinstance(value, list | tuple) else value


@cache
def call_of(function: Callable[..., Any]) -> Call:
    """Return the call of a method of a class, or of a query."""
    return Call(function)


# Errors

PROBLEM = "urn:phyla:error:"
"""Prefix of the name of an error in the `type` of a problem (RFC 9457)."""


def problem(error: PhylaError, status: int) -> Mapping[str, Any]:
    """Return an error as a problem."""
    kind = type(error).__name__
    return {"type": f"{PROBLEM}{kind}", "title": kind, "status": status, "detail": str(error)}


def error_of(problem: Mapping[str, Any]) -> PhylaError:
    """Return the error of a problem."""
    kind = getattr(errors, str(problem.get("type", "")).removeprefix(PROBLEM), None)
    known = kind if isinstance(kind, type) and issubclass(kind, PhylaError) else PhylaError
    return known(str(problem.get("detail", "the service failed")))
