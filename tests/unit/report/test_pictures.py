"""The pictures that open a page: what they draw, by the data of their SVG, and what they leave out."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

import phyla
from evaluated_run import HELDOUT, EvaluatedRun, eventful
from facts import check_facts
from phyla.formatting import score
from phyla.pages import Picture, Plot, Span, Table
from phyla.records import Aim, JobState, Maximize, StudyRecord, TrialRecord
from phyla.report import pictures
from phyla.report.pictures import Canvas, Genealogy, Scale, schedule_picture, score_picture, spark
from phyla.store import open_store
from phyla.study.results import course
from phyla.study.results.pages.evaluations import run_page
from phyla.study.results.pages.studies import studies_page
from phyla.study.results.pages.study import study_page
from report_study import completed, simulated

pytestmark = pytest.mark.xdist_group("figures")  # Plotly and SciPy are imported in one process

MARKUP = "<script>alert('x')</script> & \"b\""
AIM = Aim.of(Maximize("score"))
PARAMETERS = (
    {"name": "lr", "kind": "float", "log": True},
    {"name": "act", "kind": "choice", "values": ["a", MARKUP]},
)


def study(parameters: Sequence[Mapping[str, object]] = PARAMETERS) -> StudyRecord:
    config = {"space": {"parameters": [dict(parameter) for parameter in parameters]}}
    return open_store("memory://").create_study("drawn", config, 0, 2)  # type: ignore[arg-type]


def trial(
    number: int, member: int, fitness: float | None, parent: TrialRecord | None = None, **more: object
) -> TrialRecord:
    start = 0 if parent is None or parent.reached_step is None else parent.reached_step
    settings: dict[str, object] = {"lr": 0.1 / number, "act": MARKUP if member else "a"}
    record = TrialRecord(
        id=number,
        study=1,
        member=member,
        generation=start // 10,
        state=JobState.COMPLETED,
        params=settings,  # type: ignore[arg-type]
        start_step=start,
        end_step=start + 10,
        reached_step=start + 10,
        seed=0,
        token=1,
        reason={"decision": "continue"},
        created_at=0.0,
        parent=parent and parent.id,
        fitness=fitness,
    )
    return replace(record, **more)  # type: ignore[arg-type]


def takeover() -> tuple[list[TrialRecord], list[int]]:
    """Member 1 takes over member 0 after its first trial, and becomes the best."""
    first, worse = trial(1, 0, 0.5), trial(2, 1, 0.1)
    second = trial(3, 0, 0.6, first)
    taker = trial(4, 1, 0.8, first, jump_from=2, exploited=True)
    return [first, worse, second, taker], [1, 4]


def paths(picture: Picture, look: str) -> list[tuple[str, str]]:
    """Return path and title of each mark of a look, in all plots."""
    found = []
    for plot in picture.plots:
        for mark in ElementTree.fromstring(f"<div>{plot.svg}</div>").iter("path"):
            if mark.get("class") == look:
                found.append((mark.get("d", ""), mark.findtext("title") or ""))
    return found


def places(path: str) -> list[tuple[int, int]]:
    return [(int(x), int(y)) for x, y in re.findall(r"(-?\d+) (-?\d+)", path)]


def drawn(trials: Sequence[TrialRecord], path: Sequence[int], aim: Aim = AIM) -> Picture:
    return score_picture(Genealogy(trials, path), aim, "2 members")


def test_the_best_lineage_is_one_line_and_a_takeover_is_marked() -> None:
    picture = drawn(*takeover())
    ((best, _),) = paths(picture, "best")
    (first, last) = places(best)
    assert first[0] < last[0]
    assert first[1] > last[1], "a higher score is higher up"
    ((dot, words),) = paths(picture, "took")
    assert places(dot) == [first]
    assert words == "step 10: member 1 took over member 0, whose score was 0.5000 instead of its own 0.1000"
    ((copies, _),) = paths(picture, "copy")
    assert copies.count("M") == 1
    assert len(paths(picture, "ended")) == 1
    assert {words for _, words in paths(picture, "member")} == {
        "member 0, last 0.6000",
        "member 1, last 0.8000",
    }
    assert picture.lead == "Best score 0.8000, at step 20, by member 1"
    assert ("copy", "1 copy") in picture.keys


@pytest.mark.parametrize("maximize", [True, False])
def test_copies_are_as_many_as_in_the_lineage(maximize: bool) -> None:
    data = simulated(members=12, generations=10, maximize=maximize)
    trials, path = completed(data), [int(data.trials.id[at]) for at in data.winner_path]
    picture = drawn(trials, path, data.aim)
    by_id = {record.id: record for record in trials}
    taken = [
        record
        for record in trials
        if record.parent in by_id and by_id[record.parent].member != record.member and record.fitness is not None
    ]
    assert taken
    ((copies, _),) = paths(picture, "copy")
    assert copies.count("M") == len(taken)
    members = [by_id[key].member for key in path]
    takeovers = sum(before != after for before, after in pairwise(members))
    assert len(paths(picture, "took")) == takeovers
    ((best, _),) = paths(picture, "best")
    assert len(places(best)) == len(path)
    ((winner, words),) = paths(picture, "winner")
    assert places(winner) == places(best)[-1:]
    assert words == f"best {score(by_id[path[-1]].fitness)}"


def test_scores_that_are_not_finite_are_left_out() -> None:
    trials, path = takeover()
    odd = [trial(5, 0, float("nan"), trials[2]), trial(6, 1, float("inf"), trials[3]), trial(7, 0, None)]
    lines = " ".join(path for path, _ in paths(drawn([*trials, *odd], path), "member"))
    assert len(places(lines)) == len(trials)
    assert "nan" not in lines
    assert "inf" not in lines


def test_without_a_score_there_are_no_axes_but_a_reason() -> None:
    unscored = [trial(1, 0, None), trial(2, 1, float("nan"), state=JobState.RUNNING, reached_step=None)]
    for trials in ([], unscored):
        picture = drawn(trials, [])
        assert not picture.plots
        assert picture.lead == "No trial has completed with a finite fitness yet."
    assert not schedule_picture(Genealogy([], []), study()).plots


def test_a_single_trial_is_a_dot_in_the_middle() -> None:
    picture = drawn([trial(1, 0, 0.5)], [1])
    ((winner, _),) = paths(picture, "winner")
    ((x, y),) = places(winner)
    assert 0 < x < 1000
    assert y == 500
    schedule = schedule_picture(Genealogy([trial(1, 0, 0.5)], [1]), study())
    assert [plot.label for plot in schedule.plots] == ["lr 0.1", "act a"]


def test_the_schedule_has_a_plot_for_each_hyperparameter_with_changed_ones_first() -> None:
    trials, path = takeover()
    same = [replace(record, params={"a": 1, "b": 2, "c": 3, "d": 4, **record.params}) for record in trials]
    schedule = schedule_picture(Genealogy(trials, path), study())
    assert [plot.label for plot in schedule.plots] == ["lr 0.1 to 0.025", f"act a to {MARKUP}"]
    many = schedule_picture(Genealogy(same, path), study(()))
    assert [plot.label.split()[0] for plot in many.plots] == ["lr", "act", "a", "b"]
    assert many.lead == "1 change in 20 steps; 4 of 6 hyperparameters"
    for path_of, _ in paths(schedule, "best"):
        assert [x for x, _ in places(path_of)] == sorted(x for x, _ in places(path_of))
        assert len(places(path_of)) == 4


def test_names_are_no_markup() -> None:
    trials, path = takeover()
    for picture in (
        drawn(trials, path, replace(AIM, name=MARKUP)),
        schedule_picture(Genealogy(trials, path), study()),
    ):
        svg = "".join(plot.svg for plot in picture.plots)
        assert "<script" not in svg
        assert "&lt;script" in svg
    assert "<script" not in spark([1.0, 2.0], MARKUP)


def test_names_turn_nothing_around() -> None:
    trials, path = takeover()
    picture = drawn(trials, path, replace(AIM, name="\u202eerocs"))
    svg = "".join(plot.svg for plot in picture.plots) + spark([1.0, 2.0], "\u2066erocs")
    assert "\\u202eerocs" in svg
    assert "\\u2066erocs" in svg
    assert not {"\u202e", "\u2066"} & {*svg}


def test_lines_of_many_members_are_thin_and_few_elements() -> None:
    records = [trial(1 + at, at, at / 100) for at in range(pictures.NAMED + 1)]
    picture = drawn(records, [len(records)])
    assert len(paths(picture, "member")) == 1
    assert 'class="plot many"' in picture.plots[0].svg


@pytest.mark.parametrize(
    ("values", "log", "ticks"),
    [
        ([0.0, 1.0], False, [0, 0.5, 1.0]),
        ([3.0, 3.0], False, [2.9, 3.0, 3.1]),
        ([1e-4, 1.0], True, [1e-4, 1e-2, 1.0]),
        ([0.1, 0.99], True, [0.1, 0.2, 0.5, 1.0]),
        ([0.03, 0.03], True, [0.03, 0.035]),
        ([-5e6, 5e6], False, [-5e6, 0, 5e6]),
    ],
)
def test_ticks_are_round(values: list[float], log: bool, ticks: list[float]) -> None:
    scale = Scale.of(values, log=log)
    most = 4 if len(ticks) > 3 else 3
    assert scale.ticks(most) == pytest.approx(ticks)
    assert all(0 < scale.at(value) < 1 for value in values)


@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize(
    ("low", "high"),
    [(5e-324, 1e-322), (5e-324, 1.7e308), (-1.7e308, 1.7e308), (1.7e308, 1.7e308), (0.0, 5e-324), (1.0, 1.7e308)],
)
def test_scores_at_the_ends_of_the_range_of_numbers_are_drawn(low: float, high: float, maximize: bool) -> None:
    scores = [low, *[high] * 30, low]
    trials = [trial(1 + at, at, fitness) for at, fitness in enumerate(scores)]
    tree, names = Genealogy(trials, [1]), [f"p{at}" for at in range(2)]
    tree.trials = {key: replace(one, params=dict.fromkeys(names, one.fitness)) for key, one in tree.trials.items()}
    assert low == high or spark([low, high], "")
    for picture in (drawn(trials, [1], replace(AIM, maximize=maximize)), schedule_picture(tree, study(()))):
        for plot in picture.plots:
            ElementTree.fromstring(f"<div>{plot.svg}</div>")
        for path, _ in [mark for look in ("member", "best", "winner") for mark in paths(picture, look)]:
            assert re.fullmatch(r"(M|L|h0|-?[0-9]{1,8}| )+", path), path


def test_a_line_to_a_score_far_outside_of_the_axis_has_places_that_browsers_read() -> None:
    trials = [trial(1 + at, at, float(at)) for at in range(100)]
    trials.append(trial(200, 0, -1e300, trials[0]))
    lines = " ".join(path for path, _ in paths(drawn(trials, [100]), "member"))
    assert max(y for _, y in places(lines)) > 1000
    assert max(map(len, re.findall("[0-9]+", lines))) < 9


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0.99991, 0.99994], ["0.99992", "0.99994"]),
        ([1234.51, 1234.64], ["1234.55", "1234.6"]),
        ([0.1, 0.2], ["0.1", "0.15", "0.2"]),
    ],
)
def test_labels_of_an_axis_differ(values: list[float], texts: list[str]) -> None:
    assert [text for _, text in Scale.of(values).labels(3)] == texts
    steps = Canvas(Scale.of([1_000_000.0, 1_000_200.0]), Scale.of([0.0])).plot("", "", ()).svg
    labels = re.findall(r'y="12" [^>]*>([^<]+)<', steps)
    assert len(set(labels)) == len(labels) > 1


def test_a_spark_has_the_finite_values_and_says_them() -> None:
    ((line, _),) = paths(Picture("", "", "", plots=[Plot("", spark([1, float("nan"), 3], "1 to 3"))]), "best")
    assert len(places(line)) == 2
    assert "<title>1 to 3</title>" in spark([1.0, 3.0], "1 to 3")
    assert spark([1.0], "") == spark([], "") == ""


def population(home: Path, members: int, rounds: int) -> phyla.Results:
    made = phyla.Study(
        "drawn",
        {"lr": phyla.Float(0.1, 1.0, log=True)},
        phyla.Maximize("score"),
        phyla.PBT(
            population_size=members, steps_per_trial=5, total_steps=5 * rounds, exploit=phyla.Truncation(0.25)
        ),
        home=home,
        storage="memory://",
    )
    for _ in range(rounds):
        for asked in made.ask(members):
            (asked.checkpoint_dir / "weights").write_text("")
            made.tell(asked, metrics={"score": asked.id + asked.params["lr"]})
    return made.results()


def test_the_page_of_a_study_opens_with_scores_and_schedule(tmp_path: Path) -> None:
    results = population(tmp_path, 4, 3)
    page = study_page(results, pictures=True)
    assert [picture.name for picture in page.pictures] == ["score", "schedule"]
    assert not study_page(results).pictures
    text = results.write_report(tmp_path / "report.html").read_text()
    assert text.index('class="pictures"') < text.index('class="summary"') < text.index('id="feed"')
    best = results.best
    assert best is not None
    assert f"<title>Best score {score(best.fitness)}, at step 15, by member {best.member}; 4 members" in text


def test_of_many_trials_some_members_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = population(tmp_path, 8, 6)
    best = results.best
    assert best is not None
    monkeypatch.setattr(course, "DRAWN", 24)
    monkeypatch.setattr(course, "FEW", 2)
    read = results._query(course.histories, best.trial)
    assert read.members == 4
    assert {record.member for record in read.trials} >= {0, 2, 4, 6}
    assert {*read.path} <= {record.id for record in read.trials}
    assert read.path[-1] == best.trial
    monkeypatch.setattr(course, "DRAWN", 8)
    few = results._query(course.histories, best.trial)
    own = [record for record in few.trials if record.member == 0 and record.id not in few.path]
    assert few.members == 2
    assert len(own) <= 4
    assert ("member", "2 of 8 members") in study_page(results, pictures=True).pictures[0].keys


def test_the_list_of_studies_has_the_course_of_each(tmp_path: Path) -> None:
    results = population(tmp_path, 4, 6)
    best = [value for value, *_ in results.course(6)]
    with_course = studies_page([results.progress(0)], [], "", courses={"drawn": best}).sections[0]
    without = studies_page([results.progress(0)], [], "").sections[0]
    assert isinstance(with_course, Table)
    assert isinstance(without, Table)
    (svg,) = [cell.svg for cell in with_course.rows[0] if isinstance(cell, Span) and cell.svg]
    assert f"<title>best score of drawn so far: {score(best[0])} to {score(best[-1])}</title>" in svg
    assert {*with_course.columns} - {*without.columns} == {"score so far"}
    assert with_course.texts[0][4] == "-", "nothing runs"


@phyla.eval_task
def spoiled(evaluation: phyla.Evaluation) -> None:
    evaluation.record(loss=float(evaluation.checkpoint.name), n=1)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(("aim", "edge"), [(phyla.Minimize, 0), (phyla.Maximize, 1000)])
def test_a_regression_without_a_number_is_marked_at_the_worse_edge(
    tmp_path: Path, value: str, aim: type[phyla.Minimize | phyla.Maximize], edge: int
) -> None:
    run = EvaluatedRun(tmp_path, [phyla.Suite("s", [spoiled], objective=aim("loss_mean"))])
    for step, name in enumerate(["1", "2", value], 1):
        run.sees(name, step)
        run.work()
    (picture,) = run_page(run.evaluations, pictures=True).pictures
    ((path, words),) = paths(picture, "worse")
    assert places(path)[0][1] == edge
    check_facts(words, value)


def test_a_run_whose_scores_are_all_nan_is_told_from_one_that_waits(tmp_path: Path) -> None:
    run = EvaluatedRun(tmp_path, [phyla.Suite("s", [spoiled], objective=phyla.Minimize("loss_mean"))])
    run.sees("nan", 1)
    (waits,) = run_page(run.evaluations, pictures=True).pictures
    run.work()
    (spoilt,) = run_page(run.evaluations, pictures=True).pictures
    check_facts(spoilt.lead, "nan")
    assert waits.lead != spoilt.lead


def test_a_watched_run_opens_with_a_curve_per_suite_its_band_and_regressions(tmp_path: Path) -> None:
    found = eventful(tmp_path).evaluations
    page = run_page(found, pictures=True)
    (picture,) = page.pictures
    suite = found.suites[0]
    assert page.score
    check_facts(str(page.lines[0]), f"best {suite.objective}", f"suite {suite.name}", "step")
    regressions = [event for event in found.events() if event.kind == "regression"]
    assert regressions
    assert {words for _, words in paths(picture, "worse")} <= {event.message for event in regressions}
    assert paths(picture, "worse")
    assert picture.plots[0].label.startswith(f"{suite.name}/{suite.objective} ")
    assert paths(picture, "band")
    values = [row for row in found.values(suite.name) if not row.partial and suite.objective in row.values]
    first = picture._replace(plots=picture.plots[:1])
    lines = [path for look in ("best", "member") for path, _ in paths(first, look)]
    assert sum(len(places(line)) for line in lines) == len({row.seen.id for row in values})


def test_a_run_without_results_says_so(tmp_path: Path) -> None:
    (picture,) = run_page(EvaluatedRun(tmp_path, [HELDOUT]).evaluations, pictures=True).pictures
    assert (picture.lead, picture.plots) == ("No group is complete yet.", ())
