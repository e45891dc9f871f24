"""The model of a disk that forgets, on traces of a few calls."""

import re
from pathlib import Path

import pytest

from file_trace import Bytes, Change, Disk, Names, parse, read, restore

HERE = "AT_FDCWD</>, "
SAVE = f"""
1 openat({HERE}"/d/a", O_WRONLY|O_CREAT|O_TRUNC|O_CLOEXEC, 0666) = 3</d/a>
1 write(3</d/a>, "first", 5) = 5
1 write(3</d/a>, "second", 6) = 6
"""
FLUSH = "1 fsync(3</d/a>) = 0\n"
FLUSH_ROOT = f"""
1 openat({HERE}"/d", O_RDONLY|O_CLOEXEC|O_DIRECTORY) = 9</d>
1 fsync(9</d>) = 0
1 close(9</d>)                            = 0
"""


def played(trace: str) -> Disk:
    """Follow a trace, in which text is not yet in hexadecimal."""
    disk = Disk(Path("/d"))
    encoded = re.sub(r'"([^"]*)"', lambda m: '"' + "".join(f"\\x{c:02x}" for c in m[1].encode()) + '"', trace)
    for call in parse(encoded.strip().splitlines()):
        disk.apply(call)
    return disk


def everything(change: Change) -> float:
    return 1.0


def test_content_lasts_with_its_file_and_a_name_with_its_directory() -> None:
    assert played(SAVE).tree() == {"a": b"firstsecond"}
    assert played(SAVE).left() == {}
    assert played(SAVE + FLUSH).left() == {}
    assert played(SAVE + FLUSH_ROOT).left() == {"a": b""}
    assert played(SAVE + FLUSH + FLUSH_ROOT).left() == {"a": b"firstsecond"}
    assert played(SAVE + FLUSH_ROOT + FLUSH + '1 unlink("/d/a") = 0').left() == {"a": b"firstsecond"}


def test_what_is_not_flushed_may_be_there_or_not() -> None:
    disk = played(SAVE)
    assert disk.left(everything) == disk.tree()
    assert disk.left(lambda change: isinstance(change, Names)) == {"a": b""}
    second = disk.left(lambda change: isinstance(change, Names) or getattr(change, "at", 0) > 0)
    assert second == {"a": b"\0\0\0\0\0second"}
    torn = disk.left(lambda change: 0.5 if isinstance(change, Bytes) and change.at else 1.0)
    assert torn == {"a": b"firstsec"}


def test_a_failed_call_changes_nothing() -> None:
    assert played('1 mkdir("/d/x", 0777) = -1 ENOENT (No such file or directory)').tree() == {}


def test_a_flush_covers_what_had_returned_when_it_began() -> None:
    threads = """
1 fsync(3</d/a> <unfinished ...>
2 pwrite64(3</d/a>, "LATE", 4, 0) = 4
1 <... fsync resumed>) = 0
"""
    disk = played(SAVE + FLUSH_ROOT + threads)
    assert disk.left() == {"a": b"firstsecond"}
    assert disk.tree() == {"a": b"LATEtsecond"}


def test_a_number_may_be_used_again_before_its_close_returns() -> None:
    threads = f"""
1 close(3</d/a> <unfinished ...>
2 openat({HERE}"/d/b", O_WRONLY|O_CREAT, 0666) = 3</d/b>
1 <... close resumed>) = 0
2 write(3</d/b>, "b", 1) = 1
"""
    assert played(SAVE + threads).tree() == {"a": b"firstsecond", "b": b"b"}


@pytest.mark.parametrize("flushed", ["/d", "/d/sub"])
def test_a_rename_between_directories_is_kept_whole(flushed: str) -> None:
    made = '1 mkdir("/d/sub", 0777) = 0\n' + SAVE + FLUSH + FLUSH_ROOT
    moved = made + '1 rename("/d/a", "/d/sub/b") = 0\n'
    assert played(moved).left() == {"sub": None, "a": b"firstsecond"}
    flush = FLUSH_ROOT.replace('"/d"', f'"{flushed}"')
    assert played(moved + flush).left() == {"sub": None, "sub/b": b"firstsecond"}
    back = moved + '1 rename("/d/sub/b", "/d/a") = 0\n' + flush
    assert played(back).left() == played(back).left(everything) == {"sub": None, "a": b"firstsecond"}


def test_a_rename_replaces_at_once() -> None:
    replaced = SAVE + FLUSH + FLUSH_ROOT + SAVE.replace("/d/a", "/d/new").replace("first", "1st") + FLUSH
    renamed = replaced + '1 rename("/d/new", "/d/a") = 0\n'
    assert played(renamed).left() == {"a": b"firstsecond"}
    assert played(renamed + FLUSH_ROOT).left() == {"a": b"1stsecond"}


def test_removing_a_tree_by_descriptor() -> None:
    trace = f"""
1 mkdir("/d/t", 0777) = 0
1 openat({HERE}"/d/t", O_RDONLY|O_CLOEXEC) = 5</d/t>
1 openat(5</d/t>, "x", O_RDWR|O_CREAT, 0666) = 6</d/t/x>
1 ftruncate(6</d/t/x>, 3) = 0
"""
    assert played(trace).tree() == {"t": None, "t/x": b"\0\0\0"}
    assert played(trace + '1 unlinkat(5</d/t>, "x", 0) = 0\n1 rmdir("/d/t") = 0').tree() == {}


def test_files_in_shared_memory_are_left_out() -> None:
    mapped = "1 mmap(NULL, 32768, PROT_READ|PROT_WRITE, MAP_SHARED, 3</d/a>, 0) = 0x7f0000000000"
    disk = played(SAVE + FLUSH + FLUSH_ROOT + mapped)
    assert disk.mapped == {"a"}
    assert disk.left() == {}


def test_what_the_model_does_not_know_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="symlink"):
        played(SAVE + '1 symlink("/d/a", "/d/b") = 0')
    assert played('1 symlink("/e/a", "/e/b") = 0').tree() == {}
    with pytest.raises(NotImplementedError, match="moved"):
        played(SAVE + '1 rename("/d/a", "/e/a") = 0')
    with pytest.raises(ValueError, match="raise strace -s"):
        played(SAVE + '1 write(3</d/a>, "cut"..., 5000) = 5000')


def test_a_tree_is_written_and_read(tmp_path: Path) -> None:
    tree = {"empty": None, "full": None, "full/x": b"x", "y": b""}
    restore(tree, tmp_path / "t")
    assert read(tmp_path / "t") == tree
