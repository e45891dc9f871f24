"""What a worker is given whose time is limited."""

from pathlib import Path

import phyla
from phyla.machine import Claimed, NoTime, Room


def study(home: Path) -> phyla.Study:
    return phyla.Study(
        "s",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Maximize("score"),
        phyla.PBT(population_size=2, steps_per_trial=5, total_steps=20),
        home=home,
    )


def train(study: phyla.Study) -> None:
    trial = study.ask()
    assert trial is not None
    (trial.checkpoint_dir / "a").write_text("a")
    study.tell(trial, metrics={"score": 1.0})


def test_what_would_not_end_in_time_stays_for_others_as_it_was_decided(tmp_path: Path) -> None:
    late, other = study(tmp_path / "late"), study(tmp_path / "other")
    client = late._open()
    # Nothing is known of how long trials take.
    _, (first,), _ = client.exchange((), "w", 1, room=Room(left_s=0.0, run_s=1e9))
    assert isinstance(first, Claimed)
    client.release(first.trial.id, first.trial.token)
    for one in (late, other):
        train(one)
        train(one)
    # The first trial needed a second attempt: only the second one tells how long trials take.
    _, claimed, why = client.exchange((), "w", 1, room=Room(left_s=0.0, run_s=1e9))
    assert claimed == []
    assert isinstance(why, NoTime)
    assert why.why.startswith("a trial takes about ")
    assert late.results().counts() == {"completed": 2}, "nothing was begun"
    _, (begun,), _ = client.exchange((), "w", 1, room=Room(left_s=1e6, run_s=1e9))
    decided = other.ask()
    assert decided is not None
    assert isinstance(begun, Claimed)
    assert (begun.trial.member, begun.trial.seed, begun.trial.params) == (
        decided.member,
        decided.seed,
        dict(decided.params.flat()),
    )
