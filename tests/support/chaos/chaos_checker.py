"""Judges a study by the history of what its workers asked and were answered, by its rows, and by its files.

Knows nothing of how phyla works: it only compares. `collect` reads what there is into plain data, and `check` says
what of it cannot be.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from phyla import plugins
from phyla.checkpoints import LocalCheckpoints
from phyla.configuration import from_config
from phyla.controller import Controller
from phyla.errors import CheckpointError
from phyla.store import Store
from toy_study import load, score

Row = dict[str, Any]
INTERNAL = ("ownership", "lock")


@dataclass
class Evidence:
    """All that is known of a study when it is over.

    Attributes:
        history: lines of all processes: requests (`type` is invoke) and answers (ok, fail, unknown), by time.
        study: its row, with the `steps` that every member is to train, and how many `suites` there are.
        trials: their rows.
        attempts: their rows.
        members: their rows.
        checkpoints: their rows.
        disk: what is in each committed directory: its `chain`, its `digest`, or the `error` of reading it.
        unfinished: names of directories that are being written or deleted.
        collectable: names of checkpoints that nobody needs any more.
        groups: of evaluations: the `trial` that wrote the checkpoint, `state`, and `values`.
        eval_jobs: states of what they consist of, by id; their attempts are among the others.
    """

    history: list[Row]
    study: Row
    trials: list[Row]
    attempts: list[Row]
    members: list[Row]
    checkpoints: list[Row]
    disk: dict[str, Row]
    unfinished: list[str] = field(default_factory=list)
    collectable: list[str] = field(default_factory=list)
    groups: list[Row] = field(default_factory=list)
    eval_jobs: dict[int, str] = field(default_factory=dict)


def collect(store: Store, name: str, history: Path, root: Path, steps: int) -> Evidence:
    """Read everything.

    Args:
        store: has the rows; not one behind a service.
        name: of the study.
        history: what the processes recorded.
        root: directory of the study's checkpoints.
        steps: what every member is to train.
    """
    evidence = _rows(store, name, history, steps)
    repository = LocalCheckpoints(root)
    results = {row["name"] for row in evidence.checkpoints if row["kind"] == "result"}
    for directory in repository.names():
        try:
            chain = load(repository.path(directory)) if directory in results else None
            evidence.disk[directory] = {"chain": chain, "digest": repository.verify(directory).digest}
        except (CheckpointError, OSError, ValueError) as error:
            evidence.disk[directory] = {"error": f"{type(error).__name__}: {error}"}
    evidence.unfinished += [*repository.staged(), *repository.deleting()]
    return evidence


def collect_black_box(store: Store, name: str, history: Path, folder: Path, steps: int) -> Evidence:
    """Read everything of a study whose clients keep their checkpoints; see `chaos_blackbox`.

    What a client wrote and nobody handed in is its own affair. The service knows a checkpoint by its name alone.
    """
    evidence = _rows(store, name, history, steps)
    for row in evidence.checkpoints:
        if (file := folder / row["name"]).exists():
            chain = json.loads(file.read_text())
            evidence.disk[file.name] = {"chain": chain, "digest": row["identity"].partition("#")[0]}
    return evidence


def _rows(store: Store, name: str, history: Path, steps: int) -> Evidence:
    study = store.find_study(name)
    assert study is not None
    with store.reader(study.id) as reader:
        rows = [asdict(row) for row in reader.checkpoints()]
        suites = len(study.config["suites"])  # type: ignore[arg-type]
        evidence = Evidence(
            history=[json.loads(line) for line in history.read_text().splitlines()],
            study={"state": study.state.value, "message": study.message, "steps": steps, "suites": suites},
            trials=[asdict(row) for row in reader.trials()],
            attempts=[asdict(row) for row in reader.trial_attempts()],
            members=[asdict(row) for row in reader.members()],
            checkpoints=rows,
            disk={},
            groups=[{**asdict(group), "trial": reader.seen(group.seen).trial} for group in reader.groups()],
            eval_jobs={job.id: job.state.value for job in reader.eval_jobs()},
        )
        for job in reader.eval_jobs():
            tried = [reader.attempt(job.id, token) for token in range(1, job.token + 1)]
            evidence.attempts += [asdict(attempt) for attempt in tried if attempt is not None]
    retention = Controller(store, study.id, from_config(study.config, find_in_suites=plugins.absent)).retention()
    evidence.collectable += [row.name for row in retention.collectable]
    return evidence


@dataclass(frozen=True)
class Op:
    """One request, from before it was sent until its answer was there.

    Attributes:
        ends: infinity while nobody knows: its process died, or the answer was lost.
        outcome: ok, fail or unknown.
    """

    do: str
    asked: Row
    begins: float
    ends: float
    outcome: str
    answer: Row


def operations(history: Iterable[Row]) -> list[Op]:
    """Bring requests and answers together, by the begin of the request."""
    begun: dict[str, Row] = {}
    ended: dict[str, Row] = {}
    for line in history:
        (begun if line["type"] == "invoke" else ended)[line["op"]] = line
    unknown: Row = {"type": "unknown", "at": float("inf")}
    found = [
        Op(line["do"], line["asked"], line["at"], end["at"], end["type"], end.get("answer") or {})
        for op, line in begun.items()
        for end in [ended.get(op, unknown)]
    ]
    return sorted(found, key=lambda op: op.begins)


@dataclass(frozen=True)
class Grant:
    """An answer that gave somebody a lease."""

    op: Op
    worker: str
    work: Row


@dataclass(frozen=True)
class Acknowledgement:
    """An answer that a completion counts."""

    op: Op
    done: Row
    answer: Row


Lease = tuple[int, int]
"""Job and token."""


class Judge:
    """Looks at evidence from each side; every method yields what is wrong."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.ops = operations(evidence.history)
        self.grants: dict[Lease, list[Grant]] = defaultdict(list)
        self.counted: dict[int, list[Acknowledgement]] = defaultdict(list)
        self.handed_in: dict[Lease, list[Op]] = defaultdict(list)
        for op in self.ops:
            for done in op.asked.get("done", ()):
                self.handed_in[done["job"], done["token"]].append(op)
            if op.outcome != "ok" or op.do != "complete":
                continue
            for work in op.answer["work"]:
                self.grants[work["job"], work["token"]].append(Grant(op, op.asked["worker"], work))
            for done, answer in zip(op.asked["done"], op.answer["answers"], strict=True):
                if answer["is"] == "accepted":
                    self.counted[done["job"]].append(Acknowledgement(op, done, answer))
        self.trials = {row["id"]: row for row in evidence.trials}
        self.attempts = {(row["job"], row["token"]): row for row in evidence.attempts}
        self.rows = {row["name"]: row for row in evidence.checkpoints}

    def leases(self) -> Iterator[str]:
        """Each lease has one holder, a newer one ends all older ones, and rows and answers agree."""
        for (job, token), grants in self.grants.items():
            holders = sorted({grant.worker for grant in grants})
            if len(holders) > 1:
                yield f"lease {job}.{token} was given to {len(holders)} workers: {', '.join(holders)}"
            attempt = self.attempts.get((job, token))
            if attempt is None:
                yield f"lease {job}.{token} was given to {holders[0]} and is not in the store"
            elif attempt["worker"] not in holders:
                yield f"lease {job}.{token} was given to {holders[0]}; in the store it is {attempt['worker']}'s"
            trial = self.trials.get(job)
            for grant in grants:
                for name, value in grant.work.items():
                    if name not in ("job", "token") and trial is not None and trial[name] != value:
                        yield f"trial {job} was given out with {name} {value}; in the store it is {trial[name]}"
        yield from self._order()

    def _order(self) -> Iterator[str]:
        known_at: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for (job, token), grants in self.grants.items():
            known_at[job].append((min(grant.op.ends for grant in grants), token))

        def newer(job: int, token: int, before: float) -> int | None:
            """Return a newer token that somebody had before some time."""
            return next((one for at, one in known_at[job] if one > token and at < before), None)

        for (job, token), grants in self.grants.items():
            for grant in grants:
                other = newer(job, token, grant.op.begins)
                if other is not None:
                    yield f"lease {job}.{token} was given to {grant.worker} after lease {job}.{other} was known"
        for job, counted in self.counted.items():
            for one in counted:
                token = one.done["token"]
                other = newer(job, token, float("inf"))
                if other is not None:
                    yield f"a completion of {job}.{token} was accepted, and lease {job}.{other} was given out"
        for op in self.ops:
            still = op.do == "save_progress" or (op.do == "report" and not op.answer.get("cancelled"))
            if op.outcome == "ok" and still:
                job, token = op.asked["job"], op.asked["token"]
                other = newer(job, token, op.begins)
                if other is not None:
                    yield f"{op.do} of {job}.{token} was taken after lease {job}.{other} was known"

    def completions(self) -> Iterator[str]:
        """What was acknowledged is there, with the answer that was given, once; nobody invented anything."""
        for job, counted in self.counted.items():
            trial = self.trials.get(job)
            if (state := self.evidence.eval_jobs.get(job)) is not None:
                if state != "completed":
                    yield f"eval job {job} was acknowledged and is {state}"
                if sum(not one.answer["repeated"] for one in counted) > 1:
                    yield f"the completion of eval job {job} was counted several times"
                continue
            if trial is None or trial["state"] != "completed":
                state = "not there" if trial is None else trial["state"]
                yield f"trial {job} was acknowledged and is {state}"
                continue
            # The black-box form does not say which answer was the first one.
            first = [one for one in counted if not one.answer.get("repeated", True)]
            if len(first) > 1 or len({one.done["token"] for one in counted}) > 1:
                tokens = [one.done["token"] for one in counted]
                yield f"the completion of trial {job} was counted {len(first)} times, under tokens {tokens}"
            for one in counted:
                token, checkpoint = one.done["token"], one.done["checkpoint"]
                attempt = self.attempts.get((job, token))
                if attempt is None or attempt["state"] != "completed":
                    yield f"completion {job}.{token} was acknowledged, and its attempt is not completed"
                if one.answer["fitness"] != trial["fitness"] or one.done["score"] != trial["fitness"]:
                    told = f"handed in {one.done['score']}, answered {one.answer['fitness']}"
                    yield f"trial {job} has fitness {trial['fitness']}: {told}"
                if checkpoint != trial["checkpoint"]:
                    yield f"trial {job} has checkpoint {trial['checkpoint']}; {checkpoint} was handed in"
        for trial in self.trials.values():
            if trial["state"] != "completed":
                continue
            tokens = [
                token
                for (job, token), row in self.attempts.items()
                if job == trial["id"] and row["state"] == "completed"
            ]
            if len(tokens) != 1 or not self.handed_in[trial["id"], tokens[0]]:
                yield f"trial {trial['id']} is completed by attempts {tokens}: several, or nobody handed it in"
        done = [row for row in self.trials.values() if row["state"] == "completed"]
        for (member, generation), count in Counter((row["member"], row["generation"]) for row in done).items():
            if count > 1:
                yield f"generation {generation} of member {member} is there {count} times"

    def facts(self) -> Iterator[str]:
        """Score, weights and hyperparameters of each trial belong together."""
        for trial in self.trials.values():
            if trial["state"] != "completed":
                continue
            expected = score(trial["seed"], trial["params"]["lr"])
            if trial["fitness"] != expected:
                found = trial["fitness"]
                yield f"trial {trial['id']} has fitness {found}, and its hyperparameters give {expected}"
            chain = self.evidence.disk.get(trial["checkpoint"], {}).get("chain")
            if chain is not None and chain != (path := self._path(trial)):
                yield f"the weights of trial {trial['id']} were made by {chain}; by its parents it is {path}"

    def _path(self, trial: Row | None) -> list[list[Any]]:
        path: list[list[Any]] = []
        while trial is not None and len(path) <= len(self.trials):
            token = int(trial["checkpoint"].split(".")[1]) if trial["checkpoint"] else None
            path.append([trial["id"], token, trial["seed"], trial["params"]["lr"]])
            trial = self.trials.get(trial["parent"])
        return path[::-1]

    def evaluations(self) -> Iterator[str]:
        """The checkpoint of every completed trial was evaluated once, with the score that its weights have."""
        found: dict[int, list[Row]] = defaultdict(list)
        for group in self.evidence.groups:
            found[group["trial"]].append(group)
        for trial in self.trials.values():
            states = [group["state"] for group in found[trial["id"]]]
            if states != (["complete"] * self.evidence.study["suites"] if trial["state"] == "completed" else []):
                yield f"the evaluations of trial {trial['id']}, which is {trial['state']}, are {states}"
            for group in found[trial["id"]]:
                value = group["values"].get("score_mean", {}).get("value")
                if group["state"] == "complete" and value != trial["fitness"]:
                    yield f"the evaluation of trial {trial['id']} found {value}; its fitness is {trial['fitness']}"

    def parents(self) -> Iterator[str]:
        """Everybody started from a trial that was handed in before, by the name of its checkpoint."""
        for trial in self.trials.values():
            parent = self.trials.get(trial["parent"])
            if trial["parent"] is None:
                if trial["generation"] and trial["jump_from"] is None:
                    yield f"trial {trial['id']} of generation {trial['generation']} has no parent"
                continue
            if parent is None or parent["state"] != "completed":
                yield f"the parent of trial {trial['id']}, {trial['parent']}, was never completed"
                continue
            if parent["checkpoint"] != trial["parent_checkpoint"]:
                yield (
                    f"trial {trial['id']} started from {trial['parent_checkpoint']}; that of its parent is "
                    f"{parent['checkpoint']}"
                )
            if trial["jump_from"] is None and parent["member"] != trial["member"]:
                yield f"trial {trial['id']} took over trial {parent['id']} of another member, and does not say so"
            token = int(parent["checkpoint"].split(".")[1])
            began = min((op.begins for op in self.handed_in[parent["id"], token]), default=float("inf"))
            for lease, grants in self.grants.items():
                if lease[0] == trial["id"] and any(grant.op.ends < began for grant in grants):
                    yield f"trial {trial['id']} was given out before its parent {parent['id']} was handed in"

    def ends(self) -> Iterator[str]:
        """The study is completed, and so is every member."""
        if self.evidence.study["state"] != "completed":
            yield f"the study is {self.evidence.study['state']}: {self.evidence.study['message']}"
        for trial in self.trials.values():
            if trial["state"] not in ("completed", "cancelled"):
                yield f"trial {trial['id']} is {trial['state']}: {trial['error']}"
        for attempt in self.attempts.values():
            if attempt["state"] == "running":
                yield f"attempt {attempt['job']}.{attempt['token']} is running"
        for member in self.evidence.members:
            steps = self.evidence.study["steps"]
            if member["progress"] != steps:
                yield f"member {member['index']} trained {member['progress']} of {steps} steps"

    def disk(self) -> Iterator[str]:
        """What is kept is there, whole; nothing else is."""
        disk = self.evidence.disk
        live = {name for name, row in self.rows.items() if row["state"] == "live"}
        for name in sorted(live - disk.keys()):
            yield f"live checkpoint {name} is not on disk"
        for name in sorted(disk.keys() - live):
            yield f"{name} is on disk, and is {self.rows[name]['state'] if name in self.rows else 'not known'}"
        for name in sorted(live & disk.keys()):
            found = disk[name]
            if "error" in found:
                yield f"live checkpoint {name} cannot be read: {found['error']}"
            elif found["digest"] != self.rows[name]["identity"].partition("#")[0]:
                yield f"live checkpoint {name} has other bytes than were committed"
        for row in self.rows.values():
            if row["state"] in ("lost", "damaged"):
                yield f"checkpoint {row['name']} is {row['state']}: {row['error']}"
        for name in self.evidence.unfinished:
            yield f"{name} is still being written or deleted, and nobody does that"
        for name in self.evidence.collectable:
            yield f"checkpoint {name} is needed by nobody, and is kept"
        newest: dict[int, Row] = {}
        for trial in self.trials.values():
            before = newest.get(trial["member"])
            if trial["state"] == "completed" and (before is None or before["generation"] < trial["generation"]):
                newest[trial["member"]] = trial
        best = max(newest.values(), key=lambda row: row["fitness"], default=None)
        for trial in [*newest.values(), *([] if best is None else [best])]:
            if trial["checkpoint"] not in live:
                yield f"the checkpoint of trial {trial['id']}, the newest of its member, is not kept"


def check(evidence: Evidence) -> list[str]:
    """Return what cannot be, if nothing was lost, doubled or mixed up."""
    judge = Judge(evidence)
    sides = (
        judge.leases,
        judge.completions,
        judge.facts,
        judge.evaluations,
        judge.parents,
        judge.ends,
        judge.disk,
    )
    return [f"{side.__name__}: {what}" for side in sides for what in side()]


def tree(trials: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return what two runs of one study have alike, if chance decided nothing: trials by member and generation."""
    place = {row["id"]: (row["member"], row["generation"]) for row in trials}
    return sorted(
        [*place[row["id"]], place.get(row["parent"]), row["params"]["lr"], row["fitness"]]
        for row in trials
        if row["state"] == "completed"
    )
