"""Figures: what somebody who looks at them would notice."""

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from phyla.records import Aim, Criteria, Goal, JobState, Maximize, Minimize, Pareto, TrialRecord
from phyla.report import StudyData
from phyla.report.data import finite_fitness
from phyla.report.figures.fitness import fitness_figure
from phyla.report.figures.front import front_figure
from phyla.report.figures.lineage import lineage_figure
from phyla.report.figures.schedules import schedules_figure
from report_study import empty, large, simulated

Draw = Callable[[StudyData], Any]
ALL: tuple[Draw, ...] = (fitness_figure, schedules_figure, lineage_figure)


@pytest.fixture(scope="module")
def study() -> StudyData:
    return simulated(failing=0.1)


@pytest.fixture(scope="module")
def many() -> StudyData:
    return large(100, 200)


@pytest.fixture(scope="module")
def big(many: StudyData) -> dict[Draw, Any]:
    return {draw: draw(many) for draw in ALL}


def trace(figure: Any, name: str) -> Any:
    found = [one for one in figure.data if one.name and name in one.name]
    assert len(found) == 1, [one.name for one in figure.data]
    return found[0]


def notes(figure: Any) -> str:
    return "\n".join(note.text for note in figure.layout.annotations if note.name == "notes")


def pieces(xs: Any) -> list[list[float]]:
    """Return what lies between the gaps of a line."""
    found: list[list[float]] = [[]]
    for x in xs:
        if x is None:
            found.append([])
        else:
            found[-1].append(x)
    return [piece for piece in found if piece]


def changed(data: StudyData, **fields: Any) -> StudyData:
    return replace(data, trials=[replace(trial, **fields) for trial in data.trials])


def test_plotly_is_imported_only_when_something_is_drawn() -> None:
    code = "import sys, phyla.report; assert not [name for name in sys.modules if name.startswith('plotly')]"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_fitness_has_a_line_for_each_member_on_its_own_clock(study: StudyData) -> None:
    lines = [one for one in fitness_figure(study).data if one.legendgroup == "members"]
    assert len(lines) == 8
    assert sum(line.showlegend for line in lines) == 1
    for line, trials in zip(lines, study.by_member.values(), strict=True):
        done = [trial for trial in trials if trial.state is JobState.COMPLETED]
        assert list(line.x) == [250 * (place + 1) for place in range(20)]
        assert list(line.y) == [finite_fitness(trial) for trial in done]


def test_every_jump_is_an_arrow_from_donor_to_child(study: StudyData) -> None:
    arrows = trace(fitness_figure(study), "jumps")
    jumped = [study.lineage.trial(child) for _, child in study.lineage.jumps]
    expected = set()
    for child in jumped:
        donor = study.lineage.parent(child.id)
        assert donor is not None
        if finite_fitness(child) is not None:
            expected.add((study.spent[donor.id], donor.fitness, study.spent[child.id], child.fitness))
    assert len(expected) > 20
    flat = list(zip(arrows.x, arrows.y, strict=True))
    drawn = {(*flat[place], *flat[place + 1]) for place in range(0, len(flat), 3)}
    assert drawn == expected
    assert list(arrows.marker.symbol[:3]) == ["circle", "arrow", "circle"]


def test_the_winner_stands_out(study: StudyData) -> None:
    figure = fitness_figure(study)
    best = study.best
    assert best is not None
    path = trace(figure, "the winner's path")
    assert list(path.y) == [trial.fitness for trial in study.winner_path]
    assert path.y[-1] == max(trial.fitness or 0.0 for trial in study.scored)
    assert f"trial {best.id} of member {best.member}" in path.name
    assert (path.x[-1], path.y[-1]) == (study.spent[best.id], best.fitness)


@pytest.mark.parametrize("maximize", [True, False])
def test_the_best_so_far_never_gets_worse_and_ends_at_the_best(maximize: bool) -> None:
    data = simulated(members=4, generations=6, maximize=maximize)
    line = trace(fitness_figure(data), "best so far")
    assert list(line.y) == sorted(line.y, reverse=not maximize)
    assert data.best is not None
    assert line.y[-1] == data.best.fitness
    assert list(line.x) == sorted(line.x)


def test_hovering_tells_the_decision_in_words(study: StudyData) -> None:
    told = "\n".join(text for line in fitness_figure(study).data if line.text for text in line.text)
    assert "started fresh" in told
    assert "took over member" in told
    assert "opt/lr = " in told


def test_failed_trials_and_odd_fitness_lie_at_the_edge(study: StudyData) -> None:
    trials = [
        replace(trial, fitness=float("nan"), order=float("-inf")) if trial.id == 20 else trial
        for trial in study.trials
    ]
    data = replace(study, trials=trials)
    figure = fitness_figure(data)
    odd, failed = trace(figure, "1 nan or infinite"), trace(figure, "failed trials")
    assert len(odd.x) == 1
    assert len(failed.x) == data.counts[JobState.FAILED]
    assert set(failed.y) == {0.012}
    assert "out of memory" in failed.text[0]
    line = next(one for one in figure.data if one.meta and one.meta["member"] == data.lineage.trial(20).member)
    assert list(line.y).count(None) == 1


def test_outliers_do_not_flatten_the_rest(study: StudyData) -> None:
    data = simulated(maximize=False)
    # Far from 0, so that the axis is linear.
    moved = [
        trial if trial.fitness is None else replace(trial, fitness=5 + trial.fitness, order=-5 - trial.fitness)
        for trial in data.trials
    ]
    ruined = [replace(trial, fitness=1e9, order=-1e9) if trial.id == 30 else trial for trial in moved]
    figure = fitness_figure(replace(data, trials=ruined))
    assert figure.layout.yaxis.range[1] < 10
    assert data.best is not None
    assert figure.layout.yaxis.range[0] < 5 + (data.best.fitness or 0.0)
    assert "Outside of the range shown: 1 point;" in notes(figure)
    assert fitness_figure(study).layout.yaxis.range is None


def test_each_hyperparameter_gets_a_panel_of_its_kind(study: StudyData) -> None:
    figure = schedules_figure(study)
    titles = [note.text for note in figure.layout.annotations]
    assert titles == ["opt/lr", "opt/momentum", "batch", "layers", "augment", "activation"]
    assert figure.layout.yaxis.type == "log"
    assert figure.layout.yaxis2.type is None
    assert list(figure.layout.yaxis3.ticktext) == ["16", "32", "64", "128"]
    assert list(figure.layout.yaxis5.ticktext) == ["True", "False"]
    assert list(figure.layout.yaxis6.ticktext) == ["relu", "gelu", "tanh"]


def test_the_winners_schedule_is_on_top_of_its_panel(study: StudyData) -> None:
    figure = schedules_figure(study)
    schedule = study.schedule
    assert schedule is not None
    for index, name in ((0, "opt/lr"), (3, "layers")):
        line = figure.data[2 * index + 1]
        assert line.name == "the winner's schedule"
        assert line.x[-1] == schedule.steps
        for start, end, value in zip(line.x[::2], line.x[1::2], line.y[::2], strict=True):
            assert {schedule(step)[name] for step in range(start, end)} == {value}


def test_members_of_one_category_do_not_hide_each_other() -> None:
    data = changed(simulated(members=6, generations=2, failing=0), params={"opt": "adam"})
    line = schedules_figure(data).data[0]
    assert len({y for y in line.y if y is not None}) == 6
    assert all(abs(y) < 0.5 for y in line.y if y is not None)


def test_conditional_hyperparameters_have_gaps() -> None:
    data = large(3, 10)
    trials = [replace(t, params={"a": 1.0} if t.generation % 2 else {"b": 2.0}) for t in data.trials]
    figure = schedules_figure(replace(data, trials=trials))
    assert [note.text for note in figure.layout.annotations] == ["b", "a"]
    lines = pieces(figure.data[0].x)
    assert len(lines) == 3 * 5
    assert all(line[-1] - line[0] == 1000 for line in lines)


def test_the_lineage_shows_every_trial_and_every_edge(study: StudyData) -> None:
    figure = lineage_figure(study)
    nodes = trace(figure, "fitness")
    assert len(nodes.x) == len(study.scored)
    assert list(nodes.marker.color) == [trial.fitness for trial in study.scored]
    assert len(trace(figure, "failed").x) == study.counts[JobState.FAILED] > 0
    completed = [trial for trial in study.lineage if trial.state is JobState.COMPLETED]
    assert len(pieces(trace(figure, "abandoned").x)) == sum(trial.jump_from is not None for trial in completed)
    assert len(pieces(trace(figure, "weights taken from").x)) == sum(t.parent is not None for t in completed)
    path = pieces(trace(figure, "the winner's path").x)
    assert [piece[-1] for piece in path] == [trial.generation for trial in study.winner_path[1:]]


def test_a_failed_trial_lies_before_the_one_that_replaced_it(study: StudyData) -> None:
    failed = trace(lineage_figure(study), "failed")
    generations = [trial.generation for trial in study.lineage if trial.state is JobState.FAILED]
    assert all(g - 0.5 < x < g for x, g in zip(failed.x, generations, strict=True))


def test_what_still_runs_is_drawn() -> None:
    data = simulated(until=20)
    unfinished = trace(lineage_figure(data), "unfinished")
    assert len(unfinished.x) == data.counts[JobState.RUNNING] + data.counts[JobState.PENDING] > 0


@pytest.mark.parametrize("draw", ALL)
def test_a_study_without_trials_says_so(draw: Draw) -> None:
    figure = draw(empty())
    assert [note.text[:8] for note in figure.layout.annotations] == ["No trial"]
    assert not figure.data


def nothing_completed() -> StudyData:
    data = simulated(until=4, failing=0)
    first = [t for t in data.trials if t.parent is None]
    open_fields: dict[str, Any] = {
        "state": JobState.RUNNING,
        "reached_step": None,
        "fitness": None,
        "order": None,
    }
    return replace(data, trials=[replace(t, **open_fields) for t in first])


def all_nan() -> StudyData:
    return changed(simulated(members=3, generations=3), fitness=float("nan"), order=float("-inf"))


def one_trial() -> StudyData:
    return simulated(members=1, generations=1, failing=0)


def no_params() -> StudyData:
    data = changed(simulated(members=2, generations=2), params={})
    return replace(data, study=replace(data.study, config={}))


@pytest.mark.parametrize("draw", ALL)
@pytest.mark.parametrize("make", [nothing_completed, all_nan, one_trial, no_params])
def test_odd_studies_are_drawn_all_the_same(make: Callable[[], StudyData], draw: Draw) -> None:
    assert draw(make()).to_json()


def test_labels_show_markup_as_it_was_written(study: StudyData) -> None:
    data = replace(study, aim=replace(study.aim, name="<b>acc</b> & more"))
    assert "&lt;b&gt;acc&lt;/b&gt; &amp; more" in fitness_figure(data).layout.title.text
    assert "<b>acc" not in str(lineage_figure(data).to_json())


@pytest.mark.parametrize("draw", ALL)
def test_twenty_thousand_trials_stay_light(big: dict[Draw, Any], draw: Draw) -> None:
    assert len(big[draw].to_json()) < 6_000_000


def test_what_is_left_out_is_said(many: StudyData, big: dict[Draw, Any]) -> None:
    figure = big[fitness_figure]
    shown = sum(len(line.x) for line in figure.data if line.legendgroup == "members")
    assert f"show {shown:,} of 20,000 trials" in notes(figure)
    assert shown < 10_000
    arrows = trace(figure, "jumps")
    assert f"{len(arrows.x) // 3} of {len(many.lineage.jumps):,} jumps" in notes(figure)
    assert "of 100 members are drawn" in notes(big[schedules_figure])


def test_beyond_its_limit_the_lineage_shows_the_newest_and_the_winners_path(many: StudyData) -> None:
    last = many.trials[-1]
    more: list[TrialRecord] = [
        replace(last, id=last.id + 1 + n, generation=last.generation + 1 + n, parent=last.id + n, jump_from=None)
        for n in range(50)
    ]
    figure = lineage_figure(replace(many, trials=[*many.trials, *more]))
    assert "newest 6,000 of 20,050" in notes(figure)
    assert len(trace(figure, "the winner's path").x) == 3 * (len(many.winner_path) - 1)


def test_members_outlines_keep_their_extremes(many: StudyData, big: dict[Draw, Any]) -> None:
    lines = [one for one in big[fitness_figure].data if one.legendgroup == "members"]
    for line, trials in zip(lines, many.by_member.values(), strict=True):
        values = [trial.fitness or 0.0 for trial in trials]
        assert max(line.y) == max(values)
        assert min(line.y) == min(values)
        assert line.x[-1] == 200_000


def judged(data: StudyData, *goals: Goal, limit: float = math.inf) -> StudyData:
    """Give every completed trial a cost, and what a Pareto objective makes of it."""
    rng = np.random.default_rng(0)
    trials = []
    for one in data.trials:
        if one.state is JobState.COMPLETED and one.fitness is not None:
            values = {"accuracy": one.fitness, "cost": float(rng.gamma(2.0)), "memory": float(rng.random())}
            found = Pareto(*goals).judge(values)
            why = f"cost {values['cost']:g} > {limit:g}" if values["cost"] > limit else None
            criteria = Criteria(values=values, orders=found.orders, infeasible=why)
            order = -math.inf if why else found.order
            trials.append(replace(one, order=order, criteria=criteria))
        else:
            trials.append(one)
    return replace(data, trials=trials, aim=replace(data.aim, tradeoffs=goals))


def test_the_front_is_drawn_on_top_of_all_trials(study: StudyData) -> None:
    data = judged(study, Maximize("accuracy"), Minimize("cost"), limit=4.0)
    figure = front_figure(data)
    front = trace(figure, "on the front")
    assert list(zip(front.x, front.y, strict=True)) == [
        (one.criteria.values["accuracy"], one.criteria.values["cost"]) for one in data.front if one.criteria
    ]
    assert len(front.x) > 3
    infeasible = trace(figure, "infeasible")
    assert min(infeasible.y) > 4.0
    assert "infeasible: cost" in infeasible.text[0]
    behind = trace(figure, "behind")
    finite = [one for one in data.completed if one.fitness is not None and math.isfinite(one.fitness)]
    assert len(front.x) + len(infeasible.x) + len(behind.x) == len(finite)
    left_out = len(data.completed) - len(finite)
    assert (f"Left out: {left_out} trial" in notes(figure)) == (left_out > 0)
    assert figure.layout.xaxis.title.text == "accuracy, higher is better"
    assert figure.layout.yaxis.title.text == "cost, lower is better"


def test_a_third_goal_is_a_colour(study: StudyData) -> None:
    data = judged(study, Maximize("accuracy"), Minimize("cost"), Maximize("memory"))
    front = trace(front_figure(data), "on the front")
    assert list(front.marker.color) == [one.criteria.values["memory"] for one in data.front if one.criteria]


def test_a_front_without_trials_says_so() -> None:
    figure = front_figure(replace(empty(), aim=Aim.of(Pareto(Maximize("a"), Minimize("b")))))
    assert "No trial has completed" in figure.layout.annotations[0].text


def test_infeasible_trials_are_marked_in_the_figure_of_fitness(study: StudyData) -> None:
    data = judged(study, Maximize("accuracy"), Minimize("cost"), limit=4.0)
    shown = trace(fitness_figure(data), "infeasible")
    assert len(shown.x) == sum(bool(one.criteria and one.criteria.infeasible) for one in data.completed)
    best = trace(fitness_figure(data), "best so far")
    assert max(best.y) == max(one.fitness for one in data.scored if one.fitness is not None)
