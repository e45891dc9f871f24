"""A group that was opened again for a changed eval task is aggregated from the newest version's results."""

from dataclasses import replace
from pathlib import Path

import phyla
from evaluated_run import EvaluatedRun, clean, noisy, shifted
from phyla.evaluation import Suite


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
