"""How many trials a study is expected to end with."""

from pathlib import Path
from typing import Any

import pytest

import phyla
from phyla.records import Member, MemberState
from phyla.study.results.progress import trials_left
from phyla.study.study import Study


def train(trial: phyla.Trial) -> None:
    (trial.checkpoint_dir / "x").write_text("x")
    trial.report(q=trial.params["lr"])


def study(home: Path, strategy: Any, **settings: Any) -> Study:
    space = {"lr": phyla.Float(0.1, 1.0)}
    objective = phyla.Maximize("q")
    return phyla.Study("s", space, objective, strategy, train, home=home, storage="memory://", **settings)


STRATEGIES = {
    "random search": (phyla.RandomSearch(members=3, total_steps=10), 3),
    "in parts": (phyla.RandomSearch(members=3, total_steps=10, steps_per_trial=4), 9),
    "grid": (phyla.GridSearch({"lr": [0.1, 0.2, 0.5, 1.0]}, total_steps=10), 4),
    "pbt": (phyla.PBT(population_size=3, steps_per_trial=4, total_steps=10), 9),
    "replay": (
        phyla.strategies.Replay(
            trials=[
                {"trial": number, "start_step": start, "end_step": end, "seed": number, "params": {"lr": 0.2}}
                for number, (start, end) in enumerate(((0, 4), (4, 5), (5, 10)), 1)
            ]
        ),
        3,
    ),
}

UNKNOWN = [
    phyla.ASHA(members=9, min_steps=1, total_steps=9),
    phyla.strategies.FixedSchedule([(0, {"lr": 0.2}), (15, {"lr": 0.3})], total_steps=30, members=2),
    phyla.strategies.SingleWorkerExplore(explore_steps=2, exploit_steps=6, total_steps=19),
]


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_total_is_known_from_the_start_and_right_at_every_moment(name: str, tmp_path: Path) -> None:
    strategy, total = STRATEGIES[name]
    made = study(tmp_path, strategy)
    assert made.results().progress().planned_trials == total
    while (trial := made.ask()) is not None:
        train(trial)
        made.tell(trial)
        assert made.results().progress().planned_trials == total
    assert made.results().counts() == {"completed": total}


@pytest.mark.parametrize("strategy", UNKNOWN, ids=lambda strategy: type(strategy).__name__)
def test_it_is_unknown_where_trials_differ_and_known_in_the_end(strategy: Any, tmp_path: Path) -> None:
    made = study(tmp_path, strategy)
    assert made.results().progress().planned_trials is None
    progress = made.run().progress()
    assert progress.planned_trials == progress.completed >= 4


def test_a_member_that_a_stopping_rule_ended_is_not_waited_for(tmp_path: Path) -> None:
    grid = phyla.GridSearch({"lr": [0.1, 0.2]}, total_steps=10, steps_per_trial=5)
    ended = Member(study=1, index=0, state=MemberState.DONE, progress=5, generation=1)
    assert trials_left(study(tmp_path, grid).config(), ended) == 0
