"""Checkpoints on an object store: the copies on a machine, and what is said when the store cannot be used."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from s3fs import S3FileSystem

import forked
import phyla
from effort import rarely
from facts import raises
from object_store import client
from phyla.checkpoints import Owner, RemoteCheckpoints, RemotePlace, is_there, local_copy, place_of
from phyla.checkpoints.objects import Objects
from phyla.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointsAbsent,
    CheckpointStorageFailed,
    ConfigurationError,
    UsageError,
)
from phyla.records import Checkpoint, CheckpointKind
from phyla.settings import child_environment
from phyla.system import patience
from phyla.worker.evaluating.evaluated_study import StudySources

SIZE = 1000
OURS = Owner(store="a" * 32, study="s", prefix="a" * 6)


def save(checkpoints: RemoteCheckpoints, name: str) -> str:
    staged = checkpoints.stage(name)
    (staged / "weights").write_bytes(name.encode().ljust(SIZE, b"."))
    return checkpoints.commit(name, step=1, now=0.0).digest


def copies(cache: Path) -> set[str]:
    """Return the names of which a machine has a copy."""
    return {path.parent.name for path in cache.glob("*/*/.phyla-manifest.json")}


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys that were downloaded."""
    found: list[str] = []
    get = Objects.get

    def noted(self: Objects, key: str, local: Path) -> None:
        found.append(key)
        get(self, key, local)

    monkeypatch.setattr(Objects, "get", noted)
    return found


@pytest.fixture
def opened(s3_bucket: str, tmp_path: Path) -> Callable[..., RemoteCheckpoints]:
    """Opens the checkpoints of study `s` on a machine."""

    def on(machine: str = "mine", **more: Any) -> RemoteCheckpoints:
        return RemoteCheckpoints(RemotePlace(f"s3://{s3_bucket}/p/s", tmp_path / machine), **more)

    return on


# --- copies on a machine


def test_what_a_machine_committed_is_not_downloaded_and_not_copied(
    opened: Callable[..., RemoteCheckpoints], tmp_path: Path, downloads: list[str]
) -> None:
    checkpoints = opened()
    staged = checkpoints.stage("1.1")
    (staged / "weights").write_bytes(b"x")
    inode = (staged / "weights").stat().st_ino
    checkpoints.commit("1.1", step=1, now=0.0)
    for again in (checkpoints, opened()):
        assert (again.use("1.1") / "weights").stat().st_ino == inode
    assert downloads == []
    assert len(list(tmp_path.rglob("weights"))) == 1


def test_copies_are_bounded_and_the_one_used_longest_ago_goes_first(
    opened: Callable[..., RemoteCheckpoints], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number}.1" for number in range(5)]
    for name in names:
        save(opened("elsewhere"), name)
    monkeypatch.setenv("PHYLA_CACHE_BYTES", str(2 * SIZE))
    mine = opened()
    for name in names[:3]:
        mine.use(name)
        mine.path(name)
        mine.release(name)
    assert copies(tmp_path / "mine") == {"1.1", "2.1"}
    mine.use("1.1")
    mine.path("1.1")
    mine.release("1.1")
    mine.use("3.1")
    assert copies(tmp_path / "mine") == {"1.1", "3.1"}


def test_a_copy_that_is_read_is_never_evicted_whoever_reads_it(
    opened: Callable[..., RemoteCheckpoints], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = [save(opened("elsewhere"), f"{number}.1") for number in range(4)]
    monkeypatch.setenv("PHYLA_CACHE_BYTES", "0")
    mine, theirs = opened(), opened()
    # Two sessions of one process read the same, as with ask and tell.
    for _ in range(2):
        mine.use("0.1")
        mine.path("0.1")
    theirs.path("1.1")
    theirs.path("2.1")
    theirs.release("2.1")
    # While they train, their worker evaluates their parent, and then another checkpoint.
    sources, kind = StudySources(mine), CheckpointKind.RESULT
    for number in (0, 0, 3):
        sources.path(Checkpoint(name=f"{number}.1", study=1, kind=kind, step=1, identity=digests[number]))
    opened().use("3.1")
    assert copies(tmp_path / "mine") == {"0.1", "1.1", "3.1"}
    mine.release("0.1")
    opened().use("3.1")
    save(opened(), "9.1")
    assert {"0.1", "1.1"} <= copies(tmp_path / "mine")
    mine.release("0.1")
    theirs.release("1.1")
    save(opened(), "9.2")
    assert not {"0.1", "1.1", "2.1", "9.1"} & copies(tmp_path / "mine")


def test_a_copy_that_asked_trials_share_stays_until_the_last_of_them_is_told(
    s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHYLA_CACHE_BYTES", "0")
    strategy = phyla.PBT(population_size=3, steps_per_trial=1, total_steps=2, exploit=None)
    space, where = phyla.Space(lr=phyla.Float(0.1, 1.0)), f"s3://{s3_bucket}/p"
    study = phyla.Study(
        "s", space, phyla.Maximize("Q"), strategy, home=tmp_path, storage="memory://", checkpoints=where
    )
    trials = study.ask(3)
    (trials[0].checkpoint_dir / "weights").touch()
    study.tell(trials, [{"Q": 0.1}] * 3, checkpoint=trials[0])
    *told, last = study.ask(3)
    for trial in told:  # each commit removes the copies that nothing holds
        (trial.checkpoint_dir / "weights").write_text(str(trial.id))
        study.tell(trial, {"Q": 0.2})
    assert last.source is not None
    assert (last.source.path / "weights").is_file()


def test_workers_of_one_machine_download_a_checkpoint_once(
    opened: Callable[..., RemoteCheckpoints], downloads: list[str]
) -> None:
    digest = save(opened("elsewhere"), "1.1")
    together = threading.Barrier(6)

    def use(one: RemoteCheckpoints) -> Path:
        together.wait(180)
        return one.use("1.1", digest)

    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(use, [opened() for _ in range(6)]))) == 1
    assert downloads == ["1.1/weights"]


def test_a_damaged_copy_is_downloaded_again(
    opened: Callable[..., RemoteCheckpoints], downloads: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    digest = save(opened("elsewhere"), "1.1")
    path = opened().use("1.1", digest)
    (path / "weights").chmod(0o600)
    (path / "weights").write_bytes(b"?" * SIZE)
    caplog.set_level("WARNING", "phyla")
    assert (opened().use("1.1", digest) / "weights").read_bytes().startswith(b"1.1.")
    assert downloads == ["1.1/weights"] * 2
    assert "is not what was committed" in caplog.text
    assert "it is downloaded again" in caplog.text


def test_what_processes_left_that_were_killed_is_removed(
    opened: Callable[..., RemoteCheckpoints], s3_bucket: str, tmp_path: Path
) -> None:
    save(opened("elsewhere"), "1.1")
    save(opened("elsewhere"), "2.1")
    program = f"""
import os, signal
from pathlib import Path
from phyla.checkpoints import RemoteCheckpoints, RemotePlace
from phyla.checkpoints.objects import Objects
mine = RemoteCheckpoints(RemotePlace("s3://{s3_bucket}/p/s", Path({str(tmp_path / "mine")!r})))
(mine.stage("7.1") / "weights").write_bytes(b"half")
get = Objects.get
def killed(self, key, local):
    get(self, key, local)
    os.kill(os.getpid(), signal.SIGKILL)
Objects.get = killed
mine.use("1.1")
"""
    ended = forked.run(["-c", program], env=child_environment({}))
    assert ended.returncode == -signal.SIGKILL
    left = {path.name for path in (tmp_path / "mine").glob("*/.staging/*")}
    assert left == {"1.1", "7.1"}
    assert copies(tmp_path / "mine") == set(), "a download that was killed is no copy"
    mine = opened()
    live = mine.stage("8.1")
    assert (mine.use("2.1") / "weights").is_file()
    assert {path.name for path in (tmp_path / "mine").glob("*/.staging/*")} == {"8.1"}
    assert live.is_dir(), "what a live process stages is its own"
    assert (mine.use("1.1") / "weights").is_file()


def test_a_checkpoint_is_found_by_its_own_place(
    opened: Callable[..., RemoteCheckpoints], s3_bucket: str, tmp_path: Path
) -> None:
    digest = save(opened("theirs"), "1.1")
    where = RemotePlace(f"s3://{s3_bucket}/p/s/1.1", tmp_path / "mine")
    path = local_copy(where, digest)
    assert (path / "weights").read_bytes().startswith(b"1.1.")
    assert path.is_relative_to(tmp_path / "mine")
    with pytest.raises(CheckpointCorrupt, match="the study recorded other"):
        local_copy(where, "other")
    assert is_there(where)
    assert not is_there(RemotePlace(f"s3://{s3_bucket}/p/s/2.1", tmp_path / "mine"))
    here = tmp_path / "here"
    assert local_copy(here, digest) == here
    assert not is_there(here)
    here.mkdir()
    assert is_there(here)


def test_collected_checkpoints_lose_their_copy(opened: Callable[..., RemoteCheckpoints], tmp_path: Path) -> None:
    checkpoints = opened()
    save(checkpoints, "1.1")
    checkpoints.delete("1.1")
    assert copies(tmp_path / "mine") == set()


@pytest.mark.parametrize("value", ["10 GB", "-1"])
def test_a_bound_that_is_no_number_of_bytes(
    opened: Callable[..., RemoteCheckpoints], monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("PHYLA_CACHE_BYTES", value)
    with raises(UsageError, "PHYLA_CACHE_BYTES=", value):
        opened()


# --- places


def test_a_place_is_a_directory_or_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place_of("deep/checkpoints", tmp_path) == Path("deep/checkpoints")
    place = place_of("s3://bucket/prefix/", tmp_path)
    assert place == RemotePlace("s3://bucket/prefix", tmp_path / "cache")
    assert isinstance(place, RemotePlace)
    assert str(place / "study" / "1.1") == "s3://bucket/prefix/study/1.1"
    monkeypatch.setenv("PHYLA_CACHE", str(tmp_path / "fast"))
    assert place_of("s3://bucket", tmp_path) == RemotePlace("s3://bucket", tmp_path / "fast")


@pytest.mark.parametrize(
    "url", ["s3://", "s3:///prefix", "s3://key:hidden@bucket/prefix", "s3://key:hid/den@b", "s3:/bucket"]
)
def test_a_url_without_a_bucket_or_with_a_password_is_refused(tmp_path: Path, url: str) -> None:
    with raises(ConfigurationError, "s3://bucket/prefix") as caught:
        place_of(url, tmp_path)
    assert "hid" not in str(caught.value)


def test_an_unknown_protocol_is_named(tmp_path: Path) -> None:
    checkpoints = RemoteCheckpoints(RemotePlace("nope://bucket/p", tmp_path), owner=OURS)
    with raises(ConfigurationError, "checkpoints=", "nope://bucket/p", "s3://bucket/prefix"):
        checkpoints.check_owner()


# --- a store that cannot be used


@contextmanager
def answering(status: int, code: str, methods: str = "GET HEAD PUT POST DELETE") -> Iterator[str]:
    """Serve an object store that gives the same answer to everything."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = f"<Error><Code>{code}</Code><Message>because of {code}</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    for method in methods.split():
        setattr(Handler, f"do_{method}", Handler.answer)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def other_store() -> Iterator[None]:
    """Make connections anew, with other variables than those of other tests."""
    S3FileSystem.clear_instance_cache()
    yield
    S3FileSystem.clear_instance_cache()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, other_store: None) -> None:
    """Try everything once, by a configuration of fsspec as a user may have one."""
    monkeypatch.setattr(patience, "PATIENCE_S", 0.0)
    monkeypatch.setattr(S3FileSystem, "retries", 1)
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"retries": {"total_max_attempts": 1}}})


def refused(call: Callable[[], object], kind: type[CheckpointError], *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        call()
    assert type(caught.value) is kind, caught.value
    for word in words:
        assert word in str(caught.value)
    assert "secret-of-tests" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bucket_that_is_not_there(s3_bucket: str, tmp_path: Path) -> None:
    made = RemoteCheckpoints(RemotePlace("s3://no-such-bucket/p/s", tmp_path), owner=OURS)
    ownership = made.ownership
    assert ownership is not None
    for call in (partial(ownership.claim, None), made.check_owner, made.names):
        refused(call, CheckpointsAbsent, "there is no bucket 'no-such-bucket' for s3://no-such-bucket/p/s")


@pytest.mark.parametrize(
    ("status", "code", "kind", "advice"),
    [
        (403, "AccessDenied", CheckpointStorageFailed, "list, read, write"),
        (403, "InvalidAccessKeyId", CheckpointStorageFailed, "credentials"),
        (500, "InternalError", CheckpointsAbsent, "AWS_ENDPOINT_URL"),
        (503, "SlowDown", CheckpointsAbsent, "AWS_ENDPOINT_URL"),
        rarely(502, "BadGateway", CheckpointsAbsent, "AWS_ENDPOINT_URL"),
        (400, "InvalidRequest", CheckpointStorageFailed, "correct the URL"),
    ],
)
def test_a_store_that_refuses_says_what_to_do(
    opened: Callable[..., RemoteCheckpoints],
    monkeypatch: pytest.MonkeyPatch,
    impatient: None,
    status: int,
    code: str,
    kind: type[CheckpointError],
    advice: str,
) -> None:
    with answering(status, code) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        made = opened()
        (made._cache.local.stage("1.1") / "w").write_bytes(b"x")
        for call in (made.names, lambda: made.commit("1.1", step=1, now=0.0), lambda: made.use("2.1")):
            refused(call, kind, "s3://", advice)
        assert (made._cache.local._staging / "1.1" / "w").is_file(), "what was trained is not lost"
        refused(opened(owner=OURS).check_owner, CheckpointsAbsent, "study 's' in s3://", "Nothing was decided")


def test_a_store_that_is_out_of_reach(
    opened: Callable[..., RemoteCheckpoints], monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    refused(opened().names, CheckpointsAbsent, "Could not connect", "check the network, and AWS_ENDPOINT_URL")
    with raises(CheckpointsAbsent, "s", "s3://") as told:
        opened(owner=OURS).check_owner()
    assert "--adopt" not in str(told.value)


def test_a_store_that_comes_back_gets_what_was_trained(
    opened: Callable[..., RemoteCheckpoints], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "PAUSE_S", (0.01, 0.02))
    failures = iter([ConnectionError("cut")] * 3)

    def cut(self: Any, *arguments: Any, **more: Any) -> Any:
        for failure in failures:
            raise failure
        return put(self, *arguments, **more)

    put = S3FileSystem.put_file
    monkeypatch.setattr(S3FileSystem, "put_file", cut)
    checkpoints = opened()
    digest = save(checkpoints, "1.1")
    assert opened("elsewhere").verify("1.1").digest == digest


def test_a_store_that_is_silent_is_named_once_until_it_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    timers: list[Callable[[], None]] = []

    class Clock:
        """A timer that ends during the request to a key that is called silent."""

        def __init__(self, seconds: float, notice: Callable[[], None]) -> None:
            self.notice = notice

        def start(self) -> None:
            timers.append(self.notice)

        def cancel(self) -> None:
            timers.remove(self.notice)

    def answer(files: MemoryFileSystem, path: str, **more: object) -> bytes:
        if "silent" in path:
            timers[-1]()
        return b"content"

    monkeypatch.setattr("phyla.checkpoints.objects.Timer", Clock)
    monkeypatch.setattr(MemoryFileSystem, "cat_file", answer)
    objects = Objects("memory://bucket")
    for key in ("silent-1", "silent-2", "quick", "silent-3"):
        assert objects.read(key) == b"content"
    assert [text.rpartition("/")[2] for text in caplog.messages] == ["silent-1", "silent-3"]
    assert timers == []


def test_without_credentials(
    opened: Callable[..., RemoteCheckpoints], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, other_store: None
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_") and "ENDPOINT" not in name]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    refused(opened().names, CheckpointStorageFailed, "credentials", "AWS_PROFILE")


def test_a_full_disk_of_the_cache_is_told_from_a_failing_store(
    opened: Callable[..., RemoteCheckpoints], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(opened("elsewhere"), "1.1")

    def full(self: Objects, key: str, local: Path) -> None:
        raise OSError(28, os.strerror(28), str(local))

    monkeypatch.setattr(Objects, "get", full)
    refused(lambda: opened().use("1.1"), CheckpointStorageFailed, "No space left", "make room")


def test_another_writer_of_the_same_name_is_refused_and_changes_nothing(
    opened: Callable[..., RemoteCheckpoints], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = opened("mine"), opened("elsewhere")
    create = Objects.create

    def overtaken(self: Objects, key: str, data: bytes) -> bool:
        monkeypatch.setattr(Objects, "create", create)
        save(first, "1.1")
        return create(self, key, data)

    monkeypatch.setattr(Objects, "create", overtaken)
    (second.stage("1.1") / "weights").write_bytes(b"1.1".ljust(SIZE, b"."))
    with raises(CheckpointError, "1.1", "committed"):
        second.commit("1.1", step=9, now=9.0)
    assert opened("third").verify("1.1").step == 1


def test_an_answer_that_was_lost_is_no_other_writer(
    opened: Callable[..., RemoteCheckpoints], s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = Objects(f"s3://{s3_bucket}/p")
    client().put_object(Bucket=s3_bucket, Key="p/one", Body=b"ours")
    assert objects.create("one", b"ours")
    assert not objects.create("one", b"theirs")
    assert objects.read("one") == b"ours"
