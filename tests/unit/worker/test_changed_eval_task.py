"""A group that was opened again for a changed eval task is aggregated from the newest version's results."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import phyla
from evaluated_run import EvaluatedRun, clean, noisy, shifted
from phyla.evaluation import Suite, TaskResult


def test_only_the_newest_version_counts(tmp_path: Path) -> None:
    first = EvaluatedRun(tmp_path, [Suite("s", (clean, shifted))])
    first.sees("a", 1000)
    first.work()
    changed = replace(clean, version="2", shards=3, seed=7)
    second = EvaluatedRun(tmp_path, [Suite("s", (changed, shifted))], store=first.store, clock=first.clock)
    assert second.sightings.backfill() > 0
    second.work()
    (values,) = second.evaluations.values("s")
    cell = next(cell for cell in second.evaluations.cells("s") if cell.task == "clean")
    assert cell.n == 60
    assert values.values["in/accuracy_mean"].value == cell.values["accuracy"].value
    assert not values.partial


@phyla.eval_task(name="noisy", version="2")
def mended(evaluation: phyla.Evaluation) -> None:
    evaluation.record(accuracy=0.5)


def test_a_mended_eval_task_makes_a_partial_group_complete(tmp_path: Path) -> None:
    first = EvaluatedRun(tmp_path, [Suite("s", (noisy, shifted))])
    first.sees("broken", 1000)
    first.work()
    assert [values.partial for values in first.evaluations.values("s")] == [True]
    second = EvaluatedRun(tmp_path, [Suite("s", (mended, shifted))], store=first.store, clock=first.clock)
    second.sightings.backfill()
    second.work()
    assert [values.partial for values in second.evaluations.values("s")] == [False]
    assert {cell.status.value for cell in second.evaluations.cells("s")} == {"done"}


def gap(results: Sequence[TaskResult]) -> dict[str, float]:
    accuracy = {result.task: result.values["accuracy"] for result in results}
    return {"gap": accuracy["noisy"] - accuracy["shifted"]}


def test_an_aggregate_that_misses_a_failed_eval_task_is_not_the_cause(tmp_path: Path) -> None:
    suite = Suite("s", (noisy, shifted), aggregates=(gap,))
    first = EvaluatedRun(tmp_path, [suite])
    first.sees("broken", 1000)
    first.work()
    (group,) = first.evaluations.groups("s")
    assert "noisy" in (group.why or "")
    assert "KeyError" not in (group.why or "")
    second = EvaluatedRun(
        tmp_path, [replace(suite, tasks=(mended, shifted))], store=first.store, clock=first.clock
    )
    second.sightings.backfill()
    second.work()
    (values,) = second.evaluations.values("s")
    assert set(values.values) == {"gap"}
    assert not values.partial


def measure(evaluation: phyla.Evaluation) -> None:
    evaluation.record(accuracy=0.25)


def edited(evaluation: phyla.Evaluation) -> None:
    evaluation.record(accuracy=0.75)


def read(checkpoint: Any) -> float:
    return 0.25


def read_more(checkpoint: Any) -> float:
    return 0.75


def measure_loaded(evaluation: phyla.Evaluation) -> None:
    evaluation.record(accuracy=evaluation.loaded)


def suite_of(evaluate: Callable[..., object]) -> Suite:
    return Suite("s", (phyla.EvalTask("measure", evaluate),))


def suite_with(load: Callable[..., object]) -> Suite:
    return Suite("s", (phyla.EvalTask("measure", measure_loaded),), load=load)


@pytest.mark.parametrize(("make", "old", "new"), [(suite_of, measure, edited), (suite_with, read, read_more)])
def test_a_worker_that_starts_after_an_edit_tells_of_it_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[..., Suite],
    old: Callable[..., object],
    new: Callable[..., object],
) -> None:
    monkeypatch.setattr(new, "__qualname__", old.__qualname__)
    before, after = make(old), make(new)
    first = EvaluatedRun(tmp_path, [before])
    first.sees("a", 1000)
    first.work()
    later = EvaluatedRun(tmp_path, [after], store=first.store, clock=first.clock)
    for name, step in (("b", 2000), ("c", 3000)):
        later.sees(name, step)
        later.work()
    values = [one.values["accuracy_mean"].value for one in later.evaluations.values("s")]
    assert values == [0.25, 0.75, 0.75]
    assert [event.kind for event in later.evaluations.events()] == ["changed-source"]
