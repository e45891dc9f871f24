"""Trials that are told after their lease ran out, or while others clean up."""

from pathlib import Path
from typing import Any

import pytest

import phyla
from phyla.client import Client
from phyla.client.checkpoint_custody import sort_out
from phyla.controller import housekeeping_of
from phyla.errors import StoreBusy
from phyla.records import CheckpointState
from phyla.store import Reader
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


class Earlier:
    """A look whose reads have a time each, as those through a service: the first one came before a completion."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._looked = False

    def checkpoint(self, name: str) -> Any:
        looked, self._looked = self._looked, True
        return self._reader.checkpoint(name) if looked else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


def trained(home: Path) -> Client:
    """Return the client of a study with one trial that has completed."""
    made = study(home)
    trial = made.ask()
    assert trial is not None
    (trial.checkpoint_dir / "weights").write_text("w")
    made.tell(trial, metrics={"score": 1.0})
    return made._open()


def test_cleaning_up_leaves_a_trial_its_files_that_completes_meanwhile(tmp_path: Path) -> None:
    opened = trained(tmp_path)
    repository = opened.repository
    (name,) = repository.names()
    with opened.store.reader(opened.record.id) as reader:
        view: Any = Earlier(reader)
        found = sort_out(view, [name], repository.prefix)
    assert (found.leftover, [*found.rows]) == ([], [name])


def test_cleaning_up_waits_for_a_busy_database_as_long_as_any_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = trained(tmp_path)
    with opened.store.reader(opened.record.id) as reader:
        names = [row.name for row in reader.checkpoints(CheckpointState.LIVE)]
    housekeeping_of(opened.store, opened.record.id).set_checkpoints(names, CheckpointState.DELETING)
    tries: list[None] = []

    def busy(*_: object, **__: object) -> None:
        tries.append(None)
        raise StoreBusy("held by another program for 30 s")

    monkeypatch.setattr(opened.store, "transaction", busy)
    with pytest.raises(StoreBusy):
        opened.recover()
    assert len(tries) == 1 + RETRIES
