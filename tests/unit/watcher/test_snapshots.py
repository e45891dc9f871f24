"""Snapshots and identities of checkpoints that others write."""

import errno
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import forked
import phyla
from facts import raises
from foreign import START, scans, torch_zip, trainer
from phyla import settings
from phyla.errors import (
    CheckpointChanged,
    CheckpointGone,
    CheckpointStorageFailed,
    ConfigurationError,
    StudyNotFound,
)
from phyla.system import failpoints
from phyla.system.failpoints import FailpointReached
from phyla.watcher import Following, Found, get_format, snapshots
from phyla.watcher.snapshots import Mode, clean, identity, is_unchanged, snapshot_name, take

MODES: tuple[Mode, ...] = ("link", "copy", "none")
POINTS = [name for name in failpoints.NAMES if name.startswith("snapshot.")]


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "snapshots"


def file_found(root: Path) -> Found:
    if not (root / "model_7.pt").exists():
        torch_zip(root / "model_7.pt", {"0": b"weights"})
    return scans(get_format("torch"), root)()["model_7.pt"]


def folder_found(root: Path) -> Found:
    if not (root / "checkpoint-7").exists():
        (trainer(root, 7) / "deep").mkdir()
        (root / "checkpoint-7/deep/x").write_bytes(b"x")
    return scans(get_format("huggingface"), root)()["checkpoint-7"]


def several_found(root: Path) -> Found:
    if not (root / "params_7").exists():
        (root / "params_7").write_bytes(b"p")
        (root / "opt_7").mkdir()
        (root / "opt_7/m").write_bytes(b"m")
    form = get_format("steps", templates=("params_{step}", "opt_{step}"))
    return scans(form, root)()["params_7"]


KINDS = [file_found, folder_found, several_found]


def at_failpoint(monkeypatch: pytest.MonkeyPatch, point: str, do: Callable[[], None]) -> None:
    def reached(name: str) -> None:
        if name == point:
            do()

    monkeypatch.setattr(snapshots, "failpoint", reached)


def content(path: Path) -> dict[str, bytes]:
    if path.is_file():
        return {"": path.read_bytes()}
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("find", KINDS)
def test_a_snapshot_holds_what_was_found(
    find: Callable[[Path], Found], mode: Mode, root: Path, target: Path
) -> None:
    found = find(root)
    original = root / found.paths[0] if len(found.paths) == 1 else root
    path = take(root, found, target, mode)
    taken = {name: data for name, data in content(path).items() if name != snapshots.SEAL}
    assert taken == content(original)
    assert path.name == original.name or len(found.paths) > 1
    assert is_unchanged(path, found)
    assert take(root, found, target, mode) == path
    if mode != "none":
        assert [item.name for item in target.iterdir()] == [snapshot_name(found)]
        files = [path / name for name in taken] if path.is_dir() else [path]
        assert {file.stat().st_nlink for file in files} == {2 if mode == "link" else 1}


@pytest.mark.parametrize("mode", ["link", "copy"])
@pytest.mark.parametrize("find", KINDS)
def test_a_snapshot_outlives_the_original(
    find: Callable[[Path], Found], mode: Mode, root: Path, target: Path
) -> None:
    found = find(root)
    path = take(root, found, target, mode)
    before = content(path)
    shutil.rmtree(root)
    assert content(path) == before
    assert is_unchanged(path, found)
    assert take(root, found, target, mode) == path


def test_overwriting_in_place_shows_through_a_link_and_is_told(root: Path, target: Path) -> None:
    found = file_found(root)
    linked, copied = take(root, found, target, "link"), take(root, found, root.parent / "copies", "copy")
    original = take(root, found, target, "none")
    torch_zip(root / "model_7.pt", {"0": b"other weights"})
    assert not is_unchanged(linked, found)
    assert not is_unchanged(original, found)
    assert is_unchanged(copied, found)
    with pytest.raises(CheckpointChanged, match="scan again"):
        take(root, found, target, "link")


def test_replacing_by_rename_does_not_touch_a_link(root: Path, target: Path) -> None:
    found = file_found(root)
    path = take(root, found, target, "link")
    torch_zip(root / "new", {"0": b"other weights"})
    (root / "new").replace(root / "model_7.pt")
    assert is_unchanged(path, found)
    assert not is_unchanged(root / "model_7.pt", found)


def test_a_damaged_copy_is_told(root: Path, target: Path) -> None:
    found = folder_found(root)
    path = take(root, found, target, "copy")
    (path / "config.json").unlink()
    assert not is_unchanged(path, found)
    shutil.rmtree(path)
    assert not is_unchanged(path, found)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("find", KINDS)
def test_what_changed_or_went_before_it_is_taken_is_told(
    find: Callable[[Path], Found], mode: Mode, root: Path, target: Path
) -> None:
    found = find(root)
    os.utime(next(file for file in root.rglob("*") if file.is_file()), (5, 5))
    with pytest.raises(CheckpointChanged, match="written to after it was found"):
        take(root, found, target, mode)
    shutil.rmtree(root)
    with pytest.raises(CheckpointGone, match="deleted"):
        take(root, found, target, mode)
    assert not target.exists()


@pytest.mark.parametrize("mode", ["link", "copy"])
@pytest.mark.parametrize(
    ("meddle", "error"),
    [
        (lambda root: torch_zip(root / "model_7.pt", {"0": b"other"}), CheckpointChanged),
        (lambda root: (root / "model_7.pt").unlink(), CheckpointGone),
    ],
)
def test_what_happens_while_it_is_taken_is_told(
    mode: Mode,
    meddle: Callable[[Path], None],
    error: type[Exception],
    root: Path,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = file_found(root)
    at_failpoint(monkeypatch, "snapshot.before_link", lambda: meddle(root))
    with pytest.raises(error):
        take(root, found, target, mode)
    assert list(target.iterdir()) == []


def test_links_that_were_made_in_time_survive_a_deletion(
    root: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = folder_found(root)
    before = content(root / "checkpoint-7")
    at_failpoint(monkeypatch, "snapshot.after_link", lambda: shutil.rmtree(root / "checkpoint-7"))
    assert content(take(root, found, target, "link")) == before


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.ENOSPC])
def test_what_cannot_be_linked_says_what_to_do_instead(
    number: int, root: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    expected, words = (
        (CheckpointStorageFailed, "make room")
        if number == errno.ENOSPC
        else (ConfigurationError, "--snapshots copy")
    )
    with pytest.raises(expected, match=words):
        take(root, file_found(root), target, "link")
    assert list(target.iterdir()) == []


def test_links_to_another_file_system_are_refused_before_anything_is_watched(root: Path, tmp_path: Path) -> None:
    suite = phyla.Suite("s", [phyla.evaluation.EvalTask("t", command="true")])
    with raises(ConfigurationError, "--snapshots", "link=DIR"):
        phyla.watch(root, suite, home=tmp_path / "home", snapshot_dir="/proc/phyla")
    with pytest.raises(StudyNotFound):
        phyla.load_evaluations(root.name, home=tmp_path / "home")
    snapshots.check_links(root, tmp_path / "not" / "there" / "yet")


def test_a_mode_that_is_unknown_and_a_target_that_is_no_directory(root: Path, tmp_path: Path) -> None:
    found = file_found(root)
    with raises(ConfigurationError, "link", "copy", "none"):
        Following(snapshots="move")  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointStorageFailed, match="cannot make a snapshot in"):
        take(root, found, tmp_path / "file", "link")


@pytest.mark.parametrize("mode", ["link", "copy"])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_failpoint_and_taken_again(point: str, mode: Mode, root: Path, target: Path) -> None:
    found = folder_found(root)
    code = (
        "import sys; from pathlib import Path; from phyla.watcher import get_format\n"
        "from phyla.watcher.snapshots import take\n"
        "root, target = Path(sys.argv[1]), Path(sys.argv[2])\n"
        f"[found] = get_format('huggingface').scan(root, now={START}, previous={{}})\n"
        "take(root, found, target, sys.argv[3])\n"
    )
    environment = settings.child_environment({"PHYLA_FAILPOINT": f"{point}=kill"})
    done = forked.run(["-c", code, root, target, mode], env=environment)
    assert done.returncode == -signal.SIGKILL
    left = [item.name for item in target.iterdir()]
    assert left == [snapshot_name(found)] or all(name.startswith(".tmp-") for name in left)
    path = take(root, found, target, mode)
    assert content(path) == content(root / "checkpoint-7")
    clean(target, {snapshot_name(found)})
    assert [item.name for item in target.iterdir()] == [snapshot_name(found)]


def test_a_failure_leaves_nothing(root: Path, target: Path) -> None:
    failpoints.arm("snapshot.before_rename=raise")
    with pytest.raises(FailpointReached):
        take(root, file_found(root), target, "link")
    assert list(target.iterdir()) == []


def test_clean_removes_snapshots_only_and_keeps_those_named(root: Path, target: Path) -> None:
    assert clean(target, set()) == ()
    first, second = file_found(root), folder_found(root)
    for found in (first, second):
        take(root, found, target, "copy")
    (target / f".tmp-{snapshot_name(first)}.77").mkdir()
    (target / f".tmp-{snapshot_name(second)}.78").mkdir()
    (target / ".tmp-being-made@0123456789abcdef.79").mkdir()
    for foreign in ("notes@home", ".tmp-other", "model@0123456789abcdef.txt"):
        (target / foreign).mkdir()
    removed = clean(target, {snapshot_name(second), "being-made@0123456789abcdef"})
    unfinished = {f".tmp-{snapshot_name(first)}.77", f".tmp-{snapshot_name(second)}.78"}
    assert set(removed) == {snapshot_name(first), *unfinished}
    assert len(list(target.iterdir())) == 5


@pytest.mark.parametrize("name", ["a/../../b", ".hidden", "ü ö", "x" * 300, "..", "/"])
def test_names_of_snapshots_are_plain_whatever_the_checkpoint_is_called(name: str) -> None:
    found = Found(
        name=name, step=None, paths=(), ready=True, why="", bad=False, fingerprint="0123456789abcdef" * 4,
        size_bytes=0, modified_at=0.0, unchanged_since=0.0,
    )  # fmt: skip
    made = snapshot_name(found)
    assert made.endswith("@0123456789abcdef")
    assert not made.startswith(".")
    assert "/" not in made
    assert len(made) < 200


# --- identity


@pytest.mark.parametrize("find", KINDS)
def test_an_identity_changes_with_times(find: Callable[[Path], Found], root: Path) -> None:
    listed = identity(root, find(root))
    copy = shutil.copytree(root, root.parent / "copy")
    assert identity(copy, find(copy)) == listed
    os.utime(min(file for file in copy.rglob("*") if file.is_file()), (5, 5))
    assert identity(copy, find(copy)) != listed


def test_an_identity_of_something_else_is_refused(root: Path) -> None:
    found = file_found(root)
    os.utime(root / "model_7.pt", (5, 5))
    with pytest.raises(CheckpointChanged):
        identity(root, found)
    (root / "model_7.pt").unlink()
    with pytest.raises(CheckpointGone):
        identity(root, found)
