"""Trials that are told after their lease ran out, or while others clean up."""

from pathlib import Path

import pytest

import phyla
from phyla.client import Client
from phyla.client.checkpoint_custody import delete_marked
from phyla.controller import records_of
from phyla.errors import CheckpointsAbsent, StoreBusy
from phyla.records import CheckpointState
from phyla.store.retry import RETRIES


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


def trained(home: Path) -> Client:
    """Return the client of a study with one trial that has completed."""
    made = study(home)
    trial = made.ask()
    assert trial is not None
    (trial.checkpoint_dir / "weights").write_text("w")
    made.tell(trial, metrics={"score": 1.0})
    return made._open()


def test_cleaning_up_waits_for_a_busy_database_as_long_as_any_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = trained(tmp_path)
    with opened.store.reader(opened.record.id) as reader:
        names = [row.name for row in reader.checkpoints(CheckpointState.LIVE)]
    records_of(opened.store, opened.record.id).set_checkpoints(names, CheckpointState.DELETING)
    tries: list[None] = []

    def busy(*_: object, **__: object) -> None:
        tries.append(None)
        raise StoreBusy("held by another program for 30 s")

    monkeypatch.setattr(opened.store, "transaction", busy)
    with pytest.raises(StoreBusy):
        opened.recover()
    assert len(tries) == 1 + RETRIES


def test_checkpoints_that_are_taken_away_while_they_are_deleted_are_deleted_once_they_are_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = trained(tmp_path)
    repository, records = opened.repository, records_of(opened.store, opened.record.id)
    root, away = tmp_path / "checkpoints" / "late", tmp_path / "away"
    (name,) = repository.names()
    records.set_checkpoints([name], CheckpointState.DELETING)
    delete = repository.delete

    def delete_elsewhere(*names: str) -> int:
        root.rename(away)
        return delete(*names)

    with monkeypatch.context() as patch:
        patch.setattr(repository, "delete", delete_elsewhere)
        with pytest.raises(CheckpointsAbsent):
            delete_marked(opened.store, opened.record.id, repository, [name])
    away.rename(root)
    opened.recover()
    assert not repository.names()
    with opened.store.reader(opened.record.id) as reader:
        assert [row.state for row in reader.checkpoints()] == [CheckpointState.DELETED]
