"""A population whose ready interval is in seconds, with worker processes."""

import time
from pathlib import Path

import phyla
from phyla.records import StudyState

READY_S = 0.2


def train(trial: phyla.Trial) -> None:
    for _ in trial.steps():
        time.sleep(0.01)
    (trial.checkpoint_dir / "weights").write_text("w")
    trial.report(score=trial.params["lr"] * trial.end_step)


def test_members_take_over_only_after_so_many_seconds_of_training(tmp_path: Path) -> None:
    strategy = phyla.PBT(
        population_size=4,
        steps_per_trial=5,
        total_steps=100,
        exploit=phyla.Truncation(0.5),
        ready_s=READY_S,
    )
    space = phyla.Space(lr=phyla.Float(0.1, 1.0))
    results = phyla.Study("s", space, phyla.Maximize("score"), strategy, train, home=tmp_path).run(workers=2)
    assert results.state is StudyState.COMPLETED
    spent, decided = dict.fromkeys(range(4), 0.0), dict.fromkeys(range(4), 0.0)
    early = late = 0
    for row in sorted(results.trials(), key=lambda row: (row.generation, row.member)):
        since = spent[row.member] - decided[row.member]
        if row.generation:
            not_ready = row.reason.get("compared") == {"why": "not ready"}
            assert not_ready == (since < READY_S)
            early, late = early + not_ready, late + (not not_ready)
        if row.exploited:
            decided[row.member] = spent[row.member]
        assert row.started_at is not None
        assert row.ended_at is not None
        spent[row.member] += row.ended_at - row.started_at
    assert early
    assert late
    for member in results.members():
        assert member.spent_s == spent[member.index]
        assert member.decided_s == decided[member.index]
