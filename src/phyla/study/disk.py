"""What a study or a watched run takes on disk, by what keeps it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla import machine
from phyla.controller import keeping_of
from phyla.records import Aim, Checkpoint, CheckpointKind, CheckpointState, GroupState, StudyKind
from phyla.study.deleting import taken
from phyla.study.places import Places, find_study
from phyla.study.progress import best_of

if TYPE_CHECKING:
    from phyla.store import Reader

CHECKPOINTS = "checkpoints: "


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Bytes on disk, and the checkpoints or files that have them."""

    what: str
    size_bytes: int
    count: int
    note: str = ""


def disk(name: str, places: Places) -> list[Use]:
    """Return what a study takes on disk. A checkpoint counts once, under the first reason that keeps it.

    Raises:
        StudyNotFound: there is no such study or watched run.
    """
    store, record = find_study(name, places, watched=True)
    try:
        uses: list[Use] = []
        if record.kind is StudyKind.POPULATION:
            with store.reader(record.id) as reader:
                sizes: dict[str, list[int]] = {}
                for what, checkpoint in _kept(reader):
                    sizes.setdefault(what, []).append(checkpoint.size_bytes)
            for what, its in sizes.items():
                uses.append(Use(what=CHECKPOINTS + what, size_bytes=sum(its), count=len(its)))
        config: Any = record.config
        folders = {
            "working directories": places.work(name),
            "logs": places.logs(name),
            "outputs of evaluations": places.outputs(name),
        }
        if record.kind is StudyKind.DIRECTORY:
            folders["snapshots"] = Path(config["snapshots"])
        for what, folder in folders.items():
            size_bytes, count = taken(folder)
            note = "hard links share their bytes with the original" if what == "snapshots" and count else ""
            uses.append(Use(what=what, size_bytes=size_bytes, count=count, note=note))
        file = places.sqlite_file
        if file is not None:
            parts = [taken(Path(f"{file}{end}"))[0] for end in ("", "-wal", "-shm")]
            note = f"of all studies and watched runs there: {len(store.studies())}"
            uses.append(Use(what="database", size_bytes=sum(parts), count=sum(map(bool, parts)), note=note))
        return uses
    finally:
        store.close()


def _kept(reader: "Reader") -> Iterator[tuple[str, Checkpoint]]:
    """Yield the checkpoints that are on disk, by what keeps them first; the collectable ones come last."""
    config = reader.study().config
    found = machine.retention(reader, keeping_of(config))
    newest = {member.head.checkpoint for member in reader.members() if member.head is not None}
    best = {trial.checkpoint for trial in best_of(reader, Aim.from_config(config))}
    order: dict[str, list[Checkpoint]] = {
        what: []
        for what in ("best", "newest of members", "progress of unfinished trials", "waiting for evaluation")
    }
    for row, why in found.kept:
        if row.name in best or why.startswith(("one of the best", "on the Pareto front")):
            what = "best"
        elif row.name in newest:
            what = "newest of members"
        elif row.kind is CheckpointKind.PROGRESS:
            what = "progress of unfinished trials"
        elif any(group.state is GroupState.QUEUED for group in reader.groups_of(row.id)):
            what = "waiting for evaluation"
        else:
            what = "milestones" if why.startswith("milestone") else "others that trials may still start from"
        order.setdefault(what, []).append(row)
    order["collectable: phyla gc deletes them"] = list(found.collectable)
    order["damaged"] = list(reader.damaged_checkpoints())
    order["being deleted"] = [row for row in reader.checkpoints() if row.state is CheckpointState.DELETING]
    for what, rows in order.items():
        yield from ((what, row) for row in rows)
