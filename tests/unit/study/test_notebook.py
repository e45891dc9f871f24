"""What notebooks show: a table, the main figure, and a study in place while it runs.

IPython is not among the libraries that tests need. What stands in for it here publishes to a list what IPython's
`display` is given.
"""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import phyla
from phyla.study import compare

Output = dict[str, Any]


class Cell:
    """The outputs of a notebook's cell, and how often one of them was replaced."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.updates = 0

    def display(self, bundle: Output, *, raw: bool, display_id: bool = False) -> "Handle | None":
        assert raw
        self.outputs.append(json.loads(json.dumps(bundle, allow_nan=False)))
        return Handle(self, len(self.outputs) - 1) if display_id else None


class Handle:
    def __init__(self, cell: Cell, place: int) -> None:
        self._cell, self._place = cell, place

    def update(self, bundle: Output, *, raw: bool) -> None:
        assert raw
        self._cell.outputs[self._place] = bundle
        self._cell.updates += 1


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """A cell of a notebook, in which the test runs."""
    made, ipython, display = Cell(), ModuleType("IPython"), ModuleType("IPython.display")
    display.display = made.display  # type: ignore[attr-defined]  # a module that is made here
    ipython.display = display  # type: ignore[attr-defined]
    shell = SimpleNamespace(kernel=object(), execution_count=1)
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return made


METRIC = "<script>alert(1)</script>\u202e"


def train(trial: phyla.Trial) -> None:
    (trial.checkpoint_dir / "weights").write_text("w")
    trial.report({METRIC: trial.end_step + trial.params["lr"]}, step=trial.end_step)


def study(home: Path, name: str = "noted") -> phyla.Study:
    strategy = phyla.PBT(population_size=4, steps_per_trial=5, total_steps=15)
    return phyla.Study(name, {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize(METRIC), strategy, train, home=home)


def shown(cell: Cell, value: Any) -> list[Output]:
    """Return what a cell shows whose last line is this value."""
    cell.outputs.clear()
    value._ipython_display_()
    return cell.outputs


def checked(figure: Output) -> Any:
    """Return Plotly's data of a figure; there is nothing else that could load a script."""
    assert set(figure) == {"text/plain", "application/vnd.plotly.v1+json"}
    return figure["application/vnd.plotly.v1+json"]


def test_a_study_shows_how_it_goes_on_and_what_it_found(tmp_path: Path, cell: Cell) -> None:
    made = study(tmp_path)
    (before,) = shown(cell, made)
    assert "noted: has not run yet" in before["text/plain"]
    assert not (tmp_path / "phyla.db").exists(), "looking makes nothing"

    cell.outputs.clear()
    results = made.run()
    (progress,) = cell.outputs
    assert cell.updates >= 1
    assert "noted: completed" in progress["text/plain"]
    assert "12 of 12" in progress["text/html"]
    assert "took over member" in progress["text/html"]
    assert "&lt;script&gt;alert(1)" in progress["text/html"]
    assert "<script" not in progress["text/html"]
    assert "\u202e" not in progress["text/html"] + progress["text/plain"], "it would turn the scores around"

    (figure,) = shown(cell, results)  # the table is above it, in the same cell
    assert checked(figure)
    sys.modules["IPython"].get_ipython().execution_count += 1

    for value in (results, made, study(tmp_path)):
        table, figure = shown(cell, value)
        assert "12 of 12" in table["text/html"]
        assert table["text/plain"].splitlines()[1].split() == ["trials", "completed", "12", "of", "12"]
        drawing = checked(figure)
        assert results.best is not None
        assert pytest.approx(results.best.fitness, rel=1e-4) in [y for one in drawing["data"] for y in one["y"]]


def test_a_comparison_shows_its_tables_and_curves(tmp_path: Path, cell: Cell) -> None:
    for name in ("one", "two"):
        study(tmp_path, name).run(on_progress=lambda results: None)
    assert cell.outputs == [], "whoever is told of progress shows it"
    compared = compare(["one", "two"], home=tmp_path)
    table, figure = shown(cell, compared)
    assert table["text/html"].count("<table>") == 2
    assert "<script" not in table["text/html"]
    assert checked(figure)["data"]
    rows = compared.dataframe()
    assert list(rows["study"]) == ["one", "two"]
    assert rows["final"].min() > 15


def test_a_terminals_ipython_is_no_notebook(cell: Cell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: SimpleNamespace())
    study(tmp_path).run()
    assert cell.outputs == []
