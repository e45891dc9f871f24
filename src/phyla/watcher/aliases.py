"""Checkpoints without a step in their names: copies such as `last.ckpt`, or with a step of their own."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple, final

from phyla.watcher.content import counts, digest
from phyla.watcher.format import CheckpointFormat, Found
from phyla.watcher.formats.step_source import DIGITS_AT_MOST, StepFrom
from phyla.watcher.listing import Place

_SECOND = re.compile(r"(?<![a-z])(last|latest|best|final)(?![a-z])", re.IGNORECASE)
_STEP_KEYS = ("global_step", "num_timesteps", "iter_num", "iteration", "step", "epoch")
"""Names under which training loops save their step, first those that nothing else has."""


def resolve(root: Place, kind: CheckpointFormat, items: Iterable[Found], *, now: float) -> list[Found]:
    """Return the checkpoints of a scan, with steps and aliases of those without a step in their names.

    Copies of others are their aliases. The rest waits for the quiet period if there are others, since an original
    may be written after its copy; then the step comes from inside.
    """
    items = list(items)
    second = {item.name for item in items if _is_second(item, kind.step)}
    unresolved = {item.name for item in items if item.name in second and item.ready and item.alias is None}
    if not unresolved:
        return items
    originals = [item for item in items if item.name not in second and not item.bad]
    # Of several with the same weights, the newest.
    known = {digest(root, item.paths, item.fingerprint): item for item in originals if item.ready}
    known.pop(None, None)
    others = _Others(root, kind, originals, known, now - kind.quiet_s)
    return [others.resolve(item) if item.name in unresolved else item for item in items]


def _is_second(item: Found, rule: StepFrom) -> bool:
    has_step = item.step is not None if rule.file is not None else rule.of_name(item.name) is not None
    return not has_step or _SECOND.search(item.name) is not None


@final
class _Others(NamedTuple):
    """The checkpoints with a step, by step; `known` are the ready ones by their weights."""

    root: Place
    kind: CheckpointFormat
    originals: list[Found]
    known: dict[str | None, Found]
    quiet_at: float

    def resolve(self, item: Found) -> Found:
        content = digest(self.root, item.paths, item.fingerprint)
        original = self.known.get(content) if content is not None else None
        if original is not None:
            why = f"it holds the same weights as {original.name}"
            return replace(item, step=original.step, alias=original.name, why=why)
        if self.originals and min(item.unchanged_since, item.modified_at) > self.quiet_at:
            return replace(
                item, ready=False, why="it may be a copy of a checkpoint that is not finished yet; waits"
            )
        return item if item.step is not None else replace(item, step=self._step_inside(item))

    def _step_inside(self, item: Found) -> int | None:
        """Return the step that a checkpoint records, if another one records the step of its name there."""
        if self.kind.step != StepFrom():
            return None
        newest = next(reversed(self.known.values()), None)
        shown = {} if newest is None else counts(self.root, newest.paths, newest.fingerprint)
        inside = counts(self.root, item.paths, item.fingerprint)
        for key in _STEP_KEYS:
            agrees = not self.originals or (newest is not None and shown.get(key) == newest.step)
            if agrees and 0 <= inside.get(key, -1) < 10**DIGITS_AT_MOST:
                return inside[key]
        return None
