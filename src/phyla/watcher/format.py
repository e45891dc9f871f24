"""Checkpoint formats: frozen dataclasses that find candidates and judge whether each is finished."""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple, Self, final

from phyla import plugins
from phyla.errors import CheckpointsAbsent, CheckpointStorageFailed, ConfigurationError, NotImportable, with_place
from phyla.records import escape_name
from phyla.validation import look_up
from phyla.watcher.formats.step_source import StepFrom
from phyla.watcher.listing import GONE, File, Listing, Place, Root
from phyla.watcher.listing import listing as look

OLD_S = 3600.0
"""A checkpoint that was this old when first seen counts as quiet: clocks of file servers are wrong by seconds or
minutes, not by hours."""
_TICK_NS = 20_000_000
"""By how much the time of a folder may be after that of the file last made in it: the two come from clocks of
different resolution, and an empty file is never written to."""
_COMPANION = re.compile(
    r"(training_args|optim(izer)?|scheduler|scaler|rng_state|random_states)(_?(rank_?)?\d+)*\.(bin|pt|pth|pkl)"
    r"|.*(replay_buffer|vec_?normalize).*\.(pkl|pickle)"
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One checkpoint of a foreign directory at the time of a look.

    Attributes:
        name: stable key: path relative to the root, with `/` between its parts.
        step: age of the weights, or None if unknown.
        paths: files and directories that belong to it, relative to the root.
        ready: whether its writer has finished, as far as the format can tell.
        why: what it waits for, what is wrong with it, or why it is ready.
        bad: it is damaged or unreadable, or its writer died: not to be evaluated until that changes.
        fingerprint: changes whenever a file is added, removed, replaced, resized or written to.
        size_bytes: sum of its files.
        modified_at: newest change of its files by the file system's clock, in seconds since the epoch.
        unchanged_since: when a scan first saw this fingerprint; `modified_at` for what was old by then.
        unreadable: the system refused to show it; that may end without any change of its fingerprint.
        alias: the checkpoint whose weights it holds, too; None for one of its own.
    """

    name: str
    step: int | None
    paths: tuple[str, ...]
    ready: bool
    why: str
    bad: bool
    fingerprint: str
    size_bytes: int
    modified_at: float
    unchanged_since: float
    unreadable: bool = False
    alias: str | None = None


class Finish(IntEnum):
    """The state of a checkpoint, worst last."""

    COMPLETE = 0
    """Its format shows that nothing is missing: ready."""
    SETTLING = 1
    """Nothing shows that anything is missing: ready once nothing changed for the quiet period."""
    PARTIAL = 2
    """Something is missing or damaged: bad once nothing changed for the quiet period."""
    WAITING = 3
    """Undecidable, even after a quiet period."""
    UNREADABLE = 4
    """The system denies access: bad after the quiet period, and checked again."""


@final
class Verdict(NamedTuple):
    """The state of a checkpoint by its files, and why, with names and numbers."""

    finish: Finish
    why: str

    @classmethod
    def complete(cls, why: str) -> Self:
        """Nothing is missing."""
        return cls(Finish.COMPLETE, why)

    @classmethod
    def settling(cls, why: str) -> Self:
        """Finished once nothing changes for the quiet period."""
        return cls(Finish.SETTLING, why)

    @classmethod
    def partial(cls, why: str) -> Self:
        """Something is missing or damaged."""
        return cls(Finish.PARTIAL, why)

    @classmethod
    def waiting(cls, why: str) -> Self:
        """Undecided yet."""
        return cls(Finish.WAITING, why)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the first of the worst verdicts; complete without any."""
    return max(verdicts, key=lambda verdict: verdict.finish, default=Verdict.complete("nothing to check"))


Check = Callable[[Place, Listing], Verdict]
"""Looks into the files of a candidate below a root; may raise whatever damaged content makes libraries raise."""


@final
class Candidate(NamedTuple):
    """A possible checkpoint: a stable key, entries of the root, and the check of whether they are finished.

    `step` overrides the step in the name, if the format knows it.
    """

    name: str
    paths: tuple[str, ...]
    check: Check
    step: int | None = None

    @classmethod
    def entry(cls, name: str, check: Check) -> Self:
        """Return a candidate that is one file or directory of the root."""
        return cls(name, (name,), check)

    def judge(self, root: Place, listed: Listing) -> Verdict:
        """Return what its check says; `ConfigurationError` if that is no verdict."""
        verdict: object = self.check(root, listed)
        if not isinstance(verdict, Verdict):
            name = getattr(self.check, "__qualname__", repr(self.check))
            raise ConfigurationError(f"{name}() returned {verdict!r}; it must return Verdict")
        return verdict


@dataclass(frozen=True, kw_only=True)
class CheckpointFormat(ABC):
    """Defines what the checkpoints of one library look like, and when they are finished.

    A format is a frozen dataclass with a `name` and `awaits`, and with its own `endings`, `files`, `folders` or
    `candidates`; its fields are its options. It is registered in the entry point group `phyla.formats`. `auto`
    calls `files`, `folders` and `check_content` without an instance, so these are class methods.

    Attributes:
        name: the name of its entry point.
        awaits: what it accepts as a checkpoint, in words.
        endings: of single files in the root that are checkpoints.
        rank: among formats that know the same directory, `auto` takes the one of the lowest rank.
        quiet_s: seconds without a change after which a checkpoint counts as finished, or as damaged.
        step: where steps come from.
    """

    name: ClassVar[str]
    endings: ClassVar[tuple[str, ...]] = ()
    rank: ClassVar[int] = 0
    quiet_s: float = 30.0
    step: StepFrom = field(default_factory=StepFrom)

    @property
    @abstractmethod
    def awaits(self) -> str:
        """What it takes for a checkpoint, in words."""

    @classmethod
    def folders(cls, root: Root) -> Mapping[str, Check]:
        """Return how to check each directory of the root whose content shows that it is of this format."""
        return {}

    @classmethod
    def files(cls, root: Root) -> Iterable[Candidate]:
        """Return the files of the root that are checkpoints; by default single ones with the `endings`."""
        return [
            Candidate.entry(name, check_all)
            for name in root.files
            if name.endswith(cls.endings) and not is_companion(name)
        ]

    @classmethod
    def check_content(cls, name: str, file: IO[bytes]) -> Verdict | None:
        """Return whether one file is complete; None if its content is not of this format, whatever its ending."""
        return None

    def candidates(self, root: Root) -> Iterable[Candidate]:
        """Return the entries of a directory that may be checkpoints of this format."""
        return [*(Candidate.entry(*pair) for pair in self.folders(root).items()), *self.files(root)]

    def step_rule(self, name: str) -> str:
        """Describe where the step of a checkpoint of this name comes from."""
        return self.step.rule(name)

    @final
    def scan(self, root: Place, *, now: float, previous: Mapping[str, Found]) -> list[Found]:
        """Return the checkpoints in a directory, ready or not, by step and then by name; read-only.

        `previous` is the result of the last scan, by name: a ready or bad checkpoint with the same fingerprint is
        not read again. A root that exists and cannot be listed raises CheckpointStorageFailed, or
        CheckpointsAbsent.
        """
        entries = Root(root)
        items = []
        for candidate in self.candidates(entries):
            listed = entries.listing(candidate.paths)
            if listed is not None:
                items.append(self._inspect(entries, candidate, listed, now, previous.get(candidate.name)))
        return sorted(items, key=lambda item: (item.step is None, item.step or 0, item.name))

    def _inspect(
        self, root: Root, candidate: Candidate, listed: Listing, now: float, before: Found | None
    ) -> Found:
        fingerprint = listed.fingerprint
        modified_at = listed.modified_ns / 1e9
        since = modified_at if listed.files and now - modified_at >= OLD_S else now
        if before is not None and before.fingerprint == fingerprint:
            settled = before.ready or (before.bad and not before.unreadable)
            if settled and before.paths == candidate.paths and not listed.problems:
                return before
            since = before.unchanged_since
        (finish, why), step = self._verdict(root.path, candidate, listed)
        quiet = now - since >= self.quiet_s
        if finish is Finish.SETTLING:
            still = f"nothing changed for {self.quiet_s:g} s"
            why = f"{still} ({why})" if quiet else f"{why}; waits until {still}"
        elif finish is Finish.PARTIAL and quiet:
            why = f"{why}; nothing changed for {self.quiet_s:g} s, so it is damaged, or its writer died"
        return Found(
            name=candidate.name,
            step=step,
            paths=candidate.paths,
            ready=finish is Finish.COMPLETE or (finish is Finish.SETTLING and quiet),
            why=why,
            bad=quiet and finish in (Finish.PARTIAL, Finish.UNREADABLE),
            fingerprint=fingerprint,
            size_bytes=listed.size_bytes,
            modified_at=modified_at,
            unchanged_since=since,
            unreadable=finish is Finish.UNREADABLE,
        )

    def _verdict(self, root: Place, candidate: Candidate, listed: Listing) -> tuple[Verdict, int | None]:
        step = self.step.of_name(candidate.name) if candidate.step is None else candidate.step
        if listed.problems:
            return Verdict(Finish.UNREADABLE, listed.problems[0]), step
        if not listed.files:
            return Verdict.waiting("it has no files"), step
        try:
            verdict = candidate.judge(root, listed)
            only = listed.files[0]
            alone = isinstance(only.inode, str) and candidate.paths == (only.relative,)
            if alone and verdict.finish is Finish.SETTLING:
                verdict = Verdict.complete(f"{only.name} is one object, which appears whole")
            may_be_ready = verdict.finish <= Finish.SETTLING
            if self.step.file is not None:
                step = self.step.of_content(root / candidate.paths[0]) if may_be_ready else None
            if may_be_ready and look(root, candidate.paths).fingerprint != listed.fingerprint:
                # The check then saw other files than the fingerprint.
                verdict = Verdict.waiting("it changed while it was checked")
        except GONE as error:
            name = escape_name(str(error.filename or error))
            verdict = Verdict.waiting(f"{name} is missing or disappeared while it was checked")
        except OSError as error:
            name = escape_name(str(error.filename or candidate.name))
            verdict = Verdict(Finish.UNREADABLE, f"{name} cannot be read: {error.strerror or error}")
        except CheckpointStorageFailed as error:
            verdict = Verdict(Finish.UNREADABLE, str(error))
        except CheckpointsAbsent:
            raise  # it is no fact about this checkpoint
        except Exception as error:  # noqa: BLE001  # whatever damaged content makes libraries raise, others go on
            why = f"it cannot be parsed: {type(error).__name__}: {error}"
            if not type(self).__module__.startswith("phyla."):
                # It may be damaged, or the format may be wrong.
                why = f"{type(self).__name__} cannot check it: {with_place(error)}"
            verdict = Verdict.partial(why)
        return verdict, step


def describe_below(root: Place, kind: CheckpointFormat) -> str | None:
    """Say how to watch the directories in a local root that have checkpoints; None if the root has some itself.

    Directories that cannot be listed, the root too, count as empty.
    """

    def content(folder: Path) -> tuple[list[str], bool]:
        try:
            entries = Root(folder)
            return entries.folders, any(kind.candidates(entries))
        except CheckpointStorageFailed:
            return [], False

    if not isinstance(root, Path):
        return None
    names, has_some = content(root)
    if has_some:
        return None
    below = [name for name in names if content(root / name)[1]]
    if not below:
        return None
    first, where = escape_name(str(root / below[0])), escape_name(str(root))
    if len(below) == 1:
        return f"{first} has checkpoints: watch that instead?"
    return (
        f"{len(below)} directories in it have some, such as {first}: if each is a checkpoint, add --format "
        f"quiet; if each is a run, watch {where}/*/"
    )


@cache
def load_formats() -> tuple[type[CheckpointFormat], ...]:
    """Return all formats, in the order in which `auto` tries them."""
    formats: list[type[CheckpointFormat]] = []
    for point in plugins.of_group("phyla.formats").values():
        # A format whose package is broken matters only when it is named.
        with suppress(NotImportable):
            formats.append(plugins.load(point))
    return tuple(sorted(formats, key=lambda kind: (kind.rank, kind.name)))


def check_file(path: Place, size_bytes: int) -> Verdict:
    """Return whether one file is whole, by the formats of its ending, else by any that knows its content.

    It raises OSError where it is gone or cannot be read, and whatever damaged content makes libraries raise.
    """
    if size_bytes == 0:
        return Verdict.partial(f"{path.name} is empty")
    verdict = None
    with path.open("rb") as file:
        for kind in sorted(load_formats(), key=lambda kind: not path.name.endswith(kind.endings)):
            file.seek(0)
            verdict = verdict or kind.check_content(path.name, file)
        status = os.fstat(file.fileno()) if isinstance(path, Path) else None
    if verdict is None:
        return Verdict.settling(f"{path.name} does not record its size")
    if verdict.finish is Finish.COMPLETE and status is not None and status.st_blocks * 512 < status.st_size:
        # Space may be reserved before it is written; a compressing file system looks the same.
        return Verdict.settling(f"{path.name} has holes, as if its space was reserved before writing")
    return verdict


def check_all(root: Place, listed: Listing) -> Verdict:
    """Return the worst verdict on the files themselves; missing files cannot be detected."""
    return worst(check_file(root / file.relative, file.size_bytes) for file in listed.files)


def is_companion(name: str) -> bool:
    """Return whether a file accompanies weights and has none itself, as `optimizer.pt` does."""
    return _COMPANION.fullmatch(name) is not None


def check_order(
    closing: File, verdict: Verdict, files: Iterable[File] = (), folders_ns: int = 0, *, slack_ns: int = _TICK_NS
) -> Verdict:
    """Return the verdict, less sure if one of `files` or their directories changed after the one written last.

    A checkpoint that is being overwritten or deleted looks like that: it still has the old closing file.
    """
    late = max(files, key=lambda file: file.modified_ns, default=closing)
    if verdict.finish is not Finish.COMPLETE:
        return verdict
    if late.modified_ns > closing.modified_ns:
        return Verdict.settling(f"{late.name} was written after {closing.name}: it may be being overwritten")
    if folders_ns > closing.modified_ns + slack_ns:
        return Verdict.settling(f"files were added or removed after {closing.name}, which is written last")
    return verdict


def format_names() -> list[str]:
    """Return the names of all formats that are installed, sorted."""
    return sorted(plugins.of_group("phyla.formats"))


def get_format(name: str, *, step: StepFrom | str | None = None, **options: Any) -> CheckpointFormat:
    """Return a format by its name; `step` may be the text that `StepFrom.parse` reads.

    Raises:
        ConfigurationError: there is no such format, or it does not take such an option.
    """
    point = look_up("checkpoint format", name, plugins.of_group("phyla.formats"))
    make: type[CheckpointFormat] = plugins.load(point)
    if step is not None:
        options["step"] = StepFrom.parse(step) if isinstance(step, str) else step
    accepted = [field.name for field in fields(make)]
    unknown = [option for option in options if option not in accepted]
    if unknown:
        alternatives = [
            kind.name for kind in load_formats() if {*options} <= {field.name for field in fields(kind)}
        ]
        elsewhere = f"; {' and '.join(alternatives)} does: name that format" if alternatives else ""
        why = f"does not take {', '.join(unknown)}, only {', '.join(accepted)}{elsewhere}"
        raise ConfigurationError(f"format {name} {why}")
    return make(**options)
