"""What results say of studies whose scores are nothing but noise."""

import random
from pathlib import Path

import phyla
from facts import check_facts


def train(trial: phyla.Trial) -> None:
    (trial.checkpoint_dir / "weights").write_text("w")
    trial.report(loss=random.Random(trial.seed).gauss(0, 1))


def noisy(home: Path, name: str, *, members: int, steps: int) -> phyla.Results:
    strategy = phyla.PBT(population_size=members, steps_per_trial=1, total_steps=steps)
    space = {"lr": phyla.Float(1e-4, 1.0, log=True)}
    return phyla.Study(name, space, phyla.Minimize("loss"), strategy, train, seed=1, home=home).run(workers=0)


def test_comparisons_take_expected_scores_not_lucky_ones(tmp_path: Path) -> None:
    few, many = noisy(tmp_path, "few", members=6, steps=12), noisy(tmp_path, "many", members=12, steps=12)
    comparison = phyla.compare(["few", "many"], home=tmp_path)
    for results, group in zip((few, many), comparison.groups, strict=True):
        assert results.best is not None
        assert results.best.expected is not None
        assert not results.best.unclear
        assert group.values == (results.best.expected.value,)
        assert group.curves[0].ys[-1] < min(group.values)  # the best score, a lucky one


def test_studies_of_few_trials_do_not_know_how_noisy_their_scores_are(tmp_path: Path) -> None:
    few, fewer = (noisy(tmp_path, name, members=2, steps=steps) for name, steps in (("few", 4), ("fewer", 1)))
    best = few.best
    assert best is not None
    assert (best.unclear, best.expected, best.noise) == (True, None, None)
    check_facts(*phyla.compare([few, fewer]).notes, "2 of 2 studies", "phyla final STUDY --file FILE")
