"""Figures: what somebody who looks at them would notice."""

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compared import attempt, study_of
from phyla.lineage import Lineage
from phyla.records import (
    Aim,
    AttemptState,
    Criteria,
    Goal,
    JobState,
    Maximize,
    Minimize,
    Pareto,
    Phase,
    TrialRecord,
)
from phyla.report import STUDY_FIGURES, StudyData, style
from phyla.report.columns import Attempts
from phyla.report.data import Hyperparameter
from phyla.report.figures.front import front_figure
from phyla.report.figures.gains import Effect, _groups, effects, gains_figure
from phyla.report.figures.phylogeny import LINES, phylogeny_figure
from phyla.report.figures.progress import progress_figure
from phyla.report.figures.schedules import schedules_figure
from phyla.report.figures.selection import selection_figure
from phyla.report.figures.timeline import LOST, timeline_figure
from report_study import START, columns, completed, empty, large, records_of, simulated, winner_path

Draw = Callable[[StudyData], Any]
ALL = [draw for name, draw in STUDY_FIGURES.items() if name != "front"]


@pytest.fixture(scope="module")
def study() -> StudyData:
    return simulated(failing=0.1)


@pytest.fixture(scope="module")
def many() -> StudyData:
    return large(1_000, 20)


@pytest.fixture(scope="module")
def big(many: StudyData) -> dict[Draw, Any]:
    return {draw: draw(many) for draw in ALL}


def traces(figure: Any, name: str) -> list[Any]:
    return [one for one in figure.data if one.name and name in one.name]


def trace(figure: Any, name: str) -> Any:
    (found,) = traces(figure, name)
    return found


def panel(figure: Any, heading: str, name: str) -> Any:
    """Return a trace of one panel of several."""
    (found,) = [one for one in traces(figure, name) if one.meta and heading in one.meta]
    return found


def notes(figure: Any) -> str:
    return "\n".join(note.text for note in figure.layout.annotations if note.name == style.NOTES)


def answer(figure: Any) -> str:
    return str(figure.layout.title.subtitle.text)


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
    return replace(data, trials=columns(replace(trial, **fields) for trial in records_of(data)))


def heads(data: StudyData) -> list[TrialRecord]:
    """Every member's newest completed trial."""
    return [*{trial.member: trial for trial in completed(data)}.values()]


def test_plotly_is_imported_only_when_something_is_drawn() -> None:
    code = "import sys, phyla.report; assert not [name for name in sys.modules if name.startswith('plotly')]"
    subprocess.run([sys.executable, "-c", code], check=True)


# Is it working?


def test_progress_has_the_quantiles_of_the_members_that_came_so_far() -> None:
    # Member 2 has stopped after its first trial.
    lines = [(m, 10, 5.0, float(m)) for m in range(3)] + [(m, 10, 9.0, 10.0 + m) for m in range(2)]
    figure = progress_figure(study_of(lines))
    assert list(trace(figure, "median").x) == [10, 20]
    assert list(trace(figure, "median").y) == [1.0, 10.5]
    assert list(trace(figure, "25 %").y) == [0.5, 10.25]
    assert list(trace(figure, "95 %").y) == pytest.approx([1.9, 10.95])
    assert list(trace(figure, "best so far").y) == [2.0, 11.0]
    assert "of 3 members" in notes(figure)


@pytest.mark.parametrize("maximize", [True, False])
def test_the_best_so_far_never_gets_worse_and_ends_at_the_best(maximize: bool) -> None:
    data = simulated(members=4, generations=6, maximize=maximize)
    line = trace(progress_figure(data), "best so far")
    assert list(line.y) == sorted(line.y, reverse=not maximize)
    assert data.best is not None
    assert line.y[-1] == pytest.approx(data.best.fitness, rel=1e-5)


def test_progress_says_how_good_it_is_and_whether_it_still_gets_better(study: StudyData) -> None:
    best = study.best
    assert best is not None
    assert f"Best {best.fitness:.4f}, by trial {best.id} of member {best.member}" in answer(progress_figure(study))
    assert "in the last quarter of the steps" in answer(progress_figure(study))
    stuck = study_of([(0, 10, 5.0, 0.9), *((0, 10, 6.0 + n, 0.5) for n in range(7))])
    assert "nothing better since step 10 of 80" in answer(progress_figure(stuck))


def test_a_baseline_is_compared_after_as_many_steps(study: StudyData) -> None:
    worse = study_of([(0, 2_500, 5.0, 0.2), (0, 2_500, 6.0, 0.3), (0, 9_000, 9.0, 0.99)], name="<plain>")
    figure = progress_figure(study, baseline=worse)
    assert list(trace(figure, "&lt;plain&gt;: best").y) == [0.2, 0.3, 0.99]
    assert "&lt;plain&gt; had 0.3000 after as many steps" in answer(figure)


def test_one_diverged_member_does_not_flatten_the_rest(study: StudyData) -> None:
    data = simulated(maximize=False)
    # Far from 0, so that the axis is linear.
    moved = [
        trial if trial.fitness is None else replace(trial, fitness=5 + trial.fitness, order=-5 - trial.fitness)
        for trial in records_of(data)
    ]
    ruined = [replace(trial, fitness=1e9, order=-1e9) if trial.id == 30 else trial for trial in moved]
    figure = progress_figure(replace(data, trials=columns(ruined)))
    assert figure.layout.yaxis.range[1] < 10
    assert data.best is not None
    assert figure.layout.yaxis.range[0] < 5 + (data.best.fitness or 0.0)
    assert "Outside of the range shown: 1 trial;" in notes(figure)
    assert progress_figure(study).layout.yaxis.range is None


def test_what_is_left_out_of_progress_is_said(study: StudyData) -> None:
    trials = [
        replace(trial, fitness=float("nan"), order=float("-inf")) if trial.id == 20 else trial
        for trial in records_of(study)
    ]
    figure = progress_figure(replace(study, trials=columns(trials)))
    failed = study.trials.counts[JobState.FAILED]
    assert failed > 0
    assert f"Trials left out: {failed} failed, 1 without a finite fitness that is feasible." in notes(figure)


# Where did the winner come from?


def test_the_phylogeny_has_every_trial_once_at_the_step_where_it_ended(study: StudyData) -> None:
    points = trace(phylogeny_figure(study), "trials")
    assert sorted(points.x) == sorted(trial.reached_step or 0 for trial in completed(study))
    known = {fitness for fitness in study.trials.fitness.tolist() if math.isfinite(fitness)}
    assert {*points.marker.color} == {float(f"{one:.4g}") for one in known}
    told = "\n".join(points.text)
    assert "started fresh" in told
    assert "took over member" in told
    assert "opt/lr = " in told


def test_the_winners_line_is_strong_and_straight(study: StudyData) -> None:
    line = trace(phylogeny_figure(study), "the winner")
    assert list(line.x[1::2]) == [trial.reached_step for trial in winner_path(study)]
    assert len({*line.y}) == 1


def test_lineages_are_alive_or_abandoned_and_start_where_they_branch_off(study: StudyData) -> None:
    figure = phylogeny_figure(study)
    alive, abandoned = trace(figure, "with a member at its end"), trace(figure, "abandoned")
    ends = {trial.reached_step for trial in heads(study)}
    assert {piece[-1] for piece in pieces(alive.x)} <= ends
    roots = sum(trial.parent is None for trial in completed(study))
    jumps = sum(trial.jump_from is not None for trial in completed(study))
    assert len(pieces(alive.x)) + len(pieces(abandoned.x)) == roots + jumps
    # No line crosses another: a row is only one lineage's.
    rows = [piece[-1] for one in (alive, abandoned) for piece in pieces(one.y)]
    assert len(rows) == len({*rows})


def test_the_answer_counts_founders_and_takeovers(study: StudyData) -> None:
    path = winner_path(study)
    taken = sum(trial.jump_from is not None for trial in path)
    members = len({trial.member for trial in path})
    assert f"through {members} members and {taken} takeovers" in answer(phylogeny_figure(study))
    roots = {Lineage(records_of(study)).ancestry(trial.id)[0].id for trial in heads(study)}
    assert f"{len(roots)} founder" in answer(phylogeny_figure(study))


# What schedule did it find?


def test_each_hyperparameter_gets_a_panel_of_its_kind(study: StudyData) -> None:
    figure = schedules_figure(study)
    assert list(dict.fromkeys(one.meta for one in figure.data)) == [one.name for one in study.hyperparameters]
    shares = {one.meta: len(one.z) for one in traces(figure, "share of members")}
    assert shares == {"batch": 4, "augment": 2, "activation": 3}


def test_the_winners_schedule_is_on_top_of_its_panel(study: StudyData) -> None:
    figure = schedules_figure(study)
    schedule = study.schedule
    assert schedule is not None
    for name in ("opt/lr", "layers"):
        line = panel(figure, name, "the winner")
        assert line.x[-1] == schedule.steps
        for start, end, value in zip(line.x[::2], line.x[1::2], line.y[::2], strict=True):
            assert {float(f"{schedule(step)[name]:.6g}") for step in range(start, end)} == {value}
        last = [one for one in figure.data if one.meta == name][-1]
        assert last is line


def test_the_population_of_a_number_is_its_quantiles(study: StudyData) -> None:
    first = [float(str(trial.params["opt/lr"])) for trial in completed(study) if trial.generation == 0]
    middle = panel(schedules_figure(study), "opt/lr", "median")
    assert middle.x[0] == 250
    assert middle.y[0] == pytest.approx(np.median(first), rel=1e-5)


def test_the_population_of_choices_is_their_shares(study: StudyData) -> None:
    shares = panel(schedules_figure(study), "activation", "share of members")
    columns = np.array(shares.z, dtype=float)
    assert columns.sum(axis=0) == pytest.approx(1, abs=0.01)
    first = [trial.params["activation"] for trial in completed(study) if trial.generation == 0]
    assert columns[:, 0] == pytest.approx([first.count(name) / 8 for name in ("relu", "gelu", "tanh")], abs=0.001)


def test_conditional_hyperparameters_have_gaps() -> None:
    data = large(3, 10)
    trials = [replace(t, params={"a": 1.0} if t.generation % 2 else {"b": 2.0}) for t in records_of(data)]
    line = panel(schedules_figure(replace(data, trials=columns(trials))), "a", "the winner")
    assert all(
        piece[-1] - piece[0] == 1000
        for piece in pieces([x if y else None for x, y in zip(line.x, line.y, strict=True)])
    )


# What mattered?


def improving(seed: int = 0) -> StudyData:
    """A study in which halving the learning rate gains 0.1 more than doubling it, and the width does nothing."""
    rng = np.random.default_rng(seed)
    lines, params = [], []
    for member in range(20):
        rate, fitness = 1.0, 0.0
        for trial in range(6):
            lowered = bool(rng.random() < 0.5)
            rate *= 0.5 if lowered else 2.0
            fitness += 1.0 + 0.1 * lowered + float(rng.normal(0, 0.02))
            lines.append((member, 10, 10.0 * trial, fitness))
            params.append({"lr": rate, "width": int(rng.integers(1, 4))})
    parameters: list[Any] = [
        {"name": "lr", "kind": "float", "low": 1e-3, "high": 1e3, "log": True},
        {"name": "width", "kind": "int", "low": 1, "high": 3},
    ]
    return study_of(lines, params=params, parameters=parameters)


def test_gains_are_over_what_is_usual_by_the_factor_of_the_change() -> None:
    figure = gains_figure(improving())
    means = panel(figure, "lr", "median gain")
    assert list(means.x) == [0.5, 2.0]
    assert means.y[0] - means.y[1] == pytest.approx(0.1, abs=0.015)
    assert "×0.5" in means.text[0]
    assert 0 < means.error_y.array[0] < 0.03
    assert 0 < means.error_y.arrayminus[0] < 0.03
    assert figure.layout.xaxis.type == "log"


def test_intervals_hold_the_median_in_95_of_100_cases() -> None:
    rng = np.random.default_rng(0)
    held = []
    for count in (6, 7, 15, 40, 101):
        for _ in range(400):
            gains = rng.standard_cauchy(count)
            (group,) = _groups(Effect(Hyperparameter("lr"), np.ones(count), gains))
            held.append(group[3] <= 0 <= group[4])
    assert 0.94 < np.mean(held) < 0.98


def test_a_gain_is_compared_with_enough_others_also_in_a_small_population() -> None:
    lines = [(0, 10, float(n), n + 0.1 * (n % 2)) for n in range(12)]
    data = study_of(lines, params=[{"lr": 2.0 ** (n % 2)} for n in range(12)])
    (lr,) = effects(data)
    assert lr.gains[lr.changes > 0] == pytest.approx(0.0, abs=1e-9)
    assert lr.gains[lr.changes < 0] == pytest.approx(-0.2)


def test_the_answer_names_what_is_beyond_chance_only() -> None:
    assert "after lowering lr (p below 0.05, adjusted)" in answer(gains_figure(improving()))
    data = improving()
    rng = np.random.default_rng(1)
    noise = [replace(trial, fitness=float(rng.normal())) for trial in records_of(data)]
    assert "No direction of change stands out" in answer(gains_figure(replace(data, trials=columns(noise))))


def test_choices_are_compared_by_what_was_chosen(study: StudyData) -> None:
    (table,) = [
        one for one in style.tables(gains_figure(study)) if one.title.startswith("activation: median gain")
    ]
    assert {row[0] for row in table.rows} <= {"relu", "gelu", "tanh"}


# Is selection healthy?


def test_founders_left_are_the_roots_of_the_members_weights(study: StudyData) -> None:
    figure = selection_figure(study)
    left = trace(figure, "founders left")
    assert left.y[0] == 8
    assert list(left.y) == sorted(left.y, reverse=True)
    roots = {Lineage(records_of(study)).ancestry(trial.id)[0].id for trial in heads(study)}
    assert left.y[-1] == len(roots)


def test_selection_shows_takeovers_ages_and_waits(study: StudyData) -> None:
    figure = selection_figure(study)
    shares, decided = trace(figure, "share of decisions"), [t for t in completed(study) if t.parent is not None]
    taken = sum(trial.jump_from is not None for trial in decided)
    assert np.mean(shares.y) == pytest.approx(taken / len(decided), abs=0.02)
    assert f"{taken / len(decided):.0%} of decisions took over weights" in answer(figure)
    ages = panel(figure, "age of the weights taken over", "median")
    assert set(ages.y) <= {0.0, 250.0, -250.0}
    assert min(panel(figure, "wait before a trial", "median").y) >= 0
    assert trace(figure, "diversity").y[0] == 1.0


def test_diversity_is_that_of_the_start_while_nothing_changes() -> None:
    data = large(20, 6)
    trials = [replace(trial, params={"lr": 2.0 ** (trial.member % 4)}) for trial in records_of(data)]
    assert set(trace(selection_figure(replace(data, trials=columns(trials))), "diversity").y) == {1.0}


# Where did the time go?


def worked() -> StudyData:
    """Two workers: one trains 60 of 100 seconds, one loses an attempt; one eval task on a third."""
    data = study_of([(0, 10, 100.0, 0.5), (1, 10, 200.0, 0.6)])
    known = {"loading": 10.0, "training": 60.0, "waiting": 30.0}
    first = attempt(1, 0.0, 100.0, timings=known)
    lost = attempt(2, 0.0, 50.0, worker="host:1:1:1", state=AttemptState.LOST)
    task = attempt(3, 0.0, 25.0, worker="eval:0:1")
    return replace(data, attempts=Attempts.of([first, lost]), evaluating=Attempts.of([task]))


def test_the_timeline_adds_up_to_what_the_records_say() -> None:
    figure = timeline_figure(worked())
    steps = 100.0 / 200
    spent = {one.name: steps * sum(one.y) for one in figure.data if one.type == "scatter"}
    assert spent == pytest.approx(
        {"training": 60, "loading": 10, "evaluating": 25, "waiting": 30, LOST: 50}, rel=1e-3
    )
    assert answer(figure) == "training 34%, lost 29%, waiting 17%, evaluating 14%, loading 6%; 2:55 of 3 workers"
    assert "Phases are known of 1 of 2 attempts" in notes(figure)


def test_every_worker_has_a_row_with_what_it_did_when() -> None:
    figure = timeline_figure(worked())
    rows = trace(figure, "what each worker did")
    assert [label.strip() for label in figure.layout.yaxis2.ticktext] == ["host:0:1:1", "host:1:1:1", "eval:0:1"]
    first, second, third = rows.text
    assert [first[at] for at in (0, 70, 199)] == [Phase.WAITING, Phase.LOADING, Phase.TRAINING]
    assert [second[at] for at in (0, 99, 199)] == [LOST, LOST, ""]
    assert [third[at] for at in (0, 49, 60)] == [Phase.EVALUATING, Phase.EVALUATING, ""]


def test_nobody_does_two_things_at_a_time() -> None:
    data = worked()
    its = Attempts.of([attempt(3, 10.0, 40.0, worker=data.attempts.workers[0])])
    drawn = [one.y for one in timeline_figure(replace(data, evaluating=its)).data if one.type == "scatter"]
    assert np.sum(drawn, axis=0).max() <= 2.01


def test_what_still_runs_is_drawn_up_to_the_last_record() -> None:
    data = simulated(until=20)
    assert np.isnan(data.attempts.end).any()
    figure = timeline_figure(data)
    hours = 60 if "(min)" in figure.layout.xaxis2.title.text else 1
    assert max(trace(figure, "training").x) == pytest.approx((data.last_moment - START) / hours, rel=0.02)


# All of them


@pytest.mark.parametrize("draw", ALL)
def test_a_study_without_trials_says_so(draw: Draw) -> None:
    figure = draw(empty())
    assert [note.text[:3] for note in figure.layout.annotations] == ["No "]
    assert not figure.data


def nothing_completed() -> StudyData:
    data = simulated(until=4, failing=0)
    first = [t for t in records_of(data) if t.parent is None]
    open_fields: dict[str, Any] = {
        "state": JobState.RUNNING,
        "reached_step": None,
        "fitness": None,
        "order": None,
    }
    return replace(data, trials=columns(replace(t, **open_fields) for t in first))


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
    figure = draw(make())
    assert figure.to_json()
    style.tables(figure)


def test_labels_show_markup_as_it_was_written(study: StudyData) -> None:
    data = replace(study, aim=replace(study.aim, name="<b>acc</b> & more"))
    assert "&lt;b&gt;acc&lt;/b&gt; &amp; more" in progress_figure(data).layout.yaxis.title.text
    for draw in ALL:
        assert "<b>acc" not in str(draw(data).to_json())


@pytest.mark.parametrize("draw", ALL)
def test_a_thousand_members_stay_light(big: dict[Draw, Any], draw: Draw) -> None:
    assert len(big[draw].to_json()) < 300_000


def test_what_is_left_out_is_said(many: StudyData, big: dict[Draw, Any]) -> None:
    assert f"{LINES} of " in notes(big[phylogeny_figure])
    points = trace(big[phylogeny_figure], "trials")
    assert f"{len(points.x):,} of 20,000 trials have a point" in notes(big[phylogeny_figure])
    winner = trace(big[phylogeny_figure], "the winner")
    assert list(winner.x[1::2]) == [trial.reached_step for trial in winner_path(many)]
    assert "of 1,000 members" in notes(big[progress_figure])
    assert "Dots: at most 250" in notes(big[gains_figure])


def test_tables_say_what_the_figure_shows(study: StudyData) -> None:
    (progress,) = style.tables(progress_figure(study))
    assert progress.columns == [
        *(">progress of the member (steps)", ">5 %", ">95 %", ">25 %", ">75 %", ">median", ">best so far"),
    ]
    assert len(progress.rows) == 20
    assert progress.rows[-1][0] == "5,000"
    found = {table.title: table for table in style.tables(schedules_figure(study))}
    assert found["activation: share of members"].rows[0][0] == "relu"
    winner = found["activation: the winner"]
    assert winner.columns == [">steps", ">", "what"]
    assert winner.rows[0][1:] == ["tanh", "steps 0 to 250, trial 1; tanh"]


def test_a_long_table_is_an_even_selection_and_says_so() -> None:
    figure = progress_figure(study_of([(0, 10 + n % 7, float(n), n / 200) for n in range(180)]))
    (table,) = style.tables(figure)
    assert len(table.rows) == style.ROWS
    assert "(100 of 180 points)" in table.title


def judged(data: StudyData, *goals: Goal, limit: float = math.inf) -> StudyData:
    """Give every completed trial a cost, and what a Pareto objective makes of it."""
    rng = np.random.default_rng(0)
    trials = []
    for one in records_of(data):
        if one.state is JobState.COMPLETED and one.fitness is not None:
            values = {"accuracy": one.fitness, "cost": float(rng.gamma(2.0)), "memory": float(rng.random())}
            found = Pareto(*goals).judge(values)
            why = f"cost {values['cost']:g} > {limit:g}" if values["cost"] > limit else None
            criteria = Criteria(values=values, orders=found.orders, infeasible=why)
            order = -math.inf if why else found.order
            trials.append(replace(one, order=order, criteria=criteria))
        else:
            trials.append(one)
    return replace(data, trials=columns(trials, goals), aim=replace(data.aim, tradeoffs=goals))


def test_the_front_is_drawn_on_top_of_all_trials(study: StudyData) -> None:
    data = judged(study, Maximize("accuracy"), Minimize("cost"), limit=4.0)
    figure = front_figure(data)
    front = trace(figure, "on the front")
    expected = [
        (one.criteria.values["accuracy"], one.criteria.values["cost"]) for one in data.front if one.criteria
    ]
    assert pytest.approx(np.array(expected), rel=1e-5) == np.array([front.x, front.y]).T
    assert len(front.x) > 3
    infeasible = trace(figure, "infeasible")
    assert min(infeasible.y) > 4.0
    assert "infeasible: cost" in infeasible.text[0]
    behind = trace(figure, "behind")
    finite = [one for one in completed(data) if one.fitness is not None and math.isfinite(one.fitness)]
    assert len(front.x) + len(infeasible.x) + len(behind.x) == len(finite)
    left_out = len(completed(data)) - len(finite)
    assert (f"Left out: {left_out} trial" in notes(figure)) == (left_out > 0)
    assert figure.layout.xaxis.title.text == "accuracy, higher is better"
    assert figure.layout.yaxis.title.text == "cost, lower is better"


def test_of_equals_in_the_first_goal_the_winner_is_the_best_in_the_next(study: StudyData) -> None:
    best = max(one.fitness for one in completed(study) if one.fitness is not None and math.isfinite(one.fitness))
    equal = changed(study, fitness=best, order=best)
    data = judged(equal, Maximize("accuracy"), Minimize("cost"))
    its = data.best
    assert its is not None
    assert its in data.front
    known = Lineage(records_of(data)).best()
    assert known is not None
    assert its.id == known.id


def test_a_third_goal_is_a_colour(study: StudyData) -> None:
    data = judged(study, Maximize("accuracy"), Minimize("cost"), Maximize("memory"))
    front = trace(front_figure(data), "on the front")
    assert list(front.marker.color) == [one.criteria.values["memory"] for one in data.front if one.criteria]


def test_a_front_without_trials_says_so() -> None:
    figure = front_figure(replace(empty(), aim=Aim.of(Pareto(Maximize("a"), Minimize("b")))))
    assert "No trial has completed" in figure.layout.annotations[0].text


def test_infeasible_trials_are_marked_in_the_figure_of_fitness(study: StudyData) -> None:
    data = judged(study, Maximize("accuracy"), Minimize("cost"), limit=4.0)
    figure = progress_figure(data)
    infeasible = sum(bool(one.criteria and one.criteria.infeasible) for one in completed(data))
    assert f"{infeasible} without a finite fitness that is feasible" in notes(figure)
    best = trace(figure, "best so far")
    assert max(best.y) == pytest.approx(np.nanmax(data.trials.fitness), rel=1e-5)
