"""Frozen records, made and copied as drafts: at a fraction of the usual price.

A frozen dataclass sets each of its fields by a call of `object.__setattr__`. A draft belongs to a subclass that is
not frozen, so its fields are set by plain assignments; then it is made one of the frozen class. Whoever gets a
record gets it frozen.
"""

import dataclasses
import inspect
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)
K = TypeVar("K", bound=type[Any])


class _Drafts(NamedTuple):
    """How records of one kind are drafted: the class of drafts, and what copies a record into one."""

    kind: type[Any]
    copy: Callable[[Any], Any]


def drafted(kind: K) -> K:
    """Let records of a kind be made as drafts; a decorator above `@dataclass(frozen=True, slots=True)`.

    Raises:
        TypeError: the class is not frozen, has no slots, or checks its fields when a record is made.
    """
    drafts = _drafts_of(kind)  # type: ignore[arg-type]  # classes are hashable
    if drafts is None:
        raise TypeError(f"{kind.__name__}: only a frozen dataclass with slots, and without checks, can be drafted")
    usual: Any = kind.__init__
    signature = inspect.signature(usual)
    bare = [one.replace(annotation=one.empty, default=one.empty) for one in signature.parameters.values()]
    # In capitals, as no field is called.
    known: dict[str, Any] = {"BECOME": object.__dict__["__class__"].__set__, "DRAFT": drafts.kind, "KIND": kind}
    lines = ["BECOME(self, DRAFT)"]
    for field in dataclasses.fields(kind):
        name = field.name
        if field.default_factory is not dataclasses.MISSING:
            known |= {f"MAKE_{name}": field.default_factory, f"LATER_{name}": signature.parameters[name].default}
            lines.append(f"if {name} is LATER_{name}: {name} = MAKE_{name}()")
        lines.append(f"self.{name} = {name}")
    init = _compiled(f"def __init__{inspect.Signature(bare)}:", [*lines, "self.__class__ = KIND"], known)
    for name in ("__defaults__", "__kwdefaults__", "__annotations__", "__qualname__"):
        setattr(init, name, getattr(usual, name))
    kind.__init__ = init
    return kind


def replace(row: T, **changes: Any) -> T:
    """Return a copy of a frozen record with some fields changed, as `dataclasses.replace` does.

    Records that check themselves when they are made go the usual way.

    Raises:
        TypeError: there is no such field.
    """
    kind = type(row)
    drafts = _drafts_of(kind)
    if drafts is None:
        return dataclasses.replace(row, **changes)  # type: ignore[type-var]
    new = drafts.copy(row)
    try:
        for name, value in changes.items():
            setattr(new, name, value)
    except AttributeError:
        raise TypeError(f"{kind.__name__} has no field {name!r}") from None
    new.__class__ = kind
    done: T = new
    return done


@cache
def _drafts_of(kind: type[Any]) -> _Drafts | None:
    """Return how records of a kind are drafted; None where each has to be made by its own class."""
    fields = dataclasses.fields(kind)
    names = tuple(field.name for field in fields)
    frozen: Any = getattr(kind, "__dataclass_params__")  # noqa: B009  # of any dataclass
    plain = frozen.frozen and all(field.init for field in fields) and not hasattr(kind, "__post_init__")
    if not plain or sorted(getattr(kind, "__slots__", ())) != sorted(names):
        return None
    free = {"__slots__": (), "__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    draft = type(kind.__name__, (kind,), free)
    lines = ["new = make(draft)", *(f"new.{name} = row.{name}" for name in names), "return new"]
    return _Drafts(draft, _compiled("def copy(row):", lines, {"make": object.__new__, "draft": draft}))


def _compiled(head: str, lines: list[str], known: dict[str, Any]) -> Any:
    """Return a function from its source, as `dataclasses` makes those of a class."""
    exec("\n    ".join([head, *lines]), known)  # the names of fields, and nothing else
    return known[head.removeprefix("def ").partition("(")[0]]
