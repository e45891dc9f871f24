"""A power cut at any moment leaves a whole checkpoint or none.

Two ways to look at it: a process that is really killed at each failpoint, and a model of a disk
that forgets everything that was not flushed.
"""

import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

import phyla.checkpoints
from phyla import settings
from phyla.checkpoints import LocalCheckpoints
from phyla.checkpoints.disk import Disk

SOURCE = Path(phyla.checkpoints.__file__).parents[2]
CONTENT = {"weights.bin": b"w" * 5000, "optimizer/state": b"", "optimizer/deep/moments": b"m" * 77}


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
    environment = settings.child_environment({"PHYLA_FAILPOINT": f"{name}=kill", "PYTHONPATH": str(SOURCE)})
    done = subprocess.run([sys.executable, "-c", VICTIM, str(root)], env=environment, check=False)
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

Call = Literal["make_dir", "write_file", "fsync_file", "fsync_dir", "rename", "remove_tree"]


@dataclass(frozen=True)
class Step:
    call: Call
    path: Path
    target: Path | None = None
    data: bytes = b""


class RecordingDisk(Disk):
    """The real disk, with a trace of everything that matters for durability; see `Disk`."""

    def __init__(self) -> None:
        self.trace: list[Step] = []
        self._real = Disk()

    def make_dir(self, path: Path) -> None:
        self._real.make_dir(path)
        self.trace.append(Step("make_dir", path))

    def write_file(self, path: Path, data: bytes) -> None:
        self.trace.append(Step("write_file", path, data=data))
        self._real.write_file(path, data)

    def make_read_only(self, path: Path) -> None:
        self._real.make_read_only(path)

    def make_writable(self, path: Path) -> None:
        self._real.make_writable(path)

    def fsync_file(self, path: Path) -> None:
        self.trace.append(Step("fsync_file", path))

    def fsync_dir(self, path: Path) -> None:
        self.trace.append(Step("fsync_dir", path))

    def rename(self, source: Path, target: Path) -> None:
        self._real.rename(source, target)
        self.trace.append(Step("rename", source, target))

    def remove_tree(self, path: Path) -> None:
        self.trace.append(Step("remove_tree", path))
        self._real.remove_tree(path)


@dataclass
class File:
    now: bytes
    flushed: bytes | None = None


@dataclass
class Folder:
    now: dict[str, "File | Folder"] = field(default_factory=dict)
    flushed: dict[str, "File | Folder"] = field(default_factory=dict)


class ForgetfulDisk:
    """What a trace left on a disk: content lasts once its file is flushed, a name once its directory is."""

    def __init__(self, base: Path, trace: Iterable[Step]) -> None:
        self.top = Folder()
        self._base = base
        for step in trace:
            self._apply(step)

    def _apply(self, step: Step) -> None:
        if step.call == "fsync_dir":
            folder = self.folder(step.path)
            folder.flushed = dict(folder.now)
            return
        parent, name = self.folder(step.path.parent), step.path.name
        match step.call:
            case "make_dir":
                parent.now[name] = Folder()
            case "write_file":
                parent.now[name] = File(step.data)
            case "fsync_file":
                file = parent.now[name]
                assert isinstance(file, File)
                file.flushed = file.now
            case "rename":
                assert step.target is not None
                self.folder(step.target.parent).now[step.target.name] = parent.now.pop(name)
            case "remove_tree":
                # The worst order: everything in it is gone for good, its own name is not.
                doomed = parent.now.pop(name, None)
                if isinstance(doomed, Folder):
                    doomed.now, doomed.flushed = {}, {}

    def folder(self, path: Path) -> Folder:
        found = self.top
        for part in path.relative_to(self._base).parts:
            inner = found.now[part]
            assert isinstance(inner, Folder)
            found = inner
        return found

    def after_a_power_cut(self, where: Path) -> None:
        """Write what was flushed, and nothing else, to a directory of the real disk."""
        self._restore(self.top, where)

    def _restore(self, folder: Folder, where: Path) -> None:
        where.mkdir()
        for name, entry in folder.flushed.items():
            if isinstance(entry, Folder):
                self._restore(entry, where / name)
            else:
                (where / name).write_bytes(b"torn" if entry.flushed is None else entry.flushed)


def save_traced(base: Path, name: str = "1.1") -> tuple[LocalCheckpoints, RecordingDisk]:
    disk = RecordingDisk()
    checkpoints = LocalCheckpoints(base / "deep" / "root", disk)
    staged = checkpoints.stage(name)
    fill(staged)
    for path in sorted(staged.rglob("*")):  # what training did, which phyla does not see
        is_dir = path.is_dir()
        disk.trace.append(Step("make_dir", path) if is_dir else Step("write_file", path, data=path.read_bytes()))
    checkpoints.commit(name, step=1, now=0.0)
    return checkpoints, disk


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    return folder


def test_a_commit_that_returned_survives_a_power_cut(base: Path, tmp_path: Path) -> None:
    _, disk = save_traced(base)
    ForgetfulDisk(base, disk.trace).after_a_power_cut(tmp_path / "later")
    later = LocalCheckpoints(tmp_path / "later" / "deep" / "root")
    assert later.names() == ("1.1",)
    manifest = later.verify("1.1")
    assert {file.path for file in manifest.files} == set(CONTENT)


def test_every_flush_of_a_commit_is_needed(base: Path, tmp_path: Path) -> None:
    """The model is strict: leave any one flush out, and a power cut loses something."""
    _, disk = save_traced(base)
    flushes = [index for index, step in enumerate(disk.trace) if step.call.startswith("fsync")]
    for number, index in enumerate(flushes):
        where = tmp_path / str(number)
        if disk.trace[index].path.name == "root" and index != flushes[-1]:
            continue  # flushing `.staging` into the root as it is made; the last flush repeats it
        ForgetfulDisk(base, disk.trace[:index] + disk.trace[index + 1 :]).after_a_power_cut(where)
        later = LocalCheckpoints(where / "deep" / "root")
        with pytest.raises(phyla.errors.CheckpointError):
            later.verify("1.1")


@pytest.mark.parametrize("early_root", [False, True])
def test_at_every_moment_a_name_that_lasts_has_all_its_content(
    base: Path, tmp_path: Path, early_root: bool
) -> None:
    """Also when the system writes the root's entries on its own, before it is asked to."""
    checkpoints, disk = save_traced(base)
    checkpoints.delete("1.1")
    seen: list[int] = []
    for length in range(len(disk.trace) + 1):
        left = ForgetfulDisk(base, disk.trace[:length])
        deep = left.top.now.get("deep")
        root = deep.now.get("root") if isinstance(deep, Folder) else None
        if early_root and isinstance(deep, Folder) and isinstance(root, Folder):
            left.top.flushed, deep.flushed, root.flushed = dict(left.top.now), dict(deep.now), dict(root.now)
        where = tmp_path / str(length)
        left.after_a_power_cut(where)
        later = LocalCheckpoints(where / "deep" / "root")
        for name in later.names():
            later.verify(name)
            seen.append(length)
    assert seen, "the checkpoint has to be there for a while"
    assert seen == list(range(seen[0], seen[-1] + 1))
    assert seen[-1] < len(disk.trace) - 1, "and to be gone before its bytes are removed"


def test_a_small_commit_flushes_four_times(base: Path) -> None:
    disk = RecordingDisk()
    checkpoints = LocalCheckpoints(base, disk)
    (checkpoints.stage("1.1") / "weights.bin").write_bytes(b"x" * 300)
    disk.trace.clear()
    checkpoints.commit("1.1", step=1, now=0.0)
    assert [step.call for step in disk.trace if step.call.startswith("fsync")] == [
        "fsync_file",
        "fsync_file",
        "fsync_dir",
        "fsync_dir",
    ]
