"""However a suite is split, over shards and over worker processes, it finds the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forked
import phyla
from effort import rarely

SUITE = """
import numpy as np
import phyla

SAMPLES = np.random.default_rng(7).normal(1e6, 1.0, 1001)


def measure(evaluation):
    for batch in np.array_split(evaluation.shard.of(SAMPLES), 4):
        evaluation.record(
            value=batch,
            total=phyla.evaluation.Sum.of(batch),
            largest=phyla.evaluation.Maximum.of(batch),
        )


suite = phyla.Suite("split", [phyla.EvalTask(f"t{{i}}", measure, shards={shards}) for i in range(3)])
"""
SAMPLES = np.random.default_rng(7).normal(1e6, 1.0, 1001)


@pytest.mark.parametrize(("shards", "workers"), [(1, 0), (7, 0), (7, 3), rarely(2, 2), rarely(2, 1), rarely(7, 4)])
def test_any_number_of_shards_and_workers_finds_the_same(tmp_path: Path, shards: int, workers: int) -> None:
    checkpoint = tmp_path / "checkpoints" / "step_1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_text("w")
    (checkpoint / "DONE").touch()
    (tmp_path / "suite.py").write_text(SUITE.format(shards=shards))
    watch = ("watch", "checkpoints", "--suite", "suite.py:suite", "--name", "run", "--format", "marker", "--once")
    words = ["-m", "phyla.cli", *watch, "--home", "home", "--workers", workers]
    forked.run(words, cwd=tmp_path, check=True, spares=workers)
    (values,) = phyla.load_evaluations("run", home=tmp_path / "home").values("split")
    found: dict[str, Any] = dict(values.values)
    assert found["value_mean"].value == pytest.approx(SAMPLES.mean(), rel=1e-12)
    stderr = SAMPLES.std(ddof=1) / 1001**0.5 / 3**0.5
    assert found["value_mean"].stderr == pytest.approx(stderr, rel=1e-12)
    assert found["total_mean"].value == pytest.approx(SAMPLES.sum(), rel=1e-12)
    assert found["largest_mean"].value == SAMPLES.max()
