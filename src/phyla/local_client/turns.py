"""The client of several watched studies, which one pool of workers evaluates."""

from collections.abc import Collection, Mapping, Sequence
from typing import final

from phyla.api import Client, CollectResult, GroupResults
from phyla.controller import EVALUATE_ONLY
from phyla.errors import LeaseLost
from phyla.machine import Answer, Completion, Ended, Evaluated, Failure, Idle, NoWork, Standing, Work
from phyla.records import Checkpoint, EvalJob, Group, Report, StudyState, WorkKind
from phyla.settings import Clock, system_clock
from phyla.store import Store

IDLE_LOOK_S = 1.0
"""How often a study without work is asked again by a worker that others keep busy."""


@final
class TakingTurns:
    """Speaks with several watched studies of one store.

    A worker gets work of the checkpoint that it has loaded; then of the most urgent class; and among studies
    that are equally urgent, of one after the other.

    Args:
        store: where the studies are remembered.
        clients: one per study, by its id; at least one.
        clock: tells when to ask studies without work again.
    """

    def __init__(self, store: Store, clients: Mapping[int, Client], *, clock: Clock = system_clock) -> None:
        self._store = store
        self._clients = clients
        self._clock = clock
        self._asked_at: dict[int, float] = {}
        self._last = 0

    def exchange(
        self,
        completions: Sequence[Completion | Evaluated],
        worker: str,
        count: int,
        *,
        kinds: Collection[WorkKind] = EVALUATE_ONLY,
        holding: int | None = None,
    ) -> tuple[list[Answer], list[Work], NoWork | None]:
        """Hand in finished work and claim up to `count` new eval tasks; each study has its own transaction."""
        answers: list[Answer] = []
        for done in completions:
            try:
                client = self._client_of(done.job if isinstance(done, Evaluated) else done.trial)
            except LeaseLost as error:
                answers.append(error)
            else:
                answers += client.exchange([done], worker, 0)[0]
        claimed: list[Work] = []
        ended: list[Ended] = []
        waits: list[float] = []
        for study, has_work in self._in_turn(holding) if count else ():
            now = self._clock()
            if not has_work and 0 <= now - self._asked_at.get(study, float("-inf")) < IDLE_LOOK_S:
                # Asking costs a transaction that writes; it only matters for leases that ran out, and at the end.
                continue
            wanted = count - len(claimed)
            _, given, rest = self._clients[study].exchange((), worker, wanted, kinds=kinds, holding=holding)
            claimed += given
            if given:
                self._last = study
            if isinstance(rest, Ended):
                ended.append(rest)
            elif isinstance(rest, Idle):
                self._asked_at[study] = now
                if rest.seconds is not None:
                    waits.append(rest.seconds)
            if len(claimed) == count:
                return answers, claimed, None
        if not count:
            return answers, claimed, None
        if len(ended) == len(self._clients):
            messages = [each.message for each in ended if each.message]
            return answers, claimed, Ended(state=StudyState.COMPLETED, message="; ".join(messages) or None)
        return answers, claimed, Idle(seconds=min(waits, default=None), why="no checkpoint waits for evaluation")

    def _in_turn(self, holding: int | None) -> list[tuple[int, bool]]:
        """Return the studies in the order in which to ask them, and whether each has something to do."""
        next_of: dict[int, EvalJob | None] = {}
        for study in self._clients:
            with self._store.reader(study) as reader:
                next_of[study] = reader.next_eval_job(holding)

        def urgency(study: int) -> tuple[float, bool, int]:
            job = next_of[study]
            if job is None:
                return float("inf"), False, study
            return job.priority, job.seen != holding, (study - self._last - 1) % (max(self._clients) + 1)

        return [(study, next_of[study] is not None) for study in sorted(self._clients, key=urgency)]

    def _client_of(self, job: int) -> Client:
        """Return the client of the study that has a job.

        Raises:
            LeaseLost: none has it any more.
        """
        for study, client in self._clients.items():
            with self._store.reader(study) as reader:
                if reader.job(job) is not None:
                    return client
        raise LeaseLost(f"none of the studies that this process works for has job {job}; was its study deleted?")

    def fail(self, failure: Failure) -> None:
        """Record that an attempt at a job failed."""
        self._client_of(failure.job).fail(failure)

    def release(self, job: int, token: int) -> None:
        """Return a job to the queue."""
        self._client_of(job).release(job, token)

    def report(self, trial: int, token: int, reports: Sequence[Report]) -> Standing:
        """Store what training reported so far; return how its attempt stands."""
        return self._client_of(trial).report(trial, token, reports)

    def save_progress(self, trial: int, token: int, checkpoint: Checkpoint) -> None:
        """Remember where a retry of the trial resumes."""
        self._client_of(trial).save_progress(trial, token, checkpoint)

    def checkpoint(self, name: str, *, study: int) -> Checkpoint | None:
        """Return what was recorded of a checkpoint of a study."""
        return self._clients[study].checkpoint(name, study=study)

    def group_results(self, group: int, *, study: int) -> GroupResults:
        """Return what the ledger has of a group of a study."""
        return self._clients[study].group_results(group, study=study)

    def best_group(self, suite: str, *, study: int) -> Group | None:
        """Return the best complete group of a suite of a study so far."""
        return self._clients[study].best_group(suite, study=study)

    def end_study(self, study: int, state: StudyState, message: str | None) -> None:
        """Stop a study: no more work of it is given out."""
        self._clients[study].end_study(study, state, message)

    def renew(self, worker: str) -> None:
        """Renew all leases of a worker."""
        for client in self._clients.values():
            client.renew(worker)

    def lose_worker(self, worker: str, error: str, *, counts: bool) -> int:
        """Take back all that a dead worker held."""
        return sum(client.lose_worker(worker, error, counts=counts) for client in self._clients.values())

    def wait(self, seconds: float) -> None:
        """Return once something was committed, or after `seconds` at the latest."""
        next(iter(self._clients.values())).wait(seconds)

    def is_active(self) -> bool:
        """Return whether there may be more work."""
        return any(client.is_active() for client in self._clients.values())

    def give_up(self, message: str) -> None:
        """Say that this launcher ends because its workers do."""
        for client in self._clients.values():
            client.give_up(message)

    def recover(self) -> None:
        """Clean up what processes that died left half done."""
        for client in self._clients.values():
            client.recover()

    def collect(self) -> CollectResult:
        """Delete the checkpoints that nobody needs any more."""
        found = [client.collect() for client in self._clients.values()]
        deleted = tuple(name for each in found for name in each.deleted)
        return CollectResult(deleted=deleted, freed_bytes=sum(each.freed_bytes for each in found))
