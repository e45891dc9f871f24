"""Checkpoints on an object store: when they are finished, what a look costs, and the copies that workers read."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from facts import raises
from foreign import index, safetensors, torch_zip
from object_store import client
from phyla.checkpoints.objects import Objects
from phyla.errors import CheckpointChanged, CheckpointGone, CheckpointsAbsent
from phyla.records import Checkpoint
from phyla.watcher import DirectorySources, Found, get_format
from phyla.watcher.remote import BLOCK_BYTES, Remote

QUIET_S = 30.0


class Prefix:
    """A prefix that others write to, and scans of it."""

    def __init__(self, bucket: str, kind: str) -> None:
        self.bucket = bucket
        self.remote = Remote(f"s3://{bucket}/runs/1")
        self.kind = get_format(kind, quiet_s=QUIET_S)
        self.found: dict[str, Found] = {}

    def put(self, key: str, body: bytes = b"x") -> None:
        client().put_object(Bucket=self.bucket, Key=f"runs/1/{key}", Body=body)

    def delete(self, key: str) -> None:
        client().delete_object(Bucket=self.bucket, Key=f"runs/1/{key}")

    def scan(self, later_s: float = 0.0) -> dict[str, Found]:
        items = self.kind.scan(self.remote, now=time.time() + later_s, previous=self.found)
        self.found = {item.name: item for item in items}
        return self.found

    def ready(self, later_s: float = 0.0) -> set[str]:
        return {name for name, item in self.scan(later_s).items() if item.ready}

    def seen(self, name: str) -> Checkpoint:
        item = self.scan()[name]
        path = f"{self.remote.url}/{item.paths[0]}"
        return Checkpoint(
            study=1, name=name, step=0, identity="", fingerprint=item.fingerprint, path=path, paths=item.paths
        )


@pytest.fixture
def prefix(s3_bucket: str) -> Callable[[str], Prefix]:
    return lambda kind: Prefix(s3_bucket, kind)


def next_second() -> None:
    """Wait until what is written now is newer than what was written before."""
    end = int(time.time()) + 1
    while time.time() < end:
        time.sleep(0.02)


def test_a_single_object_is_whole_unless_its_header_says_otherwise(
    tmp_path: Path, prefix: Callable[[str], Prefix]
) -> None:
    torch_zip(tmp_path / "m.pt", {"0": bytes(2 * BLOCK_BYTES), "1": b"12"})
    torch_zip(tmp_path / "less.pt", {"0": b"1", "1": b"12"}, without=frozenset({"1"}))
    whole, tensors = (tmp_path / "m.pt").read_bytes(), safetensors({"w": 3 * BLOCK_BYTES})
    auto = prefix("auto")
    for key, body in {
        "1.pt": whole,
        "2.pt": whole[:-30],
        "3.pt": (tmp_path / "less.pt").read_bytes(),
        "4.safetensors": tensors,
        "5.safetensors": tensors[:-1],
        "6.npz": b"any",
        "7.npz": b"",
        "notes.txt": b"no checkpoint",
        "8.npz.tmp": b"temporary",
    }.items():
        auto.put(key, body)
    assert auto.ready() == {"1.pt", "4.safetensors", "6.npz"}
    assert {name for name, item in auto.scan(QUIET_S).items() if item.bad} == {
        "2.pt", "3.pt", "5.safetensors", "7.npz",
    }  # fmt: skip


def test_a_mark_counts_that_came_after_everything_else(prefix: Callable[[str], Prefix]) -> None:
    orbax, told = prefix("orbax"), b'{"commit_timestamp_nsecs": 5}'
    marks = {"10": "commit_success.txt", "20": "_CHECKPOINT_METADATA"}
    data = {"default/_METADATA": b'{"use_ocdbt": true}', "default/manifest.ocdbt": b"m", "default/d/1": b"data"}
    for step, mark in marks.items():
        orbax.put(f"{step}/{mark}", told)
    assert orbax.ready() == set()
    for key, body in data.items():
        for step in ("10", "20", "30", "40"):
            orbax.put(f"{step}/{key}", body)
    assert orbax.ready() == set()
    next_second()
    orbax.put(f"30/{marks['10']}", told)
    orbax.put(f"40/{marks['20']}", told)
    assert orbax.ready() == {"30", "40"}
    # The others may be written to right now, for all that can be told.
    assert orbax.ready(QUIET_S) == {"10", "20", "30", "40"}
    # A deletion may begin with data.
    orbax.put("30/default/d/2")
    orbax.delete("30/default/d/1")
    orbax.delete("40/default/d/1")
    assert orbax.ready(QUIET_S) == {"10", "20"}


def test_a_version_is_told_by_etags_and_what_has_lost_an_object_must_be_quiet(
    prefix: Callable[[str], Prefix],
) -> None:
    marked = prefix("marker")
    for key in ("10/a", "10/b", "20"):
        marked.put(key, b"one")
    first = marked.scan()["20"].fingerprint
    next_second()
    marked.put("20", b"one")
    assert marked.scan()["20"].fingerprint == first
    marked.put("20", b"two")
    assert marked.scan()["20"].fingerprint != first
    marked.put("10/DONE")
    assert marked.ready() == {"10"}
    marked.delete("10/a")
    assert marked.ready() == set()
    assert marked.ready(QUIET_S) == {"10"}


def test_a_look_is_one_listing_and_reads_only_what_is_new(
    prefix: Callable[[str], Prefix], monkeypatch: pytest.MonkeyPatch
) -> None:
    auto, requests, call = prefix("auto"), [], Objects._call

    def counted(self: Objects, doing: str, key: str, do: Callable[..., object]) -> object:
        requests.append((doing, key))
        return call(self, doing, key, do)

    shards = ("m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors")
    text = index({"a": shards[0], "b": shards[1]}).encode()
    auto.put("4.safetensors", safetensors({"w": 4}))
    # One set of shards at the top, and one in a directory, each of which lacks a shard.
    for folder in ("", "step_7/"):
        auto.put(f"{folder}m.safetensors.index.json", text)
        auto.put(f"{folder}{shards[0]}", safetensors({"a": 8}))
    monkeypatch.setattr(Objects, "_call", counted)
    assert auto.ready() == {"4.safetensors"}
    requests.clear()
    assert auto.ready() == {"4.safetensors"}
    assert requests == [("list", "")]
    auto.put(f"step_7/{shards[1]}", safetensors({"b": 8}))
    requests.clear()
    assert auto.ready(QUIET_S) == {"4.safetensors"}
    assert ("read", "4.safetensors") not in requests
    assert auto.ready(2 * QUIET_S) == {"4.safetensors", "step_7"}


def test_what_is_written_again_while_it_is_judged_waits(
    prefix: Callable[[str], Prefix], monkeypatch: pytest.MonkeyPatch
) -> None:
    auto, read, whole = prefix("auto"), Objects.read, safetensors({"w": 4})
    auto.put("4.safetensors", whole)

    def late(self: Objects, *what: object) -> bytes:
        found = read(self, *what)  # type: ignore[arg-type]
        auto.put("4.safetensors", whole[:-1])
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Objects, "read", late)
        assert auto.ready() == set()
    assert auto.scan(QUIET_S)["4.safetensors"].why.startswith("4.safetensors has 71 bytes")


def test_keys_that_lead_elsewhere_are_no_files(prefix: Callable[[str], Prefix]) -> None:
    quiet = prefix("quiet")
    for key in ("10/a", "10/", "10/b//c", "10/../../evil"):
        quiet.put(key)
    assert [item.paths for item in quiet.scan(QUIET_S).values()] == [("10",)]
    assert [*quiet.remote.files] == ["10/a"]


def test_workers_read_a_copy_of_exactly_what_was_seen(
    tmp_path: Path, prefix: Callable[[str], Prefix], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHYLA_CACHE", str(tmp_path / "cache"))
    quiet, sources = prefix("quiet"), DirectorySources(Path())
    quiet.put("10/w", b"ten")
    quiet.put("10/more/v", b"deep")
    quiet.put("20", b"twenty")
    ten, twenty = quiet.seen("10"), quiet.seen("20")
    copy = sources.path(ten)
    assert sorted(path.relative_to(copy).as_posix() for path in copy.rglob("*")) == ["more", "more/v", "w"]
    assert ((copy / "w").read_bytes(), copy.is_relative_to(tmp_path / "cache")) == (b"ten", True)
    # Whatever becomes of the original, the copy is what was seen.
    quiet.put("10/w", b"new")
    assert sources.path(ten) == copy
    sources.check(ten, again=True)

    quiet.put("20", b"another")
    with pytest.raises(CheckpointChanged, match="written to before its evaluation"):
        sources.path(twenty)
    quiet.delete("20")
    with pytest.raises(CheckpointGone, match="deleted before its evaluation"):
        sources.path(twenty)


@pytest.mark.parametrize("what", ["deleted", "written to"])
def test_what_changes_while_it_is_downloaded_is_not_evaluated(
    what: str, tmp_path: Path, prefix: Callable[[str], Prefix], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHYLA_CACHE", str(tmp_path / "cache"))
    quiet, get = prefix("quiet"), Objects.get
    quiet.put("10/a", b"first")
    quiet.put("10/b", b"first")
    seen = quiet.seen("10")

    def late(self: Objects, key: str, local: Path) -> None:
        if key.endswith("b"):
            quiet.delete("10/b") if what == "deleted" else quiet.put("10/b", b"other")
        get(self, key, local)

    monkeypatch.setattr(Objects, "get", late)
    with raises(CheckpointGone if what == "deleted" else CheckpointChanged, what):
        DirectorySources(Path()).path(seen)
    assert not [path for path in (tmp_path / "cache").rglob("a") if ".staging" not in path.parts]


def test_a_bucket_that_is_gone_says_nothing_of_checkpoints(prefix: Callable[[str], Prefix]) -> None:
    quiet = prefix("quiet")
    client().delete_bucket(Bucket=quiet.bucket)
    with pytest.raises(CheckpointsAbsent, match="there is no bucket"):
        quiet.scan()
