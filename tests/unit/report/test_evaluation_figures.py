"""The data that the figures of an evaluation show."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from drawn import answer, bands, notes, points, rows, trace
from evaluated_run import HELDOUT, EvaluatedRun, eventful
from facts import check_facts
from phyla.evaluation import CellStatus, GroupValues
from phyla.formatting import duration
from phyla.records import Group, GroupState
from phyla.report import EVALUATION_FIGURES, EvaluationData, style
from phyla.report.columns import waits_of
from phyla.report.figures.suites import aggregates_figure, lag_figure, matrix_figure

pytestmark = pytest.mark.xdist_group("figures")  # Plotly and SciPy are imported in one process


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> EvaluationData:
    return eventful(tmp_path_factory.mktemp("run")).evaluations.data()


@pytest.fixture(scope="module")
def heldout(data: EvaluationData) -> EvaluationData:
    return suite(data, "heldout")


def suite(data: EvaluationData, name: str) -> EvaluationData:
    """Return the data of one suite."""
    return replace(
        data,
        suites=[suite for suite in data.suites if suite.name == name],
        cells=[cell for cell in data.cells if cell.suite == name],
        values=[values for values in data.values if values.group.suite == name],
    )


def test_every_row_of_the_matrix_has_its_own_scale(data: EvaluationData, heldout: EvaluationData) -> None:
    matrix = trace(matrix_figure(heldout), "value")
    shades = np.array(matrix.z, dtype=float)
    assert shades.shape == (4, len(data.checkpoints))
    assert {*np.nanmin(shades, axis=1)} == {0}
    assert {*np.nanmax(shades, axis=1)} == {1}
    check_facts(matrix.text[0][0], "accuracy", "step 200")
    minimized = replace(heldout, suites=tuple(replace(suite, maximize=False) for suite in heldout.suites))
    inverted = np.array(trace(matrix_figure(minimized), "value").z, dtype=float)
    np.testing.assert_allclose(shades, 1 - inverted, atol=1e-9)


def test_cells_without_a_value_or_of_partial_groups_are_marked(
    data: EvaluationData, heldout: EvaluationData
) -> None:
    figure = matrix_figure(heldout)
    counts = Counter(cell.status for cell in heldout.cells)
    for status in ("queued", "running", "failed", "gone", "quarantined"):
        assert len(trace(figure, status).x) == counts[CellStatus(status)] > 0
        check_facts(answer(figure).lower(), f"{counts[CellStatus(status)]} {status}")
    check_facts(trace(figure, "failed").text[0], "ValueError: the model gave [nan]")
    place = [checkpoint.name for checkpoint in data.checkpoints].index("step_3400_broken")
    assert list(trace(figure, "partial").x) == [place] * 3
    assert len(trace(matrix_figure(suite(data, "sparse")), "skipped").x) == 14


def test_a_long_history_is_cut(heldout: EvaluationData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phyla.report.figures.suites.COLUMNS", 5)
    figure = matrix_figure(heldout)
    assert len(trace(figure, "value").z[0]) == 5
    check_facts(notes(figure), f"5 of {len(heldout.checkpoints)} checkpoints")


def test_a_matrix_of_many_cells_stays_light_and_has_short_tooltips(heldout: EvaluationData) -> None:
    cells = []
    seen = heldout.checkpoints[0]
    first = [cell for cell in heldout.cells if cell.seen.id == seen.id]
    for number in range(1_000):
        copy = replace(seen, id=number + 1, number=number, step=number)
        cells += [replace(cell, seen=copy, task=f"{cell.task}{index}") for cell in first for index in range(10)]
    figure = matrix_figure(replace(heldout, cells=cells))
    matrix = trace(figure, "value")
    assert np.array(matrix.z).shape == (40, 75)
    assert matrix.text[0][-1].startswith("step 999: ")
    assert len(figure.to_json()) < 300_000
    check_facts(notes(figure), "75 of 1,000 checkpoints")


def test_rows_of_several_suites_have_their_names(data: EvaluationData) -> None:
    figure = matrix_figure(data)
    names = rows(figure.layout.yaxis)
    assert names == ["heldout/clean", "heldout/noisy", "heldout/shifted", "heldout/labels", "sparse/clean"]
    (table, *_) = style.tables(figure)
    assert [row[0] for row in table.rows] == names
    assert table.columns[1] == "200"


def test_aggregates_have_a_panel_each_the_objective_first(heldout: EvaluationData) -> None:
    figure = aggregates_figure(heldout)
    titles = [figure.layout[name].title.text for name in ("yaxis", "yaxis2")]
    assert titles == ["accuracy_mean", "accuracy_min"]
    lines = {line.name: line for line in reversed(figure.data)}
    whole, out = lines["all"], lines["out"]
    assert list(whole.x) == sorted({*whole.x} - {3400})
    assert list(lines["all, branch 1"].x) == [2000, 2200]
    assert list(lines["partial"].x) == [3400]
    assert {*lines["regression"].x} == {3200}
    check_facts(lines["regression"].text[0], "heldout/clean accuracy")
    # In and out of distribution share a panel.
    assert whole.yaxis == out.yaxis
    values = {
        result.seen.step: result.values["out/accuracy_mean"].value for result in heldout.values_of("heldout")
    }
    assert out.y[0] == pytest.approx(values[out.x[0]], rel=1e-5)


def test_the_best_is_named_and_regressions_are_counted(data: EvaluationData) -> None:
    (best,) = [result for result in data.values if result.best and result.group.suite == "heldout"]
    assert sum(event.kind == "regression" for event in data.events) == 1
    value = f"{best.values['accuracy_mean'].value:.4g}"
    facts = f"heldout/accuracy_mean {value}", "step 3,000", "1 regression"
    check_facts(answer(aggregates_figure(data)), *facts)


def test_many_members_are_drawn_as_their_spread(data: EvaluationData) -> None:
    results = sorted(data.values_of("sparse"), key=lambda result: result.seen.step)
    values: list[GroupValues] = []
    for member in range(1_000):
        for result in results:
            key = 1 + len(values)
            seen = replace(result.seen, id=key, trial=key, number=key)
            moved = {name: replace(v, value=v.value + member / 1_000) for name, v in result.values.items()}
            values.append(replace(result, seen=seen, values=moved))
    members = {result.seen.id: (result.seen.id - 1) // len(results) for result in values}
    figure = aggregates_figure(replace(suite(data, "sparse"), values=values, members=members))
    low, median, high = (
        next(line.y for line in figure.data if line.name == name) for name in ("5 %", "all", "95 %")
    )
    expected = np.array([result.values["accuracy_mean"].value for result in results])
    assert np.array(median) == pytest.approx(expected + 0.4995, rel=1e-4)
    assert np.array(high) - np.array(low) == pytest.approx(0.9 * 0.999, rel=1e-3)
    check_facts(notes(figure), "6 members", "1,000")
    assert len(figure.to_json()) < 300_000


def test_lag_ends_with_the_checkpoints_that_wait_now(data: EvaluationData) -> None:
    figure = lag_figure(data)
    assert [[*points(figure, name).values()][-1] for name in ("heldout", "sparse")] == [2, 1]
    check_facts(answer(figure), "heldout: 2 checkpoints and 400 steps")
    waits = data.waits["heldout"]
    oldest = float(waits.queued[np.isnan(waits.ended)].min())
    check_facts(trace(figure, "heldout").text[-1], "2 checkpoints", duration(data.now - oldest))


def test_lag_is_drawn_where_the_clock_was_set_back(data: EvaluationData) -> None:
    group = Group(study=1, suite="s", seen=1, created_at=1000.5, ended_at=1000.0, state=GroupState.COMPLETE)
    figure = lag_figure(replace(data, waits=waits_of([group]), now=1000.0, lag=()))
    assert min(points(figure, "s").values()) == 0


def test_bands_are_where_standard_errors_are_known(data: EvaluationData, heldout: EvaluationData) -> None:
    (band, *_) = bands(aggregates_figure(suite(data, "sparse")))
    values = {result.seen.step: result.values["accuracy_mean"] for result in data.values_of("sparse")}
    count = len(band.x) // 2
    for x, high, low in zip(band.x[:count], band.y[:count], band.y[: count - 1 : -1], strict=True):
        half = 1.96 * (values[x].stderr or 0)
        assert (low, high) == pytest.approx((values[x].value - half, values[x].value + half), rel=1e-5)
    assert bands(aggregates_figure(heldout)) == []  # an eval task recorded only means of samples


def test_figures_without_data_have_a_reason(tmp_path: Path) -> None:
    data = EvaluatedRun(tmp_path, [HELDOUT]).evaluations.data()
    for figure in (draw(data) for draw in EVALUATION_FIGURES.values()):
        assert len(figure.data) == 0
        assert figure.layout.annotations[0].text
