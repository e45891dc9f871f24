"""Figures and pages of an evaluation."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluated_run import HELDOUT, EvaluatedRun, eventful
from phyla.evaluation import CellStatus, GroupValues
from phyla.formatting import duration
from phyla.records import Group, GroupState
from phyla.report import EVALUATION_FIGURES, EvaluationData, style
from phyla.report.columns import waits_of
from phyla.report.figures.suites import aggregates_figure, lag_figure, matrix_figure


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> EvaluationData:
    return eventful(tmp_path_factory.mktemp("run")).evaluations.data()


def suite(data: EvaluationData, name: str) -> EvaluationData:
    """Return what is known of one suite."""
    return replace(
        data,
        suites=[one for one in data.suites if one.name == name],
        cells=[one for one in data.cells if one.suite == name],
        values=[one for one in data.values if one.group.suite == name],
    )


def notes(figure: Any) -> str:
    return "\n".join(one.text for one in figure.layout.annotations if one.name == style.NOTES)


def traces(figure: Any, kind: str) -> list[Any]:
    return [trace for trace in figure.data if trace.type == kind]


def named(figure: Any, name: str) -> Any:
    return next(trace for trace in figure.data if trace.name == name)


def test_every_row_of_the_matrix_has_its_own_scale(data: EvaluationData) -> None:
    (heatmap,) = traces(matrix_figure(suite(data, "heldout")), "heatmap")
    shades = np.array(heatmap.z, dtype=float)
    assert shades.shape == (4, len(data.checkpoints))
    assert np.nanmin(shades, axis=1).tolist() == [0, 0, 0, 0]
    assert np.nanmax(shades, axis=1).tolist() == [1, 1, 1, 1]
    assert "accuracy" in heatmap.text[0][0]
    assert "step 200" in heatmap.text[0][0]


def test_the_brightest_is_the_lowest_where_lower_is_better(data: EvaluationData) -> None:
    suites = tuple(replace(suite, maximize=False) for suite in data.suites)
    (up,) = traces(matrix_figure(suite(data, "heldout")), "heatmap")
    (down,) = traces(matrix_figure(suite(replace(data, suites=suites), "heldout")), "heatmap")
    np.testing.assert_allclose(np.array(up.z, float), 1 - np.array(down.z, float), atol=1e-9)


def test_cells_without_a_value_have_a_symbol_and_a_reason(data: EvaluationData) -> None:
    figure = matrix_figure(suite(data, "heldout"))
    assert [trace.name for trace in traces(figure, "scatter")] == [
        "queued", "running", "failed", "gone", "quarantined", "partial: not all eval tasks of the group",
    ]  # fmt: skip
    assert "ValueError: the model gave [nan]" in named(figure, "failed").text[0]
    assert len(named(matrix_figure(suite(data, "sparse")), "skipped").x) == 14


def test_cells_of_partial_groups_are_marked(data: EvaluationData) -> None:
    marked = traces(matrix_figure(suite(data, "heldout")), "scatter")[-1]
    place = [seen.name for seen in data.checkpoints].index("step_3400_broken")
    assert list(marked.x) == [place] * 3


def test_a_long_history_is_cut_and_that_is_said(data: EvaluationData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phyla.report.figures.suites.COLUMNS", 5)
    figure = matrix_figure(suite(data, "heldout"))
    (heatmap,) = traces(figure, "heatmap")
    assert len(heatmap.z[0]) == 5
    assert f"The newest 5 of {len(data.checkpoints)} checkpoints." in notes(figure)


def test_a_matrix_of_many_cells_stays_light_and_says_less_of_each(data: EvaluationData) -> None:
    cells = []
    first = [one for one in data.cells if one.suite == "heldout" and one.seen.id == data.checkpoints[0].id]
    for number in range(1_000):
        seen = replace(data.checkpoints[0], id=number + 1, number=number, step=number)
        cells += [replace(one, seen=seen, task=f"{one.task}{copy}") for one in first for copy in range(10)]
    figure = matrix_figure(replace(data, cells=cells))
    (heatmap,) = traces(figure, "heatmap")
    assert np.array(heatmap.z).shape == (40, 75)
    assert heatmap.text[0][-1].startswith("step 999: ")
    assert len(figure.to_json()) < 300_000
    assert "The newest 75 of 1,000 checkpoints." in notes(figure)


def test_the_matrix_counts_what_became_of_its_cells(data: EvaluationData) -> None:
    counts = Counter(one.status for one in data.cells if one.suite == "heldout")
    answer = matrix_figure(suite(data, "heldout")).layout.title.subtitle.text
    assert answer.startswith(f"{counts[CellStatus.DONE]} done, ")
    assert f"{counts[CellStatus.QUEUED]} queued" in answer


def test_rows_of_several_suites_have_their_names(data: EvaluationData) -> None:
    rows = [label.strip() for label in matrix_figure(data).layout.yaxis.ticktext]
    assert rows == ["heldout/clean", "heldout/noisy", "heldout/shifted", "heldout/labels", "sparse/clean"]
    (table, *_) = style.tables(matrix_figure(data))
    assert [row[0] for row in table.rows] == rows
    assert table.columns[1] == "200"


def test_aggregates_have_a_panel_each_the_objective_first(data: EvaluationData) -> None:
    figure = aggregates_figure(suite(data, "heldout"))
    titles = [figure.layout[name].title.text for name in ("yaxis", "yaxis2")]
    assert titles == ["accuracy_mean", "accuracy_min"]
    line = named(figure, "all")
    assert 3400 not in line.x
    assert list(line.x) == sorted(line.x)
    assert list(named(figure, "all, branch 1").x) == [2000, 2200]
    assert list(named(figure, "partial").x) == [3400]
    assert set(named(figure, "regression").x) == {2000, 2200, 3200}
    assert "heldout/clean accuracy" in named(figure, "regression").text[0]


def test_in_and_out_of_distribution_are_two_lines_of_one_panel(data: EvaluationData) -> None:
    figure = aggregates_figure(suite(data, "heldout"))
    whole, out = named(figure, "all"), named(figure, "out")
    assert whole.yaxis == out.yaxis
    values = {one.seen.step: one.values["out/accuracy_mean"].value for one in data.values_of("heldout")}
    assert out.y[0] == pytest.approx(values[out.x[0]], rel=1e-5)


def test_the_answer_names_the_best_and_counts_regressions(data: EvaluationData) -> None:
    (best,) = [one for one in data.values if one.best and one.group.suite == "heldout"]
    regressions = sum(event.kind == "regression" for event in data.events)
    value = f"{best.values['accuracy_mean'].value:.4g}"
    answer = f"Best heldout/accuracy_mean {value} at step 3,000; {regressions} regressions"
    assert aggregates_figure(data).layout.title.subtitle.text == answer


def test_many_members_are_drawn_as_their_spread(data: EvaluationData) -> None:
    every = data.values_of("sparse")
    values: list[GroupValues] = []
    members = {}
    for member in range(1_000):
        for one in every:
            key = 1 + len(values)
            members[key] = member
            seen = replace(one.seen, id=key, trial=key, number=key)
            found = {name: replace(it, value=it.value + member / 1_000) for name, it in one.values.items()}
            values.append(replace(one, seen=seen, values=found))
    figure = aggregates_figure(replace(suite(data, "sparse"), values=values, members=members))
    low, median, high = (next(one for one in figure.data if one.name == name) for name in ("5 %", "all", "95 %"))
    expected = np.array(
        [one.values["accuracy_mean"].value for one in sorted(every, key=lambda one: one.seen.step)]
    )
    assert np.array(median.y) == pytest.approx(expected + 0.4995, rel=1e-4)
    assert np.array(high.y) - np.array(low.y) == pytest.approx(0.9 * 0.999, rel=1e-3)
    assert "of more than 6 members: 5 to 95 % and 25 to 75 % of 1,000" in notes(figure)
    assert len(figure.to_json()) < 300_000


def test_lag_ends_with_what_waits_now(data: EvaluationData) -> None:
    figure = lag_figure(data)
    ends = {trace.name: trace.y[-1] for trace in figure.data if trace.mode == "lines"}
    assert ends == {"heldout": 2, "sparse": 1}
    assert "heldout: 2 checkpoints and 400 steps behind" in figure.layout.title.subtitle.text
    told = {trace.name: trace.text[-1] for trace in figure.data}
    waits = data.waits["heldout"]
    oldest = float(waits.queued[np.isnan(waits.ended)].min())
    assert told["heldout"] == f"heldout: 2 checkpoints, the oldest for {duration(data.now - oldest)}"


def test_lag_is_drawn_where_the_clock_was_set_back(data: EvaluationData) -> None:
    group = Group(study=1, suite="s", seen=1, created_at=1000.5, ended_at=1000.0, state=GroupState.COMPLETE)
    figure = lag_figure(replace(data, waits=waits_of([group]), now=1000.0, lag=()))
    assert min(min(trace.y) for trace in figure.data) == 0


def test_bands_are_where_standard_errors_are_known(data: EvaluationData) -> None:
    bands = [trace for trace in aggregates_figure(suite(data, "sparse")).data if trace.fill == "toself"]
    assert bands
    values = {one.seen.step: one.values["accuracy_mean"] for one in data.values_of("sparse")}
    for x, y in zip(bands[0].x[: len(values)], bands[0].y, strict=False):
        assert y == pytest.approx(values[x].value + 1.96 * (values[x].stderr or 0), rel=1e-5)
    unknown = [trace for trace in aggregates_figure(suite(data, "heldout")).data if trace.fill == "toself"]
    assert unknown == []  # one eval task recorded means of samples, whose error nobody knows


def test_figures_of_nothing_say_so(tmp_path: Path) -> None:
    data = EvaluatedRun(tmp_path, [HELDOUT]).evaluations.data()
    for figure in (draw(data) for draw in EVALUATION_FIGURES.values()):
        assert len(figure.data) == 0
        assert figure.layout.annotations[0].text
