"""Maintain a study from outside, and take back, remove or delete what earlier launches and studies left.

Needs no training code. Leases and locks, never host and pid, show whether other processes are at work.
"""

import logging
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, final

from phyla import machine, queries
from phyla.checkpoints import Checkpoints, RemotePlace
from phyla.client import (
    CollectResult,
    claim_checkpoints,
    collect,
    open_checkpoints,
    placed,
    sort_out,
)
from phyla.configuration import keeping_of
from phyla.controller import records_of, sightings_of
from phyla.errors import (
    CheckpointsAbsent,
    StateError,
)
from phyla.machine import KeptCheckpoints
from phyla.records import (
    ACTION,
    CheckpointState,
    StudyRecord,
    StudyState,
)
from phyla.study.maintaining.recover import resume_study
from phyla.study.places import ROOT, Places, find_study

if TYPE_CHECKING:
    from phyla.store import Store


LOG = logging.getLogger("phyla")


def maintain(name: str, places: Places) -> "Maintenance":
    """Open a study to maintain it."""
    return Maintenance(*find_study(name, places), places)


@final
class Maintenance:
    """What a person may do to a study besides running it."""

    def __init__(self, store: "Store", study: StudyRecord, places: Places) -> None:
        self.places = places
        self._store = store
        self._study = study

    @cached_property
    def _repository(self) -> Checkpoints:
        root = self.places.checkpoints(self._study.name, self._study.config)
        return open_checkpoints(self._store, self._study, root)

    def retention(self) -> KeptCheckpoints:
        """Return which checkpoints are kept and why, and which may go; changes nothing."""
        return self._store.look(self._study.id, queries.retention)

    def explain_retention(self) -> str:
        """Return the retention formula and its bound, in words."""
        return machine.explain(keeping_of(self._study.config))

    def collect(self) -> CollectResult:
        """Delete the checkpoints that are no longer needed, if their directory is the study's."""
        plan = self.retention()
        if placed([*(row for row, _ in plan.kept), *plan.collectable]):
            self._repository.check_owner()
        return collect(self._store, self._study.id, self._repository, plan.collectable)

    def adopt(self) -> str:
        """Make the checkpoint directory this study's, after it was moved, or its store copied; deletes nothing.

        Only for a directory that no other store works on: one that belongs to a study of the same name in another
        store, one that lost its marker and holds nothing but checkpoints, or an empty one. If a person named it,
        the study remembers it. What was adopted is returned in a sentence.
        """
        name, config = self._study.name, self._study.config
        root = self.places.like(config).checkpoint_root / name
        repository = open_checkpoints(self._store, self._study, root)
        try:
            claim_checkpoints(self._store, self._study, repository)
        except CheckpointsAbsent:
            now = f"now; {self._take(root)}"
        else:
            now = "already"
        if self.places.named:
            new_config = {key: value for key, value in config.items() if key != ROOT} | self.places.remembered()
            records_of(self._store, self._study.id).store_config(new_config, config)
        self._study = self._now()
        repository = open_checkpoints(self._store, self._study, root)
        # Read before the files are listed, so that later commits do not count as missing.
        live = self._store.look(self._study.id, queries.checkpoints, state=CheckpointState.LIVE)
        names = sorted({*repository.names(), *repository.staged(), *repository.deleting()})
        listing = self._store.look(self._study.id, sort_out, names, repository.prefix)
        missing = sum(row.name not in listing.rows for row in placed(live))
        return (
            f"{root} belongs to study {name!r} of this store {now}. The store knows {len(listing.rows)} of the "
            f"checkpoints there; {len(listing.unknown)} are unknown and were left alone; {missing} are missing"
        )

    def _take(self, root: Path | RemotePlace) -> str:
        """Mark a directory as the study's, and return what it was."""
        repository = open_checkpoints(self._store, self._study, root)
        names = sorted({*repository.names(), *repository.staged()})
        restored = bool(self._store.look(self._study.id, sort_out, names, repository.prefix).forgotten)
        assert repository.ownership is not None
        was = repository.ownership.adopt()
        if not restored:
            # Unless another process adopted another one meanwhile.
            adopted, before = repository.ownership.check(), self._study.location
            repository.ownership.claim(records_of(self._store, self._study.id).set_directory(adopted, before))
            return was
        # Checkpoints that the store does not know keep the old id in their names; new ones get a new id.
        self._store.renew_identity()
        return self._take(root)

    def stop(self, message: str) -> None:
        """Stop the study, if it is running: its workers finish their trial and end."""
        state = self._now().state
        if state is not StudyState.RUNNING:
            raise StateError(f"study {self._study.name!r} is {state} already; there is nothing to stop")
        self._store.set_state(self._study.id, StudyState.STOPPED, message)

    def resume(self) -> bool:
        """Resume a study, and retry members that were given up; return False when it is running already."""
        if resume_study(self._store, self._study):
            return True
        if self._now().state is StudyState.COMPLETED:
            raise StateError(
                f"study {self._study.name!r} is completed: every member has spent its steps. Raise total_steps "
                "in the study file, then: phyla change FILE"
            )
        return False

    def retry(self) -> list[int]:
        """Let the members that were given up, because their trials kept breaking, try again; return which."""
        members = [member.index for member in self._store.look(self._study.id, queries.members) if member.given_up]
        state = self._now().state
        if state not in (StudyState.RUNNING, StudyState.COMPLETED):
            raise StateError(f"study {self._study.name!r} is {state}; once it is resumed, its members try again")
        if not members:
            raise StateError(f"study {self._study.name!r} has no member that was given up")
        self._store.set_state(self._study.id, StudyState.RUNNING)
        return members

    def note(self, actor: str, action: str) -> None:
        """Remember who did what, for the page of the study: `("ann", "stopped the study")`."""
        sightings_of(self._store, self._study, ()).note(ACTION, f"{actor} {action}")

    def _now(self) -> StudyRecord:
        return self._store.look(self._study.id, queries.study)
