"""How many trials a study is expected to end with."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import phyla
from phyla.records import Member, MemberState
from phyla.study.progress import trials_left
from phyla.study.study import Study


def train(trial: phyla.Trial) -> None:
    (trial.checkpoint_dir / "x").write_text("x")
    trial.report(q=trial.params["lr"])


def study(home: Path, strategy: Any, **settings: Any) -> Study:
    space = {"lr": phyla.Float(0.1, 1.0)}
    objective = phyla.Maximize("q")
    return phyla.Study("s", space, objective, strategy, train, home=home, storage="memory://", **settings)


SWITCHES = [(0, {"lr": 0.2}), (15, {"lr": 0.3}), (20, {"lr": 0.4})]
STRATEGIES = {
    "random search": (phyla.RandomSearch(members=3, total_steps=10), 3),
    "in parts": (phyla.RandomSearch(members=3, total_steps=10, steps_per_trial=4), 9),
    "grid": (phyla.GridSearch({"lr": [0.1, 0.2, 0.5, 1.0]}, total_steps=10), 4),
    "schedule": (phyla.strategies.FixedSchedule(SWITCHES, total_steps=30, members=2), 6),
    "schedule in parts": (phyla.strategies.FixedSchedule(SWITCHES, total_steps=30, steps_per_trial=10), 4),
    "one explorer": (phyla.strategies.SingleWorkerExplore(explore_steps=2, exploit_steps=6, total_steps=19), 8),
    "pbt": (phyla.PBT(population_size=3, steps_per_trial=4, total_steps=10), 9),
}


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


def test_a_replay_has_as_many_trials_as_the_path(tmp_path: Path) -> None:
    trials = [
        {"trial": number + 7, "start_step": start, "end_step": start + 5, "seed": 1, "params": {"lr": 0.5}}
        for number, start in enumerate((0, 5, 10))
    ]
    made = study(tmp_path, phyla.strategies.Replay(trials=trials))
    assert made.results().progress().planned_trials == 3
    assert made.run().progress().planned_trials == 3


def test_it_is_unknown_where_it_depends_on_what_comes_and_known_in_the_end(tmp_path: Path) -> None:
    made = study(tmp_path, phyla.ASHA(members=9, min_steps=1, total_steps=9))
    assert made.results().progress().planned_trials is None
    progress = made.run().progress()
    assert progress.planned_trials == progress.completed > 9


def test_a_member_that_a_stopping_rule_ended_is_not_waited_for(tmp_path: Path) -> None:
    grid = phyla.GridSearch({"lr": [0.1, 0.2]}, total_steps=10, steps_per_trial=5)
    ended = Member(study=1, index=0, state=MemberState.DONE, progress=5, generation=1)
    assert trials_left(study(tmp_path, grid).config(), ended) == 0


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 80), st.integers(0, 3))
def test_cycles_are_counted_as_they_come(explore: int, exploit: int, more: int, phase: int) -> None:
    total = 3 * explore + more
    strategy = phyla.strategies.SingleWorkerExplore(
        explore_steps=explore, exploit_steps=exploit, total_steps=total
    )
    member = Member(study=1, index=0, state=MemberState.READY, generation=phase)
    spent, trials = 0, 0
    while spent < total:
        spent += exploit if (phase + trials) % 4 == 3 else explore
        trials += 1
    assert trials_left(study(Path("nowhere"), strategy).config(), member) == trials
