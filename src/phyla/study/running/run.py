"""Running studies until they end, in this process or in worker processes."""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, final

from phyla import queries, settings, study_modules
from phyla.client import Client
from phyla.controller import sightings_of
from phyla.errors import (
    CheckpointsAbsent,
    CheckpointStorageFailed,
    ConfigurationError,
    LauncherFailed,
    Preempted,
    StateError,
    StudyFailed,
    TimeTooShort,
)
from phyla.launchers import Pool
from phyla.launchers.pools import CLOSED, PoolRun
from phyla.records import StudyState
from phyla.store import hold_on
from phyla.store.retry import repeatable
from phyla.study.declaration import Declared
from phyla.study.maintaining.recover import (
    has_other_launches,
    remove_outputs,
    resume_study,
    take_back,
    verify_best,
)
from phyla.study.places import Places
from phyla.study.results.given_up import describe_given_up
from phyla.study.results.progress import Failures
from phyla.study.results.results import Results
from phyla.study.running.messages import Lookout, achieved, explain_futility, say_nothing_to_do
from phyla.study.running.open import claim
from phyla.study.running.own import OwnRun
from phyla.study.running.provenance import note_start
from phyla.study.running.trackers import Destination, environment, follow
from phyla.study.validation import check_kinds, check_seconds
from phyla.supervision.gpus import Gpus, gpu_environments, seen_gpus, visible_gpus
from phyla.supervision.supervisor import Supervisor
from phyla.supervision.term import Term
from phyla.validation import check_integer
from phyla.worker import Command, Launch, Worker
from phyla.worker.make import population_worker
from phyla.worker.spec import WorkerSpec

if TYPE_CHECKING:
    from phyla.integrations.trackers import Tracker
    from phyla.study.results.notebook import NotebookCell
    from phyla.study.running.display import StudyDisplay

LOG = logging.getLogger("phyla")
MOST_WORKERS = 10_000
"""Processes of one run on this machine."""


@final
@dataclass(frozen=True)
class Crew:
    """The workers of a run, and the callbacks that report its progress; see `Study.run`."""

    workers: int
    _: KW_ONLY
    evaluators: int = 0
    kinds: Sequence[str] = ("evaluate",)
    gpus_per_worker: Gpus
    placed: Pool | None = None  # Workers that a launcher places, instead of processes of this one.
    gpus: Sequence[str] | None = None
    eval_gpus: Sequence[str] | None = None
    labels: Sequence[str] = ()
    stall_timeout_s: float | None = None
    yields: bool = False
    save_every_s: float | None = None
    term: Term = field(default_factory=Term)
    trackers: "Sequence[Tracker]" = ()
    displayed: bool = False  # whether `on_progress` belongs to a display
    on_progress: Callable[[Results], None] | None = None
    on_interrupt: Callable[[], None]

    def with_display(self, display: "StudyDisplay | NotebookCell") -> "Crew":
        """Return the same crew with a display."""

        def interrupted() -> None:
            display.interrupted()
            self.on_interrupt()

        return replace(self, displayed=True, on_progress=display.progressed, on_interrupt=interrupted)

    @property
    def logs_failures(self) -> bool:
        """Whether nothing else shows what failed."""
        return self.displayed or self.on_progress is None

    @cached_property
    def environments(self) -> Sequence[Mapping[str, str]]:
        """Environment variables of each worker process; those of the evaluators come last."""
        if self.placed is not None:
            return ()
        share, evaluating = self.gpus_per_worker, self.eval_gpus
        if evaluating is None:
            return gpu_environments(self.workers + self.evaluators, share, self.gpus)
        visible = visible_gpus()
        training = [gpu for gpu in visible if gpu not in evaluating]
        if visible and self.workers and not training:
            raise ConfigurationError(
                f"eval_gpus={list(evaluating)}: these are all visible GPUs, so none is left for training; give "
                "evaluation fewer, or leave eval_gpus out"
            )
        return [
            *gpu_environments(self.workers, share, training),
            *gpu_environments(self.evaluators, share, evaluating),
        ]

    @property
    def pool(self) -> Sequence[str]:
        """The GPUs for eval tasks that need several."""
        return self.eval_gpus or self.gpus or visible_gpus()

    def specs(self, spec: WorkerSpec) -> list[WorkerSpec]:
        """Return the spec of each worker process."""
        return [
            replace(
                spec,
                index=index,
                kinds=spec.kinds if index < self.workers else ("evaluate",),
                gpus=(0, len(seen_gpus(environment, self.pool))),
            )
            for index, environment in enumerate(self.environments)
        ]

    def check(self, places: Places) -> None:
        """Check that this process may start its workers."""
        for name in ("workers", "evaluators"):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), 0, MOST_WORKERS))
        if not (self.workers or self.evaluators):
            return
        if settings.in_worker():
            raise ConfigurationError(
                "a worker process tried to start workers, which would start workers endlessly; start them under "
                '`if __name__ == "__main__":`, or use workers=0 inside training code'
            )
        if places.storage == "memory://":
            raise ConfigurationError(
                f"{settings.storage_name('memory://')}='memory://' exists in this process only, where worker "
                "processes cannot see it; run with --workers 0 (in Python: workers=0), or in another storage"
            )

    def check_study(self, study: Declared) -> None:
        """Check that this crew can work on a study with a population."""
        study_modules.only_when_run()
        if study.train is None:
            raise ConfigurationError(
                "Study(train=...) is needed to run; a script with a loop of its own (phyla.attach, study.ask) is "
                "started with: python FILE"
            )
        if isinstance(study.train, Command) and "train" in self.kinds:
            study.train.check_program()
            if self.placed is None or self.placed.launcher == "local":
                study.train.check_engine()
        self.check(study.places)
        suites = study.rules.suites
        if "train" not in check_kinds(self.kinds) and not suites:
            raise ConfigurationError(f"kinds={self.kinds!r}: this study has no suites= to evaluate")
        if self.evaluators and not (self.workers and suites):
            named = "evaluators" if self.eval_gpus is None else "eval_gpus"
            raise ConfigurationError(
                f"{named}={getattr(self, named)!r}: evaluators need suites= to evaluate (in a TOML file: "
                "[[eval]]), and workers= of at least 1 that train"
            )
        check_seconds("stall_timeout_s", self.stall_timeout_s)
        check_seconds("save_every_s", self.save_every_s)
        _ = self.environments  # raises where there are too few GPUs


def work(
    client: Client,
    crew: Crew,
    spec: WorkerSpec,
    make: Callable[[WorkerSpec], Worker],
    *,
    launch: Launch,
    logs: Path,
    lease_s: float,
    progress: Callable[[], int] = lambda: 0,
    on_tick: Callable[[], None],
) -> bool:
    """Work on studies of any kind until they end; return False when a person interrupted it.

    Worker processes are started by `spec`; without any, this process is the worker that `make` returns.
    """
    hold_on(client.store)
    term = crew.term
    if crew.placed is not None:
        return PoolRun(
            client=client,
            pool=crew.placed,
            term=term,
            progress=progress,
            on_loss=partial(take_back, client, launch),
            on_tick=on_tick,
            on_interrupt=crew.on_interrupt,
        ).run()
    spec = replace(spec, stop_signal=term.stop_signal, labels=crew.labels)
    if term.limit_s is not None:
        spec = replace(spec, stops_at=term.stops_at, run_s=term.limit_s)
    if crew.environments:
        return Supervisor(
            client,
            crew.specs(spec),
            launch=launch,
            environments=crew.environments,
            logs=logs,
            renew_s=lease_s / 3,
            stall_timeout_s=crew.stall_timeout_s,
            gpus=crew.pool,
            term=term,
            on_tick=on_tick,
            on_interrupt=crew.on_interrupt,
        ).run()
    log = str(logs / "worker-0.log")
    worker = make(replace(spec, gpus=(0, len(crew.pool)), name=launch.worker_name(), log=log))
    return OwnRun(client, worker, term, crew.on_interrupt).run(on_tick)


def run_study(study: Declared, client: Client, crew: Crew) -> Results:
    """Train until the study ends; resumes what an earlier run left. See `Study.run`."""
    store, key = client.store, client.record.id
    results = Results(store, client.record, study.places)
    tracking = environment(crew.trackers, client.record, study.places)
    with Launch(study.places.locks, store.url, [study.name]) as launch:
        claim(client)
        if results.state is not StudyState.COMPLETED or "train" in crew.kinds:
            resume_study(store, client.record)
        take_back(client, launch)
        client.recover()
        _clean_outputs(study, client)
        if study.rules.suites:
            sightings_of(store, client.record, study.rules.suites).retry()
        if results.state is StudyState.COMPLETED:
            say_nothing_to_do(store.look(key, queries.summary))

        failures = Failures(store.look(key, queries.summary).now) if crew.logs_failures else None
        look = partial(Lookout(study.name, study.rules).look, store, key, failures=failures)
        try:
            destinations = [*map(Destination, crew.trackers)]
            with note_start(client, results.state), follow(destinations, store, client.record, study.places):
                # A complete study starts no worker.
                finished = not client.is_active() or _train(study, client, crew, launch, results, look, tracking)
            look(at_once=True)
            client.collect()
            client.recover()
            if results.state is StudyState.COMPLETED:
                verify_best(client)
        except (
            CheckpointsAbsent,
            CheckpointStorageFailed,
            ConfigurationError,
            LauncherFailed,
            StateError,
            TimeTooShort,
        ) as error:
            _stop(client, launch, str(error))
            raise
        except Preempted as error:
            # On other machines, or in a pool, idle workers may still be waiting for work.
            if not study.places.reaches_others and str(error) != CLOSED:
                _stop(client, launch, f"{error}; run it again to resume")
            raise
        _clean_outputs(study, client)
        if not finished:
            _stop(client, launch, "interrupted; run it again to resume")
            raise KeyboardInterrupt
        record = results.study()
        if record.state is StudyState.FAILED:
            raise StudyFailed(f"study {study.name!r} stopped itself: {record.message}")
        lacking = describe_given_up(store, record) if crew.logs_failures else None
        if lacking is not None:
            LOG.warning("warning: %s", lacking)
    return results


def add_workers(study: Declared, client: Client, crew: Crew) -> Results:
    """Train a study that others run, until it ends. See `Study.work`."""
    results = Results(client.store, client.study(), study.places)
    if client.is_active():
        claim(client)
        with Launch(study.places.locks, client.store.url, [study.name]) as launch:
            if not _train(study, client, crew, launch, results):
                raise KeyboardInterrupt
    return results


def _train(
    study: Declared,
    client: Client,
    crew: Crew,
    launch: Launch,
    results: Results,
    look: Callable[[], None] = lambda: None,
    tracking: Mapping[str, str] | None = None,
) -> bool:
    def progressed() -> None:
        if crew.on_progress is not None:
            crew.on_progress(results)

    def tick() -> None:
        look()
        progressed()

    progressed()  # before workers start, which takes a while
    name, places, rules = study.name, study.places, study.rules
    assert study.train is not None
    spec = WorkerSpec(
        configs={name: client.record.config} if crew.workers else {},
        storage=places.storage,
        checkpoints=str(places.checkpoints(name, client.record.config)),
        work_root=str(places.folder("work", name)),
        outputs=str(places.folder("outputs", name)),
        kinds=tuple(sorted(set(crew.kinds))),
        yields=crew.yields,
        save_every_s=crew.save_every_s,
        environment=tracking or {},
    )
    here = partial(population_worker, client, rules, study.train, study.setup, renew_s=rules.lease_s / 3)

    def done() -> int:
        return results.counts().get("completed", 0) + len(results.evaluating())

    logs = places.folder("logs", name)
    try:
        return work(
            client, crew, spec, here, launch=launch, logs=logs, lease_s=rules.lease_s, progress=done, on_tick=tick
        )
    except Preempted as error:
        if "train" in crew.kinds and str(error) in (
            crew.term.end_message(over=True),
            crew.term.end_message(over=False),
        ):
            why = explain_futility(client.store.look(client.record.id, achieved), crew.term)
            if why is not None:
                raise TimeTooShort(why) from None
        raise


@repeatable
def _stop(client: Client, launch: Launch, why: str) -> None:
    """Stop a running study, unless other launches work on it."""
    if client.study().state is StudyState.RUNNING and not has_other_launches(client, launch):
        client.store.set_state(client.record.id, StudyState.STOPPED, why)


def _clean_outputs(study: Declared, client: Client) -> None:
    if study.rules.suites:
        # Files that cannot be removed now are removed after the next run.
        with contextlib.suppress(OSError):
            remove_outputs(client.store, client.record.id, study.places.folder("outputs", study.name))
