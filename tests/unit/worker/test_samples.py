"""Samples that an eval task saves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from facts import raises
from phyla.errors import MetricInvalid
from phyla.worker.evaluating.samples import read_samples, write_samples


def test_samples_come_back_and_the_same_samples_are_the_same_file(tmp_path: Path) -> None:
    samples = [
        {"id": 1, "acc": np.float32(0.5), "text": "ü\n", "logits": np.array([1.0, 2.0]), "where": Path("a")},
        {"id": "1", "group": "g", "acc": True},
    ]
    write_samples(tmp_path / "first", samples)
    write_samples(tmp_path / "second", iter(samples))
    assert list(read_samples(tmp_path / "first")) == [
        {"id": 1, "acc": 0.5, "text": "ü\n", "logits": [1.0, 2.0], "where": "a"},
        {"id": "1", "group": "g", "acc": True},
    ]
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


@pytest.mark.parametrize(
    ("samples", "facts"),
    [
        ([{"acc": 1.0}], ("'id'",)),
        ([{"id": True}], ("'id'",)),
        ([{"id": 1.5}], ("'id'", "1.5")),
        ([3], ("'id'", "3")),
        ([{"id": 1}, {"id": 1}], ("two samples", "1")),
    ],
)
def test_each_sample_has_an_id_of_its_own(tmp_path: Path, samples: list[Any], facts: tuple[str, ...]) -> None:
    with raises(MetricInvalid, *facts):
        write_samples(tmp_path / "file", samples)
