"""Checkpoints whose names differ only in their numbers: a later one waits for all files of the earlier ones."""

import re
from collections import Counter
from collections.abc import Iterable
from functools import cached_property, partial
from typing import final

from phyla.watcher.format import Candidate, Check, Finish, Verdict, check_file, load_formats, worst
from phyla.watcher.formats.step_source import RANK, StepFrom
from phyla.watcher.formats.weights import weights
from phyla.watcher.listing import Listing, Place, Root

_NUMBERED = re.compile(rf"{RANK.pattern}|\d+[-_]of[-_]\d+|__\d+(_\d+)?|states?_\d+", re.IGNORECASE)
"""Numbers of ranks and shards, which a step leaves as they are."""
_PIECE = re.compile(r"(?<![A-Za-z0-9])((?:rank|shard)[-_=.]?)\d+(?![0-9])", re.IGNORECASE)
_COMPARED = 3
"""Neighbors to compare, so that a single unfinished one, or one with another number of ranks, does not matter."""
_SLACK_NS = 60 * 10**9


def pattern(name: str) -> str:
    """Return a name with `#` in place of each number."""
    return re.sub(r"\d+", "#", name)


def join_ranks(candidates: Iterable[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
    """Return the checkpoints of single files, and those of one file per rank: `m_1_rank*.pt`."""
    single: list[Candidate] = []
    groups: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        name = _PIECE.sub(r"\1*", candidate.name)
        if len(candidate.paths) > 1 or name == candidate.name:
            single.append(candidate)
        else:
            groups.setdefault(name, []).append(candidate)
    return single, [
        Candidate(name, tuple(sorted(path for item in items for path in item.paths)), items[0].check)
        for name, items in groups.items()
    ]


@final
class Siblings:
    """The checkpoints of one directory that nothing closes, with their files.

    Each is one of `candidates`; `rule` tells their steps.
    """

    def __init__(self, entries: Root, candidates: Iterable[Candidate], rule: StepFrom) -> None:
        self._entries = entries
        self._candidates = list(candidates)
        self._rule = rule

    def wrapped(self) -> list[Candidate]:
        """Return the candidates; the check of each takes the others into account."""
        return [item._replace(check=partial(self._check, item.name, item.check)) for item in self._candidates]

    @cached_property
    def _steps(self) -> dict[str, int]:
        steps = {item.name: self._rule.of_name(item.name) for item in self._candidates}
        return {name: step for name, step in steps.items() if step is not None}

    @cached_property
    def _groups(self) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for name in sorted(self._steps, key=self._steps.__getitem__):
            groups.setdefault(pattern(name), []).append(name)
        return groups

    @cached_property
    def _paths(self) -> dict[str, tuple[str, ...]]:
        return {item.name: item.paths for item in self._candidates}

    def _listing(self, name: str) -> Listing:
        return self._entries.listing(self._paths[name]) or Listing(())

    def _files(self, name: str, listed: Listing) -> dict[str, tuple[str, int]]:
        """Return paths and sizes of files by names that do not depend on the step."""
        same = re.compile(rf"{_NUMBERED.pattern}|(?<!\d)0*{self._steps[name]}(?!\d)", re.IGNORECASE)
        inside = len(name) + 1 if self._paths[name] == (name,) else 0
        pairs = [(file.relative[inside:], file.size_bytes) for file in listed.files]
        return {
            same.sub(lambda match: "#" if match[0].isdecimal() else match[0], path): (path, size)
            for path, size in pairs
        }

    def _check(self, name: str, check: Check, root: Place, listed: Listing) -> Verdict:
        verdict = check(root, listed)
        if verdict.finish > Finish.SETTLING or name not in self._steps:
            return verdict
        group = self._groups[pattern(name)]
        place = group.index(name)
        if any(self._listing(later).modified_ns > listed.modified_ns for later in group[place + 1 :][:_COMPARED]):
            return verdict  # its writer went on
        if not place:
            return worst([verdict, Verdict.settling("it is the first, so it is unknown which files belong to it")])
        return self._compare(name, group[max(0, place - _COMPARED) : place], root, listed)

    def _compare(self, name: str, earlier: list[str], root: Place, listed: Listing) -> Verdict:
        """Return whether it has the files of the earlier ones, and as much in them."""
        files = self._files(name, listed)
        before = {other: self._files(other, self._listing(other)) for other in reversed(earlier)}
        counts = Counter(path for others in before.values() for path in others)
        # A number that never changes may be the step of one of them, as in `optimizer_0` of step 0.
        here = {path for path, _ in files.values()}
        there = {key for others in before.values() for key, (path, _) in others.items() if path not in here}
        lacking = [key for key in sorted(there - files.keys()) if counts[key] >= len(before) - 1]
        for path in sorted(lacking, key=lambda path: _NUMBERED.search(path) is None):
            other = next(other for other, others in before.items() if path in others)
            make = Verdict.waiting if _NUMBERED.search(path) else Verdict.settling
            return make(f"{path} is missing, which {other} has")
        newest, known = before[earlier[-1]], endings()
        for path, (_, size) in newest.items():
            if not path.endswith(known) and files.get(path, (path, size))[1] < size:
                return Verdict.settling(f"{path} is smaller than in {earlier[-1]}")
        if _spread(listed) > _SLACK_NS + 2 * _spread(self._listing(earlier[-1])):
            return Verdict.settling("its files differ in age: it may be being overwritten")
        weight_files = [file for file in listed.files if file.name.endswith(known)]
        verdicts = [check_file(root / file.relative, file.size_bytes) for file in weight_files]
        if self._paths[name] == (name,):
            content = weights(root / name, listed.folder()[1])
            verdicts += [] if content is None else [content.verdict]
        verdict = worst(verdicts)
        if verdict.finish is Finish.COMPLETE:
            return Verdict.complete(f"it has all files that {earlier[-1]} has")
        return verdict


def _spread(listed: Listing) -> int:
    return listed.modified_ns - min((file.modified_ns for file in listed.files), default=0)


def endings() -> tuple[str, ...]:
    """Return the endings of files that any format can check."""
    return tuple(ending for kind in load_formats() for ending in kind.endings)
