"""Checkpoints in a directory: staged, committed at once, read back, deleted."""

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from facts import raises
from phyla.checkpoints import MANIFEST_NAME, LocalCheckpoints, Manifest, import_checkpoint
from phyla.checkpoints import local as local_module
from phyla.checkpoints import manifest as manifest_module
from phyla.checkpoints.disk import Disk
from phyla.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointMissing,
    CheckpointStorageFailed,
    UsageError,
)

WEIGHTS = b"weights" * 40


@pytest.fixture
def checkpoints(tmp_path: Path) -> LocalCheckpoints:
    return LocalCheckpoints(tmp_path / "deep" / "root")


def save(checkpoints: LocalCheckpoints, name: str = "17.2", *, now: float = 5.0, step: int = 3) -> Manifest:
    staged = checkpoints.stage(name)
    (staged / "weights.bin").write_bytes(WEIGHTS)
    (staged / "optimizer").mkdir()
    (staged / "optimizer" / "state").write_bytes(b"")
    return checkpoints.commit(name, step=step, now=now)


def saved(checkpoints: LocalCheckpoints) -> Path:
    save(checkpoints)
    return checkpoints.path("17.2")


# --- several hosts at once


# --- staging and committing


def test_a_file_that_is_still_being_written_is_refused(tmp_path: Path) -> None:
    disk = Interposed()
    checkpoints = LocalCheckpoints(tmp_path / "root", disk)
    staged = checkpoints.stage("1.1")
    shard = staged / "shard"
    shard.write_bytes(b"half")
    disk.before["fsync_file"] = lambda: shard.write_bytes(b"whole by now")
    with raises(CheckpointError, "shard"):
        checkpoints.commit("1.1", step=1, now=0.0)
    disk.before["fsync_file"] = lambda: shard.unlink(missing_ok=True)
    with raises(CheckpointError, "shard"):
        checkpoints.commit("1.1", step=1, now=0.0)
    assert checkpoints.names() == ()


@pytest.mark.parametrize("moment", ["fsync_file", "write_file"])
def test_a_file_that_appears_during_a_commit_is_refused(tmp_path: Path, moment: str) -> None:
    disk = Interposed()
    checkpoints = LocalCheckpoints(tmp_path / "root", disk)
    staged = checkpoints.stage("1.1")
    (staged / "weights").write_bytes(WEIGHTS)
    disk.before[moment] = lambda: (staged / "late").write_bytes(b"late")
    with raises(CheckpointError, "1.1/late"):
        checkpoints.commit("1.1", step=1, now=0.0)
    assert checkpoints.names() == ()
    disk.before.clear()
    assert len(checkpoints.commit("1.1", step=1, now=0.0).files) == 2, "nothing is missed the next time"


def test_a_file_that_is_renamed_while_a_commit_begins_is_no_storage_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = LocalCheckpoints(tmp_path / "root")
    (checkpoints.stage("1.1") / "weights.tmp").write_bytes(WEIGHTS)

    def vanishing(root: Path) -> manifest_module.Tree:
        found = scan(root)
        (root / "weights.tmp").rename(root / "weights")
        raise FileNotFoundError(errno.ENOENT, "No such file", str(found.entries[0].path))

    scan = manifest_module.scan
    monkeypatch.setattr(local_module, "scan", vanishing)
    with raises(CheckpointError, "weights.tmp"):
        checkpoints.commit("1.1", step=1, now=0.0)


def test_a_manifest_that_was_written_in_part_is_no_file_of_the_users(tmp_path: Path) -> None:
    disk = Interposed()
    checkpoints = LocalCheckpoints(tmp_path / "root", disk)
    staged = checkpoints.stage("1.1")
    (staged / "weights").write_bytes(WEIGHTS)

    def torn() -> None:
        (staged / MANIFEST_NAME).write_bytes(b'{"form')
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk.before["write_file"] = torn
    with pytest.raises(CheckpointStorageFailed, match="make room"):
        checkpoints.commit("1.1", step=1, now=0.0)
    disk.before.clear()
    checkpoints.commit("1.1", step=1, now=0.0)
    checkpoints.verify("1.1")


@pytest.mark.parametrize("moment", ["make_read_only", "write_file", "fsync_dir 1.1", "rename"])
def test_a_staging_directory_that_is_removed_during_a_commit_is_no_storage_failure(
    tmp_path: Path, moment: str
) -> None:
    disk = Interposed()
    checkpoints = LocalCheckpoints(tmp_path / "root", disk)
    staged = checkpoints.stage("1.1")
    (staged / "weights").write_bytes(WEIGHTS)
    disk.before[moment] = lambda: shutil.rmtree(staged)
    with raises(CheckpointError, staged) as caught:
        checkpoints.commit("1.1", step=1, now=0.0)
    assert not isinstance(caught.value, CheckpointStorageFailed)
    assert checkpoints.names() == ()


# --- many files


def save_many(checkpoints: LocalCheckpoints, count: int = 50) -> Manifest:
    staged = checkpoints.stage("1.1")
    for number in range(count):
        folder = staged / f"part{number % 5}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}").write_bytes(WEIGHTS)
    return checkpoints.commit("1.1", step=1, now=0.0)


def test_every_file_of_many_is_flushed_before_the_manifest_is_written(tmp_path: Path) -> None:
    disk = Interposed()
    flushed: list[str] = []
    at_the_manifest: list[int] = []
    disk.before["fsync_file"] = lambda: flushed.append("file")
    for number in range(5):
        disk.before[f"fsync_dir part{number}"] = lambda: flushed.append("folder")
    disk.before["write_file"] = lambda: at_the_manifest.append(len(flushed))
    checkpoints = LocalCheckpoints(tmp_path, disk)
    assert len(save_many(checkpoints).files) == 50
    assert at_the_manifest == [50 + 5]
    assert flushed.count("file") == 50 + 1
    checkpoints.verify("1.1")


def test_many_files_are_flushed_at_the_same_time(tmp_path: Path) -> None:
    disk = Interposed()
    # Nobody passes before four have come: one after the other would never end.
    come: list[int] = []
    four = threading.Event()

    def wait() -> None:
        come.append(1)
        if len(come) >= 4:
            four.set()
        assert four.wait(180)

    disk.before["make_read_only"] = wait
    save_many(LocalCheckpoints(tmp_path, disk), 64)


@pytest.mark.parametrize("call", ["fsync_file", "make_read_only"])
def test_a_disk_that_is_full_for_one_of_many_files(tmp_path: Path, call: str) -> None:
    disk = Interposed()
    left = iter(range(30))

    def full() -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk.before[call] = full
    checkpoints = LocalCheckpoints(tmp_path, disk)
    with pytest.raises(CheckpointStorageFailed, match="make room"):
        save_many(checkpoints)
    assert checkpoints.names() == ()


# --- digests


# Of the test vectors published with BLAKE3: the content is the byte values 0 to 250, over and over.
PUBLISHED = {
    0: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    1: "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
    1024: "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
    102400: "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085",
}


@pytest.mark.parametrize("inline_bytes", [2**20, -1], ids=["inline", "in threads"])
@pytest.mark.parametrize("buffer_bytes", [2**18, 7])
def test_a_file_has_the_digest_that_b3sum_prints(
    checkpoints: LocalCheckpoints, monkeypatch: pytest.MonkeyPatch, inline_bytes: int, buffer_bytes: int
) -> None:
    monkeypatch.setattr(manifest_module, "INLINE_BYTES", inline_bytes)
    monkeypatch.setattr(manifest_module, "BUFFER_BYTES", buffer_bytes)
    staged = checkpoints.stage("1.1")
    for size in PUBLISHED:
        (staged / f"{size}").write_bytes(bytes(index % 251 for index in range(size)))
    checkpoints.commit("1.1", step=1, now=0.0)
    assert {int(file.path): file.digest for file in checkpoints.verify("1.1").files} == PUBLISHED


def test_a_small_checkpoint_starts_no_thread(
    checkpoints: LocalCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_module, "ThreadPoolExecutor", None)
    monkeypatch.setattr(local_module, "ThreadPoolExecutor", None)
    save(checkpoints)


# --- links and other things


def test_links_within_a_checkpoint_are_kept(checkpoints: LocalCheckpoints) -> None:
    staged = checkpoints.stage("17.2")
    (staged / "steps" / "100").mkdir(parents=True)
    (staged / "steps" / "100" / "w").write_bytes(WEIGHTS)
    (staged / "latest").symlink_to("steps/100")
    (staged / "steps" / "best").symlink_to("../steps/100/w")
    committed = checkpoints.commit("17.2", step=100, now=0.0)
    assert len(committed.files) == 3
    assert (checkpoints.path("17.2") / "latest" / "w").read_bytes() == WEIGHTS
    checkpoints.verify("17.2")

    (checkpoints.path("17.2") / "latest").unlink()
    (checkpoints.path("17.2") / "latest").symlink_to("steps/10" + "/")
    with pytest.raises(CheckpointCorrupt, match="latest"):
        checkpoints.verify("17.2")


# --- reading back


def test_a_checkpoint_that_is_not_there(checkpoints: LocalCheckpoints) -> None:
    for call in (checkpoints.path, checkpoints.check, checkpoints.verify):
        with raises(CheckpointMissing, "17.2"):
            call("17.2")


def test_files_that_are_gone_are_named(checkpoints: LocalCheckpoints) -> None:
    save(checkpoints)
    shutil.rmtree(checkpoints.path("17.2") / "optimizer")
    for call in (checkpoints.check, checkpoints.verify):
        with raises(CheckpointCorrupt, "optimizer/state"):
            call("17.2")


def test_what_is_sound_is_told_by_its_manifest(checkpoints: LocalCheckpoints) -> None:
    manifest = save(checkpoints)
    assert checkpoints.check("17.2") == checkpoints.verify("17.2") == manifest


def test_another_size_is_found_without_reading(checkpoints: LocalCheckpoints) -> None:
    save(checkpoints)
    overwrite(checkpoints.path("17.2") / "weights.bin", b"short")
    with raises(CheckpointCorrupt, "weights.bin", "5 bytes", "280 bytes"):
        checkpoints.check("17.2")


def test_another_content_is_found_by_reading(checkpoints: LocalCheckpoints) -> None:
    changed = WEIGHTS[:-1] + b"?"
    save(checkpoints)
    overwrite(checkpoints.path("17.2") / "weights.bin", changed)
    checkpoints.check("17.2")
    found, expected = blake3(changed).hexdigest(), blake3(WEIGHTS).hexdigest()
    with raises(CheckpointCorrupt, "weights.bin", found, expected):
        checkpoints.verify("17.2")


def test_a_file_that_was_added_is_found(checkpoints: LocalCheckpoints) -> None:
    (saved(checkpoints) / "optimizer" / "extra").write_bytes(b"")
    with raises(CheckpointCorrupt, "optimizer/extra", "0 bytes"):
        checkpoints.verify("17.2")


def test_a_file_that_was_added_is_found_without_reading(checkpoints: LocalCheckpoints) -> None:
    (saved(checkpoints) / "optimizer" / "extra").write_bytes(b"x")
    with raises(CheckpointCorrupt, "extra"):
        checkpoints.check("17.2")


# --- before they are used


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": lambda path: flip(path / "weights.bin"),
    "cut": lambda path: overwrite(path / "weights.bin", WEIGHTS[:-1]),
    "deleted": lambda path: (path / "optimizer" / "state").unlink(),
    "added": lambda path: (path / "added").write_bytes(b""),
    "without manifest": lambda path: (path / MANIFEST_NAME).unlink(),
    "another manifest": lambda path: overwrite(path / MANIFEST_NAME, b"{}"),
}


def flip(path: Path) -> None:
    """Change a bit, and nothing that a look at the directory would show."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    overwrite(path, bytes(content))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("way", DAMAGES)
def test_what_is_not_as_it_was_committed_is_not_used(checkpoints: LocalCheckpoints, way: str) -> None:
    committed = save(checkpoints)
    DAMAGES[way](checkpoints.path("17.2"))
    with raises(CheckpointCorrupt, "17.2"):
        checkpoints.use("17.2", committed.digest)
    with raises(CheckpointCorrupt, "17.2"):
        checkpoints.use("17.2", committed.digest)


def test_another_checkpoint_under_its_name_is_not_used(checkpoints: LocalCheckpoints) -> None:
    committed = save(checkpoints)
    (checkpoints.stage("9.1") / "other").write_bytes(b"other")
    other = checkpoints.commit("9.1", step=3, now=5.0)
    path = checkpoints.path("17.2")
    shutil.rmtree(path)
    shutil.copytree(checkpoints.path("9.1"), path)
    assert checkpoints.use("17.2") == path, "nobody said what it should be"
    with raises(CheckpointCorrupt, other.digest, committed.digest):
        checkpoints.use("17.2", committed.digest)


def test_what_has_no_directory_is_missing_and_not_damaged(checkpoints: LocalCheckpoints) -> None:
    committed = save(checkpoints)
    shutil.rmtree(checkpoints.path("17.2"))
    with pytest.raises(CheckpointMissing, match="no directory"):
        checkpoints.use("17.2", committed.digest)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were read for their digests."""
    names: list[str] = []
    real = manifest_module.digests

    def counting(entries: Sequence[manifest_module.Entry], **more: Any) -> list[str]:
        names.extend(entry.relative for entry in entries)
        return real(entries, **more)

    for module in (local_module, manifest_module):
        monkeypatch.setattr(module, "digests", counting)
    return names


def test_digests_are_read_once_unless_a_file_is_touched(checkpoints: LocalCheckpoints, read: list[str]) -> None:
    committed = save(checkpoints)
    read.clear()
    for _ in range(3):
        assert checkpoints.use("17.2", committed.digest) == checkpoints.path("17.2")
    assert sorted(read) == ["optimizer/state", "weights.bin"]
    os.utime(checkpoints.path("17.2") / "weights.bin", ns=(1, 1))
    checkpoints.use("17.2", committed.digest)
    assert len(read) == 4
    overwrite(checkpoints.path("17.2") / "weights.bin", WEIGHTS[::-1])
    with pytest.raises(CheckpointCorrupt, match="digest"):
        checkpoints.use("17.2", committed.digest)


def test_another_process_reads_them_itself(tmp_path: Path) -> None:
    mine, theirs = LocalCheckpoints(tmp_path), LocalCheckpoints(tmp_path)
    save(mine)
    mine.use("17.2")
    flip(mine.path("17.2") / "weights.bin")
    with pytest.raises(CheckpointCorrupt, match="digest"):
        theirs.use("17.2")


def test_a_symbolic_link_to_a_directory_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoints = LocalCheckpoints(tmp_path / "root")
    (tmp_path / "root" / "18.1").symlink_to(saved(checkpoints))
    assert checkpoints.names() == ("17.2",)


def test_of_large_ones_only_names_and_sizes_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[str]
) -> None:
    monkeypatch.setenv("PHYLA_VERIFY_BYTES", str(len(WEIGHTS) - 1))
    checkpoints = LocalCheckpoints(tmp_path)
    committed = save(checkpoints)
    read.clear()
    flip(checkpoints.path("17.2") / "weights.bin")
    checkpoints.use("17.2", committed.digest)
    assert read == []
    monkeypatch.setenv("PHYLA_VERIFY_BYTES", str(len(WEIGHTS)))
    with pytest.raises(CheckpointCorrupt, match="digest"):
        LocalCheckpoints(tmp_path).use("17.2")
    (checkpoints.path("17.2") / "optimizer" / "state").unlink()
    with raises(CheckpointCorrupt, "optimizer/state", "found nothing"):
        checkpoints.use("17.2", committed.digest)


@pytest.mark.parametrize("value", ["10 GB", "-1", "1e10"])
def test_a_limit_that_is_no_number_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("PHYLA_VERIFY_BYTES", value)
    with raises(UsageError, "PHYLA_VERIFY_BYTES=", value):
        LocalCheckpoints(tmp_path)


def test_a_pipe_that_was_added_is_found(checkpoints: LocalCheckpoints) -> None:
    os.mkfifo(saved(checkpoints) / "pipe")
    with raises(CheckpointCorrupt, "17.2/pipe"):
        checkpoints.verify("17.2")


def test_a_manifest_that_is_gone_or_damaged(checkpoints: LocalCheckpoints) -> None:
    manifest = saved(checkpoints) / MANIFEST_NAME
    text = manifest.read_bytes()
    for damaged in (b"\xff", b"", text.replace(b'"step": 3', b'"step": 4')):
        overwrite(manifest, damaged)
        with raises(CheckpointCorrupt, "17.2"):
            checkpoints.check("17.2")
    manifest.unlink()
    with raises(CheckpointCorrupt, MANIFEST_NAME):
        checkpoints.check("17.2")


# --- deleting


def test_delete_frees_bytes_once(checkpoints: LocalCheckpoints) -> None:
    path = saved(checkpoints)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert checkpoints.delete("17.2") == size
    assert not path.exists()
    assert checkpoints.names() == ()
    assert checkpoints.delete("17.2") == 0


@pytest.fixture
def as_ordinary_user() -> Iterator[Path]:
    """A directory that an ordinary user owns, and that user's rights: root ignores permissions."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if is_root:
            os.seteuid(0)
        for inner in (path for path in (folder, *folder.rglob("*")) if path.is_dir()):
            inner.chmod(0o777)
        shutil.rmtree(folder)


def test_read_only_directories_can_be_committed_deleted_and_discarded(as_ordinary_user: Path) -> None:
    checkpoints = LocalCheckpoints(as_ordinary_user / "root")
    for name in ("1.1", "1.2"):
        staged = checkpoints.stage(name)
        (staged / "locked" / "inner").mkdir(parents=True)
        (staged / "locked" / "inner" / "w").write_bytes(b"1234")
        (staged / "locked" / "inner").chmod(0o555)
        (staged / "locked").chmod(0o555)
    checkpoints.commit("1.1", step=1, now=0.0)
    with pytest.raises(PermissionError):
        (checkpoints.path("1.1") / "locked" / "inner" / "w").write_bytes(b"overwritten")
    checkpoints.path("1.1").chmod(0o555)
    checkpoints.verify("1.1")
    assert checkpoints.delete("1.1") > 4
    checkpoints.discard("1.2")
    assert checkpoints.names() == checkpoints.staged() == ()


def test_a_foreign_checkpoint_that_cannot_be_read_whole_is_not_imported(as_ordinary_user: Path) -> None:
    checkpoints = LocalCheckpoints(as_ordinary_user / "root")
    source = as_ordinary_user / "foreign"
    (source / "locked").mkdir(parents=True)
    (source / "weights.bin").write_bytes(WEIGHTS)
    (source / "locked" / "state").write_bytes(b"x")
    (source / "locked").chmod(0)
    with pytest.raises((OSError, CheckpointError), match="locked"):
        import_checkpoint(checkpoints, source, "start-0", step=None, now=1.0)
    assert checkpoints.names() == ()


def test_a_root_without_permission_says_who_lacks_it(as_ordinary_user: Path) -> None:
    locked = as_ordinary_user / "locked"
    locked.mkdir(mode=0o555)
    with raises(CheckpointStorageFailed, locked, os.geteuid()):
        LocalCheckpoints(locked / "root").stage("1.1")


# --- a disk that fails


class Interposed(Disk):
    """The real disk, with something done before a call; see `Disk`."""

    def __init__(self) -> None:
        self.before: dict[str, Callable[[], object]] = {}
        self._real = Disk()

    def _do(self, call: str) -> None:
        self.before.get(call, lambda: None)()

    def make_dir(self, path: Path) -> None:
        self._do("make_dir")
        self._real.make_dir(path)

    def write_file(self, path: Path, data: bytes) -> None:
        self._do("write_file")
        self._real.write_file(path, data)

    def make_read_only(self, path: Path) -> None:
        self._do("make_read_only")
        self._real.make_read_only(path)

    def make_writable(self, path: Path) -> None:
        self._do("make_writable")
        self._real.make_writable(path)

    def fsync_file(self, path: Path) -> None:
        self._do("fsync_file")
        self._real.fsync_file(path)

    def fsync_dir(self, path: Path) -> None:
        self._do(f"fsync_dir {path.name}")
        self._real.fsync_dir(path)

    def rename(self, source: Path, target: Path) -> None:
        self._do("rename")
        self._real.rename(source, target)

    def remove_tree(self, path: Path) -> None:
        self._do("remove_tree")
        self._real.remove_tree(path)


def fail(number: int) -> Callable[[], object]:
    def action() -> None:
        raise OSError(number, os.strerror(number))

    return action


@pytest.mark.parametrize(
    "call", ["make_read_only", "fsync_file", "write_file", "fsync_dir 1.1", "rename", "fsync_dir root"]
)
def test_a_full_disk_leaves_the_staged_files_and_nothing_final(tmp_path: Path, call: str) -> None:
    disk = Interposed()
    checkpoints = LocalCheckpoints(tmp_path / "root", disk)
    (checkpoints.stage("1.1") / "w").write_bytes(WEIGHTS)
    disk.before[call] = fail(errno.ENOSPC)
    with raises(CheckpointStorageFailed, "root/.staging/1.1"):
        checkpoints.commit("1.1", step=1, now=0.0)
    assert checkpoints.names() == ()
    assert checkpoints.staged() == ("1.1",)

    disk.before.clear()
    checkpoints.commit("1.1", step=1, now=0.0)  # there is room again
    checkpoints.verify("1.1")


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "room or inodes are used up"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "file system is read-only"),
        (errno.EACCES, "lacks the permission"),
        (errno.EPERM, "lacks the permission"),
        (errno.EIO, "health"),
    ],
)
def test_what_to_do_about_a_storage_failure(tmp_path: Path, number: int, advice: str) -> None:
    disk = Interposed()
    checkpoints = LocalCheckpoints(tmp_path / "root", disk)
    disk.before["make_dir"] = fail(number)
    with raises(CheckpointStorageFailed, tmp_path, os.strerror(number), advice):
        checkpoints.stage("1.1")


def test_a_deletion_that_fails_can_be_repeated(tmp_path: Path) -> None:
    disk = Interposed()
    checkpoints = LocalCheckpoints(tmp_path / "root", disk)
    save(checkpoints, "1.1")
    disk.before["remove_tree"] = fail(errno.EIO)
    with pytest.raises(CheckpointStorageFailed, match=r"cannot delete"):
        checkpoints.delete("1.1")
    assert checkpoints.names() == ()
    assert checkpoints.deleting() == ("1.1",)
    disk.before.clear()
    assert checkpoints.delete("1.1") > len(WEIGHTS)
    assert checkpoints.deleting() == ()


def overwrite(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)
