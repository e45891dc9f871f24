"""What must hold of a study on disk after whatever happened to its processes."""

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import phyla
from forked import Forked
from phyla.checkpoints import LocalCheckpoints, RemoteCheckpoints
from phyla.errors import CheckpointError
from phyla.records import (
    AttemptState,
    Checkpoint,
    CheckpointState,
    GroupState,
    JobKind,
    JobState,
    TrialRecord,
)
from phyla.settings import child_environment
from phyla.store import open_store
from phyla.study import Results
from stories import recorded_stories
from toy_study import STEPS, score
from toy_study import load as load_chain

TOY = Path(__file__).with_name("toy_study.py")


def start(home: Path, *, failpoint: str = "", spares: int | None = None, **options: Any) -> Forked:
    """Start the toy study in a process of its own; its first workers are spares, see `spare_workers`."""
    workers = int(options.get("workers", 0)) + int(options.get("evaluators", 0))
    return Forked(
        [TOY, json.dumps({"home": str(home), **options})],
        env=child_environment({"PHYLA_FAILPOINT": failpoint, "PYTHONPATH": str(TOY.parent)}),
        merged=True,
        spares=workers if spares is None else spares,
    )


def run(home: Path, *, expect: int | None = 0, failpoint: str = "", **options: Any) -> str:
    """Run the toy study to its end, or until it dies."""
    process = start(home, failpoint=failpoint, **options)
    output, _ = process.communicate(timeout=180)
    if expect is not None:
        assert process.returncode == expect, output
    return output


def check_whole(results: Results, *, members: int, trials: int, finished: bool = True) -> None:
    """Nothing is lost, doubled or leaked."""
    wrong = [*defects(results), *(unfinished(results, members, trials) if finished else ())]
    assert not wrong, "\n".join([*wrong, recorded_stories(results, wrong)])


def unfinished(results: Results, members: int, trials: int, hurt: Collection[str] | None = None) -> Iterator[str]:
    """Yield what a study that has ended lacks, or left over; see `defects`."""
    rows = results.trials()
    trained = {row.member for row in rows if row.state is JobState.COMPLETED}
    yield from miscounted(results, trials * STEPS)
    if len(trained) != members:
        yield f"only members {trained} trained"
    for row in rows:
        if row.state in (JobState.RUNNING, JobState.PENDING):
            yield f"trial {row.id} is {row.state}"
    for attempt in results.attempts():
        if attempt.state is AttemptState.RUNNING:
            yield f"attempt {attempt.job}.{attempt.token} is running"
    if results.best is None:
        yield "there is no best checkpoint"
    repository = repository_of(results)
    # What was collected while it was away, and came back, is no part of the study any more, and stays.
    kept = {
        row.name
        for row in results.checkpoints()
        if row.state is CheckpointState.LIVE or (hurt is not None and row.state is not CheckpointState.DELETED)
    }
    if leaked := {*repository.names(), *repository.staged(), *repository.deleting()} - kept - {*(hurt or ())}:
        yield f"left over: {sorted(leaked)}"


def defects(results: Results, hurt: Collection[str] = ()) -> Iterator[str]:
    """Yield what cannot be in a sound study at any time.

    Args:
        results: the study.
        hurt: the checkpoints whose files were damaged by a test.
    """
    completed = [row for row in results.trials() if row.state is JobState.COMPLETED]
    for place, times in Counter((row.member, row.generation) for row in completed).items():
        if times > 1:
            yield f"generation {place[1]} of member {place[0]} was counted {times} times"
    for row in completed:
        if row.fitness is None and row.checkpoint not in hurt:
            yield f"{row} has no score; its groups: {_groups_of(results, row.id)}"
        elif row.fitness not in (None, score(row.seed, row.params["lr"])):
            yield f"the score of trial {row.id} belongs to other hyperparameters"
    repository = repository_of(results)
    names = set(repository.names())
    trials = {row.id: row for row in results.trials()}
    for kept in results.checkpoints():
        if kept.name in hurt:
            continue
        if kept.state in (CheckpointState.LOST, CheckpointState.DAMAGED):
            yield f"checkpoint {kept.name} is {kept.state} and nothing was done to it: {kept.error}"
        elif kept.state is CheckpointState.LIVE and kept.name not in names:
            yield f"live checkpoint {kept.name} is gone"
        elif kept.state is CheckpointState.LIVE:
            yield from _unsound(kept, repository, trials)


def _unsound(
    row: Checkpoint, repository: LocalCheckpoints | RemoteCheckpoints, trials: Mapping[int, TrialRecord]
) -> Iterator[str]:
    try:
        if repository.verify(row.name).digest != row.digest:
            raise CheckpointError("it has another digest than the study recorded")
    except CheckpointError as error:
        yield f"live checkpoint {row.name} is unsound: {error}"
        return
    chain, path = load_chain(repository.path(row.name)), lineage(row, trials)
    if row.kind != "progress" and chain != path:
        yield f"the weights in {row.name} were made by {chain}; by its parents it is {path}"


def repository_of(results: Results) -> LocalCheckpoints | RemoteCheckpoints:
    """Return the checkpoints of a study."""
    where = results.places.checkpoints(results.name)
    return LocalCheckpoints(where) if isinstance(where, Path) else RemoteCheckpoints(where)


def lineage(checkpoint: Checkpoint, trials: Mapping[int, TrialRecord]) -> list[list[Any]]:
    """Return the chain that the weights of a checkpoint should hold, by the parents of its trial."""
    path: list[list[Any]] = []
    trial: int | None = checkpoint.trial
    name = checkpoint.name
    while trial is not None:
        row = trials[trial]
        path.append([trial, int(name.split(".")[1]), row.seed, row.params["lr"]])
        trial, name = row.parent, row.parent_checkpoint or ""
    return path[::-1]


def _groups_of(results: Results, trial: int) -> list[tuple[str, str | None, list[tuple[str, str | None]]]]:
    """Return how the groups on a trial's checkpoint stand, why, and how their jobs do."""
    store = open_store(results.places.storage)
    study = store.find_study(results.name)
    assert study is not None
    with store.reader(study.id) as reader:
        groups = [group for group in reader.groups() if group.trial == trial]
        found = [
            (group.state.value, group.why, [(job.state.value, job.error) for job in reader.group_jobs(group.id)])
            for group in groups
        ]
    store.close()
    return found


def miscounted(results: Results, steps: int) -> list[str]:
    """Return the members, of those that are not retired, whose completed trials do not add up to their steps.

    A trial ends its steps after where its member was, or after the weights that it took over, if these are ahead.
    """
    wrong = []
    for member in results.members():
        mine = [row for row in results.trials() if row.member == member.index and row.kind is JobKind.TRAIN]
        done = sorted(
            (row for row in mine if row.state is JobState.COMPLETED and row.end_step > row.start_step),
            key=lambda row: row.generation,
        )
        reached = 0
        for row in done:
            if row.start_step > reached and row.jump_from is None and row.reason["decision"] != "join":
                wrong.append(f"trial {row.id} skips steps without weights of another member")
            reached = max(reached, row.start_step) + row.end_step - row.start_step
        if not member.retired and (reached, member.progress) != (steps, steps):
            told = [(row.generation, row.start_step, row.end_step) for row in done]
            wrong.append(f"member {member.index} completed {told}: {reached} steps, {member.progress} counted")
    return wrong


def check_evaluated(results: Results) -> None:
    """Every checkpoint was evaluated to its end, once, and nothing of failed attempts is left."""
    check_whole_ledger(results)
    fitness = {row.id: row.fitness for row in results.trials()}
    assert None not in fitness.values()


def check_whole_ledger(results: Results) -> None:
    """Every group ended with its results, each once."""
    store = open_store(results.places.storage)
    run = store.find_study(results.name)
    assert run is not None
    with store.reader(run.id) as reader:
        trained = {row.checkpoint for row in results.trials()}
        assert {seen.name for seen in reader.all_seen()} == trained, "a checkpoint was missed, or seen twice"
        assert len(reader.all_seen()) == len(trained)
        kept: set[str] = set()
        for group in reader.groups():
            assert group.state is GroupState.COMPLETE, group.why
            tasks = reader.group_jobs(group.id)
            assert {task.state for task in tasks} == {JobState.COMPLETED}
            assert [task.kind for task in tasks[:4]] == [JobKind.EVALUATE] * 3 + [JobKind.AGGREGATE]
            # One that finds that another group became the best meanwhile is made again.
            assert all(task.kind is JobKind.AGGREGATE for task in tasks[4:])
            seen = reader.seen(group.seen)
            for task in tasks:
                if task.kind is JobKind.EVALUATE:
                    found = reader.ledger(seen.identity, task.identity, group.replicate, task.shards)
                    assert [result.shard for result in found] == list(range(task.shards))
                    kept |= {str(file).split("/")[1] for result in found for file in result.files.values()}
        assert not reader.running()
    outputs = results.places.folder("outputs", results.name)
    assert {folder.name for folder in outputs.iterdir()} == kept, "an attempt's files were lost or left over"
    store.close()


def load(home: Path, storage: str | None = None, checkpoints: str | None = None) -> Results:
    """Open the toy study."""
    return phyla.load_study("toy", home=home, storage=storage, checkpoints=checkpoints)


def keep_identity(database: Path) -> None:
    """Let a copied SQLite file stand for the original, whose checkpoints a copy may not touch."""
    if database.exists():
        with contextlib.suppress(sqlite3.OperationalError), contextlib.closing(sqlite3.connect(database)) as store:
            store.execute("UPDATE store_identity SET place = ?", (f"inode {database.stat().st_ino}",))
            store.commit()
