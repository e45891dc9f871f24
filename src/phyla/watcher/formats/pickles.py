"""What pickles refer to, without running them: of `torch.save`, and of `torch.distributed.checkpoint`."""

import pickletools
from collections.abc import Iterator
from typing import IO

PICKLE_BYTES_AT_MOST = 2**24
"""Size of the largest description that is parsed; a larger one would take too long, and is trusted."""

_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GETS = frozenset({"GET", "BINGET", "LONG_BINGET"})
_SILENT = frozenset({"PROTO", "FRAME", "MARK", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"})
_MARK = object()
_REFERENCE = object()
"""The place of a persistent id among the words of a pickle."""


def _words(source: bytes | IO[bytes]) -> Iterator[object]:
    """Yield the values that a pickle mentions, in order: text, numbers, names, None for anything else.

    `pickletools` raises `ValueError` for truncated data, and for data that is not a pickle. A persistent id is
    `_REFERENCE`, right after the words of its tuple; the name of a class as `module name`, in newer protocols
    after these two words.
    """
    memo: dict[object, object] = {}
    last: object = None
    before: object = None
    for code, argument, _ in pickletools.genops(source):
        if code.name in _PUTS:
            memo[argument] = last
            continue
        if code.name == "MEMOIZE":
            memo[len(memo)] = last
            continue
        if code.name in _SILENT:
            last = None
            continue
        if code.name in _GETS:
            word = memo.get(argument)
        elif code.name == "BINPERSID":
            word = _REFERENCE
        elif code.name == "STACK_GLOBAL":
            word = f"{before} {last}"
        else:
            word = argument if isinstance(argument, str | int) else None
        before, last = last, word
        yield word


def storages(source: bytes | IO[bytes]) -> set[str]:
    """Return the keys of the storages that a pickle of `torch.save` refers to."""
    keys: set[str] = set()
    recent: list[object] = []
    for word in _words(source):
        if word is not _REFERENCE:
            recent.append(word)
            del recent[:-8]
            continue
        match recent:  # ("storage", class, key, location, elements)
            case [*start, str(key), str(), int()] if "storage" in start:
                keys.add(key)
        recent.clear()
    return keys


def extents(source: bytes | IO[bytes]) -> dict[str, int]:
    """Return how long each data file must be at least, by the `.metadata` of `torch.distributed.checkpoint`."""
    lengths: dict[str, int] = {}
    recent: list[object] = []
    for word in _words(source):
        recent.append(word)
        del recent[:-6]
        match recent:
            case ["relative_path", str(path), "offset", int(offset), "length", int(length)]:
                lengths[path] = max(lengths.get(path, 0), offset + length)
    return lengths


def numbers(source: bytes | IO[bytes]) -> dict[str, int]:
    """Return the integers directly in a pickled dictionary, by their keys; none if it is no dictionary."""
    stack: list[object] = []
    memo: dict[object, object] = {}
    for code, argument, _ in pickletools.genops(source):
        if code.name in _PUTS or code.name == "MEMOIZE":
            memo[len(memo) if code.name == "MEMOIZE" else argument] = stack[-1]
        elif code.name in _GETS:
            stack.append(memo.get(argument))
        elif code.name != "STOP":
            below, above = _take(stack, code)
            stack += _results(code, argument, below, above)
    top = stack[-1] if stack else None
    items = top.items() if isinstance(top, dict) else ()
    return {key: value for key, value in items if isinstance(value, int) and not isinstance(value, bool)}


def _take(stack: list[object], code: pickletools.OpcodeInfo) -> tuple[list[object], list[object]]:
    """Pop the operands of an instruction: those below its mark, or all without a mark, and those above it."""
    wanted = code.stack_before
    if pickletools.markobject not in wanted:
        start = len(stack) - len(wanted)
        below, above = stack[start:], list[object]()
    else:
        mark = max(place for place, value in enumerate(stack) if value is _MARK)
        start = mark - wanted.index(pickletools.markobject)
        below, above = stack[start:mark], stack[mark + 1 :]
    del stack[start:]
    return below, above


def _results(
    code: pickletools.OpcodeInfo, argument: object, below: list[object], above: list[object]
) -> list[object]:
    """Return the results of an instruction: dictionaries, text and integers, None for anything else."""
    match code.name:
        case "MARK":
            return [_MARK]
        case "EMPTY_DICT" | "DICT" | "SETITEM" | "SETITEMS":
            made = below[0] if below else {}
            if isinstance(made, dict):
                pairs = [*below[1:], *above]
                named = zip(pairs[::2], pairs[1::2], strict=True)
                made.update((key, value) for key, value in named if isinstance(key, str))
            return [made]
        case _:
            plain = isinstance(argument, str | int) and not code.stack_before
            return [argument if plain else None] * len(code.stack_after)
