"""Checkpoints in a directory: staged, committed at once, read back, deleted."""

import errno
import os
import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from blake3 import blake3

from phyla.checkpoints import MANIFEST_NAME, CheckpointRepository, Committed, LocalCheckpoints
from phyla.checkpoints import digests as digests_module
from phyla.checkpoints.disk import Disk, RealDisk
from phyla.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointMissing,
    CheckpointStorageFailed,
    NoCheckpoint,
    UsageError,
)

WEIGHTS = b"weights" * 40


@pytest.fixture
def checkpoints(tmp_path: Path) -> LocalCheckpoints:
    return LocalCheckpoints(tmp_path / "deep" / "root")


def save(checkpoints: LocalCheckpoints, name: str = "17.2", *, now: float = 5.0, step: int = 3) -> Committed:
    staged = checkpoints.stage(name)
    (staged / "weights.bin").write_bytes(WEIGHTS)
    (staged / "optimizer").mkdir()
    (staged / "optimizer" / "state").write_bytes(b"")
    return checkpoints.commit(name, step=step, now=now)


# --- several hosts at once


def test_two_hosts_remove_the_same_at_once(checkpoints: LocalCheckpoints) -> None:
    names = [f"{number}.1" for number in range(12)]
    for name in names:
        staged = checkpoints.stage(name)
        for number in range(40):
            (staged / f"{number}.bin").write_bytes(WEIGHTS)
        checkpoints.commit(name, step=1, now=0.0)
    together = threading.Barrier(3)

    def remove() -> None:
        together.wait(60)
        for name in names:
            checkpoints.delete(name)
            checkpoints.delete(*checkpoints.deleting())

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(remove) for _ in range(3)]:
            done.result(120)
    assert checkpoints.names() == ()
    assert checkpoints.deleting() == ()


# --- staging and committing


def test_it_is_a_repository(checkpoints: LocalCheckpoints) -> None:
    repository: CheckpointRepository = checkpoints
    assert repository.names() == repository.staged() == ()


def test_a_staged_directory_is_private_and_empty(checkpoints: LocalCheckpoints) -> None:
    staged = checkpoints.stage("17.2")
    assert list(staged.iterdir()) == []
    assert checkpoints.staged() == ("17.2",)
    assert checkpoints.names() == ()


def test_staging_again_removes_what_an_earlier_incarnation_left(checkpoints: LocalCheckpoints) -> None:
    (checkpoints.stage("17.2") / "half").write_bytes(b"x")
    assert list(checkpoints.stage("17.2").iterdir()) == []


def test_a_commit_says_what_it_holds(checkpoints: LocalCheckpoints) -> None:
    committed = save(checkpoints)
    assert committed == Committed(
        name="17.2",
        path=checkpoints.path("17.2"),
        step=3,
        digest=checkpoints.manifest("17.2").digest,
        size_bytes=len(WEIGHTS),
        file_count=2,
    )
    assert (committed.path / "weights.bin").read_bytes() == WEIGHTS
    assert checkpoints.names() == ("17.2",)
    assert checkpoints.staged() == ()
    assert checkpoints.verify("17.2").created_at == 5.0


def test_equal_content_has_equal_identity(checkpoints: LocalCheckpoints) -> None:
    first, second = save(checkpoints, "1.1"), save(checkpoints, "2.1", now=99.0, step=8)
    assert first.digest == second.digest


def test_committed_files_are_read_only(checkpoints: LocalCheckpoints) -> None:
    for file in (path for path in save(checkpoints).path.rglob("*") if path.is_file()):
        assert stat.S_IMODE(file.stat().st_mode) & 0o222 == 0, file


def test_nothing_saved_says_where_to_save(checkpoints: LocalCheckpoints) -> None:
    staged = checkpoints.stage("17.2")
    (staged / "empty").mkdir()
    with pytest.raises(NoCheckpoint, match=r"\.staging/17\.2 is empty; save at least one file"):
        checkpoints.commit("17.2", step=1, now=0.0)
    assert checkpoints.names() == ()


def test_a_commit_needs_a_stage(checkpoints: LocalCheckpoints) -> None:
    with pytest.raises(CheckpointMissing, match="call stage before commit"):
        checkpoints.commit("17.2", step=1, now=0.0)


def test_a_committed_name_is_never_written_again(checkpoints: LocalCheckpoints) -> None:
    save(checkpoints)
    (checkpoints.stage("17.2") / "other").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"committed already.*new name"):
        checkpoints.commit("17.2", step=9, now=0.0)
    assert checkpoints.verify("17.2").step == 3


def test_a_copied_checkpoint_commits_as_its_own(checkpoints: LocalCheckpoints) -> None:
    parent = save(checkpoints, "1.1")
    shutil.copytree(parent.path, checkpoints.stage("2.1"), dirs_exist_ok=True)
    child = checkpoints.commit("2.1", step=4, now=6.0)
    assert child.digest == parent.digest
    assert checkpoints.verify("2.1").step == 4


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../17", "a/b", "/tmp", ".staging", ".deleting", "a\0", "a\n", "a b", "é", "x" * 101],
)
def test_names_that_lead_elsewhere_are_refused(checkpoints: LocalCheckpoints, name: str) -> None:
    calls: list[Callable[[str], object]] = [
        checkpoints.stage,
        lambda name: checkpoints.commit(name, step=0, now=0.0),
        checkpoints.recover,
        checkpoints.path,
        checkpoints.manifest,
        checkpoints.check,
        checkpoints.verify,
        checkpoints.delete,
        checkpoints.discard,
    ]
    for call in calls:
        with pytest.raises(UsageError, match="cannot name a checkpoint"):
            call(name)


def test_a_file_that_is_still_being_written_is_refused(tmp_path: Path) -> None:
    disk = Interposed()
    checkpoints = LocalCheckpoints(tmp_path / "root", disk)
    staged = checkpoints.stage("1.1")
    shard = staged / "shard"
    shard.write_bytes(b"half")
    disk.before["fsync_file"] = lambda: shard.write_bytes(b"whole by now")
    with pytest.raises(CheckpointError, match=r"shard was changed while.*background savers"):
        checkpoints.commit("1.1", step=1, now=0.0)
    disk.before["fsync_file"] = lambda: shard.unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match=r"shard was changed while"):
        checkpoints.commit("1.1", step=1, now=0.0)
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
    monkeypatch.setattr(digests_module, "INLINE_BYTES", inline_bytes)
    monkeypatch.setattr(digests_module, "BUFFER_BYTES", buffer_bytes)
    staged = checkpoints.stage("1.1")
    for size in PUBLISHED:
        (staged / f"{size}").write_bytes(bytes(index % 251 for index in range(size)))
    checkpoints.commit("1.1", step=1, now=0.0)
    assert {int(file.path): file.digest for file in checkpoints.verify("1.1").files} == PUBLISHED


def test_a_link_has_the_digest_of_its_target(checkpoints: LocalCheckpoints) -> None:
    staged = checkpoints.stage("1.1")
    (staged / "file").write_bytes(b"symlink\0file")
    (staged / "link").symlink_to("file")
    checkpoints.commit("1.1", step=1, now=0.0)
    file, link = checkpoints.manifest("1.1").files
    assert link.digest == file.digest == blake3(b"symlink\0file").hexdigest()
    assert link.size_bytes != file.size_bytes


def test_a_small_checkpoint_starts_no_thread(
    checkpoints: LocalCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests_module, "ThreadPoolExecutor", None)
    save(checkpoints)


# --- links and other things


@pytest.mark.parametrize(
    ("target", "where"),
    [
        ("/etc/hostname", "link"),
        ("../outside", "link"),
        ("../17.2/file", "link"),
        ("../../outside", "folder/link"),
        ("nowhere", "link"),
        ("link", "link"),
        ("up/../outside", "link"),
    ],
)
def test_links_that_leave_or_lead_nowhere_are_refused(
    checkpoints: LocalCheckpoints, target: str, where: str
) -> None:
    staged = checkpoints.stage("17.2")
    (staged.parent / "outside").write_bytes(b"x")
    (staged / "file").write_bytes(b"x")
    (staged / "folder").mkdir()
    (staged / where).symlink_to(target)
    with pytest.raises(CheckpointError, match=r"link to .*not inside the checkpoint.*save a copy"):
        checkpoints.commit("17.2", step=1, now=0.0)
    assert checkpoints.names() == ()


def test_links_within_a_checkpoint_are_kept(checkpoints: LocalCheckpoints) -> None:
    staged = checkpoints.stage("17.2")
    (staged / "steps" / "100").mkdir(parents=True)
    (staged / "steps" / "100" / "w").write_bytes(WEIGHTS)
    (staged / "latest").symlink_to("steps/100")
    (staged / "steps" / "best").symlink_to("../steps/100/w")
    committed = checkpoints.commit("17.2", step=100, now=0.0)
    assert committed.file_count == 3
    assert (committed.path / "latest" / "w").read_bytes() == WEIGHTS
    checkpoints.verify("17.2")

    (committed.path / "latest").unlink()
    (committed.path / "latest").symlink_to("steps/10" + "/")
    with pytest.raises(CheckpointCorrupt, match="latest"):
        checkpoints.verify("17.2")


def test_sockets_and_pipes_are_refused(checkpoints: LocalCheckpoints) -> None:
    staged = checkpoints.stage("1.1")
    os.mkfifo(staged / "pipe")
    with pytest.raises(CheckpointError, match="pipe is a socket, a pipe or a device"):
        checkpoints.commit("1.1", step=1, now=0.0)
    staged = checkpoints.stage("1.2")
    short = Path(tempfile.mkdtemp())  # a socket's path has to be short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(short / "s"))
            (short / "s").rename(staged / "s")
        with pytest.raises(CheckpointError, match="is a socket"):
            checkpoints.commit("1.2", step=1, now=0.0)
    finally:
        shutil.rmtree(short)


# --- reading back


def test_recover_reads_back_a_commit_and_nothing_else(checkpoints: LocalCheckpoints) -> None:
    assert checkpoints.recover("17.2") is None
    checkpoints.stage("17.2")
    assert checkpoints.recover("17.2") is None
    committed = save(checkpoints)
    assert checkpoints.recover("17.2") == committed


def test_a_checkpoint_that_is_not_there(checkpoints: LocalCheckpoints) -> None:
    for call in (checkpoints.path, checkpoints.manifest, checkpoints.check, checkpoints.verify):
        with pytest.raises(CheckpointMissing, match=r"17\.2.*never committed"):
            call("17.2")


def test_files_that_are_gone_are_named(checkpoints: LocalCheckpoints) -> None:
    committed = save(checkpoints)
    shutil.rmtree(committed.path / "optimizer")
    for call in (checkpoints.check, checkpoints.verify, checkpoints.recover):
        with pytest.raises(CheckpointMissing, match=r"1 of 2 files are gone.*optimizer/state"):
            call("17.2")


def test_many_files_that_are_gone_are_counted(checkpoints: LocalCheckpoints) -> None:
    staged = checkpoints.stage("1.1")
    for index in range(9):
        (staged / f"shard-{index}").write_bytes(b"x")
    committed = checkpoints.commit("1.1", step=1, now=0.0)
    for index in range(2, 9):
        (committed.path / f"shard-{index}").unlink()
    with pytest.raises(CheckpointMissing, match=r"7 of 9.*shard-2, shard-3, shard-4 and 4 more"):
        checkpoints.check("1.1")


def test_another_size_is_found_without_reading(checkpoints: LocalCheckpoints) -> None:
    overwrite(save(checkpoints).path / "weights.bin", b"short")
    with pytest.raises(CheckpointCorrupt, match=r"weights\.bin.*found 5 bytes.*says 280 bytes"):
        checkpoints.check("17.2")


def test_another_content_is_found_by_reading(checkpoints: LocalCheckpoints) -> None:
    changed = WEIGHTS[:-1] + b"?"
    overwrite(save(checkpoints).path / "weights.bin", changed)
    checkpoints.check("17.2")
    found, expected = blake3(changed).hexdigest(), blake3(WEIGHTS).hexdigest()
    with pytest.raises(CheckpointCorrupt, match=rf"weights\.bin.*found digest {found}.*says digest {expected}"):
        checkpoints.verify("17.2")


def test_a_file_that_was_added_is_found(checkpoints: LocalCheckpoints) -> None:
    (save(checkpoints).path / "optimizer" / "extra").write_bytes(b"")
    with pytest.raises(CheckpointCorrupt, match=r"optimizer/extra.*found a file.*nothing of that name"):
        checkpoints.verify("17.2")


def test_a_pipe_that_was_added_is_found(checkpoints: LocalCheckpoints) -> None:
    os.mkfifo(save(checkpoints).path / "pipe")
    with pytest.raises(CheckpointCorrupt, match=r"changed after its commit.*pipe"):
        checkpoints.verify("17.2")


def test_a_manifest_that_is_gone_or_damaged(checkpoints: LocalCheckpoints) -> None:
    manifest = save(checkpoints).path / MANIFEST_NAME
    text = manifest.read_bytes()
    for damaged in (b"\xff", b"", text.replace(b'"step": 3', b'"step": 4')):
        overwrite(manifest, damaged)
        with pytest.raises(CheckpointCorrupt, match=r"17\.2"):
            checkpoints.manifest("17.2")
    manifest.unlink()
    with pytest.raises(CheckpointMissing, match=rf"manifest .*{MANIFEST_NAME} is gone"):
        checkpoints.check("17.2")


# --- deleting


def test_delete_frees_bytes_once(checkpoints: LocalCheckpoints) -> None:
    path = save(checkpoints).path
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert checkpoints.delete("17.2") == size
    assert not path.exists()
    assert checkpoints.names() == ()
    assert checkpoints.delete("17.2") == 0


def test_delete_leaves_the_others(checkpoints: LocalCheckpoints) -> None:
    save(checkpoints, "1.1")
    save(checkpoints, "2.1")
    checkpoints.delete("1.1")
    assert checkpoints.names() == ("2.1",)
    checkpoints.verify("2.1")


def test_discard_removes_what_was_staged(checkpoints: LocalCheckpoints) -> None:
    (checkpoints.stage("1.1") / "x").write_bytes(b"x")
    checkpoints.discard("1.1")
    checkpoints.discard("1.1")
    assert checkpoints.staged() == ()


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
    committed = checkpoints.commit("1.1", step=1, now=0.0)
    with pytest.raises(PermissionError):
        (committed.path / "locked" / "inner" / "w").write_bytes(b"overwritten")
    committed.path.chmod(0o555)
    checkpoints.verify("1.1")
    assert checkpoints.delete("1.1") > 4
    checkpoints.discard("1.2")
    assert checkpoints.names() == checkpoints.staged() == ()


def test_a_root_without_permission_says_who_lacks_it(as_ordinary_user: Path) -> None:
    locked = as_ordinary_user / "locked"
    locked.mkdir(mode=0o555)
    with pytest.raises(CheckpointStorageFailed, match=rf"{locked}.*user {os.geteuid()} lacks the permission"):
        LocalCheckpoints(locked / "root").stage("1.1")


# --- a disk that fails


class Interposed:
    """The real disk, with something done before a call; see `Disk`."""

    def __init__(self) -> None:
        self.before: dict[str, Callable[[], object]] = {}
        self._real: Disk = RealDisk()

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

    def free_bytes(self, path: Path) -> int:
        self._do("free_bytes")
        return 12345


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
    with pytest.raises(
        CheckpointStorageFailed, match=r"root/\.staging/1\.1: No space.*12345 bytes are free.*make room"
    ):
        checkpoints.commit("1.1", step=1, now=0.0)
    assert checkpoints.names() == ()
    assert checkpoints.staged() == ("1.1",)

    disk.before.clear()
    checkpoints.commit("1.1", step=1, now=0.0)  # there is room again
    checkpoints.verify("1.1")


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "12345 bytes are free"),
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
    with pytest.raises(CheckpointStorageFailed, match=rf"{tmp_path}.*{os.strerror(number)}.*{advice}"):
        checkpoints.stage("1.1")


def test_free_space_that_cannot_be_asked_for(tmp_path: Path) -> None:
    disk = Interposed()
    disk.before = {"make_dir": fail(errno.ENOSPC), "free_bytes": fail(errno.EIO)}
    with pytest.raises(CheckpointStorageFailed, match="an unknown number of bytes"):
        LocalCheckpoints(tmp_path / "root", disk).stage("1.1")


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
