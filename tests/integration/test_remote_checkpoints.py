"""Studies whose checkpoints are on an object store: whatever is killed, nothing is lost, doubled or leaked."""

import signal
from pathlib import Path
from typing import Any

import boto3
import pytest

from durability import check_whole, load, run
from phyla.failpoints import NAMES

MEMBERS, TRIALS = 4, 8


def keys(bucket: str) -> set[str]:
    found = boto3.client("s3").list_objects_v2(Bucket=bucket).get("Contents", [])
    return {one["Key"] for one in found}


def uploads(bucket: str) -> list[Any]:
    found: list[Any] = boto3.client("s3").list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    return found


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("upload.", "checkpoint.", "gc."))])
def test_killed_at_a_failpoint_and_resumed(tmp_path: Path, s3_bucket: str, name: str) -> None:
    where: dict[str, Any] = {"checkpoints": f"s3://{s3_bucket}/phyla", "members": MEMBERS, "trials": TRIALS}
    run(tmp_path, failpoint=f"{name}=kill:2", expect=-signal.SIGKILL, **where)
    run(tmp_path, **where)
    results = load(tmp_path, checkpoints=where["checkpoints"])
    check_whole(results, members=MEMBERS, trials=TRIALS)


def test_workers_that_die_in_the_middle_of_an_upload_are_replaced(tmp_path: Path, s3_bucket: str) -> None:
    where: dict[str, Any] = {"checkpoints": f"s3://{s3_bucket}/phyla", "members": MEMBERS, "trials": TRIALS}
    run(tmp_path, failpoint="upload.during_files=kill:6", workers=2, **where)
    results = load(tmp_path, checkpoints=where["checkpoints"])
    check_whole(results, members=MEMBERS, trials=TRIALS)
    assert any("SIGKILL" in (attempt.error or "") for attempt in results.attempts())
