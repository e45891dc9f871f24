"""Replicates: the same study again with other seeds, and what compares them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import phyla
from facts import check_facts, raises
from listing import list_studies
from phyla.errors import ConfigurationError, StudyChanged, StudyNotFound, UsageError
from phyla.records import StudyState
from phyla.study import Places, Replicate, replicate_seed
from phyla.study.maintaining.maintain import maintain
from phyla.study.repeating.replicates import replicates


def train(trial: phyla.Trial) -> None:
    before = float((trial.parent.path / "weights").read_text()) if trial.parent else 0.0
    value = before + sum(trial.params["lr"] for _ in trial.steps()) + trial.seed % 100 / 1000
    (trial.checkpoint_dir / "weights").write_text(str(value))
    trial.report(score=value)


def study(
    home: Path, name: str = "s", *, train: Callable[[phyla.Trial], object] = train, **options: Any
) -> phyla.Study:
    members = options.pop("members", 2)
    return phyla.Study(
        name,
        {"lr": phyla.Float(0.1, 1.0)},
        options.pop("objective", phyla.Maximize("score")),
        phyla.PBT(population_size=members, steps_per_trial=2, total_steps=4),
        train,
        home=home,
        **options,
    )


def test_the_seeds_of_replicates_are_what_they_have_always_been() -> None:
    assert [replicate_seed(0, index) for index in range(3)] == [
        4232842298785526,
        2383740928328724,
        8033538764449424,
    ]
    assert replicate_seed(3, 0) == 7055350388103897


def test_seeds_depend_on_the_studys_seed_and_the_index_alone(tmp_path: Path) -> None:
    first, second = study(tmp_path, "a", seed=7), study(tmp_path, "b", seed=7, members=3)
    assert [one.seed for one in replicates(first, 4)] == [one.seed for one in replicates(second, 4)]
    assert [one.name for one in replicates(first, 2)] == ["a-r0", "a-r1"]
    assert [one.seed for one in replicates(first, 2)] == [one.seed for one in replicates(first, 4)][:2]
    assert (first.name, first.seed, first.declared.replicate_of) == ("a", 7, None)


def test_neighbouring_seeds_share_no_replicates() -> None:
    seeds = [replicate_seed(seed, index) for seed in range(300) for index in range(30)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**53 for seed in seeds)


def test_replicates_run_one_after_the_other_and_remember_what_they_are(tmp_path: Path) -> None:
    results = phyla.run_replicates(study(tmp_path, seed=5), 3)
    assert [one.name for one in results] == ["s-r0", "s-r1", "s-r2"]
    for index, one in enumerate(results):
        assert one.state is StudyState.COMPLETED
        assert one.replicate == Replicate(of="s", index=index)
        assert one.study().seed == replicate_seed(5, index)
    best = {one.best.fitness for one in results if one.best}
    assert len(best) == 3
    # By its own name it is still that replicate.
    again = study(tmp_path, "s-r1", seed=replicate_seed(5, 1)).run()
    assert again.replicate == Replicate(of="s", index=1)
    assert phyla.load_study("s-r1", home=tmp_path).replicate == Replicate(of="s", index=1)


def test_what_was_interrupted_goes_on_and_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    calls: list[int] = []

    def interrupted(trial: phyla.Trial) -> None:
        calls.append(trial.id)
        if len(calls) == 6:
            raise KeyboardInterrupt
        train(trial)

    with pytest.raises(KeyboardInterrupt):
        phyla.run_replicates(study(tmp_path / "a", train=interrupted), 3)
    assert [one.name for one in list_studies(tmp_path / "a")] == ["s-r0", "s-r1"]
    resumed = phyla.run_replicates(study(tmp_path / "a", train=interrupted), 3)
    straight = phyla.run_replicates(study(tmp_path / "b"), 3)
    assert [[trial.fitness for trial in one.trials()] for one in resumed] == [
        [trial.fitness for trial in one.trials()] for one in straight
    ]
    assert len(calls) == 3 * 4 + 1


def test_more_replicates_can_be_added(tmp_path: Path) -> None:
    phyla.run_replicates(study(tmp_path), 1)
    before = phyla.load_study("s-r0", home=tmp_path).trials()
    results = phyla.run_replicates(study(tmp_path), 2)
    assert results[0].trials() == before
    assert len(results[1].trials()) == 4


def test_a_series_that_a_person_stopped_starts_no_further_replicate(tmp_path: Path) -> None:
    def stops(trial: phyla.Trial) -> None:
        train(trial)
        maintain("s-r0", Places.of(tmp_path)).stop("enough")

    results = phyla.run_replicates(study(tmp_path, train=stops), 3)
    assert [(one.name, one.state) for one in results] == [("s-r0", StudyState.STOPPED)]


def test_replicates_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    made = study(tmp_path)
    for count in (0, -1, 1.5, True):
        with raises(ConfigurationError, count, "at least 1"):
            phyla.run_replicates(made, count)  # type: ignore[arg-type]
    with raises(ConfigurationError, "s-r0"):
        phyla.run_replicates(made.replicate(0), 2)
    with raises(ConfigurationError, "x" * 99, "100 characters"):
        phyla.run_replicates(study(tmp_path, "x" * 99), 2)
    phyla.run_replicates(made, 1)
    with raises(StudyChanged, "s-r0"):
        phyla.run_replicates(study(tmp_path, members=3), 1)


# Comparing


def test_replicates_of_one_name_are_taken_together(tmp_path: Path) -> None:
    phyla.run_replicates(study(tmp_path, "a"), 3)
    phyla.run_replicates(study(tmp_path, "b", members=3), 3)
    study(tmp_path, "c", seed=9).run()
    comparison = phyla.compare(["a", "b", "c"], home=tmp_path)
    assert isinstance(comparison, phyla.report.StudyComparison)
    assert {group.name: len(group.studies) for group in comparison.groups} == {"a": 3, "b": 3, "c": 1}
    assert [test.paired for test in comparison.tests] == [True, False, False]
    assert comparison.groups[0].curves[0].last == 8
    assert comparison.groups[0].time.timed == 3 * 4
    # What is named twice counts once, and results serve as well as names.
    results = phyla.load_study("a-r1", home=tmp_path)
    same = phyla.compare([results, "a", "a-r2", "b"], home=tmp_path)
    assert [one.name for one in same.groups[0].studies] == ["a-r0", "a-r1", "a-r2"]
    one = phyla.compare(["a-r0", "b-r0"], home=tmp_path, by="time", target=1.5)
    assert (one.target, one.by, [test.p for test in one.tests]) == (1.5, "time", [None])
    assert comparison.write_report(tmp_path / "c.html").stat().st_size > 5e5


def test_the_same_study_of_two_homes_is_compared_with_itself(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for home in (old, new):
        phyla.run_replicates(study(home, "a"), 2)
    loaded = [phyla.load_study(f"a-r{index}", home=home) for home in (old, new) for index in (0, 1)]
    comparison = phyla.compare(loaded)
    assert [group.name for group in comparison.groups] == [f"a ({old})", f"a ({new})"]
    (test,) = comparison.tests
    assert (test.paired, test.count, test.p) == (True, (2, 2), 1.0)
    # Replicates that are spread over stores belong together.
    together = phyla.compare([loaded[0], loaded[3]])
    assert [(group.name, len(group.studies)) for group in together.groups] == [("a", 2)]


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    with raises(StudyNotFound, "phyla.db"):
        phyla.compare(["a", "b"], home=tmp_path)
    study(tmp_path, "a").run()
    with raises(StudyNotFound, "b", "a"):
        phyla.compare(["a", "b"], home=tmp_path)
    with raises(UsageError, "a"):
        phyla.compare("a", home=tmp_path)
    study(tmp_path, "down", objective=phyla.Minimize("score")).run()
    with raises(UsageError, "a: maximize score", "down: minimize score"):
        phyla.compare(["a", "down"], home=tmp_path)
    for wrong in ({"by": "cost"}, {"target": float("nan")}):
        with pytest.raises(ConfigurationError, match=r"must be|choose"):
            phyla.compare(["a", "down"], home=tmp_path, **wrong)


def test_that_fitness_is_not_the_same_everywhere_is_told(tmp_path: Path) -> None:
    for name, fitness in (
        ("a", phyla.strategies.Last()),
        ("b", phyla.strategies.MeanOfLast(3)),
        ("c", phyla.strategies.Last()),
    ):
        strategy = phyla.RandomSearch(members=2, total_steps=4, fitness=fitness)
        space, objective = {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("score")
        phyla.Study(name, space, objective, strategy, train, home=tmp_path).run()
    (few,) = phyla.compare(["a", "c"], home=tmp_path).notes
    check_facts(few, "2 of 2 studies")  # too small to tell if scores are noisy
    note, _ = phyla.compare(["a", "b", "c"], home=tmp_path).notes
    check_facts(note, "last() in a, c")


def test_a_study_that_has_not_begun_is_named(tmp_path: Path) -> None:
    study(tmp_path, "a").run()
    assert study(tmp_path, "b").ask() is not None
    study(tmp_path, "c").run()
    comparison = phyla.compare(["a", "b", "c"], home=tmp_path)
    assert [group.name for group in comparison.groups] == ["a", "c"]
    check_facts(comparison.notes[0], "b", "no completed trial")
