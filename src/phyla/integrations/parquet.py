"""Points as a Parquet file, written batch by batch."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from phyla.evaluation import Point
from phyla.evaluation.points import point_row

BATCH: Final = 10_000


def write_parquet(points: Iterable[Point], path: Path) -> int:
    """Write points into a file, one row each, in place of an existing one; return how many there are."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError('Parquet files need pyarrow: pip install "phyla[parquet]"') from error
    integer, real, text = pyarrow.int64(), pyarrow.float64(), pyarrow.string()
    columns = [
        (integer, ("step", "branch", "member", "index", "number")),
        (text, ("checkpoint", "suite", "task", "name", "kind")),
        (real, ("value", "stderr")),
        (integer, ("n", "replicate")),
        (pyarrow.bool_(), ("partial",)),
        (real, ("written_at", "evaluated_at")),
    ]
    schema = pyarrow.schema([pyarrow.field(name, kind) for kind, names in columns for name in names])
    rows = map(point_row, points)
    count = 0
    with parquet.ParquetWriter(str(path), schema, compression="zstd") as writer:
        while batch := list(islice(rows, BATCH)):
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))
            count += len(batch)
    return count
