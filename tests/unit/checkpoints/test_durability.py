"""A power cut at any moment leaves a whole checkpoint or none.

Two ways to look at it: a process that is really killed at each failpoint, and a model of a disk
that forgets everything that was not flushed.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import forked
import phyla.checkpoints
from forgetful_disk import Call, Change, Keep, Names, restore
from forgetful_disk import Disk as ForgetfulDisk
from phyla import settings
from phyla.checkpoints import MANIFEST_NAME, LocalCheckpoints
from phyla.checkpoints.disk import Disk

CONTENT = {"weights.bin": b"w" * 5000, "optimizer/state": b"s", "optimizer/deep/moments": b"m" * 77}


@pytest.fixture(params=["in turn", "at the same time"], autouse=True)
def flushed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a commit are flushed one after the other, or several at the same time."""
    if request.param == "at the same time":
        monkeypatch.setattr(phyla.checkpoints.local, "FLUSHED_IN_TURN", 0)


def fill(staged: Path) -> None:
    for relative, data in CONTENT.items():
        path = staged / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


# --- a process that is killed

VICTIM = """
import sys
from pathlib import Path
from phyla.checkpoints import LocalCheckpoints

checkpoints = LocalCheckpoints(Path(sys.argv[1]))
staged = checkpoints.stage("1.1")
(staged / "weights.bin").write_bytes(b"w" * 5000)
checkpoints.commit("1.1", step=4, now=2.0)
checkpoints.delete("1.1")
"""


def killed_at(name: str, root: Path) -> LocalCheckpoints:
    environment = settings.child_environment({"PHYLA_FAILPOINT": f"{name}=kill"})
    done = forked.run(["-c", VICTIM, root], env=environment)
    assert done.returncode == -signal.SIGKILL
    return LocalCheckpoints(root)


@pytest.mark.parametrize("moment", ["before_flush", "after_flush", "after_manifest"])
def test_killed_before_the_rename_nothing_is_visible(tmp_path: Path, moment: str) -> None:
    checkpoints = killed_at(f"checkpoint.{moment}", tmp_path / "root")
    assert checkpoints.names() == ()
    assert checkpoints.staged() == ("1.1",)
    checkpoints.discard("1.1")
    assert checkpoints.staged() == ()


@pytest.mark.parametrize("moment", ["after_rename", "before_delete"])
def test_killed_after_the_rename_it_is_whole(tmp_path: Path, moment: str) -> None:
    checkpoints = killed_at(f"checkpoint.{moment}", tmp_path / "root")
    assert checkpoints.names() == ("1.1",)
    assert checkpoints.staged() == ()
    found = checkpoints.verify("1.1")
    assert (found.step, found.size_bytes, len(found.files)) == (4, 5000, 1)


def test_killed_while_deleting_the_rest_is_cleaned_up(tmp_path: Path) -> None:
    checkpoints = killed_at("checkpoint.during_delete", tmp_path / "root")
    assert checkpoints.names() == checkpoints.staged() == ()
    assert checkpoints.deleting() == ("1.1",)
    assert checkpoints.delete("1.1") > 5000
    assert [path for path in (tmp_path / "root").rglob("*") if path.is_file()] == []
    assert checkpoints.deleting() == ()


# --- a disk that forgets


class RecordingDisk(Disk):
    """The real disk, with the calls that matter to a disk that forgets; it flushes nothing."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def note(self, kind: str, path: Path, target: Path | str = "", data: bytes = b"") -> None:
        inode = path.stat().st_ino if kind in "dowf" else 0
        number = 2 * len(self.calls)
        self.calls.append(Call(kind, number, number + 1, inode, 0, str(path), str(target), data))

    def make_dir(self, path: Path) -> None:
        super().make_dir(path)
        self.note("d", path)

    def write_file(self, path: Path, data: bytes) -> None:
        super().write_file(path, data)
        self.wrote(path)

    def wrote(self, path: Path) -> None:
        self.note("o", path)
        self.note("w", path, data=path.read_bytes())

    def fsync_file(self, path: Path) -> None:
        self.note("f", path)

    def fsync_dir(self, path: Path) -> None:
        self.note("f", path)

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.note("r", source, target)

    def remove_tree(self, path: Path) -> None:
        """Note the worst order: everything in it is gone for good, its own name is not."""
        for inner in sorted(path.rglob("*"), reverse=True):
            self.note("u", inner)
            self.note("f", inner.parent)
        self.note("u", path)
        super().remove_tree(path)


@dataclass
class Saved:
    """A checkpoint that was committed on a disk that forgets."""

    base: Path
    disk: RecordingDisk
    checkpoints: LocalCheckpoints
    inode: int

    def played(self, calls: Sequence[Call]) -> ForgetfulDisk:
        model = ForgetfulDisk(self.base, self.inode)
        for call in calls:
            model.apply(call)
        return model

    def after_a_power_cut(self, model: ForgetfulDisk, where: Path, keep: Keep = lambda change: 0.0) -> Any:
        restore(model.left(keep), where)
        return LocalCheckpoints(where / "deep" / "root")


@pytest.fixture
def saved(base: Path) -> Saved:
    disk = RecordingDisk()
    checkpoints = LocalCheckpoints(base / "deep" / "root", disk)
    staged = checkpoints.stage("1.1")
    fill(staged)
    for path in sorted(staged.rglob("*")):  # what training did, which phyla does not see
        disk.note("d", path) if path.is_dir() else disk.wrote(path)
    checkpoints.commit("1.1", step=1, now=0.0)
    return Saved(base, disk, checkpoints, base.stat().st_ino)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    return folder


def test_a_commit_that_returned_survives_a_power_cut(saved: Saved, tmp_path: Path) -> None:
    later = saved.after_a_power_cut(saved.played(saved.disk.calls), tmp_path / "later")
    assert later.names() == ("1.1",)
    assert {file.path for file in later.verify("1.1").files} == set(CONTENT)


def test_every_flush_of_a_commit_is_needed(saved: Saved, tmp_path: Path) -> None:
    """The model is strict: leave any one flush out, and a power cut loses something."""
    calls = saved.disk.calls
    flushes = [index for index, call in enumerate(calls) if call.kind == "f"]
    for index in flushes:
        if Path(calls[index].path).name == "root" and index != flushes[-1]:
            continue  # flushing `.staging` into the root as it is made; the last flush repeats it
        later = saved.after_a_power_cut(saved.played(calls[:index] + calls[index + 1 :]), tmp_path / str(index))
        with pytest.raises(phyla.errors.CheckpointError):
            later.verify("1.1")


@pytest.mark.parametrize("early_root", [False, True])
def test_at_every_moment_a_name_that_lasts_has_all_its_content(
    saved: Saved, tmp_path: Path, early_root: bool
) -> None:
    """Also when the system writes the root's entries on its own, before it is asked to."""
    saved.checkpoints.delete("1.1")
    calls, seen = saved.disk.calls, []
    for length in range(len(calls) + 1):
        model = saved.played(calls[:length])
        folders: list[Any] = [model.top] if early_root else []
        for name in ("deep", "root"):
            folders += [folder.now[name] for folder in folders[-1:] if name in folder.now]
        keep = partial(_named_in, folders)
        later = saved.after_a_power_cut(model, tmp_path / str(length), keep)
        for name in later.names():
            later.verify(name)
            seen.append(length)
    assert seen, "the checkpoint has to be there for a while"
    assert seen == list(range(seen[0], seen[-1] + 1))
    removed = next(index for index, call in enumerate(calls) if call.kind == "u")
    assert seen[-1] < removed, "and to be gone before its bytes are removed"


def _named_in(folders: list[Any], change: Change) -> float:
    return float(isinstance(change, Names) and any(folder in folders for folder, _, _ in change.entries))


def test_a_small_commit_flushes_four_times(base: Path) -> None:
    disk = RecordingDisk()
    checkpoints = LocalCheckpoints(base, disk)
    (checkpoints.stage("1.1") / "weights.bin").write_bytes(b"x" * 300)
    disk.calls.clear()
    checkpoints.commit("1.1", step=1, now=0.0)
    assert [Path(call.path).name for call in disk.calls if call.kind == "f"] == [
        *("weights.bin", MANIFEST_NAME),
        *("1.1", base.name),
    ]
