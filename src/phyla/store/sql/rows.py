"""Frozen dataclasses to rows and back, by their fields and the types of these.

A number is stored as it is, an enum by its value, text without what a database cannot hold, and everything else as
JSON: tuples as lists, records inside records as objects.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, final, get_args, get_origin

import sqlalchemy as sa

from phyla.records import (
    Attempt,
    Checkpoint,
    EvalEvent,
    EvalJob,
    EvalResult,
    Group,
    Json,
    Member,
    RunStart,
    StudyRecord,
    Token,
    TrialRecord,
    restore_name,
    storable,
    storable_text,
)
from phyla.store.sql import tables

_DECODER = json.JSONDecoder()


def _plain(value: object) -> Json:
    """Return a mapping or a sequence as JSON has it."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} {value!r} is not JSON")


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain)


def encode(value: Json) -> str:
    """Return JSON in ASCII, keys in the order given; nan and infinities as Python's `json` writes them."""
    return _ENCODER.encode(value)


def decode(text: str) -> Any:
    """Undo `encode`, with dicts and lists."""
    # What `encode` wrote has no white space around it, which `loads` would look for.
    return _DECODER.raw_decode(text)[0]


R = TypeVar("R")
Row: TypeAlias = Sequence[Any]
Values: TypeAlias = dict[str, Any]
Convert: TypeAlias = Callable[[Any], Any]


class Codec(NamedTuple):
    """How the values of a field are written and read; None as they are. NULL is None either way."""

    write: Convert | None = None
    read: Convert | None = None


class Rows(Generic[R]):
    """How one kind of record is stored in one table.

    Args:
        kind: the dataclass.
        table: its table; a column holds the field that is called like the column's key. Other columns are those of
            other kinds of record in the same table.
        special: how fields are stored that are not stored by their type.
    """

    def __init__(self, kind: type[R], table: sa.Table, **special: Codec) -> None:
        known = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # a dataclass
        self.table = table
        there = table.c.keys()
        self.columns = tuple(name for name in there if name in known)
        self.select = sa.select(*(table.c[name] for name in self.columns))
        self.key = tuple(table.primary_key.columns.keys())
        self.without_id = tuple(name for name in self.columns if name != "id")
        self._kind = kind
        codecs = {field.name: special.get(field.name) or codec_of(field.type) for field in fields(kind)}  # type: ignore[arg-type]  # a dataclass
        self._writes = {name: codec.write for name, codec in codecs.items() if codec.write is not None}
        self._reads = [(name, codec.read) for name, codec in codecs.items() if codec.read is not None]
        self._values_of = attrgetter(*self.columns)
        self.key_of = attrgetter(*self.key)

    def record(self, row: Row) -> R:
        """Return the record of a row."""
        values: Values = dict(zip(self.columns, row, strict=True))
        for name, read in self._reads:
            value = values[name]
            if value is not None:
                values[name] = read(value)
        return self._kind(**values)

    def values(self, record: R) -> Values:
        """Return what to store of a record, by column."""
        return self.write_values(dict(zip(self.columns, self._values_of(record), strict=True)))

    def write_changes(self, old: R, new: R) -> Values:
        """Return what to store of those fields that are other objects than before, by column."""
        pairs = zip(self.columns, self._values_of(old), self._values_of(new), strict=True)
        return self.write_values({name: after for name, before, after in pairs if before is not after})

    def write_values(self, values: Values) -> Values:
        """Return what to store of values by field."""
        for name, value in values.items():
            write = self._writes.get(name)
            if write is not None and value is not None:
                values[name] = write(value)
        return values


@final
class _Trials(Rows[TrialRecord]):
    """Trials; NULL beside a fitness_order stands for nan, which SQLite cannot store."""

    def record(self, row: Row) -> TrialRecord:
        trial = super().record(row)
        return replace(trial, fitness=math.nan) if trial.fitness is None and trial.order is not None else trial


def codec_of(kind: Any) -> Codec:
    """Return how fields of a type are stored."""
    kind = tables.without_none(kind)
    if kind in (int, float):
        return Codec()
    if kind is bool:
        return Codec(read=bool)
    if kind is str:
        return Codec(storable_text)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return Codec(attrgetter("value"), {member.value: member for member in kind}.__getitem__)
    pack, unpack = _json_of(kind)
    return Codec(
        encode if pack is None else lambda value: encode(pack(value)),
        decode if unpack is None else lambda stored: unpack(decode(stored)),
    )


def _json_of(kind: Any) -> Codec:
    """Return how values of a type are made JSON and back; None where they are JSON."""
    kind = tables.without_none(kind)
    if get_origin(kind) is tuple:
        pack, unpack = _json_of(get_args(kind)[0])
        return Codec(
            list if pack is None else lambda values: [pack(value) for value in values],
            tuple if unpack is None else lambda raw: tuple([unpack(value) for value in raw]),
        )
    if not is_dataclass(kind):
        return Codec()
    names = [field.name for field in fields(kind)]
    inner = {field.name: _json_of(field.type) for field in fields(kind)}
    values_of = attrgetter(*names)
    packs = [(name, codec.write) for name, codec in inner.items() if codec.write is not None]
    unpacks = [(name, codec.read) for name, codec in inner.items() if codec.read is not None]

    def convert_fields(values: Values, converts: list[tuple[str, Convert]]) -> Values:
        for name, convert in converts:
            if values.get(name) is not None:
                values[name] = convert(values[name])
        return values

    return Codec(
        lambda record: convert_fields(dict(zip(names, values_of(record), strict=True)), packs),
        lambda raw: kind(**convert_fields(raw, unpacks)),  # type: ignore[operator]  # a class
    )


def number(value: float) -> float | None:
    """Return a number that a database can hold: None for nan, which SQLite cannot."""
    return None if math.isnan(value) else value


# Long, and read in every transaction. One text gives one object, so that it is seen at once whether it changed.
_CONFIG = Codec(encode, lru_cache(64)(decode))
_NAME = Codec(storable, restore_name)

STUDIES = Rows(StudyRecord, tables.studies, config=_CONFIG, location=_NAME)
MEMBERS = Rows(Member, tables.members)
TRIALS = _Trials(TrialRecord, tables.jobs, fitness=Codec(number))
EVAL_JOBS = Rows(EvalJob, tables.jobs)
ATTEMPTS = Rows(Attempt, tables.attempts)
CHECKPOINTS = Rows(Checkpoint, tables.checkpoints, name=_NAME, path=_NAME)
GROUPS = Rows(Group, tables.eval_groups)
RESULTS = Rows(EvalResult, tables.eval_results)
EVENTS = Rows(EvalEvent, tables.eval_events)
STARTS = Rows(RunStart, tables.starts)
TOKENS = Rows(Token, tables.tokens)


ROWS: dict[type, Rows[Any]] = {
    TrialRecord: TRIALS,
    EvalJob: EVAL_JOBS,
    Attempt: ATTEMPTS,
    Member: MEMBERS,
    Checkpoint: CHECKPOINTS,
    Group: GROUPS,
    EvalResult: RESULTS,
    EvalEvent: EVENTS,
    RunStart: STARTS,
}
