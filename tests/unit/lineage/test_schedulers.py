"""Schedules are read back from a file."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import phyla
from facts import raises
from phyla.errors import UsageError
from phyla.lineage import Schedule, Segment


def schedule(*values: Any, start: int = 0, length: int = 4) -> Schedule:
    bounds = itertools.pairwise(range(start, start + length * (len(values) + 1), length))
    return Schedule(
        tuple(
            Segment(first, last, {"lr": value, "kind": "sgd"}, trial=index, member=0)
            for index, ((first, last), value) in enumerate(zip(bounds, values, strict=True))
        )
    )


SCHEDULES = [schedule(0.5, 0.1, 0.1, 0.4), schedule(0.3, start=7), schedule(0.3, 0.6, 0.2, start=1000)]


def test_a_schedule_is_read_from_the_file_that_was_exported(tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    path.write_text(json.dumps(SCHEDULES[2].to_json()))
    assert phyla.load_schedule(path) == SCHEDULES[2]
    assert phyla.lineage.Schedule.from_json(json.loads(path.read_text())) == SCHEDULES[2]


def test_files_that_are_no_schedule(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the schedule"):
        phyla.load_schedule(tmp_path / "nowhere.json")
    path = tmp_path / "schedule.csv"
    path.write_text("start_step,end_step\n0,1\n")
    with raises(UsageError, "--format", "json"):
        phyla.load_schedule(path)
    for text in ("[]", '{"schema": 9}', '{"schema": 1, "segments": []}', '{"schema": 1, "segments": [1]}', "3"):
        path.write_text(text)
        with pytest.raises(UsageError):
            phyla.load_schedule(path)
