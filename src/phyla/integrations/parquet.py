"""Points as a Parquet file, written batch by batch."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Final

from phyla.evaluation import Point
from phyla.evaluation.points import point_row

BATCH: Final = 10_000


def write_parquet(points: Iterable[Point], path: Path) -> int:
    """Write points, one row each; return how many there are.

    Args:
        points: what was measured.
        path: the file; replaced if it exists.

    Raises:
        ImportError: pyarrow is not installed; `pip install "phyla[parquet]"`.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError('Parquet files need pyarrow: pip install "phyla[parquet]"') from error
    schema = _schema(pyarrow)
    rows = map(point_row, points)
    count = 0
    with parquet.ParquetWriter(str(path), schema, compression="zstd") as writer:
        while batch := list(islice(rows, BATCH)):
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))
            count += len(batch)
    return count


def _schema(arrow: Any) -> Any:
    integer, real, text = arrow.int64(), arrow.float64(), arrow.string()
    columns = [
        (integer, ("step", "branch", "member", "index", "number")),
        (text, ("checkpoint", "suite", "task", "name", "kind")),
        (real, ("value", "stderr")),
        (integer, ("n", "replicate")),
        (arrow.bool_(), ("partial",)),
        (real, ("written_at", "evaluated_at", "low", "high")),
        (arrow.list_(real), ("limits", "counts")),
    ]
    return arrow.schema([arrow.field(name, kind) for kind, names in columns for name in names])
