"""What training keeps in memory never reaches a member that takes over a checkpoint."""

from pathlib import Path

import phyla


def test_a_member_that_takes_over_a_checkpoint_loads_it_even_where_it_was_just_trained(tmp_path: Path) -> None:
    cached: dict[int, object] = {}

    def train(trial: phyla.Trial) -> None:
        cached[trial.id] = trial.cached_state
        (trial.checkpoint_dir / "weights.txt").write_text("x")
        trial.report(score=-trial.member)
        trial.cached_state = f"{trial.id}.{trial.token}"

    strategy = phyla.PBT(
        population_size=2, steps_per_trial=1, total_steps=10, quorum=0, exploit=phyla.Truncation(0.5)
    )
    study = phyla.Study(
        "s", {"lr": phyla.Float(0.1, 1.0)}, phyla.Maximize("score"), strategy, train, home=tmp_path
    )
    trials = study.run().trials()
    jumps = [trial for trial in trials if trial.jump_from is not None]
    # The one worker trained the donor last, so its own memory holds exactly these weights.
    assert any(trial.parent == trial.id - 1 for trial in jumps)
    assert [cached[trial.id] for trial in jumps] == [None] * len(jumps)

    alone = phyla.PBT(population_size=1, steps_per_trial=1, total_steps=10)
    space = {"lr": phyla.Float(0.1, 1.0)}
    continued = phyla.Study("alone", space, phyla.Maximize("score"), alone, train, home=tmp_path).run().trials()
    parents = [str(trial.parent_checkpoint).rpartition(".")[0] for trial in continued[1:]]
    assert [cached[trial.id] for trial in continued[1:]] == parents
