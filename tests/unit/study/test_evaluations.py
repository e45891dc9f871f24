"""What a run's evaluation found, read from the records alone."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import phyla
from evaluated_run import HELDOUT, SPARSE, EvaluatedRun, VirtualClock, clean, eventful, noisy
from facts import check_facts, raises
from phyla import plugins
from phyla.controller import Sightings, StudyRecords
from phyla.errors import ConfigurationError, StateError, StudyNotFound, UsageError
from phyla.evaluation import EvalTask, Suite
from phyla.integrations.harness_results import to_harness
from phyla.records import GroupState
from phyla.store import open_store
from phyla.study import Evaluations
from phyla.study.results.evaluations import evaluations_of
from phyla.study.results.pages.models import describe_rivals, rivals_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> EvaluatedRun:
    return eventful(tmp_path_factory.mktemp("run"))


def statuses(run: EvaluatedRun, checkpoint: str, suite: str = "heldout") -> dict[str, str]:
    cells = [cell for cell in run.evaluations.cells(suite) if cell.seen.name == checkpoint]
    return {cell.task: cell.status.value for cell in cells}


def test_every_checkpoint_and_eval_task_has_a_fate(run: EvaluatedRun) -> None:
    cells = list(run.evaluations.cells())
    names = [seen.name for seen in run.evaluations.checkpoints()]
    expected = [
        (name, *cell)
        for name in names
        for cell in (*(("heldout", task.name) for task in HELDOUT.tasks), ("sparse", "clean"))
    ]
    assert [(cell.seen.name, cell.suite, cell.task) for cell in cells] == expected
    assert set(statuses(run, "step_200").values()) == {"done"}
    assert statuses(run, "step_400", "sparse") == {"clean": "skipped"}
    assert statuses(run, "step_3400_broken")["noisy"] == "failed"
    assert set(statuses(run, "step_3600_torn").values()) == {"quarantined"}
    assert set(statuses(run, "step_3800").values()) == {"gone"}
    assert statuses(run, "step_2400_again") == {
        "clean": "done", "noisy": "running", "shifted": "queued", "labels": "queued",
    }  # fmt: skip
    assert set(statuses(run, "step_2600_again").values()) == {"queued"}
    assert sum(run.evaluations.summary().values()) == len(cells)


def test_what_has_no_value_says_why(run: EvaluatedRun) -> None:
    why = {(c.status.value, c.suite): c.why for c in run.evaluations.cells() if not c.status.has_value}
    check_facts(why["failed", "heldout"] or "", "ValueError", "[nan]")
    assert why["quarantined", "heldout"]
    check_facts(why["gone", "heldout"], "step_3800")
    check_facts(why["skipped", "sparse"], 3)
    assert why["queued", "heldout"] is None


def test_values_are_merged_from_the_shards(run: EvaluatedRun) -> None:
    first = next(run.evaluations.cells("heldout"))
    assert (first.task, first.shards, first.shards_done, first.n) == ("clean", 2, 2, 40)
    assert first.metric == "accuracy"
    assert first.estimate is not None
    assert first.estimate.value == pytest.approx(1 - math.exp(-0.1), abs=0.05)
    assert first.estimate.stderr == pytest.approx(0.05 / math.sqrt(40), rel=0.3)
    assert {"surprise", "surprise_nll", "surprise_tokens"} < set(first.values)
    assert first.attempts == 2
    assert first.worker == "host:0:1:1"
    assert len(first.files["samples"]) == 2


def test_partial_groups_are_marked(run: EvaluatedRun) -> None:
    assert {cell.seen.name for cell in run.evaluations.cells() if cell.partial} == {"step_3400_broken"}
    values = {one.seen.name: one for one in run.evaluations.values("heldout")}
    assert [name for name, one in values.items() if one.partial] == ["step_3400_broken"]
    assert [name for name, one in values.items() if one.best] == ["step_3000"]
    assert {point.checkpoint for point in run.evaluations.points() if point.partial} == {"step_3400_broken"}


def test_the_best_is_the_one_of_the_objective(run: EvaluatedRun) -> None:
    best = run.evaluations.best("heldout")
    assert best is not None
    complete = [one for one in run.evaluations.values("heldout") if not one.partial]
    assert best.value == max(one.values["accuracy_mean"].value for one in complete)
    assert (best.checkpoint, best.step, best.metric) == ("step_3000", 3000, "accuracy_mean")
    assert best.path == Path("/nowhere/step_3000")
    with raises(ConfigurationError, "sparse"):
        run.evaluations.best("sparse")


def test_the_lag_counts_only_what_can_still_finish(tmp_path: Path) -> None:
    run = EvaluatedRun(tmp_path, [HELDOUT])
    (empty,) = run.evaluations.lag()
    assert (empty.newest, empty.complete, empty.checkpoints, empty.steps) == (None, None, 0, 0)
    run.sees("a", 100)
    (first,) = run.evaluations.lag()
    assert (first.newest, first.complete, first.checkpoints, first.steps) == (100, None, 1, 100)
    run.work()
    run.sees("b", 200)
    run.sees("c", 300)
    run.clock.now += 40
    (lag,) = run.evaluations.lag()
    assert (lag.newest, lag.complete, lag.checkpoints, lag.steps, lag.waiting) == (300, 100, 2, 200, 2)
    assert lag.oldest_s == 70
    run.sources.taken |= {"b", "c"}
    run.work()
    (lag,) = run.evaluations.lag()
    assert (lag.newest, lag.complete, lag.checkpoints, lag.steps, lag.waiting) == (100, 100, 0, 0, 0)


def test_only_the_newest_checkpoints_on_demand(run: EvaluatedRun) -> None:
    names = [seen.name for seen in run.evaluations.checkpoints()]
    assert list(dict.fromkeys(cell.seen.name for cell in run.evaluations.cells(last=3))) == names[-3:]
    assert {one.seen.name for one in run.evaluations.values("heldout", last=5)} <= set(names[-5:])


def test_a_history_is_read_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = eventful(tmp_path)
    whole = [list(run.evaluations.cells()), list(run.evaluations.points()), list(run.evaluations.groups())]
    monkeypatch.setattr("phyla.study.results.evaluations.PAGE", 2)
    monkeypatch.setattr("phyla.study.results.evaluations.ROWS", 3)
    assert [list(run.evaluations.cells()), list(run.evaluations.points()), list(run.evaluations.groups())] == whole


def test_points_are_in_the_order_of_the_steps_of_each_branch(run: EvaluatedRun) -> None:
    points = list(run.evaluations.points())
    order = [(point.branch, point.step) for point in points]
    assert order == sorted(order)
    assert {point.branch for point in points} == {0, 1}
    names = {(point.task, point.name) for point in points}
    assert {("clean", "accuracy"), ("clean", "surprise_nll"), (None, "out/accuracy_mean")} <= names
    assert not any(point.name == "samples" for point in points)


def test_percentiles_over_eval_tasks(run: EvaluatedRun) -> None:
    cells = [cell for cell in run.evaluations.cells("heldout") if cell.seen.name == "step_1000"]
    values = sorted(cell.values["accuracy"].value for cell in cells)
    point = next(p for p in run.evaluations.points("heldout") if p.step == 1000 and p.name == "accuracy_p50")
    assert point.task is None
    assert point.value == pytest.approx((values[1] + values[2]) / 2)


def test_results_of_the_same_checkpoint_are_reused(tmp_path: Path) -> None:
    run = EvaluatedRun(tmp_path, [HELDOUT])
    run.sees("a", 100, identity="same")
    run.work()
    run.sees("copy", 100, identity="same")
    run.work()
    assert set(statuses(run, "copy").values()) == {"reused"}
    first, second = run.evaluations.values("heldout")
    assert first.values == second.values


def test_an_eval_task_that_was_added_is_missing_until_it_is_backfilled(tmp_path: Path) -> None:
    run = EvaluatedRun(tmp_path, [Suite("s", (clean,))])
    run.sees("a", 100)
    run.work()
    suite = Suite("s", (clean, noisy))
    config = {"suites": [plugins.encode(suite, plugins.reference_here)]}
    StudyRecords(run.store, run.run.id).store_config(config, run.run.config)
    assert statuses(run, "a", "s") == {"clean": "done", "noisy": "missing"}
    Sightings(run.store, run.run, [suite]).backfill()
    assert statuses(run, "a", "s") == {"clean": "done", "noisy": "queued"}


def test_a_changed_eval_task_shows_its_newest_version(tmp_path: Path) -> None:
    run = EvaluatedRun(tmp_path, [Suite("s", (clean,))])
    run.sees("a", 100)
    run.work()
    suite = Suite("s", (replace(clean, version="2", shards=1),))
    Sightings(run.store, run.run, [suite]).backfill()
    (cell,) = run.evaluations.cells()
    assert (cell.status.value, cell.shards) == ("queued", 1)


@phyla.eval_task
def uncertain(evaluation: phyla.Evaluation) -> None:
    stderr = None if evaluation.checkpoint.name == "unsure" else 0.01
    evaluation.record(accuracy=evaluation.checkpoint.step / 1000, n=100, stderr=stderr)


def test_checkpoints_within_the_errors_of_the_scores_may_be_as_good_as_the_best(tmp_path: Path) -> None:
    suite = Suite("s", (uncertain,), objective=phyla.Maximize("accuracy_mean"))
    run = EvaluatedRun(tmp_path, [suite])
    steps = {"a": 500, "b": 872, "c": 873, "e": 880, "unsure": 881, "d": 900}  # 1.96 * 2 ** 0.5 * 10 is 27.7
    for name, step in steps.items():
        run.sees(name, step)
    run.work()
    best = run.evaluations.best("s")
    assert best is not None
    assert (best.checkpoint, best.stderr) == ("d", 0.01)
    rivals = rivals_of(run.evaluations, best)
    assert [rival.seen.name for rival in rivals] == ["c", "e"]
    (line,) = describe_rivals(run.evaluations, best, rivals)
    check_facts(line, "2 other checkpoints", "0.880", "--checkpoint e --against d")
    assert list(describe_rivals(run.evaluations, best, [])) == []


def test_results_can_be_read_where_the_code_cannot_be_imported(tmp_path: Path) -> None:
    run = eventful(tmp_path)
    before = [(cell.status, cell.values) for cell in run.evaluations.cells()]
    config = run.evaluations.run.config
    text = repr(config).replace("evaluated_run:", "gone.module:")
    StudyRecords(run.store, run.run.id).store_config(eval(text), config)  # plain JSON of ours
    with pytest.raises(phyla.PhylaError):
        plugins.decode(run.evaluations.run.config["suites"])
    assert [(cell.status, cell.values) for cell in run.evaluations.cells()] == before
    assert [suite.metric for suite in run.evaluations.suites] == ["accuracy", None]


def test_repeated_evaluations_are_told_apart(tmp_path: Path) -> None:
    study = phyla.Study(
        "repeated",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Maximize("quality"),
        phyla.PBT(
            population_size=4,
            steps_per_trial=5,
            total_steps=20,
            exploit=phyla.Truncation(0.3),
            fitness=phyla.FromSuite("s", "quality_mean", remeasure=1),
        ),
        _train,
        suites=[Suite("s", (EvalTask("t", _quality),), objective=phyla.Maximize("quality_mean"))],
        home=tmp_path,
        storage="memory://",
    )
    results = study.run()
    found = results.evaluations()
    assert results.has_suites
    assert {cell.replicate for cell in found.cells()} == {0, 1}
    assert sum(found.summary().values()) == 16  # repetitions do not count
    points = list(found.points())
    assert {point.member for point in points} == {0, 1, 2, 3}
    assert {point.replicate for point in points} == {0, 1}
    best = found.best("s")
    assert best is not None
    assert best.path.exists()
    assert not best.gone
    groups = list(found.groups("s"))
    assert all(group.state is GroupState.COMPLETE for group in groups)


def studied(home: Path, data: Path, *, awaited: bool) -> phyla.Study:
    """Return a study with a suite that needs a file, and whether its population waits for that."""

    def reads(evaluation: phyla.Evaluation) -> None:
        assert data.exists(), "no data"
        evaluation.record(x=1.0)

    fitness = phyla.FromSuite("s", "x_mean", max_partial=2) if awaited else phyla.strategies.Last()
    return phyla.Study(
        "needing",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Maximize("x"),
        phyla.PBT(population_size=4, steps_per_trial=1, total_steps=3, fitness=fitness),
        _train,
        suites=[Suite("s", (EvalTask("reads", reads, max_attempts=1),))],
        home=home,
    )


@pytest.mark.parametrize("awaited", [True, False], ids=["fitness", "beside"])
def test_running_a_study_again_tries_again_what_failed(tmp_path: Path, awaited: bool) -> None:
    data = tmp_path / "data"
    if awaited:
        with raises(phyla.PhylaError, "2 groups", "s", "partial"):
            studied(tmp_path, data, awaited=awaited).run()
    else:
        found = studied(tmp_path, data, awaited=awaited).run().evaluations()
        assert found.summary() == {"failed": 12}
        assert sum(cell.attempts for cell in found.cells()) < 6
        with raises(StateError, "needing"):
            found.retry()
    data.touch()
    results = studied(tmp_path, data, awaited=awaited).run()
    assert results.state == "completed"
    assert len(results.trials()) == 12
    # The checkpoints of some that failed were collected since.
    kept = [cell for cell in results.evaluations().cells() if cell.seen.usable]
    assert kept
    assert all(cell.status.has_value for cell in kept)
    if awaited:
        assert all(trial.fitness == 1.0 for trial in results.trials())


def test_the_best_snapshot_is_found_in_a_home_that_was_moved(tmp_path: Path) -> None:
    training, home, there = tmp_path / "training", tmp_path / "home", tmp_path / "there"
    written = training / "step-1"
    written.mkdir(parents=True)
    for name in ("w", "done"):
        (written / name).write_text("1")
    suite = Suite("s", (EvalTask("t", _quality),), objective=phyla.Maximize("quality_mean"))
    phyla.watch(training, suite, name="run", format="marker", options={"marker": "done"}, home=home,
                following=phyla.Following(once=True))  # fmt: skip
    shutil.rmtree(written)
    home.rename(there)
    best = phyla.load_evaluations("run", home=there).best("s")
    assert best is not None
    assert not best.gone
    assert (best.path / "w").read_text() == "1"


def _train(trial: phyla.Trial) -> None:
    for _ in trial.steps():
        pass
    (trial.checkpoint_dir / "w").write_text(str(trial.params["lr"]))
    trial.report(x=1.0)


def _quality(evaluation: phyla.Evaluation) -> None:
    lr = float((evaluation.checkpoint.path / "w").read_text())
    evaluation.record(quality=lr + evaluation.seed % 7 / 100)


def test_names_that_are_not_there_get_those_that_are(tmp_path: Path) -> None:
    run = EvaluatedRun(tmp_path)
    with raises(ConfigurationError, "odd", "heldout", "sparse"):
        list(run.evaluations.cells("odd"))
    with raises(StudyNotFound, "odd", "memory://", "watched"):
        evaluations_of(run.store, "odd", run.places)
    run.store.create_study("bare", {}, 0, 1)
    with raises(StudyNotFound, "bare"):
        evaluations_of(run.store, "bare", run.places)
    with raises(StudyNotFound, "run 'x'"):
        phyla.load_evaluations("x", home=tmp_path / "nothing")


def test_a_run_without_checkpoints_is_empty_everywhere(tmp_path: Path) -> None:
    found: Evaluations = EvaluatedRun(
        tmp_path, [SPARSE], store=open_store("memory://", clock=VirtualClock())
    ).evaluations
    assert list(found.cells()) == []
    assert list(found.points()) == []
    assert found.summary() == {}
    assert found.events() == []


@pytest.fixture(scope="module")
def rewound(tmp_path_factory: pytest.TempPathFactory) -> EvaluatedRun:
    """A run whose steps 200 and 400 were written twice under the same names."""
    run = EvaluatedRun(tmp_path_factory.mktemp("rewound"), suites=[replace(SPARSE, policy=phyla.Policy())])
    for times, step in ((1, 200), (1, 400), (2, 200), (2, 400)):
        run.sees(f"step_{step}", step, identity=f"{step} {times}")
        run.work()
    return run


@pytest.mark.parametrize(
    ("checkpoint", "against", "names"),
    [
        ("200", "200@0", ("step_200@1", "step_200")),
        ("step_400", "step_400@0", ("step_400@1", "step_400")),
        ("200@0", "200@1", ("step_200", "step_200@1")),
        ("newest", "step_400@0", ("step_400@1", "step_400")),
    ],
)
def test_checkpoints_of_two_branches_are_compared(
    rewound: EvaluatedRun, checkpoint: str, against: str, names: tuple[str, str]
) -> None:
    compared = rewound.evaluations.compare_models(against, checkpoint)
    assert (compared.name, compared.against) == names


@pytest.mark.parametrize("against", ["400", "400@1", "step_400", "step_400@1", "newest"])
def test_a_checkpoint_is_not_compared_with_itself(rewound: EvaluatedRun, against: str) -> None:
    with raises(UsageError, "--checkpoint"):
        rewound.evaluations.compare_models(against, "step_400")


def test_without_an_objective_there_is_no_best_to_compare_with(rewound: EvaluatedRun) -> None:
    with raises(UsageError, "objective"):
        rewound.evaluations.compare_models("best", "400")


def _measures(name: str, right: str) -> EvalTask:
    def measure(evaluation: phyla.Evaluation) -> None:
        evaluation.record(accuracy=float(evaluation.checkpoint.name == right))

    return EvalTask(name, measure)


@pytest.mark.parametrize("agree", [True, False])
def test_the_best_is_compared_with_where_all_suites_agree(tmp_path: Path, agree: bool) -> None:
    goal = phyla.Maximize("accuracy_mean")
    right = {"first": "step_100", "second": "step_100" if agree else "step_200"}
    run = EvaluatedRun(
        tmp_path, [Suite(name, (_measures(name, best),), objective=goal) for name, best in right.items()]
    )
    for step in (100, 200, 300):
        run.sees(f"step_{step}", step)
    run.work()
    if agree:
        assert run.evaluations.compare_models("best").against == "step_100"
    else:
        with raises(UsageError, "first", "second", "step_100@0", "step_200@0"):
            run.evaluations.compare_models("best")


@pytest.mark.parametrize("output", ["no JSON", "[1]", b"\xff", [1.0]])
@pytest.mark.parametrize("samples", [(), ({"id": 1, "harness": "vllm", "accuracy": 1.0},)])
def test_an_output_called_harness_is_no_output_of_the_harness(
    tmp_path: Path, output: object, samples: tuple[dict[str, object], ...]
) -> None:
    def saves(evaluation: phyla.Evaluation) -> None:
        evaluation.record(accuracy=1.0)
        evaluation.save(harness=output)
        evaluation.save_samples(samples)

    run = EvaluatedRun(tmp_path, [Suite("s", (EvalTask("t", saves),))])
    run.sees("step_100", 100)
    run.work()
    results = run.evaluations.model_results()
    assert results.details == {}
    rows = to_harness(results).get("samples", {"t": []})
    assert rows == {
        "t": [{"doc_id": 1, "filter": "none", "metrics": ["accuracy"], "accuracy": 1.0}] * len(samples)
    }


def test_an_output_called_samples_is_not_compared_sample_by_sample(run: EvaluatedRun) -> None:
    compared = run.evaluations.compare_models("step_1000", "step_2000")
    assert {row.task: row.paired for row in compared.differences}["clean"] == 0
