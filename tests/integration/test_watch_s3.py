"""`phyla watch s3://...`: uploads in any order, an S3 server that goes away for a while, and what is refused."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

import phyla
from command_line import Phyla
from facts import check_facts
from foreign import index, safetensors
from object_store import client
from phyla.records import CheckpointState, GroupState
from waiting import until
from watching import Look, command, has_run, run, start

SUITES = """
import phyla


@phyla.eval_task
def size(evaluation):
    path = evaluation.checkpoint.path
    evaluation.record(bytes=sum(one.stat().st_size for one in ([path] if path.is_file() else path.glob("**/*"))
                                if one.is_file()))


sizes = phyla.Suite("sizes", [size], objective=phyla.Maximize("bytes_mean"))
"""
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = index({"a": SHARDS[0], "b": SHARDS[1]}).encode()
FOLDER = "exp1/checkpoints"


class Trainer:
    """Uploads objects, and knows what must be there in the end."""

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self.there: dict[str, bytes] = {}

    def put(self, key: str, body: bytes = b"x") -> int:
        client().put_object(Bucket=self.bucket, Key=f"{FOLDER}/{key}", Body=body)
        self.there[f"{FOLDER}/{key}"] = body
        return len(body)

    def delete(self, key: str) -> None:
        client().delete_object(Bucket=self.bucket, Key=f"{FOLDER}/{key}")
        del self.there[f"{FOLDER}/{key}"]

    def check_untouched(self) -> None:
        found = client().list_objects_v2(Bucket=self.bucket)["Contents"]
        bodies = {one["Key"]: client().get_object(Bucket=self.bucket, Key=one["Key"])["Body"] for one in found}
        assert {key: body.read() for key, body in bodies.items()} == self.there
        assert "Uploads" not in client().list_multipart_uploads(Bucket=self.bucket)


class Run:
    """A `phyla watch` of the trainer's prefix, with one worker process."""

    def __init__(self, folder: Path, trainer: Trainer, endpoint: str) -> None:
        (folder / "suites.py").write_text(SUITES)
        self.folder, self.trainer, self.canaries = folder, trainer, 0
        words = command("watch", f"s3://{trainer.bucket}/{FOLDER}", "--suite", "suites.py:sizes", "--workers", 1)
        self.process = start(folder, [*words, "--quiet", "1", "--poll", "0.2"], AWS_ENDPOINT_URL=endpoint)

    def values(self) -> dict[tuple[str, int], float]:
        """Return the size that was measured of each version of each checkpoint, oldest version first."""
        if not has_run(self.folder, "exp1"):
            return {}
        look = Look(self.folder, "exp1")
        found: dict[tuple[str, int], float] = {}
        for group in look.groups:
            if group.state is GroupState.COMPLETE:
                values: Any = group.values
                name = look.seen[group.seen].name
                found[name, sum(key[0] == name for key in found)] = values["bytes_mean"]["value"]
        return found

    def wait_for(self, name: str, size: int, version: int = 0) -> None:
        until(lambda: self.values().get((name, version)) == size or self._over(), f"{name}: {self.values()}")

    def _over(self) -> bool:
        assert self.process.poll() is None, self.process.communicate()[0]
        return False

    def look(self) -> Look:
        """Return what is known after a look at everything that was uploaded before."""
        self.canaries += 1
        name = f"canary_{self.canaries}.npz"
        size = self.trainer.put(name, b"c" * self.canaries)
        self.wait_for(name, size)
        return Look(self.folder, "exp1")

    def ready(self) -> set[str]:
        return {seen.name for seen in self.look().seen.values() if seen.state is CheckpointState.READY}


@pytest.fixture
def trainer(s3_bucket: str) -> Trainer:
    return Trainer(s3_bucket)


class Server:
    """A second address of the test server, which a test may stop."""

    def __init__(self) -> None:
        self.port = 0
        self.start()

    def start(self) -> None:
        self.server = ThreadedMotoServer("127.0.0.1", port=self.port, verbose=False)
        self.server.start()
        host, self.port = self.server.get_host_and_port()
        self.url = f"http://{host}:{self.port}"

    def stop(self) -> None:
        self.server.stop()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


def test_uploads_in_any_order_are_evaluated_when_they_are_whole_and_once_for_each_version(
    tmp_path: Path, trainer: Trainer, server: Server
) -> None:
    watched = Run(tmp_path, trainer, server.url)
    # Index first, last shard last; of another one the last shard never comes.
    sharded = trainer.put("step_10/model.safetensors.index.json", INDEX)
    sharded += trainer.put(f"step_10/{SHARDS[0]}", safetensors({"a": 100}))
    trainer.put("step_20/model.safetensors.index.json", INDEX)
    trainer.put(f"step_20/{SHARDS[0]}", safetensors({"a": 100}))
    # The marks first, data last.
    orbax = trainer.put("30/_CHECKPOINT_METADATA", b'{"commit_timestamp_nsecs": 5}')
    orbax += trainer.put("30/commit_success.txt", b"1")
    assert not {"step_10", "step_20", "30"} & watched.ready()
    orbax += trainer.put("30/default/_METADATA", b'{"use_ocdbt": true}')
    orbax += trainer.put("30/default/manifest.ocdbt", b"manifest")
    assert not {"step_10", "step_20", "30"} & watched.ready()
    sharded += trainer.put(f"step_10/{SHARDS[1]}", safetensors({"b": 50}))
    orbax += trainer.put("30/default/d/0123", b"data")
    # Half of a file, as a copy of what is still being written.
    whole = safetensors({"w": 300})
    trainer.put("model_40.safetensors", whole[:200])
    watched.wait_for("step_10", sharded)
    watched.wait_for("30", orbax)
    assert "model_40.safetensors" not in watched.ready()
    trainer.put("model_40.safetensors", whole)
    watched.wait_for("model_40.safetensors", len(whole))

    server.stop()
    unreadable = until(
        lambda: [event for event in Look(tmp_path, "exp1").events if event.kind == "unreadable"], "message"
    )
    check_facts(unreadable[0].message, "unreachable", "retrying")
    server.start()
    bigger = trainer.put("model_40.safetensors", safetensors({"w": 600}))
    watched.wait_for("model_40.safetensors", bigger, version=1)

    trainer.put("DONE")
    output, _ = watched.process.communicate(timeout=180)
    assert watched.process.returncode == 1, output
    look = Look(tmp_path, "exp1")
    bad = [seen for seen in look.seen.values() if seen.state is CheckpointState.QUARANTINED]
    assert {seen.name for seen in bad} >= {"step_20"}
    check_facts(output, SHARDS[1], "1", "2")
    assert [key for key in watched.values() if "canary" not in key[0]] == [
        ("step_10", 0), ("30", 0), ("model_40.safetensors", 0), ("model_40.safetensors", 1),
    ]  # fmt: skip
    trainer.check_untouched()
    found = phyla.load_evaluations("exp1", home=tmp_path / ".phyla").best("sizes")
    assert found is not None
    assert (found.where, found.gone) == (f"s3://{trainer.bucket}/{FOLDER}/model_40.safetensors", False)
    shutil.rmtree(tmp_path / ".phyla" / "cache")
    assert found.path.stat().st_size == bigger
    assert found.path.is_relative_to(tmp_path / ".phyla" / "cache")


def test_what_cannot_be_watched_is_said(
    tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch, cli: Phyla
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("suites.py").write_text(SUITES)
    url, usual = f"s3://{trainer.bucket}/{FOLDER}", ("--suite", "suites.py", "--workers", 0, "--once")
    for option in (("--snapshots", "copy"), ("--snapshots", "link=kept")):
        assert f"{url}: leave out --snapshots (in" in cli("watch", url, *usual, *option, code=2)
    check_facts(cli("watch", "s3://not-there/p", *usual, code=1), "not-there")
    said = cli("watch", "s3://key:hidden@bucket/p", *usual, code=2)
    assert "s3://bucket/prefix" in said
    assert "hidden" not in said
    assert cli("status", "--json").strip() == "[]"
    assert "0 checkpoints seen" in cli("watch", url, *usual)
    shutil.rmtree(".phyla")
    trainer.put("model_1.npz", b"123")
    home = ("--home", tmp_path / "elsewhere")
    check_facts(cli("watch", url, *usual, *home, "--plan"), "1 shard")
    assert "1 complete" in cli("watch", url, *usual, *home)
    assert list(Path("elsewhere/cache").glob("*/*/model_1.npz"))
    assert not Path(".phyla").exists()
    assert f"{url}/model_1.npz" in cli("best", "exp1", *home)
    assert url in cli("status", "exp1", *home)
    assert "FAIL" not in cli("doctor", "exp1", *home).upper()
    cli("delete", "exp1", "--yes", "exp1", *home)
    trainer.check_untouched()
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    said = run(tmp_path, command("watch", url, *usual), expect=1)
    assert f"cannot list {url}: " in said
    assert "AWS_PROFILE" in said
    assert "Traceback" not in said
