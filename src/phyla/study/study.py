"""A study: what to search, how, with which training function; run it and read its results."""

import contextlib
import copy
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final, overload

from phyla import plugins, settings
from phyla.errors import ConfigurationError, LeaseLost, StoreError, StudyChanged, StudyFailed
from phyla.machine import Claimed, Ended, Failure, Outdated, Rules
from phyla.population import StoppingRule, Strategy, check_space
from phyla.records import JsonObject, Objective, RunKind, RunRecord, StartFrom, StudyRecord, StudyState
from phyla.space import Space
from phyla.study.opening import find_study
from phyla.study.outputs import remove_leftovers
from phyla.study.places import Places
from phyla.study.reconciling import reconcile, stored_config
from phyla.study.replicates import Replicate, replicate_seed
from phyla.study.results import ConfigChange, Results
from phyla.study.starts import check_usable, checked_starts
from phyla.study.unreported import Unreported

if TYPE_CHECKING:
    from phyla.checkpoints import LocalCheckpoints
    from phyla.evaluation import Suite
    from phyla.local_client import LocalClient
    from phyla.store import Store
    from phyla.worker import Trial, WorkerContext

NAME = re.compile(r"[\w][\w.-]{0,99}")


@final
class Study:
    """One job: a search space, an objective, a strategy and a training function. Durable and resumable.

    A study that exists under this name is resumed. With another configuration it is refused, unless
    `extend=True` and only settings of the strategy or the stopping rules differ, or the space is wider.

    Args:
        name: letters, digits, `_`, `-` and `.`; also the name of its directories.
        space: the hyperparameters.
        objective: `Maximize("metric")` or `Minimize("metric")`; of several metrics `WeightedSum` or `Pareto`; with
            limits `Constrained`.
        strategy: what members do next, such as `PBT(...)`.
        train: `train(trial)`; needed to run, not to ask and tell.
        setup: `setup(worker)`, called once per worker process; what it returns is `trial.worker`.
        seed: root of all randomness.
        home: directory for everything; by default `.phyla`, or what `PHYLA_HOME` says.
        storage: URL of the store, such as `postgresql://user@host/db`; by default SQLite in the home.
        checkpoints: directory for checkpoints; by default in the home.
        extend: take over changed settings of the strategy, its population size among them, stopping rules, and a
            wider space into an existing study.
        newcomers: how members start that join an existing study: from the `best` ones, with hyperparameters near
            theirs, or `fresh`.
        lease_s: seconds after which a worker that went silent loses its trial.
        max_attempts: attempts of one trial that may fail before it counts as broken.
        max_broken: broken trials in a row, with none completed between, that stop the study; counted afresh once
            it is resumed.
        keep_best: best checkpoints that are kept besides those in use.
        keep_every_steps: also keep checkpoints whose step is a multiple of this.
        stall_timeout_s: seconds without any progress before a worker is ended; None never ends one.
        suites: what is evaluated on every checkpoint; with `FromSuite` one of them gives the fitness.
        yield_at_report: let `trial.report()` run an eval task that waits, before training goes on.
        stopping: a rule, or several, that may stop a running trial early, such as `MedianStopping(min_steps=100)`;
            its member then decides again.
        max_stops: how often a member is stopped within one generation; after that its trial is left to run.
        start_from: checkpoints that exist, as paths or `StartFrom(path, ...)`: member i starts from entry i modulo
            their number, not fresh. They are imported once, when the study is made, with at most one entry per
            member then; the list cannot change later, and stays when the population shrinks.

    Raises:
        ConfigurationError: an argument makes no sense.
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
        extend: bool = False,
        newcomers: Literal["best", "fresh"] = "best",
        lease_s: float = 60.0,
        max_attempts: int = 3,
        max_broken: int = 10,
        keep_best: int = 1,
        keep_front: int = 100,
        keep_every_steps: int | None = None,
        stall_timeout_s: float | None = None,
        suites: "Sequence[Suite]" = (),
        yield_at_report: bool = False,
        stopping: StoppingRule | Sequence[StoppingRule] = (),
        max_stops: int = 3,
        start_from: "Sequence[str | PathLike[str] | StartFrom]" = (),
    ) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ConfigurationError(
                f"study name {name!r}: use up to 100 letters, digits, '_', '-' and '.', as in 'digits-2'"
            )
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ConfigurationError(f"seed={seed!r}: must be an integer of at least 0")
        if train is not None and not callable(train):
            raise ConfigurationError(f"train={train!r}: must be a function that takes a trial")
        if stall_timeout_s is not None and stall_timeout_s <= 0:
            raise ConfigurationError(f"stall_timeout_s={stall_timeout_s!r}: must be above 0, or None")
        self.name = name
        self.seed = seed
        self.train = train
        self.setup = setup
        self.stall_timeout_s = stall_timeout_s
        self.places = Places.of(home, storage, checkpoints)
        self.rules = Rules(
            space=space if isinstance(space, Space) else Space(space),
            objective=objective,
            strategy=strategy,
            lease_s=lease_s,
            max_attempts=max_attempts,
            max_broken=max_broken,
            keep_best=keep_best,
            keep_front=keep_front,
            keep_every_steps=keep_every_steps,
            suites=tuple(suites),
            stopping=tuple(stopping) if isinstance(stopping, Sequence) else (stopping,),
            max_stops=max_stops,
        )
        for plugin in (self.rules.strategy, *self.rules.stopping):
            check_space(plugin, self.rules.space)
        self.yield_at_report = yield_at_report
        self.replicate_of: Replicate | None = None
        self.start_from = checked_starts(start_from, self.rules.space)
        if newcomers not in ("best", "fresh"):
            raise ConfigurationError(f"newcomers={newcomers!r}: choose 'best' or 'fresh'")
        self.newcomers = newcomers
        self._unreported = Unreported(name, self.rules)
        self._extend = extend
        self._opened: _Opened | None = None

    def replicate(self, index: int) -> "Study":
        """Return this study with another name, `NAME-r{index}`, and another seed; see `phyla.run_replicates`.

        Args:
            index: 0 for the first replicate.

        Raises:
            ConfigurationError: this is a replicate itself, or its name is too long to get longer.
        """
        if self.replicate_of is not None:
            raise ConfigurationError(f"study {self.name!r} is a replicate of {self.replicate_of.of!r} itself")
        made = copy.copy(self)
        made.replicate_of = Replicate(of=self.name, index=index)
        made.name = made.replicate_of.name
        made.seed = replicate_seed(self.seed, index)
        made._unreported = Unreported(made.name, made.rules)
        made._opened = None
        if not NAME.fullmatch(made.name):
            raise ConfigurationError(f"study name {made.name!r} of a replicate has more than 100 characters")
        return made

    # Running

    def run(
        self,
        workers: int = 0,
        *,
        evaluators: int = 0,
        kinds: Sequence[str] = ("train", "evaluate"),
        gpus_per_worker: float = 0,
        extend: bool | None = None,
        on_progress: Callable[[Results], None] | None = None,
        on_interrupt: Callable[[], None] = lambda: None,
    ) -> Results:
        """Train until the study ends; resumes what an earlier run left.

        Args:
            workers: worker processes to start; 0 works in this process.
            evaluators: further worker processes that only evaluate, so that evaluation never waits for training.
            kinds: what the workers do: `train`, `evaluate`, or both; who does both evaluates first.
            gpus_per_worker: GPUs each worker sees, through `CUDA_VISIBLE_DEVICES`; a fraction such as 0.5
                lets two workers share one.
            extend: as for the study; None leaves it as it is.
            on_progress: called many times a second in this process; with `workers=0` after every trial.
            on_interrupt: called for each Ctrl-C or SIGTERM inside the signal handler, so it must be brief.

        Returns:
            The results.

        Raises:
            StudyChanged: the study exists with another configuration, or was given one while it was trained in
                this process, which cannot take it over.
            NotImportable: worker processes could not find `train`; the message shows the way out.
            StudyFailed: the study stopped itself; the message says what to do.
            KeyboardInterrupt: a person stopped it; run it again to resume.
            StoreError: the database failed.
        """
        from phyla.launchers import gpu_environments

        if plugins.reading_study_file():
            raise plugins.StudyFileRead
        if self.train is None:
            raise ConfigurationError("Study(train=...) is needed to run; without it use ask() and tell()")
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
            raise ConfigurationError(f"workers={workers!r}: must be an integer of at least 0")
        if isinstance(evaluators, bool) or not isinstance(evaluators, int) or evaluators < 0:
            raise ConfigurationError(f"evaluators={evaluators!r}: must be an integer of at least 0")
        wanted = frozenset(kinds)
        if not wanted or not wanted <= {"train", "evaluate"}:
            raise ConfigurationError(f"kinds={kinds!r}: choose 'train', 'evaluate', or both")
        if "train" not in wanted and not self.rules.suites:
            raise ConfigurationError(f"kinds={kinds!r}: this study has no suites= to evaluate")
        if evaluators and not (workers and self.rules.suites):
            raise ConfigurationError(
                f"evaluators={evaluators}: they need suites= to evaluate, and workers= of at least 1 that train"
            )
        if workers and settings.in_worker():
            raise ConfigurationError(
                "study.run(workers=...) was called in a worker process, which would start workers without end; "
                'call it under `if __name__ == "__main__":`, or with workers=0 inside training code'
            )
        if extend is not None:
            self._extend = extend
        if workers and self.places.storage == "memory://":
            raise ConfigurationError(
                "storage='memory://' exists in this process only, where worker processes cannot see it; "
                "run with workers=0, or leave storage= out"
            )
        references = self._references() if workers else (None, None)
        environments = gpu_environments(workers + evaluators, gpus_per_worker)
        opened = self._open(references)
        results = Results(opened.store, opened.record, self.places)
        self._resume(opened)

        def tick() -> None:
            self._unreported.look(opened.store, opened.record.id)
            if on_progress is not None:
                on_progress(results)

        if workers == 0:
            finished = self._run_here(opened, wanted, tick, on_interrupt)
        else:
            finished = self._run_processes(
                opened, references, environments, wanted, evaluators, tick, on_interrupt
            )
        self._unreported.look(opened.store, opened.record.id, at_once=True)
        opened.client.collect()
        opened.client.recover()
        self._clean_outputs(opened)
        study = results.study()
        if not finished:
            if study.state is StudyState.RUNNING and not _others_at_work(opened):
                opened.store.set_state(study.id, StudyState.STOPPED, "interrupted; run it again to resume")
            raise KeyboardInterrupt
        if study.state is StudyState.FAILED:
            raise StudyFailed(f"study {self.name!r} stopped itself: {study.message}")
        return results

    def _references(self) -> tuple[str, str | None]:
        assert self.train is not None
        return (
            plugins.reference(self.train),
            None if self.setup is None else plugins.reference(self.setup),
        )

    def _resume(self, opened: "_Opened") -> None:
        from phyla.worker import is_alive_here

        study = opened.client.study()
        if study.state in (StudyState.STOPPED, StudyState.FAILED):
            opened.store.set_state(study.id, StudyState.RUNNING)
        with opened.store.reader(study.id) as reader:
            holders = {attempt.worker for attempt in reader.running()}
        if opened.run is not None:
            with opened.store.evaluations(opened.run) as evaluations:
                holders |= {attempt.worker for attempt in evaluations.running_evaluations()}
        for holder in holders:
            if is_alive_here(holder) is False:
                opened.client.lose_worker(holder, "its process was gone when the study was resumed", counts=False)
        opened.client.recover()
        self._clean_outputs(opened)

    def _clean_outputs(self, opened: "_Opened") -> None:
        if opened.run is not None:
            with opened.store.evaluations(opened.run) as evaluations:
                remove_leftovers(evaluations, self.places.outputs(self.name))

    def _run_here(
        self,
        opened: "_Opened",
        kinds: frozenset[str],
        tick: Callable[[], None],
        on_interrupt: Callable[[], None],
    ) -> bool:
        from phyla.worker import (
            EvaluatedRun,
            Evaluator,
            StudySources,
            Trainer,
            Worker,
            WorkerContext,
            worker_name,
        )

        assert self.train is not None
        name = worker_name()
        work_root = self.places.work(self.name)
        state = None
        if self.setup is not None:
            directory = work_root / "worker-0"
            directory.mkdir(parents=True, exist_ok=True)
            context = WorkerContext(name=name, index=0, study=self.name, working_dir=directory)
            state = self.setup(context)
        evaluator = None
        if self.rules.suites and "evaluate" in kinds:
            own = EvaluatedRun(
                suites=self.rules.suites,
                sources=StudySources(opened.repository),
                outputs=self.places.outputs(self.name),
            )
            evaluator = Evaluator(
                opened.client,
                lambda run: own,
                work_root=work_root,
                name=name,
                clock=settings.system_clock,
                timer=time.perf_counter,
                state=state,
            )
        trainer = None
        if "train" in kinds:
            trainer = Trainer(
                opened.client,
                opened.repository,
                self.train,
                metrics=self.rules.reported_metrics,
                work_root=work_root,
                clock=settings.system_clock,
                state=state,
            )
        worker = Worker(
            opened.client,
            name=name,
            clock=settings.system_clock,
            trainer=trainer,
            evaluator=evaluator,
            yields=self.yield_at_report,
            renew_s=self.rules.lease_s / 3,
        )
        interrupted = threading.Event()

        def interrupt(number: int, frame: object) -> None:
            on_interrupt()
            if interrupted.is_set():
                raise KeyboardInterrupt
            interrupted.set()
            worker.stop()

        main = threading.current_thread() is threading.main_thread()
        previous = {n: signal.signal(n, interrupt) for n in (signal.SIGINT, signal.SIGTERM)} if main else {}
        try:
            ended = worker.run(on_trial=tick)
        except BaseException:
            opened.client.lose_worker(name, "its run was interrupted", counts=False)
            raise
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        if isinstance(ended, Outdated):
            raise StudyChanged(ended.why)
        return not interrupted.is_set()

    def _run_processes(
        self,
        opened: "_Opened",
        references: tuple[str | None, str | None],
        environments: Sequence[Mapping[str, str]],
        kinds: frozenset[str],
        evaluators: int,
        tick: Callable[[], None],
        on_interrupt: Callable[[], None],
    ) -> bool:
        from phyla.launchers import LocalLauncher, WorkerSpec

        train, setup = references
        assert train is not None
        first_evaluator = len(environments) - evaluators
        specs = [
            WorkerSpec(
                study=self.name,
                storage=self.places.storage,
                checkpoints=str(self.places.checkpoints(self.name)),
                work_root=str(self.places.work(self.name)),
                train=train,
                setup=setup,
                index=index,
                beat_file="",
                python_path=tuple(entry or str(Path.cwd()) for entry in sys.path),
                outputs=str(self.places.outputs(self.name)),
                kinds=tuple(sorted(kinds)) if index < first_evaluator else ("evaluate",),
                yields=self.yield_at_report,
            )
            for index in range(len(environments))
        ]
        launcher = LocalLauncher(
            opened.client,
            specs,
            environments=environments,
            logs=self.places.logs(self.name),
            renew_s=self.rules.lease_s / 3,
            stall_timeout_s=self.stall_timeout_s,
            on_tick=tick,
            on_interrupt=on_interrupt,
        )
        return launcher.run()

    def change(self) -> list[ConfigChange]:
        """Give the study that exists under this name these settings, and train nothing.

        Workers that are running, wherever they are, take over changed settings of the strategy, stopping rules
        and a wider space before their next decision. Those that cannot, because a function is not to be found in
        the code that they loaded, hand in their trial and end; their supervisor starts others in their place.

        Returns:
            What was changed; nothing if the study has these settings already.

        Raises:
            StudyNotFound: there is no such study.
            ConfigurationError: an existing study cannot take such a change.
            SpaceError: the space does not contain the one that it has.
            StudyChanged: somebody else changed it at the same time.
            StoreError: the database failed.
        """
        store, record = find_study(self.name, self.places)
        with contextlib.closing(store):
            reconciled = reconcile(store, record, self.config(), self, extend=True)
            before: Any = record.config.get("changes", [])
            return Results(store, reconciled, self.places).changes()[sum(len(e["changes"]) for e in before) :]

    # Ask and tell

    @overload
    def ask(self) -> "Trial | None": ...

    @overload
    def ask(self, count: int) -> "list[Trial]": ...

    def ask(self, count: int | None = None) -> "Trial | list[Trial] | None":
        """Claim a trial, or several at once, to train in your own loop; then `tell`.

        The lease lasts `lease_s`; `renew()` it from time to time if training takes longer. A trial whose
        lease ran out still counts when it is told, unless somebody else has claimed it since.

        Args:
            count: how many at most; without it one trial is returned, not a list.

        Returns:
            A trial, or None when there is nothing to do now: the study is `finished`, or every member is
            being trained. With `count`: a list, perhaps empty.

        Raises:
            StudyChanged: the study exists with another configuration, or was given one meanwhile that this
                process cannot take over.
            StudyFailed: the study stopped itself; the message says what to do.
            StoreError: the database failed.
        """
        from phyla.worker import Trial

        opened = self._open((None, None))
        _, claimed, rest = opened.client.exchange((), opened.worker, count or 1)
        if isinstance(rest, Outdated):
            raise StudyChanged(rest.why)
        if isinstance(rest, Ended) and rest.state is StudyState.FAILED:
            raise StudyFailed(rest.message or f"study {self.name!r} has failed")
        trials = [
            Trial(
                work.trial,
                opened.client,
                opened.repository,
                metrics=self.rules.reported_metrics,
                work_root=self.places.work(self.name),
                clock=settings.system_clock,
            )
            for work in claimed
            if isinstance(work, Claimed)
        ]
        if count is not None:
            return trials
        return trials[0] if trials else None

    def tell(
        self,
        trials: "Trial | Sequence[Trial]",
        *,
        metrics: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        checkpoint: "Trial | None" = None,
        error: str | None = None,
    ) -> None:
        """Complete trials that `ask` gave, in one transaction; or fail them with `error`.

        What is in each trial's `checkpoint_dir` becomes its checkpoint. A vectorised training loop saves one
        checkpoint for all of them into the first trial's `checkpoint_dir` and passes `checkpoint=trials[0]`:
        the i-th trial then refers to index i within it (see `trial.parent.index`).

        Args:
            trials: one trial or several.
            metrics: last metrics to report, one mapping per trial.
            checkpoint: the trial that holds the checkpoint of all.
            error: what went wrong; the trials are then tried again or given up.

        A trial that a stopping rule stops for what was reported is over: it leaves nothing, and its member is
        asked about again.

        Raises:
            LeaseLost: a trial was given to somebody else meanwhile; the others count.
            NoCheckpoint: nothing was saved in a `checkpoint_dir`.
            NoFitness: the objective was never reported.
            StoreError: the database failed; nothing counts yet, tell it again.
        """
        from phyla.errors import NoFitness

        many = list(trials) if isinstance(trials, Sequence) else [trials]
        each: list[Mapping[str, Any]] = []
        if metrics is not None:
            each = list(metrics) if isinstance(metrics, Sequence) else [metrics]
            if len(each) != len(many):
                raise ConfigurationError(f"tell(): {len(many)} trials, but {len(each)} mappings of metrics")
        opened = self._open((None, None))
        if error is not None:
            lost: LeaseLost | None = None
            for trial in many:
                trial.discard()
                try:
                    failure = Failure(trial=trial.id, token=trial.token, error=error, timings=trial.timings())
                    opened.client.fail(failure)
                except LeaseLost as gone:
                    lost = gone
            if lost is not None:
                raise lost
            return
        for trial, values in zip(many, each, strict=False):
            trial.report(values)
        for trial in many:
            if not trial.has_fitness:
                raise NoFitness(trial.missing(f"tell(): trial {trial.id} never reported", "or pass metrics="))
        if checkpoint is not None and (not many or checkpoint is not many[0]):
            raise ConfigurationError("tell(checkpoint=...): pass the first of the trials, which holds it")
        shared = checkpoint.commit() if checkpoint is not None else None
        completions = [
            trial.completion(shared, index) if shared is not None else trial.completion(trial.commit())
            for index, trial in enumerate(many)
        ]
        try:
            answers, _, _ = opened.client.exchange(completions, opened.worker, 0)
        except StoreError:
            for trial, completion in zip(many, completions, strict=True):
                trial.give_back(completion.reports)
            raise
        # The trials count already; if this fails, the next one who asks ends the study.
        with contextlib.suppress(StoreError):
            if self.finished:
                # Who asks, and gets nothing, ends a study whose members are all done.
                opened.client.exchange((), opened.worker, 1)
        self._unreported.look(opened.store, opened.record.id, at_once=True)
        for answer in answers:
            if isinstance(answer, LeaseLost):
                raise answer

    def renew(self) -> None:
        """Renew the leases of the trials that this process asked for."""
        opened = self._open((None, None))
        opened.client.renew(opened.worker)

    @property
    def finished(self) -> bool:
        """Whether the study takes no more work: it ended, or every member is done."""
        opened = self._open((None, None))
        with opened.store.reader(opened.record.id) as reader:
            return reader.study().state is not StudyState.RUNNING or reader.active_members() == 0

    def results(self) -> Results:
        """Return what the study has found so far."""
        opened = self._open((None, None))
        return Results(opened.store, opened.record, self.places)

    # Opening

    def _open(self, references: tuple[str | None, str | None]) -> "_Opened":
        opened = self._opened
        if opened is None or (references[0] is not None and opened.references != references):
            # Opened to ask, or to run here: worker processes also need the names of the functions.
            if opened is not None:
                opened.store.close()
            self._opened = opened = self._make(references)
        return opened

    def config(self, references: tuple[str | None, str | None] = (None, None)) -> JsonObject:
        """Return the study's configuration as JSON, as it is stored.

        Args:
            references: names of the functions that worker processes import; by default those that are known.

        Raises:
            ConfigurationError: a setting cannot be written as JSON.
            NotImportable: worker processes could not find a function.
        """
        return stored_config(self, references)

    def _make(self, references: tuple[str | None, str | None]) -> "_Opened":
        from phyla.checkpoints import LocalCheckpoints
        from phyla.local_client import LocalClient
        from phyla.store import open_store
        from phyla.worker import worker_name

        config = self.config(references)
        store = open_store(self.places.storage)
        population_size = self.rules.strategy.population_size
        if self.start_from and store.find_study(self.name) is None:
            # What cannot be imported shall leave no study behind.
            check_usable(self.start_from, population_size)
        record = store.create_study(self.name, config, self.seed, population_size)
        record = reconcile(store, record, config, self, extend=self._extend)
        repository = LocalCheckpoints(self.places.checkpoints(self.name))
        client = LocalClient(store, record, self.rules, repository)
        client.start_from(self.start_from, settings.system_clock)
        run = self._run_record(store, record) if self.rules.suites else None
        return _Opened(store, record, repository, client, worker_name(), references, run)

    def _run_record(self, store: "Store", record: StudyRecord) -> RunRecord:
        """Return the run under which the study's checkpoints are evaluated; fill in what suites have gained."""
        from phyla.controller import RunController

        run = store.create_run(self.name, RunKind.STUDY, {}, study=record.id)
        if run.study != record.id:
            raise ConfigurationError(
                f"{store.url} has a run called {self.name!r} that watches {run.location or 'another study'}; give "
                "the study another name"
            )
        controller = RunController(store, run, self.rules.suites, lease_s=self.rules.lease_s, rules=self.rules)
        controller.backfill()
        return run


@final
class _Opened:
    def __init__(
        self,
        store: "Store",
        record: StudyRecord,
        repository: "LocalCheckpoints",
        client: "LocalClient",
        worker: str,
        references: tuple[str | None, str | None],
        run: RunRecord | None,
    ) -> None:
        self.run = run
        self.references = references
        self.store = store
        self.record = record
        self.repository = repository
        self.client = client
        self.worker = worker


def _others_at_work(opened: _Opened) -> bool:
    """Return whether workers of another run, here or elsewhere, hold work of the study."""
    from phyla.worker import is_alive_here

    with opened.store.reader(opened.record.id) as reader:
        return any(is_alive_here(attempt.worker) is not False for attempt in reader.running())
