"""The disk usage of a study or a watched run, by the reason for which files are kept."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from phyla.machine import Reader
from phyla.queries import best_scores, retention
from phyla.records import Aim, CheckpointState, StudyKind
from phyla.study.maintaining.delete import measure_size
from phyla.study.places import Places, find_study


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Bytes on disk, and the checkpoints or files that have them."""

    what: str
    size_bytes: int
    count: int
    note: str = ""


def disk(name: str, places: Places) -> list[Use]:
    """Return what a study takes on disk. A checkpoint counts once, under the first reason that keeps it."""
    store, record = find_study(name, places, watched=True)
    try:
        uses: list[Use] = []
        if record.kind is StudyKind.POPULATION:
            for group, sizes in store.look(record.id, checkpoint_sizes).items():
                uses.append(Use(what=f"checkpoints: {group}", size_bytes=sum(sizes), count=len(sizes)))
        folders = [
            ("working directories", places.folder("work", name), ""),
            ("logs", places.folder("logs", name), ""),
            ("outputs of evaluations", places.folder("outputs", name), ""),
        ]
        if places.folder("prepared", name).is_dir():
            note = "deleted after their evaluation"
            folders.append(("prepared checkpoints", places.folder("prepared", name), note))
        if record.kind is StudyKind.DIRECTORY:
            config: Any = record.config
            note = "hard links share their bytes with the original"
            held = places.snapshots(name, config["snapshots"], store.identity().id)
            folders.append(("snapshots", held, note))
        for group, folder, note in folders:
            size_bytes, count = measure_size(folder)
            uses.append(Use(what=group, size_bytes=size_bytes, count=count, note=note))
        if places.sqlite_file is not None:
            parts = [measure_size(Path(f"{places.sqlite_file}{end}")) for end in ("", "-wal", "-shm")]
            size_bytes, count = map(sum, zip(*parts, strict=True))
            note = f"of all studies and watched runs there: {len(store.studies())}"
            uses.append(Use(what="database", size_bytes=size_bytes, count=count, note=note))
        return uses
    finally:
        store.close()


def checkpoint_sizes(reader: Reader) -> dict[str, list[int]]:
    """Return the sizes of the checkpoints that are on disk, by what keeps them first."""
    config = reader.study().config
    plan = retention(reader)
    newest = {member.head.checkpoint for member in reader.members() if member.head is not None}
    best = {trial.checkpoint for trial in best_scores(reader, Aim.from_config(config))}
    sizes: dict[str, list[int]] = {"best": [], "newest of members": []}
    for row, why in plan.kept:
        if row.name in best or why.startswith(("one of the best", "on the Pareto front")):
            group = "best"
        elif row.name in newest:
            group = "newest of members"
        else:
            group = "milestones" if why.startswith("milestone") else "others that trials or evaluations may use"
        sizes.setdefault(group, []).append(row.size_bytes)
    sizes["collectable: phyla gc deletes them"] = [row.size_bytes for row in plan.collectable]
    sizes["damaged"] = [row.size_bytes for row in reader.checkpoints(CheckpointState.DAMAGED)]
    sizes["being deleted"] = [row.size_bytes for row in reader.checkpoints(CheckpointState.DELETING)]
    return sizes
