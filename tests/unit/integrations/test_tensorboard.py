"""TensorBoard's event files: what they hold, and that they are rebuilt as a whole."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from evaluated_run import HELDOUT, EvaluatedRun, eventful
from event_files import Logged, logged
from facts import raises
from phyla.errors import UsageError
from phyla.evaluation import Point
from phyla.integrations.tensorboard import series, tag, write_tensorboard
from phyla.integrations.trackers.tensorboard import EventFiles


def plain(found: dict[str, list[Logged]]) -> dict[str, list[tuple[str, int, float | None]]]:
    return {run: [(one.tag, one.step, one.value) for one in its] for run, its in found.items()}


def test_scalars_aggregates_and_percentiles_at_their_steps(tmp_path: Path) -> None:
    run = eventful(tmp_path)
    count = run.evaluations.write_tensorboard(tmp_path / "logs")
    found = logged(tmp_path / "logs")
    assert sorted(found) == ["watched", "watched@branch1"]
    assert sum(map(len, found.values())) == count
    cell = next(c for c in run.evaluations.cells("heldout") if c.seen.step == 3000 and c.task == "noisy")
    (mine,) = [one for one in found["watched"] if (one.tag, one.step) == ("heldout/noisy/accuracy", 3000)]
    assert mine.value == pytest.approx(cell.values["accuracy"].value)
    assert mine.wall_time == cell.seen.written_at
    error = cell.values["accuracy"].stderr
    assert error is not None
    (beside,) = [one for one in found["watched"] if (one.tag, one.step) == ("heldout/noisy/accuracy_stderr", 3000)]
    assert beside.value == pytest.approx(error)
    tags = {one.tag for one in found["watched"]}
    assert {
        "heldout/clean/accuracy",
        "heldout/accuracy_mean",
        "heldout/out/accuracy_mean",
        "heldout/accuracy_p90",
        "heldout/clean/surprise_nll",
        "sparse/clean/accuracy",
    } <= tags
    assert "heldout/accuracy_p90_stderr" not in tags  # a percentile has none


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.5])
def test_a_value_that_is_not_finite_is_written_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, value: float
) -> None:
    files = EventFiles(tmp_path)
    files.write("run", 3, 0.0, [("loss", value)])
    files.close()
    (written,) = [one for one in logged(tmp_path)["run"] if one.tag == "loss"]
    assert written.value == pytest.approx(value, nan_ok=True)
    assert not caplog.records


def test_aggregates_of_partial_groups_have_a_tag_of_their_own(tmp_path: Path) -> None:
    run = eventful(tmp_path)
    run.evaluations.write_tensorboard(tmp_path / "logs")
    at = {one.tag for one in logged(tmp_path / "logs")["watched"] if one.step == 3400}
    assert "heldout/partial/accuracy_mean" in at
    assert "heldout/accuracy_mean" not in at
    assert "heldout/clean/accuracy" in at  # an eval task that is done is done


def test_points_that_come_late_are_where_they_belong(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    run = EvaluatedRun(tmp_path, [HELDOUT])
    run.sees("a", 100)
    run.sees("b", 200)
    run.work(6)  # the newest first
    run.evaluations.write_tensorboard(logs)
    assert {one.step for one in logged(logs)["watched"]} == {200}
    run.work()
    run.evaluations.write_tensorboard(logs)
    steps = [one.step for one in logged(logs)["watched"]]
    assert set(steps) == {100, 200}
    assert steps == sorted(steps)


def test_the_same_content_gives_the_same_points_and_one_file(tmp_path: Path) -> None:
    run = eventful(tmp_path)
    logs = tmp_path / "logs"
    run.evaluations.write_tensorboard(logs)
    first, files = logged(logs), sorted(path.name for path in logs.rglob("*.phyla"))
    run.evaluations.write_tensorboard(logs)
    assert plain(logged(logs)) == plain(first)
    again = sorted(path.name for path in logs.rglob("*.phyla"))
    assert len(again) == len(files) == 2
    assert again > files  # a TensorBoard that is running goes on to newer files only
    assert sorted(path.name for path in logs.iterdir()) == ["watched", "watched@branch1"]


def test_of_checkpoints_with_one_step_the_newest_value_counts(tmp_path: Path) -> None:
    run = EvaluatedRun(tmp_path, [HELDOUT])
    run.sees("best_bad", 100)
    run.sees("step_100", 100)
    run.work()
    run.evaluations.write_tensorboard(tmp_path / "logs")
    mine = [one for one in logged(tmp_path / "logs")["watched"] if one.tag == "heldout/clean/accuracy"]
    newest = [cell for cell in run.evaluations.cells() if cell.task == "clean"][-1]
    assert [one.value for one in mine] == [pytest.approx(newest.values["accuracy"].value)]


def test_nothing_but_its_own_files_is_replaced(tmp_path: Path) -> None:
    run = eventful(tmp_path)
    logs = tmp_path / "logs"
    other = logs / "training" / "events.out.tfevents.1"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"theirs")
    run.evaluations.write_tensorboard(logs)
    assert other.read_bytes() == b"theirs"
    (logs / "watched" / "notes.txt").write_text("mine")
    with raises(UsageError, "notes.txt"):
        run.evaluations.write_tensorboard(logs)
    assert (logs / "watched" / "notes.txt").read_text() == "mine"


def test_an_export_that_breaks_off_leaves_the_old_one(tmp_path: Path) -> None:
    run = eventful(tmp_path)
    logs = tmp_path / "logs"
    run.evaluations.write_tensorboard(logs)
    before = logged(logs)
    points = run.evaluations.points()

    def broken() -> "object":
        yield next(points)
        raise RuntimeError("the store went away")

    with pytest.raises(RuntimeError):
        write_tensorboard(broken(), "watched", logs)  # type: ignore[arg-type]
    assert logged(logs) == before
    assert sorted(path.name for path in logs.iterdir()) == ["watched", "watched@branch1"]


POINT = Point(
    step=10,
    checkpoint="c",
    number=3,
    suite="s",
    task="t",
    name="loss",
    value=1.0,
    written_at=5.0,
    evaluated_at=6.0,
)


def test_series_and_tags() -> None:
    assert series("run", POINT) == "run"
    assert series("run", replace(POINT, branch=2)) == "run@branch2"
    assert series("run", replace(POINT, member=3)) == "run/member3"
    assert series("run", replace(POINT, branch=1, index=2)) == "run@branch1@model2"
    assert tag(POINT) == "s/t/loss"
    assert tag(replace(POINT, task=None, name="in/loss_mean")) == "s/in/loss_mean"


def test_repetitions_stay_out_and_unknown_steps_are_numbers(tmp_path: Path) -> None:
    points = [replace(POINT, step=-1), replace(POINT, step=-1, number=4, value=float("nan"))]
    points.append(replace(POINT, step=-1, number=5, replicate=1))
    assert write_tensorboard(points, "a/b", tmp_path) == 2
    found = logged(tmp_path)["a_b"]
    assert [one.step for one in found] == [3, 4]


def test_unknown_steps_stay_out_beside_known_ones(tmp_path: Path) -> None:
    points = [replace(POINT, step=-1, number=2, checkpoint="last.ckpt"), replace(POINT, step=100)]
    assert write_tensorboard(points, "run", tmp_path) == 1
    assert [point.step for point in logged(tmp_path)["run"]] == [100]
