"""A study: what to search, how, with which training function; run it and read its results."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final, overload

from phyla import study_modules
from phyla.errors import ConfigurationError, StudyNotFound
from phyla.formatting import format_count
from phyla.machine import TrainRules
from phyla.records import JsonObject, Objective, StartFrom
from phyla.space import Space
from phyla.strategies import Final, StoppingRule, Strategy, check_space
from phyla.study.declaration import Declared, Replicate, Retention, Retries, replicate_seed
from phyla.study.places import Places, find_study
from phyla.study.results.results import ConfigChange, Results
from phyla.study.validation import check_gpus, check_starts, check_suites, check_tasks, make_term
from phyla.validation import check_function, check_name, plain, suggest_arguments

if TYPE_CHECKING:
    from phyla.client import Client
    from phyla.evaluation import Suite
    from phyla.integrations.trackers import Tracker
    from phyla.launchers import Pool
    from phyla.study.running.run import Crew
    from phyla.supervision.gpus import Gpus
    from phyla.worker import Launch, Trial, WorkerContext

LEASE_S = 60.0


@final
class Study:
    """One job: a search space, an objective, a strategy and a training function. Durable and resumable.

    An existing study of this name is resumed. Other settings are rejected; `change` stores them.

    Args:
        name: letters, digits, `_`, `-` and `.`; also the name of its directories.
        space: the hyperparameters.
        objective: `Maximize("metric")`, `Minimize("metric")`, `WeightedSum`, `Pareto` or `Constrained`.
        strategy: what members do next, such as `PBT(...)`.
        train: `train(trial)`, or a `Command`; needed to run, not to ask and tell.
        setup: `setup(worker)`, called once per worker process; what it returns is `trial.worker`.
        seed: root of all randomness.
        home: directory for everything; by default `.phyla`, or what `PHYLA_HOME` says.
        storage: URL of the store, such as `postgresql://user@host/db`; by default SQLite in the home.
        checkpoints: directory for checkpoints, or a URL such as `s3://bucket/prefix`; by default in the home.
        suites: what is evaluated on every checkpoint; with `FromSuite` one of them gives the fitness.
        stopping: a rule, or several, that may stop a running trial early, such as `MedianStopping(min_steps=100)`,
            or end the whole study, such as `Plateau(steps=10_000)`.
        final: measures the best candidates again when training has ended: `Final(candidates=8, measurements=32)`.
            Without a final, an estimate names the best trial.
        start_from: checkpoints that exist, as paths or `StartFrom(path, ...)`, at most one per member: member i
            starts from entry i modulo their number. They are imported when the study is made, and cannot change.
        retention: which checkpoints are kept besides those in use.
        retries: how often what fails is tried again.

    Raises:
        ConfigurationError: an argument is invalid.
        SpaceError: the space does not allow hyperparameters of `start_from`, or of the strategy.
    """

    def __init__(
        self,
        name: str,
        space: Space | Mapping[str, Any],
        objective: Objective,
        strategy: Strategy,
        train: "Callable[[Trial], object] | None" = None,
        *,
        setup: "Callable[[WorkerContext], object] | None" = None,
        seed: int = 0,
        home: str | Path | None = None,
        storage: str | None = None,
        checkpoints: str | Path | None = None,
        suites: "Sequence[Suite]" = (),
        stopping: StoppingRule | Sequence[StoppingRule] = (),
        final: Final | None = None,
        start_from: "Sequence[str | PathLike[str] | StartFrom]" = (),
        retention: Retention = Retention(),  # noqa: B008  # frozen
        retries: Retries = Retries(),  # noqa: B008  # frozen
    ) -> None:
        check_name(f"study name {name!r}", name, ", as in 'digits-2'")
        seed = plain(seed)
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise ConfigurationError(f"seed={seed!r}: must be an integer of at least 0 and below 2**63")
        for argument, function, takes in (("train", train, "a trial"), ("setup", setup, "a worker")):
            if function is not None:
                check_function(argument, function, takes)
        for argument, value, kind in (("retention", retention, Retention), ("retries", retries, Retries)):
            if not isinstance(value, kind):
                raise ConfigurationError(f"{argument}={value!r}: give phyla.{kind.__name__}(...)")
        rules = TrainRules(
            space=space if isinstance(space, Space) else Space(space),
            objective=objective,
            strategy=strategy,
            lease_s=LEASE_S,
            max_attempts=retries.attempts,
            max_broken=retries.broken,
            keep_best=retention.best,
            keep_front=retention.front,
            keep_every_steps=retention.every_steps,
            suites=tuple(suites),
            stopping=tuple(stopping) if isinstance(stopping, Sequence) else (stopping,),
            max_stops=retries.stops,
            final=final,
        )
        check_suites(rules.suites, rules)
        for plugin in (rules.strategy, *rules.stopping, train):
            check_space(plugin, rules.space)
        self.declared = Declared(
            name=name,
            seed=seed,
            rules=rules,
            places=Places.of(home, storage, checkpoints),
            train=train,
            setup=setup,
            start_from=check_starts(start_from, rules.space, strategy),
        )
        self.launch: Launch | None = None
        self._client: Client | None = None
        self._opened: _Opened | None = None

    def __repr__(self) -> str:
        rules = self.rules
        members = f"{type(rules.strategy).__name__} of {format_count(rules.strategy.population_size, 'member')}"
        return f"<Study {self.name!r}: {rules.objective.description}, {members}, in {self.places.home}>"

    @property
    def name(self) -> str:
        """Name of the study."""
        return self.declared.name

    @property
    def seed(self) -> int:
        """Root of all randomness."""
        return self.declared.seed

    @property
    def rules(self) -> TrainRules:
        """What decides: space, objective, strategy, suites, and the rest of its settings."""
        return self.declared.rules

    @property
    def space(self) -> Space:
        """The hyperparameters."""
        return self.declared.rules.space

    @property
    def train(self) -> "Callable[[Trial], object] | None":
        """The training function, or the command; None where trials are asked for."""
        return self.declared.train

    @train.setter
    def train(self, train: "Callable[[Trial], object] | None") -> None:
        self.declared = replace(self.declared, train=train)

    @property
    def places(self) -> Places:
        """Where it keeps its things."""
        return self.declared.places

    @places.setter
    def places(self, places: Places) -> None:
        self.declared = replace(self.declared, places=places)

    def replicate(self, index: int) -> "Study":
        """Return this study with another name, `NAME-r{index}`, and another seed; see `phyla.run_replicates`."""
        known = self.declared.replicate_of
        if known is not None:
            raise ConfigurationError(f"study {self.name!r} is a replicate of {known.of!r} itself")
        replicate = Replicate(of=self.name, index=index)
        if len(replicate.name) > 100:
            raise ConfigurationError(f"study name {replicate.name!r} of a replicate has more than 100 characters")
        seed = replicate_seed(self.seed, index)
        study = copy.copy(self)
        study.declared = replace(self.declared, name=replicate.name, seed=seed, replicate_of=replicate)
        study.launch = study._client = study._opened = None
        return study

    # Running

    def run(
        self,
        workers: int = 0,
        *,
        evaluators: int = 0,
        kinds: Sequence[str] = ("train", "evaluate"),
        gpus_per_worker: "Gpus" = "auto",
        eval_gpus: Sequence[str | int] | None = None,
        lease_s: float = LEASE_S,
        stall_timeout_s: float | None = None,
        yield_at_report: bool = False,
        stop_signal: str | int | None = None,
        grace_s: float | None = None,
        time_limit_s: float | None = None,
        save_every_s: float | None = None,
        overwrite: bool = False,
        trackers: "Sequence[str | Tracker]" = (),
        pool: "Pool | None" = None,
        progress: bool = True,
        on_progress: Callable[[Results], None] | None = None,
        on_interrupt: Callable[[], None] = lambda: None,
    ) -> Results:
        """Train until the study ends; resumes an earlier run, even one that stopped or failed.

        Args:
            workers: worker processes to start; 0 works in this process.
            evaluators: further worker processes that only evaluate, so that evaluation never waits for training.
            kinds: what the workers do: `train`, `evaluate`, or both; a worker that does both evaluates first.
            gpus_per_worker: GPUs each worker sees, through `CUDA_VISIBLE_DEVICES`: `auto` for one, shared where
                there are fewer than workers; with 0.5 two share one; 0 shows every worker all of them.
            eval_gpus: GPUs of the `evaluators`, by default one for each; the workers only train, on all others.
            lease_s: seconds after which a worker that went silent loses its trial.
            stall_timeout_s: seconds without any progress before a worker process is ended; None never ends one.
            yield_at_report: let `trial.report()` run an eval task that waits, before training goes on.
            stop_signal: a signal that stops the run as SIGTERM does, such as `"USR1"`.
            grace_s: seconds that training and eval tasks have to stop after a signal, 30 by default; then they are
                ended, and go back to the queue. With `workers=0` that may end this process.
            time_limit_s: seconds that the run may last. Jobs that are not expected to end in time are not started;
                shortly before the end, running trials are asked to save and stop.
            save_every_s: seconds after which training is asked to save progress, by `trial.should_save`.
            overwrite: delete what is stored of this study, its trials and its checkpoints, and start over.
            trackers: where to log metrics, hyperparameters, lineage and evaluations: `tensorboard`, `wandb` or
                `mlflow`, perhaps with a place as in `tensorboard=DIR`, `wandb=PROJECT`, `mlflow=URI`.
            pool: workers that a launcher places, instead of processes of this one; see `phyla.launchers.Pool`.
            progress: whether lines on standard error, or a cell of a notebook, show the progress of the study.
            on_progress: called many times a second, with `workers=0` between trials; it replaces `progress`.
            on_interrupt: called for each Ctrl-C or SIGTERM inside the signal handler, so it must be brief.

        Raises:
            ConfigurationError: an argument is invalid, or a tracker's library is missing.
            StudyChanged: the study has other settings, or was given others meanwhile; see `change`.
            NotImportable: worker processes could not find `train`; the message says how to fix that.
            StateError: it is to be overwritten while others are at work on it; nothing was deleted.
            LauncherFailed: the engine that runs the workers of the pool failed, or cannot be reached.
            StudyFailed: the study stopped itself; the message says what to do. `phyla.errors.TimeTooShort`, which
                is one: no trial fits into `time_limit_s`, and none saved its progress.
            CheckpointsAbsent: the directory of its checkpoints is missing, or is not its own.
            KeyboardInterrupt: a person stopped it; run it again to resume. `phyla.errors.Preempted`, which is one,
                where SIGTERM, `stop_signal` or the end of its time did.
            StoreError: the database failed.
        """
        from phyla.study.running.run import Crew
        from phyla.study.running.trackers import check_trackers

        crew = Crew(
            workers=workers,
            placed=pool,
            evaluators=evaluators or len(eval_gpus or ()),
            kinds=tuple(kinds) if eval_gpus is None else ("train",),
            gpus_per_worker=gpus_per_worker,
            eval_gpus=check_gpus("eval_gpus", eval_gpus),
            stall_timeout_s=stall_timeout_s,
            yields=yield_at_report,
            save_every_s=save_every_s,
            term=make_term(stop_signal, time_limit_s, grace_s),
            trackers=check_trackers(trackers, self.name, self.places),
            on_progress=on_progress,
            on_interrupt=on_interrupt,
        )
        return self._run(crew, lease_s, overwrite=overwrite, displayed=progress and on_progress is None)

    def _run(self, crew: "Crew", lease_s: float, *, overwrite: bool, displayed: bool) -> Results:
        from phyla.launchers.pools import check_pool
        from phyla.study.maintaining.delete import overwrite as delete
        from phyla.study.running.run import run_study

        crew.check_study(self.declared)
        if crew.placed is None and ("evaluate" in crew.kinds or crew.evaluators):
            check_tasks(self.rules.suites, crew.pool)
        self._set_lease(lease_s)
        config = self.config(portable=bool(crew.workers))  # raises before anything is deleted
        if overwrite:
            if crew.placed is not None:
                check_pool(crew.placed)
            if self._client is not None:
                self._client.store.close()
                self._client = self._opened = None
            self.places = delete(self.declared)
        client = self._open(config, portable=bool(crew.workers))
        if not displayed:
            return run_study(self.declared, client, crew)
        from phyla.study.running.display import display

        with display(self.declared, crew.workers if crew.placed is None else None) as shown_by:
            return run_study(self.declared, client, crew.with_display(shown_by))

    def work(
        self,
        workers: int = 1,
        *,
        kinds: Sequence[str] = ("train", "evaluate"),
        gpus_per_worker: "Gpus" = "auto",
        labels: Sequence[str] = (),
        stop_signal: str | int | None = None,
        grace_s: float | None = None,
        time_limit_s: float | None = None,
        save_every_s: float | None = None,
        on_progress: Callable[[Results], None] | None = None,
        on_interrupt: Callable[[], None] = lambda: None,
    ) -> Results:
        """Add workers to this study, which another process runs, until it ends; creates and changes nothing.

        They may be on any machine that sees the store and the checkpoints, and may be stopped at any time. They
        take functions and commands from this object, never from the store. With `labels` they also run eval tasks
        that ask for one of these with `resources={"label": ...}`. The other arguments are those of `run`.

        Raises:
            StudyNotFound: there is no such study.
            StudyChanged: the study has other settings than this object, or was given others meanwhile.
            StateError: the study is stopped, or has failed.
            NotImportable: worker processes could not find a function; the message says how to fix that.
            StudyFailed: the workers cannot start, or die again and again.
            KeyboardInterrupt: a person stopped these workers; the study goes on.
            StoreError: the database failed.
        """
        from phyla.study.running.open import join_study
        from phyla.study.running.run import Crew, add_workers
        from phyla.study.validation import check_labels

        crew = Crew(
            workers=workers,
            kinds=tuple(kinds),
            gpus_per_worker=gpus_per_worker,
            labels=check_labels(labels),
            save_every_s=save_every_s,
            term=make_term(stop_signal, time_limit_s, grace_s),
            on_progress=on_progress,
            on_interrupt=on_interrupt,
        )
        crew.check_study(self.declared)
        joined, client = join_study(self.declared, self.config(portable=bool(workers)))
        return add_workers(joined, client, crew)

    def change(self, *, newcomers: Literal["best", "fresh"] = "best") -> list[ConfigChange]:
        """Give the study that exists under this name these settings, and train nothing; return what was changed.

        What can change: settings of the strategy, its population size among them, stopping rules, and a space that
        gets wider. A study that was stopped, or has failed, may go on then. Stop its workers first, and start them
        again from the changed file.

        Args:
            newcomers: members that join start near the `best` ones, or `fresh`.

        Raises:
            StudyNotFound: there is no such study.
            ConfigurationError: an existing study cannot take such a change; also `SpaceError`.
            StudyChanged: another process changed it at the same time.
            CheckpointsNotOurs: the store was copied, and its checkpoints are those of the original.
            StoreError: the database failed.
        """
        from phyla.study.running.open import change

        if newcomers not in ("best", "fresh"):
            raise ConfigurationError(f"newcomers={newcomers!r}: choose 'best' or 'fresh'")
        try:
            return change(self.declared, self.config(), self._client, newcomers)
        finally:
            self._opened = None

    # Ask and tell

    @overload
    def ask(self, *, wait_s: float = 0.0, lease_s: float = LEASE_S) -> "Trial | None": ...

    @overload
    def ask(
        self, count: int, *, whole: bool = False, wait_s: float = 0.0, lease_s: float = LEASE_S
    ) -> "list[Trial]": ...

    def ask(
        self, count: int | None = None, *, whole: bool = False, wait_s: float = 0.0, lease_s: float = LEASE_S
    ) -> "Trial | list[Trial] | None":
        """Claim a trial, or several at once, to train in your own loop; then `tell`.

        The first time, a study that was stopped or has failed resumes. The lease lasts `lease_s`; `renew()` it
        from time to time if training takes longer. A trial whose lease ran out still counts when it is told,
        unless another worker has claimed it since.

        Args:
            count: how many at most; without it one trial is returned, not a list.
            whole: give `count` trials or none, for a program that is compiled for this number. An empty list means
                that other processes still train or evaluate some members, or that the study is `finished`. To fill
                `count`, a final takes additional measurements.
            wait_s: how long to wait, in seconds, while there is nothing to train.
            lease_s: seconds after which the trial may be given to another worker.

        Returns:
            A trial, or None when the study is `finished`, or every member is being trained; with `count` a list.

        Raises:
            ConfigurationError: an argument is invalid.
            StateError: with `whole`, when there will never be as many trials at once: members were given up, or
                the number does not divide the population. The message says how many there can be.
            StudyChanged: the study has other settings, or was given others meanwhile; see `change`.
            StudyFailed: the study stopped itself; the message says what to do.
            CheckpointsAbsent: the directory of its checkpoints is missing, or is not its own.
            CheckpointStorageFailed: a checkpoint that a trial starts from cannot be read now.
            StoreError: the database failed.
        """
        from phyla.study.running import ask as asking

        asked = asking.check_asked(count, wait_s)
        self._set_lease(lease_s)
        trials = asking.ask(self.declared, *self._asking(), asked, whole=whole, wait_s=wait_s)
        if count is not None:
            return trials
        return trials[0] if trials else None

    def tell(
        self,
        trials: "Trial | Sequence[Trial]",
        metrics: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        *,
        checkpoint: "Trial | None" = None,
        error: str | Exception | None = None,
    ) -> None:
        """Complete trials that `ask` gave, in one transaction; or fail them with `error`.

        What is in each trial's `checkpoint_dir` becomes its checkpoint. A vectorised training loop saves one
        checkpoint for all of them into the first trial's `checkpoint_dir` and passes `checkpoint=trials[0]`:
        the i-th trial then refers to index i within it (see `trial.parent.index`).

        Args:
            trials: one trial or several.
            metrics: last metrics to report, one mapping per trial.
            checkpoint: the trial that holds the checkpoint of all.
            error: what went wrong, or the exception; the trials are then tried again or given up.

        If the reported metrics make a stopping rule stop a trial, the trial ends without a checkpoint, and its
        member decides again.

        Raises:
            ConfigurationError: an argument is invalid.
            LeaseLost: a trial was given to another worker meanwhile; the others count.
            NoCheckpoint: nothing was saved in a `checkpoint_dir`.
            NoFitness: the objective was never reported.
            StateError: a trial already has a result, with other metrics.
            StudyFailed: these trials count, but they were the last ones, and the study ends without a result; or
                a fitness could not be computed, as the message says.
            StoreError: the database failed; nothing counts yet, tell it again.
        """
        from phyla.study.running import ask as asking

        many, reports = asking.check_told(trials, metrics, error)
        if error is not None:
            asking.tell_failed(*self._asking(), many, error)
        else:
            asking.tell(*self._asking(), many, reports, checkpoint)

    def renew(self) -> None:
        """Renew the leases of the trials that this process asked for."""
        client, launch = self._asking()
        client.renew(launch.worker_name())

    @property
    def finished(self) -> bool:
        """Whether the study takes no more work: it ended, or every member is done and there is no final.

        One that was stopped or has failed is not finished until this object has asked, since its first `ask`
        resumes the study.
        """
        from phyla.study.running import ask as asking

        return asking.is_finished(self._open(), self.launch)

    def results(self) -> Results:
        """Return what the study has found so far."""
        client = self._open(works=False)
        return Results(client.store, client.record, self.places)

    def _ipython_display_(self) -> None:
        from phyla.report.notebook import display
        from phyla.study.results.notebook import outline

        try:
            stored = find_study(self.name, self.places) if self._client is None else None
        except StudyNotFound:
            display(outline(self.name, self.rules))
            return
        results = self.results() if stored is None else Results(*stored, self.places)
        results._ipython_display_()

    # Opening

    def _set_lease(self, lease_s: float) -> None:
        if lease_s != self.rules.lease_s:
            self.declared = replace(self.declared, rules=replace(self.rules, lease_s=lease_s))
            self._opened = None

    def _open(self, config: JsonObject | None = None, *, portable: bool = False, works: bool = True) -> "Client":
        """Open it to look, to ask, to run here, or (`portable`) for worker processes that import its functions."""
        from phyla.study.running.open import open_study

        if works:
            study_modules.only_when_run(study_modules.OwnLoop)
        wanted = _Opened(works=works, portable=portable)
        if self._client is None or self._opened is None or not self._opened.serves(wanted):
            store = None if self._client is None else self._client.store
            settings = self.config(portable=portable) if config is None else config
            self._client = open_study(self.declared, settings, works=works, store=store)
            self._opened = wanted
        return self._client

    def _asking(self) -> "tuple[Client, Launch]":
        """Open it to ask; return it with the launch as whose worker this process asks."""
        from phyla.study.running.ask import open_launch

        client = self._open()
        if self.launch is None:
            self.launch = open_launch(self.declared, client)
        return client, self.launch

    def config(self, *, portable: bool = False) -> JsonObject:
        """Return the configuration as JSON, as it is stored; `portable` where workers import its functions."""
        from phyla.study.running.stored_config import stored_config

        return stored_config(self.declared, portable=portable)


@dataclass(frozen=True, slots=True)
class _Opened:
    """For what a study was opened: to work, not only to look; by workers that import its functions."""

    works: bool
    portable: bool

    def serves(self, wanted: "_Opened") -> bool:
        """Return whether it need not be opened again."""
        return self.works >= wanted.works and self.portable >= wanted.portable


suggest_arguments(
    Study,
    hints={
        "resources": "a command takes it: train=phyla.Command([...], resources={'nodes': 4, 'gpus': 8}). A "
        "training function attaches instead: start its ranks with srun, call phyla.attach() in rank 0, and "
        "phyla.integrations.ranks.shared_trials() in all; see docs/how-to/attach.md"
    },
)
