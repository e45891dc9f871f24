"""Figures and pages of an evaluation."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluated_run import HELDOUT, EvaluatedRun, eventful
from phyla.report import (
    EvaluationData,
    style,
    write_evaluation_report,
    write_report,
)
from phyla.report.figures.suites import aggregates_figure, matrix_figure
from report_study import simulated


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
    (note,) = [one.text for one in figure.layout.annotations if one.name == style.NOTES]
    assert note == f"The newest 5 of {len(data.checkpoints)} checkpoints."


def test_aggregates_have_a_panel_each_the_objective_first(data: EvaluationData) -> None:
    figure = aggregates_figure(suite(data, "heldout"))
    titles = [figure.layout[name].title.text for name in ("yaxis", "yaxis2", "yaxis3")]
    assert titles == ["accuracy_mean", "out/accuracy_mean", "accuracy_min"]
    line = named(figure, "branch 0")
    assert 3400 not in line.x
    assert list(line.x) == sorted(line.x)
    assert list(named(figure, "branch 1").x) == [2000, 2200]
    assert list(named(figure, "partial").x) == [3400]
    assert set(named(figure, "regression").x) == {2000, 2200, 3200}
    assert "heldout/clean accuracy" in named(figure, "regression").text[0]


def test_bands_are_where_standard_errors_are_known(data: EvaluationData) -> None:
    bands = [trace for trace in aggregates_figure(suite(data, "sparse")).data if trace.fill == "toself"]
    assert bands
    values = {one.seen.step: one.values["accuracy_mean"] for one in data.values_of("sparse")}
    for x, y in zip(bands[0].x[: len(values)], bands[0].y, strict=False):
        assert y == pytest.approx(values[x].value + 1.96 * (values[x].stderr or 0))
    unknown = [trace for trace in aggregates_figure(suite(data, "heldout")).data if trace.fill == "toself"]
    assert unknown == []  # one eval task recorded means of samples, whose error nobody knows


def test_figures_of_nothing_say_so(tmp_path: Path) -> None:
    data = EvaluatedRun(tmp_path, [HELDOUT]).evaluations.data()
    for figure in (matrix_figure(suite(data, "heldout")), aggregates_figure(suite(data, "heldout"))):
        assert len(figure.data) == 0
        assert figure.layout.annotations[0].text
    assert write_evaluation_report(data, tmp_path / "page.html").exists()


def test_the_page_of_a_run(data: EvaluationData, tmp_path: Path) -> None:
    page = write_evaluation_report(data, tmp_path / "deep" / "page.html").read_text()
    titles = re.findall("<h2>(.*?)</h2>", page)
    assert titles == [
        "How do the evaluations go?",
        "Which checkpoint is good at what?",
        "Regressions and warnings",
        "Values that are missing, and why",
    ]
    assert "heldout: 2 checkpoints and 400 steps behind" in page
    assert "ValueError: the model gave [nan]" in page
    assert "best heldout/accuracy_mean, at step 3,000" in page


def test_the_page_of_a_study_has_its_evaluation(data: EvaluationData, tmp_path: Path) -> None:
    study = simulated(members=4, generations=4)
    with_it = write_report(study, tmp_path / "with.html", evaluation=data).read_text()
    without = write_report(study, tmp_path / "without.html").read_text()
    assert "Which checkpoint is good" in with_it
    assert "Which checkpoint is good" not in without
    assert re.findall(r'data-figure="([\w-]+)"', with_it) == re.findall(
        r'<script type="application/json" id="([\w-]+)"', with_it
    )


def test_what_users_wrote_is_no_markup(tmp_path: Path) -> None:
    run = EvaluatedRun(tmp_path, [HELDOUT])
    run.sees("<b>a</b><script>1</script>", 100, error="<i>torn</i>")
    run.sees("<u>b</u>", 200)
    run.work()
    page = run.evaluations.write_report(tmp_path / "page.html").read_text()
    assert "<script>1" not in page
    assert "<i>torn" not in page
    assert "<u>b" not in page
