"""Checkpoints that exist elsewhere are brought into a repository as they are."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from facts import raises
from phyla.checkpoints import MANIFEST_NAME, LocalCheckpoints, Manifest, import_checkpoint, look_at_source
from phyla.errors import (
    CheckpointChanged,
    CheckpointCorrupt,
    CheckpointGone,
    CheckpointMissing,
    CheckpointStorageFailed,
)
from phyla.system import failpoints


@pytest.fixture
def repository(tmp_path: Path) -> LocalCheckpoints:
    return LocalCheckpoints(tmp_path / "checkpoints")


def bring(repository: LocalCheckpoints, source: Path, *, step: int | None = None) -> Manifest:
    return import_checkpoint(repository, source, "start-0", step=step, now=1.0)


def inode(repository: LocalCheckpoints, name: str = "start-0") -> int:
    return (repository.path(name) / "weights.bin").stat().st_ino


def foreign(tmp_path: Path) -> Path:
    source = tmp_path / "foreign"
    (source / "nested" / "deep").mkdir(parents=True)
    (source / "weights.bin").write_bytes(b"w" * 1000)
    (source / "nested" / "deep" / "state.json").write_text("{}")
    return source


def committed(tmp_path: Path) -> tuple[LocalCheckpoints, Manifest]:
    other = LocalCheckpoints(tmp_path / "other")
    staged = other.stage("7.1")
    (staged / "weights.bin").write_bytes(b"w" * 1000)
    (staged / "weights.bin").chmod(0o755)
    (staged / "latest").symlink_to("weights.bin")
    for folder in ("a/b", "a/c"):
        (staged / folder).mkdir(parents=True)
        (staged / folder / "state").write_bytes(b"s")
    return other, other.commit("7.1", step=40, now=1.0)


def test_a_foreign_directory_is_copied(tmp_path: Path, repository: LocalCheckpoints) -> None:
    source = foreign(tmp_path)
    found = bring(repository, source, step=12)
    assert (found.step, found.created_at, found.size_bytes) == (12, 1.0, 1002)
    assert [file.path for file in found.files] == ["nested/deep/state.json", "weights.bin"]
    assert repository.verify("start-0").digest == found.digest
    (source / "weights.bin").write_bytes(b"x" * 1000)
    assert repository.verify("start-0").digest == found.digest, "its owner wrote into our copy"
    assert os.access(source / "weights.bin", os.W_OK)


def test_one_file_is_a_checkpoint_too(tmp_path: Path, repository: LocalCheckpoints) -> None:
    (tmp_path / "model.pt").write_bytes(b"m")
    found = bring(repository, tmp_path / "model.pt")
    assert found.step == 0
    assert (repository.path("start-0") / "model.pt").read_bytes() == b"m"


def test_links_out_of_a_foreign_directory_are_followed(tmp_path: Path, repository: LocalCheckpoints) -> None:
    (tmp_path / "blob").write_bytes(b"shared")
    source = foreign(tmp_path)
    (source / "linked.bin").symlink_to(tmp_path / "blob")
    bring(repository, source)
    assert not (repository.path("start-0") / "linked.bin").is_symlink()
    assert (repository.path("start-0") / "linked.bin").read_bytes() == b"shared"


def test_a_linked_folder_of_a_foreign_directory_is_copied_with_its_content(
    tmp_path: Path, repository: LocalCheckpoints
) -> None:
    source = foreign(tmp_path)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "tokenizer.json").write_text("{}")
    (source / "tokenizer").symlink_to(tmp_path / "shared")
    assert len(bring(repository, source).files) == 3
    assert (repository.path("start-0") / "tokenizer" / "tokenizer.json").read_text() == "{}"


def test_a_checkpoint_of_phyla_keeps_its_digest_and_step_and_takes_no_room(
    tmp_path: Path, repository: LocalCheckpoints
) -> None:
    other, origin = committed(tmp_path)
    found = bring(repository, other.path("7.1"))
    assert (found.digest, found.step, found.files) == (origin.digest, 40, origin.files)
    assert inode(repository) == (other.path("7.1") / "weights.bin").stat().st_ino
    assert (repository.path("start-0") / "latest").is_symlink()
    other.delete("7.1")
    assert repository.verify("start-0").digest == found.digest


@pytest.mark.parametrize("ours", [True, False])
def test_a_step_that_is_given_counts_and_zero_is_one(
    tmp_path: Path, repository: LocalCheckpoints, ours: bool
) -> None:
    source = committed(tmp_path)[0].path("7.1") if ours else foreign(tmp_path)
    assert bring(repository, source, step=0).step == 0
    assert import_checkpoint(repository, source, "start-1", step=7, now=1.0).step == 7
    assert import_checkpoint(repository, source, "start-2", step=None, now=1.0).step == (40 if ours else 0)


@pytest.mark.parametrize("ours", [True, False])
def test_only_the_content_that_was_asked_for_is_imported(
    tmp_path: Path, repository: LocalCheckpoints, ours: bool
) -> None:
    source = committed(tmp_path)[0].path("7.1") if ours else foreign(tmp_path)
    digest = import_checkpoint(repository, source, "start-1", step=None, now=1.0).digest
    assert import_checkpoint(repository, source, "start-2", step=None, now=1.0, digest=digest).digest == digest
    with raises(CheckpointCorrupt, source, digest, "0f0f"):
        import_checkpoint(repository, source, "start-3", step=None, now=1.0, digest="0f0f")
    assert repository.names() == ("start-1", "start-2")


def test_a_disk_that_fails_is_told_from_a_damaged_checkpoint(
    tmp_path: Path, repository: LocalCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, _ = committed(tmp_path)

    def full(origin: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    def failing(self: Path) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))

    source = foreign(tmp_path)
    told = rf"cannot import {source} into {tmp_path}/.*start-0: No space.*/start-0/.*make room"
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        with pytest.raises(CheckpointStorageFailed, match=told):
            bring(repository, source)
    monkeypatch.setattr(Path, "read_bytes", failing)
    told = rf"cannot read {other.path('7.1')}: Input/output error \(.*{MANIFEST_NAME}\); .*health"
    with pytest.raises(CheckpointStorageFailed, match=told):
        look_at_source(other.path("7.1"))


def test_what_may_be_written_to_is_never_linked(tmp_path: Path, repository: LocalCheckpoints) -> None:
    other, origin = committed(tmp_path)
    (other.path("7.1") / "weights.bin").chmod(0o644)
    found = bring(repository, other.path("7.1"))
    assert found.digest == origin.digest
    assert inode(repository) != (other.path("7.1") / "weights.bin").stat().st_ino


def test_other_file_systems_get_copies(
    tmp_path: Path, repository: LocalCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, origin = committed(tmp_path)

    def refuse(self: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    found = bring(repository, other.path("7.1"))
    assert found.digest == origin.digest
    assert (repository.path("start-0") / "weights.bin").stat().st_nlink == 1


def test_a_checkpoint_that_was_changed_after_its_commit_is_refused(
    tmp_path: Path, repository: LocalCheckpoints
) -> None:
    other, _ = committed(tmp_path)
    (other.path("7.1") / "weights.bin").chmod(0o644)
    (other.path("7.1") / "weights.bin").write_bytes(b"x" * 1000)
    with raises(CheckpointCorrupt, "7.1"):
        bring(repository, other.path("7.1"))
    assert repository.names() == ()


def test_a_checkpoint_with_a_file_more_than_was_committed_is_refused(
    tmp_path: Path, repository: LocalCheckpoints
) -> None:
    other, _ = committed(tmp_path)
    (other.path("7.1") / "added").write_bytes(b"x")
    with raises(CheckpointCorrupt, "added"):
        bring(repository, other.path("7.1"))
    assert repository.names() == ()


def test_a_damaged_manifest_is_refused(tmp_path: Path, repository: LocalCheckpoints) -> None:
    other, _ = committed(tmp_path)
    (other.path("7.1") / MANIFEST_NAME).chmod(0o644)
    (other.path("7.1") / MANIFEST_NAME).write_text("{}")
    with raises(CheckpointCorrupt, "7.1"):
        look_at_source(other.path("7.1"))


@pytest.mark.parametrize("source", ["nothing", "empty"])
def test_nothing_is_no_checkpoint(tmp_path: Path, repository: LocalCheckpoints, source: str) -> None:
    (tmp_path / "empty").mkdir()
    with raises(CheckpointMissing, source):
        bring(repository, tmp_path / source)


def test_a_source_that_is_written_to_or_removed_meanwhile_is_refused(
    tmp_path: Path, repository: LocalCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = foreign(tmp_path)
    copy = shutil.copyfile

    def slow(origin: Path, target: Path) -> None:
        copy(origin, target)
        (source / "weights.bin").write_bytes(b"y" * 1001)

    monkeypatch.setattr(shutil, "copyfile", slow)
    with pytest.raises(CheckpointChanged, match="written to while"):
        bring(repository, source)

    def gone(origin: Path, target: Path) -> None:
        origin.unlink()
        copy(origin, target)

    monkeypatch.setattr(shutil, "copyfile", gone)
    with pytest.raises(CheckpointGone, match="removed while"):
        bring(repository, source)
    assert repository.names() == ()


@pytest.mark.parametrize("name", ["import.before_copy", "import.after_copy"])
def test_a_crash_leaves_nothing_under_the_name(tmp_path: Path, repository: LocalCheckpoints, name: str) -> None:
    failpoints.arm(f"{name}=raise")
    try:
        with pytest.raises(failpoints.FailpointReached):
            bring(repository, foreign(tmp_path))
    finally:
        failpoints.disarm()
    assert repository.names() == ()
    assert repository.staged() == ("start-0",)
