"""The data that the figures of a study show."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compared import attempt, study_of
from drawn import answer, notes, points, rows, segments, trace, traces
from facts import check_facts
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
from phyla.report.figures.gains import Effect, _answer, _groups, effects, gains_figure
from phyla.report.figures.phylogeny import LINES, phylogeny_figure
from phyla.report.figures.progress import progress_figure
from phyla.report.figures.schedules import schedules_figure
from phyla.report.figures.selection import selection_figure
from phyla.report.figures.timeline import LOST, timeline_figure
from report_study import START, columns, completed, empty, large, records_of, simulated, winner_path

pytestmark = pytest.mark.xdist_group("figures")  # Plotly and SciPy are imported in one process

Draw = Callable[[StudyData], Any]
ALL = [draw for name, draw in STUDY_FIGURES.items() if name != "front"]
NAN = {"fitness": math.nan, "order": -math.inf}


@pytest.fixture(scope="module")
def study() -> StudyData:
    return simulated(failing=0.1)


@pytest.fixture(scope="module")
def many() -> StudyData:
    return large(1_000, 20)


@pytest.fixture(scope="module")
def big(many: StudyData) -> dict[Draw, Any]:
    return {draw: draw(many) for draw in ALL}


def changed(data: StudyData, change: Callable[[TrialRecord], dict[str, Any]]) -> StudyData:
    return replace(data, trials=columns(replace(trial, **change(trial)) for trial in records_of(data)))


def heads(data: StudyData) -> list[TrialRecord]:
    """Return every member's newest completed trial."""
    return [*{trial.member: trial for trial in completed(data)}.values()]


def roots(data: StudyData) -> set[int]:
    """Return the founders of all members' weights."""
    return {Lineage(records_of(data)).ancestry(trial.id)[0].id for trial in heads(data)}


def test_plotly_is_imported_only_when_something_is_drawn() -> None:
    code = "import sys, phyla.report; assert not [name for name in sys.modules if name.startswith('plotly')]"
    subprocess.run([sys.executable, "-c", code], check=True)


# Is it working?


@pytest.mark.parametrize("name", STUDY_FIGURES)
def test_names_turn_nothing_around(name: str) -> None:
    data = simulated(members=4, generations=6)
    aim = replace(data.aim, name="\u202eerocs")
    odd = changed(replace(data, aim=aim), lambda trial: {"params": {**trial.params, "\u2066lr": "\u202ex"}})
    drawn = json.loads(STUDY_FIGURES[name](odd).to_json() or "")
    assert not {"\u202e", "\u2066"} & {*json.dumps(drawn, ensure_ascii=False)}


def test_progress_has_the_quantiles_of_the_members_that_came_so_far() -> None:
    # Member 2 has stopped after its first trial.
    history = [(m, 10, 5.0, float(m)) for m in range(3)] + [(m, 10, 9.0, 10.0 + m) for m in range(2)]
    figure = progress_figure(study_of(history))
    assert points(figure, "median") == {10: 1.0, 20: 10.5}
    assert points(figure, "25 %") == {10: 0.5, 20: 10.25}
    assert points(figure, "95 %") == pytest.approx({10: 1.9, 20: 10.95})
    assert points(figure, "best so far") == {10: 2.0, 20: 11.0}
    check_facts(notes(figure), "3 members")


@pytest.mark.parametrize("maximize", [True, False])
def test_the_best_so_far_never_gets_worse_and_ends_at_the_best(maximize: bool) -> None:
    data = simulated(members=4, generations=6, maximize=maximize)
    values = [*points(progress_figure(data), "best so far").values()]
    assert values == sorted(values, reverse=not maximize)
    assert data.best is not None
    assert values[-1] == pytest.approx(data.best.fitness, rel=1e-5)


def test_progress_names_the_best_and_the_latest_improvement(study: StudyData) -> None:
    assert study.best is not None
    check_facts(answer(progress_figure(study)), f"{study.best.fitness:.4f}", study.best.id, study.best.member)
    stuck = study_of([(0, 10, 5.0, 0.9), *((0, 10, 6.0 + n, 0.5) for n in range(7))])
    check_facts(answer(progress_figure(stuck)), "step 10 of 80")


def test_progress_gives_the_expected_score_of_the_best_where_scores_are_noisy() -> None:
    # The first trial was lucky; the last one is the best by an estimate.
    lucky = study_of([(0, 10, 5.0, 0.9), *((0, 10, 6.0 + n, 0.5) for n in range(7))])
    noisy = answer(progress_figure(replace(lucky, best_trial=8, expected=0.4)))
    check_facts(noisy, "0.5000", "0.4000", "trial 8")
    assert "step 10" not in noisy


def test_a_baseline_is_compared_after_as_many_steps(study: StudyData) -> None:
    worse = study_of([(0, 2_500, 5.0, 0.2), (0, 2_500, 6.0, 0.3), (0, 9_000, 9.0, 0.99)], name="<plain>")
    figure = progress_figure(study, baseline=worse)
    assert [*points(figure, "&lt;plain&gt;: best").values()] == [0.2, 0.3, 0.99]
    check_facts(answer(figure), "&lt;plain&gt; had 0.3000")


def test_one_diverged_member_does_not_flatten_the_rest(study: StudyData) -> None:
    def move(trial: TrialRecord) -> dict[str, Any]:
        # Far from 0, so that the axis is linear.
        fitness = 1e9 if trial.id == 30 else trial.fitness and 5 + trial.fitness
        return {"fitness": fitness, "order": None if fitness is None else -fitness}

    data = changed(simulated(maximize=False), move)
    figure = progress_figure(data)
    low, high = figure.layout.yaxis.range
    assert data.best is not None
    assert low < (data.best.fitness or 0.0) < high < 10
    check_facts(notes(figure), "1 trial")
    assert progress_figure(study).layout.yaxis.range is None


def test_progress_counts_the_trials_that_it_omits(study: StudyData) -> None:
    failed = study.trials.counts[JobState.FAILED]
    figure = progress_figure(changed(study, lambda trial: NAN if trial.id == 20 else {}))
    check_facts(notes(figure), f"{failed} failed, 1 without")
    data = judged(study, Maximize("accuracy"), Minimize("cost"), limit=4.0)
    infeasible = sum(bool(trial.criteria and trial.criteria.infeasible) for trial in completed(data))
    check_facts(notes(progress_figure(data)), f"{failed} failed, {infeasible} without")


# Where did the winner come from?


def test_the_phylogeny_has_every_trial_once_at_the_step_where_it_ended(study: StudyData) -> None:
    drawn = trace(phylogeny_figure(study), "trials")
    assert sorted(drawn.x) == sorted(trial.reached_step or 0 for trial in completed(study))
    finite = study.trials.fitness[np.isfinite(study.trials.fitness)].tolist()
    assert {*drawn.marker.color} == {float(f"{fitness:.4g}") for fitness in finite}
    check_facts("\n".join(drawn.text), "took over member", "opt/lr = ")


def test_lineages_are_alive_or_abandoned_and_start_where_they_branch_off(study: StudyData) -> None:
    figure = phylogeny_figure(study)
    winner = trace(figure, "the winner")
    assert list(winner.x[1::2]) == [trial.reached_step for trial in winner_path(study)]
    assert len({*winner.y}) == 1
    alive, abandoned = trace(figure, "with a member at its end"), trace(figure, "abandoned")
    assert {part[-1] for part in segments(alive.x)} <= {trial.reached_step for trial in heads(study)}
    starts = [trial for trial in completed(study) if trial.parent is None or trial.jump_from is not None]
    # No line crosses another: a row is only one lineage's.
    ends = [part[-1] for line in (alive, abandoned) for part in segments(line.y)]
    assert len(starts) == len(ends) == len({*ends})


def test_the_phylogeny_counts_founders_and_takeovers(study: StudyData) -> None:
    path = winner_path(study)
    takeovers = sum(trial.jump_from is not None for trial in path)
    members = len({trial.member for trial in path})
    facts = f"{members} members", f"{takeovers} takeovers", f"{len(roots(study))} founder"
    check_facts(answer(phylogeny_figure(study)), *facts)


# What schedule did it find?


def test_each_hyperparameter_has_a_panel_with_the_winners_schedule_on_top(study: StudyData) -> None:
    figure, schedule = schedules_figure(study), study.schedule
    assert [*dict.fromkeys(line.meta for line in figure.data)] == [param.name for param in study.hyperparameters]
    shares = {matrix.meta: len(matrix.z) for matrix in traces(figure, "share of members")}
    assert shares == {"batch": 4, "augment": 2, "activation": 3}
    assert schedule is not None
    for name in ("opt/lr", "layers"):
        line = traces(figure, "", name)[-1]
        assert (line.name, line.x[-1]) == ("the winner", schedule.steps)
        for start, end, value in zip(line.x[::2], line.x[1::2], line.y[::2], strict=True):
            assert {float(f"{schedule(step)[name]:.6g}") for step in range(start, end)} == {value}


def test_the_population_is_the_quantiles_of_numbers_and_the_shares_of_choices(study: StudyData) -> None:
    figure, first = schedules_figure(study), [t.params for t in completed(study) if t.generation == 0]
    rates = np.array([params["opt/lr"] for params in first], dtype=float)
    assert points(figure, "median", "opt/lr")[250] == pytest.approx(np.median(rates), rel=1e-5)
    shares = np.array(trace(figure, "share of members", "activation").z, dtype=float)
    assert shares.sum(axis=0) == pytest.approx(1, abs=0.01)
    used = [params["activation"] for params in first]
    assert shares[:, 0] == pytest.approx([used.count(name) / 8 for name in ("relu", "gelu", "tanh")], abs=0.001)


def test_conditional_hyperparameters_have_gaps() -> None:
    data = changed(large(3, 10), lambda t: {"params": {"a": 1.0} if t.generation % 2 else {"b": 2.0}})
    line = trace(schedules_figure(data), "the winner", "a")
    xs = [x if y else None for x, y in zip(line.x, line.y, strict=True)]
    assert {part[-1] - part[0] for part in segments(xs)} == {1000}


# What mattered?


def improving() -> StudyData:
    """A study in which halving the learning rate gains 0.1 more than doubling it, and the width does nothing."""
    rng = np.random.default_rng(0)
    history, params = [], []
    for member in range(20):
        rate, fitness = 1.0, 0.0
        for trial in range(6):
            lowered = bool(rng.random() < 0.5)
            rate *= 0.5 if lowered else 2.0
            fitness += 1.0 + 0.1 * lowered + float(rng.normal(0, 0.02))
            history.append((member, 10, 10.0 * trial, fitness))
            params.append({"lr": rate, "width": int(rng.integers(1, 4))})
    parameters: list[Any] = [
        {"name": "lr", "kind": "float", "low": 1e-3, "high": 1e3, "log": True},
        {"name": "width", "kind": "int", "low": 1, "high": 3},
    ]
    return study_of(history, params=params, parameters=parameters)


def test_gains_are_over_what_is_usual_by_the_factor_of_the_change() -> None:
    figure = gains_figure(improving())
    gains = points(figure, "median gain", "lr")
    assert [*gains] == [0.5, 2.0]
    assert gains[0.5] - gains[2.0] == pytest.approx(0.1, abs=0.015)
    bars = trace(figure, "median gain", "lr").error_y
    assert 0 < min(bars.array[0], bars.arrayminus[0]) < max(bars.array[0], bars.arrayminus[0]) < 0.03
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
    history = [(0, 10, float(n), n + 0.1 * (n % 2)) for n in range(12)]
    (lr,) = effects(study_of(history, params=[{"lr": 2.0 ** (n % 2)} for n in range(12)]))
    assert lr.gains[lr.changes > 0] == pytest.approx(0.0, abs=1e-9)
    assert lr.gains[lr.changes < 0] == pytest.approx(-0.2)


def test_only_significant_directions_are_named() -> None:
    check_facts(answer(gains_figure(improving())), "lowering lr", "below 0.05")
    rng = np.random.default_rng(1)
    noise = changed(improving(), lambda trial: {"fitness": float(rng.normal())})
    check_facts(answer(gains_figure(noise)), "above 0.05")


@pytest.mark.parametrize("gained", [0.0, 1.0])
def test_equal_gains_name_no_direction_whatever_their_order(gained: float) -> None:
    changes, gains = np.repeat([1.0, -1.0], 20), np.zeros(40)
    gains[[0, 20]] = gained  # one of either
    for order in (slice(None), slice(None, None, -1)):
        answer_of = _answer([Effect(Hyperparameter("lr"), changes[order], gains[order])])
        check_facts(answer_of, "above 0.05")


def test_choices_are_compared_by_the_new_category(study: StudyData) -> None:
    tables = {table.title: table for table in style.tables(gains_figure(study))}
    assert {row[0] for row in tables["activation: median gain"].rows} <= {"relu", "gelu", "tanh"}


# Is selection healthy?


def test_selection_shows_founders_takeovers_ages_and_waits(study: StudyData) -> None:
    figure = selection_figure(study)
    founders = [*points(figure, "founders left").values()]
    assert founders == sorted(founders, reverse=True)
    assert (founders[0], founders[-1]) == (8, len(roots(study)))
    decisions = [trial for trial in completed(study) if trial.parent is not None]
    share = sum(trial.jump_from is not None for trial in decisions) / len(decisions)
    assert np.mean([*points(figure, "share of decisions").values()]) == pytest.approx(share, abs=0.02)
    check_facts(answer(figure), f"{share:.0%}")
    assert {*points(figure, "median", "age").values()} <= {0.0, 250.0, -250.0}
    assert min(points(figure, "median", "wait").values()) >= 0
    assert trace(figure, "diversity").y[0] == 1.0


def test_diversity_is_that_of_the_start_while_nothing_changes() -> None:
    data = changed(large(20, 6), lambda trial: {"params": {"lr": 2.0 ** (trial.member % 4)}})
    assert {*points(selection_figure(data), "diversity").values()} == {1.0}


# Where did the time go?


def worked() -> StudyData:
    """Two workers: one trains 60 of 100 seconds, one loses an attempt; one eval task on a third."""
    timings = {"loading": 10.0, "training": 60.0, "waiting": 30.0}
    first = attempt(1, 0.0, 100.0, timings=timings)
    lost = attempt(2, 0.0, 50.0, worker="host:1:1:1", state=AttemptState.LOST)
    task = attempt(3, 0.0, 25.0, worker="eval:0:1")
    data = study_of([(0, 10, 100.0, 0.5), (1, 10, 200.0, 0.6)])
    return replace(data, attempts=Attempts.of([first, lost]), evaluating=Attempts.of([task]))


def stacked(figure: Any) -> dict[str, Any]:
    return {line.name: np.array(line.y) for line in figure.data if line.type == "scatter"}


def test_the_timeline_adds_up_to_the_times_of_the_records() -> None:
    figure = timeline_figure(worked())
    spent = {name: 100.0 / 200 * float(ys.sum()) for name, ys in stacked(figure).items()}
    expected = {"training": 60, "loading": 10, "evaluating": 25, "waiting": 30, LOST: 50}
    assert spent == pytest.approx(expected, rel=1e-3)
    shares = "training 34%", "lost 29%", "waiting 17%", "evaluating 14%", "loading 6%"
    check_facts(answer(figure), *shares, "2:55 of 3 workers")
    check_facts(notes(figure), "1 of 2 attempts")


def test_every_worker_has_a_row_with_its_work_over_time() -> None:
    figure = timeline_figure(worked())
    assert rows(figure.layout.yaxis2) == ["host:0:1:1", "host:1:1:1", "eval:0:1"]
    first, second, third = figure.data[-1].text
    assert [first[at] for at in (0, 70, 199)] == [Phase.WAITING, Phase.LOADING, Phase.TRAINING]
    assert [second[at] for at in (0, 99, 199)] == [LOST, LOST, ""]
    assert [third[at] for at in (0, 49, 60)] == [Phase.EVALUATING, Phase.EVALUATING, ""]


def test_a_worker_does_one_thing_at_a_time() -> None:
    data = worked()
    task = Attempts.of([attempt(3, 10.0, 40.0, worker=data.attempts.workers[0])])
    figure = timeline_figure(replace(data, evaluating=task))
    assert sum(stacked(figure).values()).max() <= 2.01


def test_running_attempts_are_drawn_up_to_the_last_record() -> None:
    data = simulated(until=20)
    assert np.isnan(data.attempts.end).any()
    figure = timeline_figure(data)
    unit = 60 if "(min)" in figure.layout.xaxis2.title.text else 1
    assert max(points(figure, "training")) == pytest.approx((data.last_moment - START) / unit, rel=0.02)


# All of them


@pytest.mark.parametrize("draw", ALL)
def test_a_study_without_trials_has_figures_with_a_reason(draw: Draw) -> None:
    figure = draw(empty())
    assert (len(figure.data), len(figure.layout.annotations)) == (0, 1)
    assert figure.layout.annotations[0].text


def nothing_completed() -> StudyData:
    data = simulated(until=4, failing=0)
    first = columns(trial for trial in records_of(data) if trial.parent is None)
    running = {"state": JobState.RUNNING, "reached_step": None, "fitness": None, "order": None}
    return changed(replace(data, trials=first), lambda trial: running)


def all_nan() -> StudyData:
    return changed(simulated(members=3, generations=3), lambda trial: NAN)


def one_trial() -> StudyData:
    return simulated(members=1, generations=1, failing=0)


def no_params() -> StudyData:
    data = changed(simulated(members=2, generations=2), lambda trial: {"params": {}})
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


def test_notes_count_what_a_large_figure_omits(many: StudyData, big: dict[Draw, Any]) -> None:
    tree = big[phylogeny_figure]
    check_facts(notes(tree), f"{LINES} of", f"{len(trace(tree, 'trials').x):,} of 20,000 trials")
    assert list(trace(tree, "the winner").x[1::2]) == [trial.reached_step for trial in winner_path(many)]
    check_facts(notes(big[progress_figure]), "1,000 members")
    check_facts(notes(big[gains_figure]), 250)


def test_tables_have_the_data_of_the_figure(study: StudyData) -> None:
    (progress,) = style.tables(progress_figure(study))
    assert progress.columns[1:] == [">5 %", ">95 %", ">25 %", ">75 %", ">median", ">best so far"]
    assert (len(progress.rows), progress.rows[-1][0]) == (20, "5,000")
    tables = {table.title: table for table in style.tables(schedules_figure(study))}
    assert tables["activation: share of members"].rows[0][0] == "relu"
    assert tables["activation: the winner"].rows[0][1] == "tanh"


def test_a_long_table_is_an_even_selection_and_has_the_count() -> None:
    (table,) = style.tables(progress_figure(study_of([(0, 10 + n % 7, float(n), n / 200) for n in range(180)])))
    assert len(table.rows) == style.ROWS
    check_facts(table.title, "100 of 180 points")


# What are the trade-offs?


def judged(data: StudyData, *goals: Goal, limit: float = math.inf) -> StudyData:
    """Give every completed trial a cost, and what a Pareto objective makes of it."""
    rng = np.random.default_rng(0)

    def judge(trial: TrialRecord) -> dict[str, Any]:
        if trial.state is not JobState.COMPLETED or trial.fitness is None:
            return {}
        values = {"accuracy": trial.fitness, "cost": float(rng.gamma(2.0)), "memory": float(rng.random())}
        verdict = Pareto(*goals).judge(values)
        why = f"cost {values['cost']:g} > {limit:g}" if values["cost"] > limit else None
        criteria = Criteria(values=values, orders=verdict.orders, infeasible=why)
        return {"order": -math.inf if why else verdict.order, "criteria": criteria}

    trials = columns((replace(trial, **judge(trial)) for trial in records_of(data)), goals)
    return replace(data, trials=trials, aim=replace(data.aim, tradeoffs=goals))


def test_the_front_is_drawn_on_top_of_all_trials(study: StudyData) -> None:
    data = judged(study, Maximize("accuracy"), Minimize("cost"), limit=4.0)
    figure = front_figure(data)
    front, infeasible, behind = (trace(figure, name) for name in ("on the front", "infeasible", "behind"))
    best = [(t.criteria.values["accuracy"], t.criteria.values["cost"]) for t in data.front if t.criteria]
    assert pytest.approx(np.array(best), rel=1e-5) == np.array([front.x, front.y]).T
    assert len(front.x) > 3
    assert min(infeasible.y) > 4.0
    check_facts(infeasible.text[0], "infeasible: cost")
    finite = sum(trial.fitness is not None and math.isfinite(trial.fitness) for trial in completed(data))
    assert len(front.x) + len(infeasible.x) + len(behind.x) == finite
    omitted = len(completed(data)) - finite
    assert (f"{omitted} trial" in notes(figure)) == (omitted > 0)


def test_of_equals_in_the_first_goal_the_winner_is_the_best_in_the_next(study: StudyData) -> None:
    best = np.nanmax(study.trials.fitness)
    equal = changed(study, lambda trial: {"fitness": best, "order": best})
    data = judged(equal, Maximize("accuracy"), Minimize("cost"))
    expected = Lineage(records_of(data)).best()
    assert data.best is not None
    assert expected is not None
    assert data.best in data.front
    assert data.best.id == expected.id


def test_a_third_goal_is_a_colour(study: StudyData) -> None:
    data = judged(study, Maximize("accuracy"), Minimize("cost"), Maximize("memory"))
    colours = trace(front_figure(data), "on the front").marker.color
    assert list(colours) == [trial.criteria.values["memory"] for trial in data.front if trial.criteria]


def test_a_front_without_trials_has_a_reason() -> None:
    figure = front_figure(replace(empty(), aim=Aim.of(Pareto(Maximize("a"), Minimize("b")))))
    assert not figure.data
    assert figure.layout.annotations[0].text
