"""Trials that are told after their lease ran out."""

from pathlib import Path

import phyla


def study(home: Path) -> phyla.Study:
    return phyla.Study(
        "late",
        {"lr": phyla.Float(0.1, 1.0)},
        phyla.Maximize("score"),
        phyla.PBT(population_size=2, steps_per_trial=1, total_steps=1),
        home=home,
    )


def test_cleaning_up_leaves_a_late_trial_its_files(tmp_path: Path) -> None:
    made, other = study(tmp_path), study(tmp_path)
    late = made.ask(lease_s=0.05)
    assert late is not None
    (late.checkpoint_dir / "weights").write_text("w")
    opened = other._open()
    expired = False
    while not expired:
        with opened.store.reader(opened.record.id) as reader:
            expired = bool(reader.expired(1))
    # Somebody else looks at expired leases, as any claim does, and cleans up, as any run does.
    with opened.store.transaction(opened.record.id, exclusive=True) as tx:
        from phyla import machine

        (gone,) = tx.expired(1)
        tx.apply(machine.lose(tx, other.rules, gone.job, gone.token, "ran out", counts=False))
    opened.recover()
    made.tell(late, metrics={"score": 1.0})
    assert made.results().counts() == {"completed": 1}
