"""From verdicts and time to what was found; the part that all formats share."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final

from phyla.records import shown
from phyla.watcher.found import Found
from phyla.watcher.listing import GONE, Listing, Root
from phyla.watcher.listing import listing as look
from phyla.watcher.step import StepFrom
from phyla.watcher.verdict import Finish, Verdict

QUIET_S = 30.0
OLD_S = 3600.0
"""What had not changed for this long when it was first seen counts as quiet: clocks of file servers are
wrong by seconds or minutes, not by hours."""

Judge = Callable[[Path, Listing], Verdict]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Something that may be a checkpoint.

    Attributes:
        name: stable key.
        paths: entries that belong to it, relative to the root.
        judge: looks into it; may raise OSError and whatever damaged content makes libraries raise.
        step: the step, where the format knows better than the name.
    """

    name: str
    paths: tuple[str, ...]
    judge: Judge
    step: int | None = None


class Selection(Protocol):
    """The part of a format that differs from one to the next."""

    @property
    def quiet_s(self) -> float:
        """How long nothing may change before time decides."""
        ...

    @property
    def step(self) -> StepFrom:
        """Where steps come from."""
        ...

    def candidates(self, root: Root) -> Iterable[Candidate]:
        """Return what may be a checkpoint of this format among the entries of a directory."""
        ...


def survey(selection: Selection, path: Path, *, now: float, previous: Mapping[str, Found]) -> list[Found]:
    """Look at every candidate; the body of every `CheckpointFormat.scan`.

    Raises:
        CheckpointStorageFailed: the directory exists and cannot be listed.
    """
    root = Root(path)
    found = []
    for candidate in selection.candidates(root):
        listed = root.listing(candidate.paths)
        if listed is None:
            continue
        fingerprint = listed.fingerprint
        before = previous.get(candidate.name)
        if (
            before is not None
            and (before.ready or (before.bad and not before.unreadable))
            and before.fingerprint == fingerprint
            and before.paths == candidate.paths
            and not listed.problems
        ):
            found.append(before)
        else:
            found.append(_judged(selection, root.path, candidate, listed, now, before))
    found.sort(key=lambda item: (item.step is None, item.step or 0, item.name))
    return found


def _judged(
    selection: Selection, root: Path, candidate: Candidate, listed: Listing, now: float, before: Found | None
) -> Found:
    modified_at = listed.modified_ns / 1e9
    fingerprint = listed.fingerprint
    if before is not None and before.fingerprint == fingerprint:
        since = before.unchanged_since
    else:
        since = modified_at if listed.files and now - modified_at >= OLD_S else now
    verdict, step = _verdict(selection, root, candidate, listed)
    quiet = now - since >= selection.quiet_s
    why = verdict.why
    if verdict.finish is Finish.SETTLING and not quiet:
        why = f"{why}; waits until nothing changed for {selection.quiet_s:g} s"
    elif verdict.finish is Finish.SETTLING:
        why = f"nothing changed for {selection.quiet_s:g} s ({why})"
    elif verdict.finish is Finish.PARTIAL and quiet:
        why = f"{why}; nothing changed for {selection.quiet_s:g} s, so its writer died or it is damaged"
    unreadable = verdict.finish is Finish.UNREADABLE
    return Found(
        name=candidate.name,
        step=step,
        paths=candidate.paths,
        ready=verdict.finish is Finish.COMPLETE or (verdict.finish is Finish.SETTLING and quiet),
        why=why,
        bad=quiet and (unreadable or verdict.finish is Finish.PARTIAL),
        fingerprint=fingerprint,
        size_bytes=listed.size_bytes,
        modified_at=modified_at,
        first_seen=now if before is None else before.first_seen,
        unchanged_since=since,
        unreadable=unreadable,
    )


def _verdict(
    selection: Selection, root: Path, candidate: Candidate, listed: Listing
) -> tuple[Verdict, int | None]:
    step = candidate.step if candidate.step is not None else selection.step.of_name(candidate.name)
    if listed.problems:
        return Verdict.unreadable(listed.problems[0]), step
    if not listed.files:
        return Verdict.waiting("there is no file in it"), step
    try:
        verdict = candidate.judge(root, listed)
        if selection.step.file is not None:
            step = None
            if verdict.finish <= Finish.SETTLING:
                step = selection.step.of_content(root / candidate.paths[0])
        if verdict.finish <= Finish.SETTLING and look(root, candidate.paths).fingerprint != listed.fingerprint:
            # What was judged is then not what the fingerprint says.
            verdict = Verdict.waiting("it changed while it was looked at")
    except GONE as error:
        name = shown(str(error.filename or error))
        return Verdict.waiting(f"{name} is missing or vanished while it was looked at"), step
    except OSError as error:
        name = shown(str(error.filename or candidate.name))
        return Verdict.unreadable(f"{name} cannot be read: {error.strerror or error}"), step
    except Exception as error:  # noqa: BLE001  # whatever damaged content makes libraries raise, others go on
        return Verdict.partial(f"it cannot be understood: {type(error).__name__}: {error}"), step
    return verdict, step
