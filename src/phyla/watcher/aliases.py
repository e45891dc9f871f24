"""Copies and links such as `last.ckpt` and `best.pt`: other names of a checkpoint that has a step in its name."""

import re
from collections.abc import Iterable
from dataclasses import replace

from phyla.watcher.content import digest
from phyla.watcher.format import Found
from phyla.watcher.listing import Place

_SECOND = re.compile(r"(?<![a-z])(last|latest|best|final)(?![a-z])", re.IGNORECASE)


def resolve(root: Place, items: Iterable[Found], *, now: float, quiet_s: float) -> list[Found]:
    """Return the checkpoints of a scan, with what the ones without a step of their own are copies of.

    These wait for the quiet period, since the original may be written after them.
    """
    items = list(items)
    originals = [item for item in items if not _is_second(item) and not item.bad]
    unresolved = [item for item in items if _is_second(item) and item.ready and item.alias is None]
    if not (originals and unresolved):
        return items
    # Of several with the same weights, the newest.
    known = {digest(root, item.paths, item.fingerprint): item for item in originals if item.ready}
    return [_resolve(root, item, known, now - quiet_s) if item in unresolved else item for item in items]


def _is_second(item: Found) -> bool:
    return item.step is None or item.alias is not None or _SECOND.search(item.name) is not None


def _resolve(root: Place, item: Found, known: dict[str | None, Found], quiet_at: float) -> Found:
    content = digest(root, item.paths, item.fingerprint)
    original = known.get(content) if content is not None else None
    if original is not None:
        why = f"it holds the same weights as {original.name}"
        return replace(item, step=original.step, alias=original.name, why=why)
    if min(item.unchanged_since, item.modified_at) > quiet_at:
        return replace(item, ready=False, why="it may be a copy of a checkpoint that is not finished yet; waits")
    return item
