"""The model of a disk that forgets, on a few calls."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from forgetful_disk import Bytes, Call, Change, Disk, Names, read, restore

ROOT, INODES = Path("/d"), {"": 1, "a": 2, "b": 3, "new": 4, "sub": 5}


def call(kind: str, name: str = "", target: str = "", data: bytes = b"", at: int = 0) -> Call:
    """A call that is ordered by `played`."""
    return Call(kind, 0, 0, INODES.get(name, 0), at, f"/d/{name}", f"/d/{target}", data)


def save(name: str, first: bytes = b"first") -> list[Call]:
    return [call("o", name, at=1), call("w", name, data=first), call("w", name, data=b"second", at=len(first))]


def flush(name: str = "") -> Call:
    return call("f", name)


def played(calls: Sequence[Call]) -> Disk:
    """Follow calls, each of which ends before the next one begins."""
    disk = Disk(ROOT, INODES[""])
    for number, each in enumerate(calls):
        disk.apply(each._replace(began=each.began or 2 * number, ended=2 * number + 1))
    return disk


def everything(change: Change) -> float:
    return 1.0


def test_content_lasts_with_its_file_and_a_name_with_its_directory() -> None:
    saved = save("a")
    assert played(saved).tree() == {"a": b"firstsecond"}
    assert played(saved).left() == played([*saved, flush("a")]).left() == {}
    assert played([*saved, flush()]).left() == {"a": b""}
    assert played([*saved, flush("a"), flush()]).left() == {"a": b"firstsecond"}
    assert played([*saved, flush(), flush("a"), call("u", "a")]).left() == {"a": b"firstsecond"}


def test_what_is_not_flushed_may_be_there_or_not() -> None:
    disk = played(save("a"))
    assert disk.left(everything) == disk.tree()
    assert disk.left(lambda change: isinstance(change, Names)) == {"a": b""}
    second = disk.left(lambda change: isinstance(change, Names) or getattr(change, "at", 0) > 0)
    assert second == {"a": b"\0\0\0\0\0second"}
    torn = disk.left(lambda change: 0.5 if isinstance(change, Bytes) and change.at else 1.0)
    assert torn == {"a": b"firstsec"}


def test_a_flush_covers_what_had_returned_when_it_began() -> None:
    saved = [*save("a"), flush()]
    early = flush("a")._replace(began=2 * len(saved) - 1)
    disk = played([*saved, call("w", "a", data=b"LATE"), early])
    assert disk.left() == {"a": b"firstsecond"}
    assert disk.tree() == {"a": b"LATEtsecond"}


@pytest.mark.parametrize("flushed", ["", "sub"])
def test_a_rename_between_directories_is_kept_whole(flushed: str) -> None:
    moved = [call("d", "sub"), *save("a"), flush("a"), flush(), call("r", "a", "sub/b")]
    assert played(moved).left() == {"sub": None, "a": b"firstsecond"}
    assert played([*moved, flush(flushed)]).left() == {"sub": None, "sub/b": b"firstsecond"}
    back = played([*moved, call("r", "sub/b", "a"), flush(flushed)])
    assert back.left() == back.left(everything) == {"sub": None, "a": b"firstsecond"}


def test_a_rename_replaces_at_once() -> None:
    renamed = [*save("a"), flush("a"), flush(), *save("new", b"1st"), flush("new"), call("r", "new", "a")]
    assert played(renamed).left() == {"a": b"firstsecond"}
    assert played([*renamed, flush()]).left() == {"a": b"1stsecond"}


def test_files_are_cut_off_linked_and_removed() -> None:
    shorter = [*save("a"), call("z", "a", at=2)]
    assert played([*shorter, call("l", "a", "b")]).tree() == {"a": b"fi", "b": b"fi"}
    assert played([*shorter, call("z", "a", at=3), call("u", "b")]).tree() == {"a": b"fi\0"}
    assert played([*save("a"), *save("a", b"1")]).tree() == {"a": b"1second"}
    with pytest.raises(NotImplementedError, match="kind='s'"):
        played([call("s", "a")])


def test_a_tree_is_written_and_read(tmp_path: Path) -> None:
    tree = {"empty": None, "full": None, "full/x": b"x", "y": b""}
    restore(tree, tmp_path / "t")
    assert read(tmp_path / "t") == tree
