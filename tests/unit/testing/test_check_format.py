"""`check_format` says what a format does wrong."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from phyla.testing import check_format
from phyla.watcher import Candidate, CheckpointFormat, Verdict
from phyla.watcher.format import Check, check_order
from phyla.watcher.listing import Listing, Place, Root


def judge(root: Place, listed: Listing) -> Verdict:
    """A directory is complete once DONE is in it, newer than the rest."""
    _, files = listed.folder()
    if "DONE" not in files:
        return Verdict.partial("DONE is missing")
    return check_order(files["DONE"], Verdict.complete("DONE is there"), files.values())


@dataclass(frozen=True, kw_only=True)
class Planted(CheckpointFormat):
    """Does nothing wrong."""

    name: ClassVar[str] = "planted"
    awaits: ClassVar[str] = "directories with DONE in them"

    @classmethod
    def folders(cls, root: Root) -> Mapping[str, Check]:
        return dict.fromkeys([folder for folder in root.folders if root.inside(folder)], cls.judge)

    @staticmethod
    def judge(root: Place, listed: Listing) -> Verdict:
        return judge(root, listed)


class Nameless(Planted):
    awaits = ""


class Eager(Planted):
    @staticmethod
    def judge(root: Place, listed: Listing) -> Verdict:
        return Verdict.complete("it is there")


class Never(Planted):
    @staticmethod
    def judge(root: Place, listed: Listing) -> Verdict:
        return Verdict.waiting("who knows")


class TrustsAnOldMark(Planted):
    @staticmethod
    def judge(root: Place, listed: Listing) -> Verdict:
        return Verdict.complete("it is there") if "DONE" in listed.folder()[1] else Verdict.waiting("not yet")


class Writes(Planted):
    @staticmethod
    def judge(root: Place, listed: Listing) -> Verdict:
        assert isinstance(root, Path)
        (root / "log").touch()
        return judge(root, listed)


class OtherStep(Planted):
    def candidates(self, root: Root) -> Iterable[Candidate]:
        return [candidate._replace(step=7) for candidate in super().candidates(root)]


class LeavesFiles(Planted):
    def candidates(self, root: Root) -> Iterable[Candidate]:
        return [Candidate(name, (f"{name}/DONE",), judge) for name in root.folders]


class Renames(Planted):
    def candidates(self, root: Root) -> Iterable[Candidate]:
        count = len(root.folders)
        return [one._replace(name=f"{count}-{one.name}") for one in super().candidates(root)]


class SeesOne(Planted):
    def candidates(self, root: Root) -> Iterable[Candidate]:
        return [*super().candidates(root)][:1]


class NoVerdict(Planted):
    @staticmethod
    def judge(root: Place, listed: Listing) -> Any:
        return True


class Breaks(Planted):
    @staticmethod
    def judge(root: Place, listed: Listing) -> Verdict:
        raise LookupError("no such part")


class Reads(Planted):
    def candidates(self, root: Root) -> Iterable[Candidate]:
        for folder in root.folders:
            (root.path / folder / "weights").read_bytes()
        return super().candidates(root)


def save(root: Path, step: int) -> Iterator[None]:
    folder = root / f"step_{step}"
    folder.mkdir(exist_ok=True)
    (folder / "weights").write_bytes(b"1")
    yield
    (folder / "weights").write_bytes(b"12")
    yield
    (folder / "DONE").touch()


def save_once(root: Path, step: int) -> None:
    folder = root / f"step_{step}"
    folder.mkdir()
    (folder / "weights").write_bytes(b"12")
    (folder / "DONE").touch()


@pytest.mark.parametrize("write", [save, save_once])
def test_a_format_that_does_nothing_wrong_passes(write: Any) -> None:
    check_format(Planted(), write)


@pytest.mark.parametrize(
    ("planted", "facts"),
    [
        (Nameless(), ("Nameless", "awaits")),
        (Eager(), ("step_1", "yield 1", "not finished")),
        (Never(), ("step_1", "not ready", "who knows")),
        (TrustsAnOldMark(), ("step_1", "yield 1", "overwritten")),
        (Writes(), ("scan", "'log'")),
        (OtherStep(), ("step_1", "got 7, expected 1")),
        (LeavesFiles(), ("step_1/weights", "('step_1/DONE',)")),
        (Renames(), ("1-step_1", "another checkpoint")),
        (SeesOne(), ("steps", "got [1], expected [1, 20]")),
        (NoVerdict(), ("NoVerdict", "NoVerdict.judge()", "True", "Verdict")),
        (Breaks(), ("Breaks", "LookupError", "no such part", __file__)),
        (Reads(), ("candidates()", "FileNotFoundError", "step_1")),
    ],
)
def test_what_a_format_does_wrong_is_named(planted: CheckpointFormat, facts: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError) as caught:
        check_format(planted, save)
    assert [fact for fact in facts if fact not in str(caught.value)] == []
