"""Which checkpoints are one sequence, and what the events of regressions say."""

from collections.abc import Mapping
from typing import Any

import pytest

from facts import raises
from phyla import plugins
from phyla.errors import ConfigurationError
from phyla.evaluation import Cell, CellStatus, EvalTask, Moments, Suite
from phyla.evaluation.alarms import Regressions
from phyla.evaluation.suite import outlines
from phyla.records import Checkpoint, EvalEvent, Maximize, Minimize, StudyKind, StudyRecord, StudyState
from phyla.study.validation import check_suites

SUITE = Suite(
    "s", [EvalTask("t", print), EvalTask("u", print)], objective=Maximize("acc_mean"), watch=[Minimize("nll_mean")]
)


def run(kind: StudyKind = StudyKind.DIRECTORY) -> StudyRecord:
    config: dict[str, Any] = {"suites": [plugins.encode(SUITE, lambda function: "nowhere:f")]}
    more: dict[str, Any] = {"state": StudyState.RUNNING, "seed": 0, "population_size": 0, "created_at": 0.0}
    return StudyRecord(id=1, name="run", kind=kind, config=config, **more)


def cell(
    number: int,
    values: Mapping[str, float],
    *,
    task: str = "t",
    identity: str = "i",
    status: CellStatus = CellStatus.DONE,
    **of: Any,
) -> Cell:
    seen = Checkpoint(
        **{
            "id": number + 1, "study": 1, "number": number, "name": f"c{number}", "step": 10 * number,
            "identity": f"i{number}", "created_at": 0.0, "written_at": 0.0, **of,
        }
    )  # fmt: skip
    metrics = {name: Moments.of([value - 0.01, value + 0.01]) for name, value in values.items()}
    return Cell(
        seen=seen,
        suite="s",
        task=task,
        group=None,
        status=status,
        metrics=metrics,
        identity=identity,
        evaluated_at=100.0 - number,
    )


def events(*cells: Cell, kind: StudyKind = StudyKind.DIRECTORY, members: Any = None) -> list[EvalEvent]:
    found = Regressions(run(kind), members or {})
    found.read(cells)
    return found.events()


def test_every_metric_with_a_direction_is_watched_in_every_eval_task() -> None:
    (outline,) = outlines(run().config)
    assert outline.directions == {"acc": True, "nll": False}
    good, bad = {"acc": 0.9, "nll": 2.0, "other": 1.0}, {"acc": 0.1, "nll": 9.0, "other": 0.0}
    found = events(*(cell(n, values, task=task) for task in "tu" for n, values in enumerate((good, bad))))
    assert {(event.data["task"], event.data["metric"]) for event in found} == {
        ("t", "acc"), ("t", "nll"), ("u", "acc"), ("u", "nll"),
    }  # fmt: skip
    assert {event.data["step"] for event in found} == {10}


def test_the_facts_of_a_regression() -> None:
    (event,) = events(cell(0, {"acc": 0.9}), cell(1, {"acc": 0.1}), cell(2, {"acc": 0.1}))
    assert (event.kind, event.suite, event.seen) == ("regression", "s", 2)
    facts = {"current": 0.1, "reference": 0.9, "after": 1, "before": 1, "since": 10, "step": 10, "name": "c1"}
    assert {name: event.data[name] for name in facts} == pytest.approx(facts)
    assert event.data["checkpoints"] == [2, 3]
    assert event.created_at == 100.0  # the last result that it takes, which came before the newest


def test_a_result_that_is_read_again_takes_the_place_of_the_former() -> None:
    found = Regressions(run(), {})
    found.read([cell(1, {"acc": 0.1}), cell(0, {"acc": 0.9})])
    assert [event.data["step"] for event in found.events()] == [10]
    found.read([cell(1, {"acc": 0.9})])
    assert found.events() == []
    found.read([cell(1, {})])
    assert found.events() == []


def test_a_branch_goes_on_from_where_training_was_rewound_to() -> None:
    before = [cell(n, {"acc": value}) for n, value in enumerate((0.2, 0.4, 0.6, 0.8))]
    rewound = [cell(n, {"acc": value}, branch=1, step=step) for n, step, value in ((4, 20, 0.6), (5, 30, 0.3))]
    (event,) = events(*before, *rewound)
    assert event.data["name"] == "c5"
    assert event.data["reference"] == pytest.approx(0.6)


@pytest.mark.parametrize(
    "other",
    [{"identity": "edited"}, {"index": 1}, {"step": -1}, {"trial": 7}],
    ids=["version", "model", "no step", "member"],
)
def test_what_is_not_one_sequence_is_not_compared(other: dict[str, Any]) -> None:
    assert events(cell(0, {"acc": 0.9}), cell(1, {"acc": 0.1}, **other), members={7: 3}) == []


def test_without_steps_the_order_of_sight_counts() -> None:
    (event,) = events(cell(1, {"acc": 0.1}, step=-1), cell(0, {"acc": 0.9}, step=-1))
    assert event.data["name"] == "c1"
    assert "c1" in event.message


def test_while_earlier_checkpoints_wait_a_regression_is_provisional_unless_it_is_certain() -> None:
    values = [0.5 + 0.01 * (-1) ** number for number in range(40)]
    there = [cell(number, {"acc": value}) for number, value in enumerate(values)]
    waits = cell(20, {}, status=CellStatus.QUEUED)
    for fall, provisional in ((0.44, True), (0.1, False)):
        (event,) = events(*there[:20], waits, *there[21:], cell(40, {"acc": fall}))
        assert event.data["provisional"] is provisional
        (event,) = events(*there, cell(40, {"acc": fall}), cell(41, {}, status=CellStatus.RUNNING))
        assert not event.data["provisional"]


def test_members_of_a_population_have_no_regressions() -> None:
    assert events(cell(0, {"acc": 0.9}), cell(1, {"acc": 0.1}), kind=StudyKind.POPULATION) == []


@pytest.mark.parametrize("watch", [["nll"], [Minimize("nll_mean", stop_at=1.0)]])
def test_what_is_watched_has_a_direction_and_no_end(watch: Any) -> None:
    with pytest.raises(ConfigurationError):
        Suite("s", [EvalTask("t", print)], watch=watch)


@pytest.mark.parametrize(
    ("watch", "facts"),
    [
        (Minimize("nll_mean"), ("list", "[Minimize(metric='nll_mean'")),
        ([Minimize("acc_mean")], ("acc_mean", "twice")),
        ([Minimize("nll_mean"), Maximize("nll_mean")], ("nll_mean", "twice")),
    ],
)
def test_what_is_watched_is_a_list_of_metrics_each_once(watch: Any, facts: tuple[str, ...]) -> None:
    with raises(ConfigurationError, *facts):
        Suite("s", [EvalTask("t", print)], objective=Maximize("acc_mean"), watch=watch)


def test_what_is_watched_is_an_aggregate_that_the_suite_gives() -> None:
    with pytest.raises(ConfigurationError, match="watch of suite 's'"):
        check_suites([Suite("s", [EvalTask("t", print)], watch=[Minimize("nll")])])
