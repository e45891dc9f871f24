"""Points as a Parquet file, written batch by batch."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Final

from phyla.evaluation import Point, point_row

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
    kinds = {
        "step": integer,
        "branch": integer,
        "member": integer,
        "index": integer,
        "number": integer,
        "checkpoint": text,
        "suite": text,
        "task": text,
        "name": text,
        "kind": text,
        "value": real,
        "stderr": real,
        "n": integer,
        "replicate": integer,
        "partial": arrow.bool_(),
        "written_at": real,
        "evaluated_at": real,
        "low": real,
        "high": real,
        "limits": arrow.list_(real),
        "counts": arrow.list_(real),
    }
    return arrow.schema([arrow.field(name, kind) for name, kind in kinds.items()])
