"""What checkpoints promise, wherever they are kept: in a directory, and on an object store."""

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from s3fs import S3FileSystem

from facts import raises
from object_store import client
from phyla.checkpoints import (
    MANIFEST_NAME,
    Checkpoints,
    LocalCheckpoints,
    Manifest,
    ManifestFile,
    Owner,
    RemoteCheckpoints,
    RemotePlace,
    import_checkpoint,
)
from phyla.checkpoints.ownership import OWNER_NAME, Ownership
from phyla.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointMissing,
    CheckpointsAbsent,
    CheckpointsNotOurs,
    CheckpointStorageFailed,
    NoCheckpoint,
    UsageError,
)
from phyla.system.failpoints import FailpointReached, arm, disarm
from phyla.testing import check_checkpoints

WEIGHTS = b"weights" * 40
OURS = Owner(store="a" * 32, study="s", prefix="a" * 6)


@dataclass
class Kept:
    """Where checkpoints are kept, to be opened by several machines and damaged behind their back."""

    folder: Path
    bucket: str | None = None
    machines: int = 0

    def open(self, owner: Owner | None = None, name: str = "root") -> Checkpoints:
        """Open it on a machine that has not read anything of it."""
        if self.bucket is None:
            return LocalCheckpoints(self.folder / "deep" / name, owner=owner)
        self.machines += 1
        place = RemotePlace(f"s3://{self.bucket}/deep/{name}", self.folder / f"machine{self.machines}")
        return RemoteCheckpoints(place, owner=owner)

    def keys(self) -> set[str]:
        """Return the files that are there, relative to `root`."""
        if self.bucket is None:
            root = self.folder / "deep" / "root"
            return {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}
        found = client().list_objects_v2(Bucket=self.bucket, Prefix="deep/root/").get("Contents", [])
        return {one["Key"].removeprefix("deep/root/") for one in found}

    def read(self, key: str) -> bytes:
        """Return the content of a file."""
        if self.bucket is None:
            return (self.folder / "deep" / "root" / key).read_bytes()
        body = client().get_object(Bucket=self.bucket, Key=f"deep/root/{key}")["Body"]
        return bytes(body.read())

    def put(self, key: str, content: bytes | None) -> None:
        """Change, add or remove a file."""
        if self.bucket is not None:
            store = client()
            if content is None:
                store.delete_object(Bucket=self.bucket, Key=f"deep/root/{key}")
            else:
                store.put_object(Bucket=self.bucket, Key=f"deep/root/{key}", Body=content)
            return
        path = self.folder / "deep" / "root" / key
        path.unlink(missing_ok=True)
        if content is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


@pytest.fixture(params=["directory", "s3"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    return Kept(tmp_path, None if request.param == "directory" else request.getfixturevalue("s3_bucket"))


@pytest.fixture
def checkpoints(kept: Kept) -> Checkpoints:
    return kept.open()


@pytest.mark.parametrize("where", ["directory", "s3"])
def test_a_place_keeps_checkpoints(where: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = f"s3://{request.getfixturevalue('s3_bucket')}" if where == "s3" else str(tmp_path)
    check_checkpoints(f"{url}/deep")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def save(checkpoints: Checkpoints, name: str = "17.2", *, now: float = 5.0, step: int = 3) -> Manifest:
    staged = checkpoints.stage(name)
    (staged / "weights.bin").write_bytes(WEIGHTS)
    (staged / "optimizer").mkdir()
    (staged / "optimizer" / "state").write_bytes(b"")
    return checkpoints.commit(name, step=step, now=now)


def saved(checkpoints: Checkpoints) -> Path:
    save(checkpoints)
    return checkpoints.path("17.2")


def test_a_staged_directory_is_private_and_empty(checkpoints: Checkpoints) -> None:
    staged = checkpoints.stage("17.2")
    assert list(staged.iterdir()) == []
    assert checkpoints.staged() == ("17.2",)
    assert checkpoints.names() == ()


def test_staging_again_removes_what_an_earlier_incarnation_left(checkpoints: Checkpoints) -> None:
    (checkpoints.stage("17.2") / "half").write_bytes(b"x")
    assert list(checkpoints.stage("17.2").iterdir()) == []


def test_a_commit_says_what_it_holds(checkpoints: Checkpoints) -> None:
    committed = save(checkpoints)
    assert committed == checkpoints.check("17.2")
    assert (committed.step, committed.size_bytes, len(committed.files)) == (3, len(WEIGHTS), 2)
    assert (checkpoints.path("17.2") / "weights.bin").read_bytes() == WEIGHTS
    assert checkpoints.names() == ("17.2",)
    assert checkpoints.staged() == ()
    assert checkpoints.verify("17.2").created_at == 5.0


def test_equal_content_has_equal_identity(checkpoints: Checkpoints) -> None:
    first, second = save(checkpoints, "1.1"), save(checkpoints, "2.1", now=99.0, step=8)
    assert first.digest == second.digest


def test_committed_files_are_read_only(checkpoints: Checkpoints) -> None:
    for file in (path for path in saved(checkpoints).rglob("*") if path.is_file()):
        assert stat.S_IMODE(file.stat().st_mode) & 0o222 == 0, file


def test_nothing_saved_says_where_to_save(checkpoints: Checkpoints) -> None:
    staged = checkpoints.stage("17.2")
    (staged / "empty").mkdir()
    with raises(NoCheckpoint, ".staging/17.2"):
        checkpoints.commit("17.2", step=1, now=0.0)
    assert checkpoints.names() == ()


def test_a_commit_needs_a_stage(checkpoints: Checkpoints) -> None:
    with pytest.raises(CheckpointMissing, match="call stage before commit"):
        checkpoints.commit("17.2", step=1, now=0.0)


def test_a_copied_checkpoint_commits_as_its_own(checkpoints: Checkpoints) -> None:
    parent = save(checkpoints, "1.1")
    shutil.copytree(checkpoints.path("1.1"), checkpoints.stage("2.1"), dirs_exist_ok=True)
    child = checkpoints.commit("2.1", step=4, now=6.0)
    assert child.digest == parent.digest
    assert checkpoints.verify("2.1").step == 4


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../17", "a/b", "/tmp", ".staging", ".deleting", "a\0", "a\n", "a b", "é", "x" * 101],
)
def test_names_that_lead_elsewhere_are_refused(checkpoints: Checkpoints, name: str) -> None:
    calls: list[Callable[[str], object]] = [
        checkpoints.stage,
        lambda name: checkpoints.commit(name, step=0, now=0.0),
        checkpoints.path,
        checkpoints.check,
        checkpoints.verify,
        checkpoints.delete,
        checkpoints.discard,
    ]
    for call in calls:
        with pytest.raises(UsageError, match="cannot name a checkpoint"):
            call(name)


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_something_saved_under_the_manifests_name_is_refused_and_kept(checkpoints: Checkpoints, kind: str) -> None:
    staged = checkpoints.stage("1.1")
    (staged / "weights").write_bytes(WEIGHTS)
    theirs = staged / MANIFEST_NAME
    if kind == "folder":
        theirs.mkdir()
        (theirs / "notes").write_text("mine")
    elif kind == "link":
        theirs.symlink_to("weights")
    else:
        theirs.write_text("mine")
    with raises(CheckpointError, theirs) as caught:
        checkpoints.commit("1.1", step=1, now=0.0)
    assert not isinstance(caught.value, CheckpointStorageFailed)
    assert os.path.lexists(theirs)
    assert checkpoints.names() == ()


def test_a_link_has_the_digest_of_its_target(checkpoints: Checkpoints) -> None:
    staged = checkpoints.stage("1.1")
    (staged / "file").write_bytes(b"symlink\0file")
    (staged / "link").symlink_to("file")
    checkpoints.commit("1.1", step=1, now=0.0)
    file, link = checkpoints.check("1.1").files
    assert link.digest == file.digest == blake3(b"symlink\0file").hexdigest()
    assert link.size_bytes != file.size_bytes


@pytest.mark.parametrize(
    ("target", "where", "fault"),
    [
        ("/etc/hostname", "link", "absolute"),
        ("../outside", "link", "inside"),
        ("../17.2/file", "link", "inside"),
        ("../../outside", "folder/link", "inside"),
        ("nowhere", "link", "exist"),
        ("link", "link", "exist"),
        ("up/../outside", "link", "exist"),
    ],
)
def test_links_that_leave_or_lead_nowhere_are_refused(
    checkpoints: Checkpoints, target: str, where: str, fault: str
) -> None:
    staged = checkpoints.stage("17.2")
    (staged.parent / "outside").write_bytes(b"x")
    (staged / "file").write_bytes(b"x")
    (staged / "folder").mkdir()
    (staged / where).symlink_to(target)
    with raises(CheckpointError, where, target, fault, "relative path"):
        checkpoints.commit("17.2", step=1, now=0.0)
    assert checkpoints.names() == ()


def test_sockets_and_pipes_are_refused(checkpoints: Checkpoints) -> None:
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


def test_discard_removes_what_was_staged(checkpoints: Checkpoints) -> None:
    (checkpoints.stage("1.1") / "x").write_bytes(b"x")
    checkpoints.discard("1.1")
    checkpoints.discard("1.1")
    assert checkpoints.staged() == ()


# --- reading back, on another machine


def test_another_machine_reads_what_was_committed(kept: Kept) -> None:
    mine = kept.open()
    staged = mine.stage("17.2")
    (staged / "steps" / "100").mkdir(parents=True)
    (staged / "steps" / "100" / "w [1]?*.bin").write_bytes(WEIGHTS)
    (staged / "latest").symlink_to("steps/100")
    (staged / "steps" / "best").symlink_to("../steps/100/w [1]?*.bin")
    committed = mine.commit("17.2", step=100, now=0.0)
    theirs = kept.open()
    assert theirs.names() == ("17.2",)
    assert theirs.check("17.2") == theirs.verify("17.2") == committed
    path = theirs.use("17.2", committed.digest)
    assert path == theirs.path("17.2")
    assert (path / "latest" / "w [1]?*.bin").read_bytes() == (path / "steps" / "best").read_bytes() == WEIGHTS
    for file in (one for one in path.rglob("*") if one.is_file()):
        assert stat.S_IMODE(file.stat().st_mode) & 0o222 == 0, file


def test_a_checkpoint_that_is_not_there(checkpoints: Checkpoints) -> None:
    for call in (checkpoints.path, checkpoints.check, checkpoints.verify, checkpoints.use):
        with raises(CheckpointMissing, "17.2"):
            call("17.2")


CHANGED = WEIGHTS[:-1] + b"?"
DAMAGES: dict[str, tuple[str, bytes | None, str]] = {
    "flipped": ("weights.bin", CHANGED, f"digest {blake3(CHANGED).hexdigest()}"),
    "cut": ("weights.bin", WEIGHTS[:-1], "found 279 bytes, the manifest says 280 bytes"),
    "deleted": ("optimizer/state", None, "optimizer/state"),
    "added": ("added", b"", "the manifest says nothing"),
    "without content": (MANIFEST_NAME, b"{}", "cannot be read"),
    "garbage": (MANIFEST_NAME, b"\xff\0", "cannot be read"),
}


@pytest.mark.parametrize("way", DAMAGES)
def test_what_is_not_as_it_was_committed_is_not_used(kept: Kept, way: str) -> None:
    committed = save(kept.open())
    file, content, message = DAMAGES[way]
    kept.put(f"17.2/{file}", content)
    theirs = kept.open()
    for _ in range(2):
        with raises(CheckpointCorrupt, "17.2", message):
            theirs.use("17.2", committed.digest)
    with raises((CheckpointCorrupt, CheckpointMissing), "17.2", message):
        theirs.verify("17.2")
    assert theirs.names() == ("17.2",), "nothing is deleted for it"


def test_another_checkpoint_under_its_name_is_not_used(kept: Kept) -> None:
    mine = kept.open()
    committed = save(mine)
    (mine.stage("9.1") / "weights.bin").write_bytes(b"other")
    other = mine.commit("9.1", step=3, now=5.0)
    for key in ("weights.bin", MANIFEST_NAME):
        kept.put(f"17.2/{key}", kept.read(f"9.1/{key}"))
    kept.put("17.2/optimizer/state", None)
    theirs = kept.open()
    with raises(CheckpointCorrupt, other.digest, committed.digest):
        theirs.use("17.2", committed.digest)


@pytest.mark.parametrize("outside", ["../../escaped", "/escaped", "a/../../../escaped"])
def test_a_manifest_cannot_name_files_elsewhere(s3_bucket: str, tmp_path: Path, outside: str) -> None:
    kept, file = Kept(tmp_path, s3_bucket), ManifestFile(outside, 1, blake3(b"x").hexdigest())
    kept.put(f"1.1/{outside}", b"x")
    kept.put(f"1.1/{MANIFEST_NAME}", Manifest.of([file], step=1, created_at=0.0).to_json().encode())
    with pytest.raises(CheckpointCorrupt, match="is not what was committed"):
        kept.open().use("1.1")
    assert not list(tmp_path.rglob("escaped"))


def test_a_link_cannot_lead_a_file_elsewhere(s3_bucket: str, tmp_path: Path) -> None:
    kept, outside = Kept(tmp_path, s3_bucket), tmp_path / "outside"
    outside.mkdir()
    target = str(outside).encode()
    files = [ManifestFile("a", len(target), blake3(b"symlink\0" + target).hexdigest())]
    kept.put("1.1/a", target)
    kept.put(f"1.1/{MANIFEST_NAME}", Manifest.of(files, step=1, created_at=0.0).to_json().encode())
    with pytest.raises(CheckpointCorrupt, match=r"link to .*absolute"):
        kept.open().use("1.1")
    files.append(ManifestFile("a/escaped", 1, blake3(b"x").hexdigest()))
    kept.put("1.1/a/escaped", b"x")
    kept.put(f"1.1/{MANIFEST_NAME}", Manifest.of(files, step=1, created_at=0.0).to_json().encode())
    with raises(CheckpointError, "1.1"):
        kept.open().use("1.1")
    assert list(outside.iterdir()) == []


def test_delete_frees_bytes_once(kept: Kept) -> None:
    checkpoints = kept.open()
    save(checkpoints)
    size = sum(map(len, map(kept.read, kept.keys())))
    assert checkpoints.delete("17.2") == size
    assert (kept.keys(), checkpoints.names(), checkpoints.deleting()) == (set(), (), ())
    assert checkpoints.delete("17.2") == 0


def test_what_is_imported_is_committed(kept: Kept, tmp_path: Path) -> None:
    source = saved(LocalCheckpoints(tmp_path / "elsewhere"))
    checkpoints = kept.open()
    committed = import_checkpoint(checkpoints, source, "start-0-aaaaaa000000", step=None, now=9.0)
    assert (committed.step, checkpoints.names()) == (3, ("start-0-aaaaaa000000",))
    assert kept.open().verify("start-0-aaaaaa000000").digest == committed.digest


@pytest.mark.parametrize("way", ["foreign", "copied", "linked", "read elsewhere"])
def test_files_keep_the_times_at_which_they_were_written(kept: Kept, tmp_path: Path, way: str) -> None:
    # Neither by name nor by number: programs load the newest file.
    order = ["epoch_9.pt", "epoch_10.pt", "best.pt", "epoch-2/w", "epoch-1/w"]
    elsewhere, mine = LocalCheckpoints(tmp_path / "elsewhere"), kept.open()
    staged = mine.stage("17.2") if way == "read elsewhere" else elsewhere.stage("17.2")
    for at, name in enumerate(order):
        (staged / name).parent.mkdir(exist_ok=True)
        (staged / name).write_text(name)
        os.utime(staged / name, ns=(at * 1_000_000_007, at * 1_000_000_007))
    name = "17.2"
    if way == "read elsewhere":
        mine.commit(name, step=3, now=5.0)
    else:
        source = staged
        if way != "foreign":
            elsewhere.commit(name, step=3, now=5.0)
            source = elsewhere.path(name)
        if way == "copied":
            for file in order:
                (source / file).chmod(0o644)
        name = "start-0-aaaaaa000000"
        import_checkpoint(mine, source, name, step=3, now=9.0)
    path = kept.open().use(name)
    assert [(path / file).stat().st_mtime_ns for file in order] == [at * 1_000_000_007 for at in range(5)]


# --- killed in the middle


@pytest.mark.parametrize("point", ["upload.before_files", "upload.during_files", "upload.after_files"])
def test_an_upload_that_ends_midway_is_no_checkpoint_and_is_collected(
    s3_bucket: str, tmp_path: Path, point: str
) -> None:
    kept = Kept(tmp_path, s3_bucket)
    checkpoints = kept.open()
    staged = checkpoints.stage("17.2")
    (staged / "a").write_bytes(WEIGHTS)
    (staged / "b").write_bytes(WEIGHTS)
    arm(f"{point}=raise")
    try:
        with pytest.raises(FailpointReached):
            checkpoints.commit("17.2", step=1, now=0.0)
    finally:
        disarm()
    assert {path.name for path in staged.iterdir()} >= {"a", "b"}, "what was staged is lost"
    theirs = kept.open()
    assert theirs.names() == ()
    with pytest.raises(CheckpointMissing, match="never committed"):
        theirs.use("17.2")
    assert theirs.staged() == theirs.deleting() == (() if point == "upload.before_files" else ("17.2",))
    theirs.discard("17.2")
    assert kept.keys() == set()
    assert checkpoints.commit("17.2", step=1, now=0.0) == kept.open().verify("17.2"), "it can be repeated"


def test_collection_aborts_multipart_uploads_of_that_name_alone(s3_bucket: str, tmp_path: Path) -> None:
    kept, store = Kept(tmp_path, s3_bucket), client()
    for key in ("deep/root/1.1/weights", "deep/root/1.10/weights", "deep/elsewhere"):
        store.create_multipart_upload(Bucket=s3_bucket, Key=key)
    checkpoints = kept.open()
    assert checkpoints.staged() == checkpoints.deleting() == ("1.1", "1.10")
    checkpoints.discard("1.1")
    checkpoints.delete("1.1")
    left = store.list_multipart_uploads(Bucket=s3_bucket)["Uploads"]
    assert {one["Key"] for one in left} == {"deep/root/1.10/weights", "deep/elsewhere"}


def test_an_upload_that_is_collected_meanwhile_ends_its_trial_and_not_the_study(
    s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path, s3_bucket)
    late = kept.open()
    (late.stage("1.1") / "weights").write_bytes(bytes(33 << 20))
    put_part = S3FileSystem._call_s3

    async def collected(self: S3FileSystem, method: str, *more: Any, **how: Any) -> Any:
        if method == "complete_multipart_upload":
            store = client()
            for one in store.list_multipart_uploads(Bucket=s3_bucket)["Uploads"]:
                store.abort_multipart_upload(Bucket=s3_bucket, Key=one["Key"], UploadId=one["UploadId"])
        return await put_part(self, method, *more, **how)

    monkeypatch.setattr(S3FileSystem, "_call_s3", collected)
    with raises(CheckpointMissing, "1.1", "upload", "claim"):
        late.commit("1.1", step=1, now=0.0)
    assert kept.keys() == set()


def test_discarding_never_removes_what_is_committed(kept: Kept) -> None:
    save(kept.open())
    kept.open().discard("17.2")
    kept.open().verify("17.2")


# --- whose they are


def claimed(kept: Kept, owner: Owner) -> tuple[Checkpoints, Ownership]:
    made = kept.open(owner)
    assert made.ownership is not None
    return made, made.ownership


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": 2}', "\0\0"])
def test_a_damaged_marker_is_refused_until_it_is_adopted(kept: Kept, damage: str) -> None:
    made, ownership = claimed(kept, OURS)
    ownership.claim("")
    made.check_owner()
    kept.put(OWNER_NAME, damage.encode())
    with raises(CheckpointsNotOurs, "json", "--adopt"):
        made.check_owner()
    ownership.adopt()
    made.check_owner()


def test_what_is_another_stores_or_studys_is_refused(kept: Kept) -> None:
    _, ownership = claimed(kept, OURS)
    ownership.claim(None)
    copied = kept.open(Owner(store="b" * 32, study="s", prefix="b", copied_from="a" * 32))
    with raises(CheckpointsNotOurs, "--adopt"):
        copied.check_owner()
    with pytest.raises(CheckpointsNotOurs, match=r"another store, a{32}\..*doctor s --adopt"):
        kept.open(Owner(store="c" * 32, study="s", prefix="c")).stage("1.1")
    with raises(CheckpointsNotOurs, "study 's'"):
        kept.open(Owner(store="a" * 32, study="t", prefix="a")).check_owner()


def test_content_without_a_marker_is_refused_and_only_checkpoints_can_be_adopted(kept: Kept) -> None:
    made, ownership = claimed(kept, OURS)
    kept.put("thesis.tex", b"precious")
    with raises(CheckpointsNotOurs, OWNER_NAME, "thesis.tex"):
        ownership.claim(None)
    with raises(CheckpointsNotOurs, OWNER_NAME):
        ownership.adopt()
    assert kept.keys() == {"thesis.tex"}
    kept.put("thesis.tex", None)
    save(kept.open())
    with raises(CheckpointsNotOurs, "17.2"):
        ownership.claim("")
    assert ownership.adopt() == "it had no marker, and only checkpoints in it"
    made.check_owner()


def test_a_place_that_lost_its_content_is_absent(kept: Kept) -> None:
    made, ownership = claimed(kept, OURS)
    ownership.claim(None)
    kept.put(OWNER_NAME, None)
    with raises(CheckpointsAbsent, "s", "--adopt"):
        made.check_owner()
    for call in (lambda: ownership.claim("another"), lambda: made.stage("1.1"), lambda: made.use("1.1")):
        with pytest.raises(CheckpointsAbsent):
            call()
    assert kept.keys() == set()
