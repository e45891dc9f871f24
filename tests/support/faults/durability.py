"""What must hold of a study on disk after whatever happened to its processes."""

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import phyla
from forked import Forked
from phyla.checkpoints import LocalCheckpoints, RemoteCheckpoints
from phyla.records import AttemptState, CheckpointState, GroupState, JobKind, JobState
from phyla.settings import child_environment
from phyla.store import open_store
from phyla.study import Results
from toy_study import STEPS, score

TOY = Path(__file__).with_name("toy_study.py")


def start(home: Path, *, failpoint: str = "", **options: Any) -> Forked:
    """Start the toy study in a process of its own."""
    return Forked(
        [TOY, json.dumps({"home": str(home), **options})],
        env=child_environment({"PHYLA_FAILPOINT": failpoint, "PYTHONPATH": str(TOY.parent)}),
        merged=True,
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
    rows = results.trials()
    completed = [row for row in rows if row.state is JobState.COMPLETED]
    by_id = {row.id: row for row in rows}
    if finished:
        assert len({row.member for row in completed}) == members
        assert not miscounted(results, trials * STEPS)
        assert not [row for row in rows if row.state in (JobState.RUNNING, JobState.PENDING)]
        assert not [a for a in results.attempts() if a.state is AttemptState.RUNNING]
    counted = Counter((row.member, row.generation) for row in completed)
    assert set(counted.values()) <= {1}, "a generation was counted twice"

    where = results.places.checkpoints(results.name)
    repository = LocalCheckpoints(where) if isinstance(where, Path) else RemoteCheckpoints(where)
    stored = {row.name: row for row in results.checkpoints()}
    live = {name for name, row in stored.items() if row.state is CheckpointState.LIVE}
    if finished:
        assert set(repository.names()) == live
        assert repository.staged() == ()
    assert live <= set(repository.names()), "a live checkpoint is gone"
    for name in live:
        assert repository.verify(name).digest == stored[name].digest

    for row in completed:
        assert row.fitness is not None, f"{row} has no score; its groups: {_groups_of(results, row.id)}"
        assert row.fitness == score(row.seed, lr(row.params)), "the score belongs to other hyperparameters"
        if row.checkpoint in live:
            chain = json.loads((repository.path(row.checkpoint) / "chain.json").read_text())
            assert [trial for trial, _ in chain] == ancestry(row.id, by_id), "weights of another trial"
            assert chain[-1][1] == int(row.checkpoint.split(".")[1])


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


def lr(params: Mapping[str, Any]) -> float:
    """The only hyperparameter."""
    return float(params["lr"])


def ancestry(trial: int, by_id: Mapping[int, Any]) -> list[int]:
    """Trials from the root to this one, by parent."""
    path: list[int] = []
    current: int | None = trial
    while current is not None:
        path.append(current)
        current = by_id[current].parent
    return path[::-1]


def load(home: Path, storage: str | None = None, checkpoints: str | None = None) -> Results:
    """Open the toy study."""
    return phyla.load_study("toy", home=home, storage=storage, checkpoints=checkpoints)


def keep_identity(database: Path) -> None:
    """Let a copied SQLite file stand for the original, whose checkpoints a copy may not touch."""
    if database.exists():
        with contextlib.suppress(sqlite3.OperationalError), contextlib.closing(sqlite3.connect(database)) as store:
            store.execute("UPDATE store_identity SET place = ?", (f"inode {database.stat().st_ino}",))
            store.commit()
