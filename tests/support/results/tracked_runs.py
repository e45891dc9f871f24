"""Reads what trackers wrote: W&B's offline files by hand, MLflow's through its client."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 32768


def _records(file: Path) -> Iterator[bytes]:
    """Yield the records of a `.wandb` file, which has the framing of LevelDB's log after a header of 7 bytes."""
    content, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        if not kind:
            return
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a full record, or its last part
            yield parts
            parts = b""


def offline_runs(folder: Path, *, rows: int) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each W&B run by its id, once W&B's own process has written so many."""
    deadline = time.monotonic() + 60
    while True:
        found = _offline_runs(folder)
        if sum(map(len, found.values())) >= rows or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _offline_runs(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of all segments of each run, in the order of their files."""
    from wandb.proto import wandb_internal_pb2

    found: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(folder.rglob("*.wandb")):
        run_id = file.stem.removeprefix("run-")
        rows = found.setdefault(run_id, [])
        for content in _records(file):
            record = vars(wandb_internal_pb2)["Record"]()
            record.ParseFromString(content)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return found


def mlflow_runs(uri: str, study: str) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return each metric of each MLflow run of a study, by the run's name, as steps and values."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(study)
    assert experiment is not None
    found = {}
    for run in client.search_runs([experiment.experiment_id]):
        metrics = run.data.metrics
        its = {name: client.get_metric_history(run.info.run_id, name) for name in metrics}
        found[run.info.run_name] = {name: [(one.step, one.value) for one in each] for name, each in its.items()}
    return found
