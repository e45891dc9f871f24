"""The calls that reach the disk, one by one, and what to do when one of them fails."""

import errno
import os
import shutil
import stat
from pathlib import Path
from typing import Any, Never

import pytest

from phyla.checkpoints import full
from phyla.checkpoints.disk import REMOVERS, Disk, make_dirs, storage_errors
from phyla.errors import CheckpointStorageFailed, advice_on, is_storage_error


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def failing(number: int, filename: str | None = None) -> Any:
    def fail(*args: object, **kwargs: object) -> Never:
        raise OSError(number, os.strerror(number), filename)

    return fail


def test_a_file_is_new_and_read_only_also_in_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "manifest"
    earlier = os.umask(0)
    try:
        for content in (b"a" * 3_000_000, b"", b"b"):
            Disk().write_file(path, content)
            assert path.read_bytes() == content
            assert mode(path) == 0o444
    finally:
        os.umask(earlier)
    assert [one.name for one in tmp_path.iterdir()] == ["manifest"]


@pytest.mark.parametrize(("before", "after"), [(0o644, 0o444), (0o777, 0o555), (0o222, 0), (0o541, 0o541)])
def test_only_permissions_to_write_are_taken_away(tmp_path: Path, before: int, after: int) -> None:
    (tmp_path / "weights").write_bytes(b"w")
    (tmp_path / "weights").chmod(before)
    Disk().make_read_only(tmp_path / "weights")
    assert mode(tmp_path / "weights") == after


@pytest.mark.parametrize(("before", "after"), [(0o555, 0o755), (0, 0o700), (0o077, 0o777)])
def test_only_the_owner_is_let_into_a_directory(tmp_path: Path, before: int, after: int) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder").chmod(before)
    Disk().make_writable(tmp_path / "folder")
    assert mode(tmp_path / "folder") == after


@pytest.mark.parametrize(
    ("call", "system", "ignored"),
    [
        ("make_read_only", "chmod", {errno.EPERM, errno.ENOTSUP, errno.ENOSYS}),
        ("fsync_dir", "fsync", {errno.EINVAL, errno.ENOTSUP}),
        ("fsync_file", "fsync", set()),
    ],
)
def test_what_a_file_system_cannot_do_is_told_from_what_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, system: str, ignored: set[int]
) -> None:
    for number in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.EIO, errno.ENOSPC):
        monkeypatch.setattr(os, system, failing(number))
        if number in ignored:
            getattr(Disk(), call)(tmp_path)
        else:
            with pytest.raises(OSError, match=os.strerror(number)):
                getattr(Disk(), call)(tmp_path)


def test_a_directory_is_flushed_as_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    Disk().fsync_dir(tmp_path)
    with pytest.raises(NotADirectoryError):
        Disk().fsync_dir(tmp_path / "file")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        Disk().fsync_file(tmp_path / "file")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTEMPTY])
def test_a_tree_that_others_change_too_is_gone_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    disk, tree, real = Disk(), tmp_path / "tree", shutil.rmtree
    disk.remove_tree(tree)
    calls: list[Path] = []

    def overtaken(path: Path) -> None:
        calls.append(path)
        if len(calls) < 3:
            raise OSError(number, os.strerror(number), str(path / "shard"))
        real(path)

    (tree / "inner").mkdir(parents=True)
    monkeypatch.setattr(shutil, "rmtree", overtaken)
    disk.remove_tree(tree)
    assert not tree.exists()
    assert calls == [tree] * 3


def test_a_tree_that_never_goes_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []

    def never(path: Path) -> None:
        calls.append(path)
        raise FileNotFoundError(errno.ENOENT, "gone", str(path / "shard"))

    monkeypatch.setattr(shutil, "rmtree", never)
    with pytest.raises(FileNotFoundError):
        Disk().remove_tree(tmp_path)
    assert len(calls) == REMOVERS + 1


def test_directories_are_made_and_their_parents_flushed_from_the_top(tmp_path: Path) -> None:
    calls: list[tuple[str, str]] = []

    class Watched(Disk):
        def make_dir(self, path: Path) -> None:
            calls.append(("make", path.name))
            super().make_dir(path)

        def fsync_dir(self, path: Path) -> None:
            calls.append(("flush", path.name))
            super().fsync_dir(path)

    make_dirs(Watched(), tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert calls == [("make", "a"), ("flush", tmp_path.name), ("make", "b"), ("flush", "a")]
    make_dirs(Watched(), tmp_path / "a" / "b")
    assert len(calls) == 4


def test_a_directory_that_somebody_else_makes_meanwhile_is_flushed_too(tmp_path: Path) -> None:
    flushed: list[Path] = []

    class Overtaken(Disk):
        def make_dir(self, path: Path) -> None:
            path.mkdir()
            super().make_dir(path)

        def fsync_dir(self, path: Path) -> None:
            flushed.append(path)

    make_dirs(Overtaken(), tmp_path / "a")
    assert flushed == [tmp_path]


ADVICE = {
    errno.ENOSPC: (True, "make room, or keep fewer checkpoints"),
    errno.EDQUOT: (True, "the disk quota is used up"),
    errno.EROFS: (True, "the file system is read-only"),
    errno.ESTALE: (True, "mount it again"),
    errno.EIO: (True, "look at the file system's health"),
    errno.EACCES: (False, f"user {os.geteuid()} lacks the permission"),
    errno.EPERM: (False, f"user {os.geteuid()} lacks the permission"),
    errno.ENOENT: (False, "look at the file system's health"),
}


@pytest.mark.parametrize(("number", "told"), ADVICE.items(), ids=map(errno.errorcode.get, ADVICE))
def test_what_to_do_about_an_error(tmp_path: Path, number: int, told: tuple[bool, str]) -> None:
    is_storage, advice = told
    error = OSError(number, os.strerror(number))
    assert is_storage_error(error) == is_storage
    assert advice in advice_on(error)
    where = rf"cannot read {tmp_path}/w: {os.strerror(number)} \({tmp_path}/w\); .*{advice}"
    with (
        pytest.raises(CheckpointStorageFailed, match=where) as caught,
        storage_errors("read", tmp_path / "w"),
    ):
        raise error
    assert caught.value.__cause__ is error


def test_what_is_no_error_of_the_system_is_none_of_storage(tmp_path: Path) -> None:
    assert not is_storage_error(ValueError("full"))
    assert not is_storage_error(OSError("full"))
    assert advice_on(OSError("full")) == "look at the file system's health"
    where = rf"cannot read {tmp_path}: full \({tmp_path}\); look"
    with (
        pytest.raises(CheckpointStorageFailed, match=where),
        storage_errors("read", tmp_path),
    ):
        raise OSError("full")
    with pytest.raises(ZeroDivisionError), storage_errors("read", tmp_path):
        raise ZeroDivisionError


def test_a_folder_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert full([tmp_path / "gone", tmp_path]) is None
    room = os.statvfs(tmp_path)
    for name, value in (("f_bavail", 10), ("f_favail", 0)):
        values = list(room)
        values[os.statvfs_result.__match_args__.index(name)] = value
        monkeypatch.setattr(os, "statvfs", lambda _, left=values: os.statvfs_result(left))
        error = full([tmp_path])
        assert error is not None
        assert (error.errno, error.filename) == (errno.ENOSPC, str(tmp_path))
