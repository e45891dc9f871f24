"""Studies whose checkpoints are on an object store: whatever is killed, nothing is lost, doubled or leaked."""

import contextlib
import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import phyla
from command_line import Phyla
from durability import check_whole, load, run, start
from effort import rarely
from facts import check_facts
from object_store import client
from phyla.errors import PhylaError

MEMBERS, TRIALS = 3, 6


def keys(bucket: str) -> set[str]:
    found = client().list_objects_v2(Bucket=bucket).get("Contents", [])
    return {one["Key"] for one in found}


def uploads(bucket: str) -> list[Any]:
    found: list[Any] = client().list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    return found


@pytest.mark.parametrize(
    ("name", "trials"),
    # So many that some are collected, where that is what is interrupted.
    [("upload.during_files", 2), rarely("upload.after_manifest", 2), rarely("checkpoint.during_delete", TRIALS)],
)
def test_killed_at_a_failpoint_and_resumed(tmp_path: Path, s3_bucket: str, name: str, trials: int) -> None:
    where: dict[str, Any] = {"checkpoints": f"s3://{s3_bucket}/phyla", "members": MEMBERS, "trials": trials}
    run(tmp_path, failpoint=f"{name}=kill:2", expect=-signal.SIGKILL, **where)
    run(tmp_path, **where)
    check_whole(load(tmp_path, checkpoints=where["checkpoints"]), members=MEMBERS, trials=trials)
    assert uploads(s3_bucket) == []


@pytest.mark.thorough  # above: one is killed while it uploads
def test_workers_that_die_while_they_upload_and_then_everything_that_is_killed(
    tmp_path: Path, s3_bucket: str
) -> None:
    where: dict[str, Any] = {"checkpoints": f"s3://{s3_bucket}/phyla", "members": MEMBERS, "trials": 3}
    process = start(tmp_path, failpoint="upload.during_files=kill:6", workers=2, **where)
    while True:
        assert process.poll() is None, process.communicate()[0]
        with contextlib.suppress(PhylaError):
            results = load(tmp_path, checkpoints=where["checkpoints"])
            if any("SIGKILL" in (attempt.error or "") for attempt in results.attempts()):
                break
        time.sleep(0.05)
    process.kill()
    process.communicate()
    # The next run is on another machine: it has no copies.
    shutil.rmtree(tmp_path / "cache")
    run(tmp_path, **where)
    results = load(tmp_path, checkpoints=where["checkpoints"])
    check_whole(results, members=MEMBERS, trials=3)
    committed = {f"phyla/toy/{row.checkpoint}/.phyla-manifest.json" for row in results.trials()}
    assert {key for key in keys(s3_bucket) if key.endswith("manifest.json")} <= committed


STUDY = """
import contextlib
import json
import phyla


def train(trial):
    x = json.loads((trial.source.path / "x.json").read_text()) if trial.source else 10.0
    for step in trial.steps():
        x -= trial.params["lr"] * 2 * x
        if step % 10 == 4:
            (trial.checkpoint_dir / "half.json").write_text(json.dumps(x))
            trial.save_progress()
    (trial.checkpoint_dir / "x.json").write_text(json.dumps(x))
    trial.report(loss=x * x)


@phyla.eval_task
def size(evaluation):
    x = json.loads((evaluation.checkpoint.path / "x.json").read_text())
    evaluation.record(size=abs(x))


study = phyla.Study(
    name="first",
    space=phyla.Space(lr=phyla.Float(1e-4, 1.0, log=True)),
    objective=phyla.Minimize("loss"),
    strategy=phyla.PBT(population_size=2, steps_per_trial=10, total_steps=20),
    train=train,
    suites=[phyla.Suite("sizes", (size,), objective=phyla.Minimize("size_mean"))],
)
"""


SUITE = """
import json
import phyla


@phyla.eval_task
def size(evaluation):
    evaluation.record(size=abs(json.loads((evaluation.checkpoint.path / "x.json").read_text())))


suite = phyla.Suite("again", (size,), objective=phyla.Minimize("size_mean"))
"""


def test_commands_on_a_study_whose_checkpoints_are_remote(
    tmp_path: Path, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, cli: Phyla
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("first.py").write_text(STUDY)
    url = f"s3://{s3_bucket}/phyla"
    there = ("--checkpoints", url)
    cli("run", "first.py", "--workers", 1, *there)
    assert not Path(".phyla/checkpoints").exists()
    best = json.loads(cli("best", "first", "--json", *there))
    assert best["checkpoint"]["path"].startswith(f"{url}/first/")
    assert best["checkpoint"]["found"] is True
    assert f"{url}/first/" in cli("best", "first", *there)
    assert f"{url}/first/" in cli("best", "first", "--suite", "sizes", *there)
    assert "OK" in cli("doctor", "first", "--digests", *there).upper()
    cli("gc", "first", *there)
    cli("status", "first", "--disk", *there)
    cli("report", "first", *there)

    Path("suite.py").write_text(SUITE)
    cli("watch", "first", "--suite", "suite.py", "--once", "--workers", 0, *there)
    watched = json.loads(cli("best", "first-watch", "--json", *there))
    assert watched[0]["checkpoint"]["path"] == best["checkpoint"]["path"]
    assert "phyla watch" in cli("watch", "gs://other/prefix", "--suite", "suite.py", code=2)

    shutil.rmtree(".phyla/cache")
    found = phyla.load_study("first", checkpoints=url).best
    assert found is not None
    assert json.loads((found.checkpoint.path / "x.json").read_text()) ** 2 == found.fitness
    assert found.checkpoint.path.is_relative_to(tmp_path / ".phyla" / "cache")

    cli("replay", "first", "--file", "first.py", "--from", "10", "--workers", 0, *there)
    again = phyla.load_study("first-replay", checkpoints=url).best
    assert again is not None
    assert again.checkpoint.digest == found.checkpoint.digest
    cli("delete", "first-watch", "--yes", "first-watch", *there)
    cli("delete", "first-replay", "--yes", "first-replay", *there)
    cli("delete", "first", "--yes", "first", *there)
    assert (keys(s3_bucket), uploads(s3_bucket)) == (set(), [])


def test_a_bucket_that_is_not_there_is_said_in_one_paragraph(
    tmp_path: Path, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, cli: Phyla
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("first.py").write_text(STUDY)
    said = cli("run", "first.py", "--workers", 1, "--checkpoints", "s3://no-such-bucket/p", code=1)
    check_facts(said, "s3://no-such-bucket/p/first")
    assert "Traceback" not in said
    said = cli("run", "first.py", "--checkpoints", "s3://key:hidden@bucket/p", code=2)
    assert "s3://bucket/prefix" in said
    assert "hidden" not in said
