"""Points as a Parquet file."""

from pathlib import Path

import pytest
from pyarrow import parquet

from evaluated_run import eventful
from phyla.evaluation.points import point_row
from phyla.integrations.parquet import write_parquet


def test_every_point_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phyla.integrations.parquet.BATCH", 100)
    run = eventful(tmp_path)
    file = tmp_path / "points.parquet"
    count = write_parquet(run.evaluations.points(), file)
    rows = parquet.read_table(file).to_pylist()
    assert len(rows) == count > 100
    assert rows == [point_row(point) for point in run.evaluations.points()]


def test_without_points_there_are_still_columns(tmp_path: Path) -> None:
    file = tmp_path / "points.parquet"
    assert write_parquet([], file) == 0
    assert "checkpoint" in parquet.read_table(file).column_names
