"""Experiments on a training function: members of studies, each study in a home and a process of its own.

`phyla.study.checking.evidence` compares what they leave. Nothing of the user's study is touched.
"""

import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np

from phyla.checkpoints import LocalCheckpoints
from phyla.checkpoints.manifest import MANIFEST_NAME, Manifest, digests, scan
from phyla.errors import CheckpointError, SpaceError, StudyFailed
from phyla.formatting import duration, format_count
from phyla.records import LOG_FOLLOWS, Cause, JobKind, JobState, Member, MemberState, Phase, StartFrom, TrialRecord
from phyla.space import Choice
from phyla.strategies import Context, Decision, Measure, Population, Start, Stop, Strategy, Wait
from phyla.study.checking import checkpoint_contents as facts
from phyla.study.declaration import Retention, Retries
from phyla.study.results.results import Results
from phyla.study.study import Study
from phyla.worker.commands.command import Command
from phyla.worker.commands.outputs import OUTPUT_IN, last_lines
from phyla.worker.pinned import NOTHING, Pinned

SEEDS = (1_234_567, 7_654_321, 999_983)
MEASURED_AT_LEAST = 2
LEAST_MEASURING_S = 2.0
UNNOTED = 3
"""This many experiments, each in a process of its own, take no long time."""
NOTED_EVERY_S = 30.0
"""Seconds between notes on how far the experiments are; a verdict may need many of them."""
OUTPUT_LINES = 12
"""Lines shown of what a command that failed wrote."""


Lengths: TypeAlias = tuple[tuple[int, ...], Mapping[str, Any]]
"""The lengths of an experiment's trials, and its other settings by name."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Strategy):
    """Each member trains its trials, mappings with `steps`, `seed` and `params`; then it may be measured.

    Members take turns: one begins when those before it are done. Measuring one ends when it would take longer than
    `measuring_s`.
    """

    population_size: int
    trials: Sequence[Sequence[Mapping[str, Any]]]
    measures: Sequence[int]
    measuring_s: float
    pareto = True

    def finished(self, member: Member) -> bool:
        """Return whether there is nothing to measure either."""
        return member.generation >= len(self.trials[member.index]) and not self.measures[member.index]

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        """Return the next trial."""
        index = member.index
        if member.broken_trial is not None:
            return Stop(reason={"why": "there is nothing more to do"})
        if any(other.index < index and other.state is not MemberState.DONE for other in population):
            return Wait()
        if member.generation >= len(self.trials[index]):
            return self._measure(member, context)
        wanted = self.trials[index][member.generation]
        return Start(
            weights=member.head,
            params=context.space.validate(wanted["params"]),
            params_from=None,
            steps=wanted["steps"],
            reason={"decision": "check"},
            seed=wanted["seed"],
        )

    def _measure(self, member: Member, context: Context) -> Decision:
        # The state is the member that is measured, how often that was decided, and when it began.
        state: Any = context.state
        of, count, began = state or (None, 0, 0.0)
        if of != member.index:
            count, began = 0, context.now
        failed = member.head is None or member.head.measurements <= count
        late = count >= MEASURED_AT_LEAST and (context.now - began) * (count + 1) > self.measuring_s * count
        if failed or late or count >= self.measures[member.index]:
            return Stop(reason={"why": "there is nothing more to measure"})
        return Measure(times=1, reason={"decision": "measure"}, state=[member.index, count + 1, began])


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one experiment left."""

    trained: Sequence[TrialRecord]  # trials that completed
    measured: Sequence[TrialRecord]
    timings: Mapping[str, float]  # seconds by phase, of the last trial that trained
    size_bytes: int  # of the last checkpoint
    facts: facts.Facts  # of the last checkpoint
    failed: str | None  # what was raised, and where; of a command, further lines with the end of its output
    crashed: str | None  # the same, if a trial that trains failed
    copy: Path | None  # a copy of the last checkpoint, if it was asked for
    overwritten: Sequence[str]  # files that were changed in checkpoints which trials loaded
    unread: Sequence[str]  # hyperparameters that the last trial never read
    untouched: bool  # whether the last trial left its source unread
    curve: Mapping[tuple[int, str], float]  # what its trials reported, by step and metric

    @property
    def seconds(self) -> float:
        """The time of the last trial that trained."""
        return sum(self.timings.get(phase, 0.0) for phase in (Phase.LOADING, Phase.TRAINING, Phase.SAVING))


@final
@dataclass(frozen=True, kw_only=True)
class _Experiment:
    """Trials of these lengths one after the other, from `start` or as the study does.

    Their hyperparameters are those of `values`, in turn; the numbers they draw are `pinned` as `Pinned` says.
    Equal ones are the same experiment, unless they differ in `copy`.
    """

    lengths: Sequence[int]
    values: Sequence[Any] = (None,)
    seed: int = 0
    start: StartFrom | None = None
    pinned: int | None = 0
    measures: int = 0
    keep: bool = False
    copy: int = 0


@final
@dataclass(kw_only=True)
class Experiments:
    """Runs experiments; with `workers=1`, each in a fresh process, unless `together` ran it with others.

    The results are read at once, and the experiment's home is deleted. An experiment that continues from its
    checkpoint gets a copy of that, and nothing else.
    """

    study: Study
    root: Path
    workers: int
    note: Callable[[str], object] = field(default=lambda text: None)
    """Called with what takes long, before it begins."""
    alone: bool = field(default=False, init=False)
    """Whether `together` gives each its own process, too."""
    count: int = field(default=0, init=False)
    done: dict[str, Outcome] = field(default_factory=dict, init=False)
    measuring_s: float = field(default=0.0, init=False)
    """How long one checkpoint may be measured again and again, if that is more than `LEAST_MEASURING_S`."""
    _began: float = field(default_factory=time.monotonic, init=False)
    _noted: float = field(default_factory=time.monotonic, init=False)
    _trained: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        starts, initial = self.study.declared.start_from, self.study.rules.space.initial
        self.params = self._completed(starts[0].params if starts else next(iter(initial), {}), {})
        # Without its hyperparameters, which would count more than those of an experiment.
        self._start = replace(starts[0], params={}) if starts else None

    def _completed(self, values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return hyperparameters: these, then the others, then the middle of each range."""
        space = self.study.rules.space
        middle = {
            name: parameter.values[0] if isinstance(parameter, Choice) else parameter.from_unit(0.5)
            for name, parameter in space.parameters.items()
        }
        return dict(space.complete(values, {**middle, **overrides}, np.random.default_rng(self.study.seed)))

    def others(self, name: str) -> list[dict[str, Any]]:
        """Return the hyperparameters with other values of one of them that are allowed, near ones first."""
        if name not in self.params:
            return []
        parameter, value = self.study.rules.space.parameters[name], self.params[name]
        if isinstance(parameter, Choice):
            tried: Sequence[Any] = parameter.values
        else:
            at = parameter.unit(value)
            tried = [parameter.from_unit(u) for u in ((at + 0.25, 1, 0) if at <= 0.5 else (at - 0.25, 0, 1))]
        allowed: dict[Any, dict[str, Any]] = {}
        for candidate in tried:
            try:
                params = self._completed({name: candidate}, self.params)
            except SpaceError:
                continue
            rest = (self.params.keys() & params.keys()) - {name}
            if candidate != value and all(params[key] == self.params[key] for key in rest):
                allowed.setdefault(repr(candidate), params)
        return [*allowed.values()]

    def run(self, *lengths: int, **how: Any) -> Outcome:
        """Return what an experiment left: trials of these lengths, one after the other; see `_Experiment`."""
        self.together([(lengths, how)])
        return self.done[repr(_Experiment(lengths=lengths, **how))]

    def together(self, wanted: Sequence[Lengths]) -> None:
        """Run experiments that have one start, one after the other in one process, unless they ran before."""
        experiments = [_Experiment(lengths=lengths, **how) for lengths, how in wanted]
        new = [
            *{
                repr(experiment): experiment for experiment in experiments if repr(experiment) not in self.done
            }.values()
        ]
        if self.alone and len(new) > UNNOTED:
            self.note(f"training {len(new)} times, each in a new process: in one process, equal trials differed")
        for batch in [[experiment] for experiment in new] if self.alone else [new] if new else []:
            self._run(batch)

    def _run(self, wanted: Sequence[_Experiment]) -> None:
        trials = [
            [
                {
                    "steps": steps,
                    "seed": SEEDS[experiment.seed],
                    "params": experiment.values[at % len(experiment.values)] or self.params,
                }
                for at, steps in enumerate(experiment.lengths)
            ]
            for experiment in wanted
        ]
        start = wanted[0].start or self._start
        self.count += 1
        study, home, failed = self.study, self.root / str(self.count), None
        assert study.train is not None
        train = study.train.on_one_node() if isinstance(study.train, Command) else study.train
        study = Study(
            study.name,
            study.rules.space,
            study.rules.objective if study.rules.reported_metrics else NOTHING,
            Plan(
                population_size=len(wanted),
                trials=trials,
                measures=[experiment.measures for experiment in wanted],
                measuring_s=max(self.measuring_s, LEAST_MEASURING_S),
            ),
            Pinned(train, [experiment.pinned for experiment in wanted]),
            setup=study.declared.setup,
            seed=study.seed,
            home=home,
            start_from=[start] * len(wanted) if start else (),
            retention=Retention(every_steps=1),  # so that all are kept
            retries=Retries(attempts=1, broken=len(wanted)),
        )
        with _silent():
            try:
                study.run(workers=self.workers, gpus_per_worker=0, on_progress=self._progressed)
            except StudyFailed as error:
                failed = str(error)
            results = study.results()
            self._trained += results.progress(0).completed
            repository = LocalCheckpoints(home / "checkpoints" / study.name)
            for member, experiment in enumerate(wanted):
                self.done[repr(experiment)] = self._outcome(results, repository, failed, member, experiment)
        results._store.close()
        shutil.rmtree(home, ignore_errors=True)

    def _progressed(self, results: Results) -> None:
        """Note from time to time how much has been trained."""
        now = time.monotonic()
        if now - self._noted >= NOTED_EVERY_S:
            self._noted = now
            trained = format_count(self._trained + results.progress(0).completed, "trial")
            self.note(f"trained {trained} in {duration(now - self._began)}")

    def _outcome(
        self,
        results: Results,
        repository: LocalCheckpoints,
        failed: str | None,
        member: int,
        experiment: _Experiment,
    ) -> Outcome:
        attempts = {attempt.job: attempt for attempt in results.attempts()}
        rows = {row.name: row for row in results.checkpoints()}
        trials = [
            trial for trial in results.trials() if trial.kind is not JobKind.IMPORT and trial.member == member
        ]
        completed = [trial for trial in trials if trial.state is JobState.COMPLETED]
        trained = [trial for trial in completed if trial.kind is JobKind.TRAIN]
        for trial in trials:
            if trial.state is not JobState.COMPLETED:
                cause = attempts[trial.id].cause if trial.id in attempts else None
                work = results.places.folder("work", results.name) / f"trial-{trial.id}"
                files = [work / f"{stream}-{trial.token}.txt" for stream in ("stderr", "stdout")]
                failed = _ended(trial.error) if cause is None else _raised(cause, files)
        noticed: Any = attempts[trained[-1].id].noticed if trained else {}
        known: facts.Facts = {}
        copy = None
        try:
            path = repository.path(trained[-1].checkpoint or "") if trained else None
        except CheckpointError as error:
            path, trained, failed = None, [], f"{error}; did training remove trial.source.path?"
        if path is not None:
            reported: Any = trained[-1].metrics
            known = facts.read(path)
            known |= {
                f"{facts.OBJECTIVE}{name}": float(reported[name]) for name in self.study.rules.reported_metrics
            }
            if experiment.keep:
                copy = self.root / f"kept-{self.count}-{member}"
                # Without its manifest it is imported as a copy, not as links to the same bytes.
                shutil.copytree(path, copy, ignore=shutil.ignore_patterns(MANIFEST_NAME))
        return Outcome(
            trained=trained,
            measured=[trial for trial in completed if trial.kind is JobKind.MEASURE],
            timings=(attempts[trained[-1].id].timings if trained else None) or {},
            size_bytes=rows[trained[-1].checkpoint or ""].size_bytes if trained else 0,
            facts=known,
            failed=failed,
            crashed=failed if len(trained) < len(experiment.lengths) else None,
            copy=copy,
            overwritten=_overwritten(repository, filter(None, {trial.parent_checkpoint for trial in completed})),
            unread=noticed.get("unread", ()),
            untouched="untouched" in noticed,
            curve={
                (report.step, name): value
                for trial in trained
                for report in results.reports(trial.id)
                for name, value in report.metrics.items()
            },
        )


def _overwritten(repository: LocalCheckpoints, names: Iterable[str]) -> list[str]:
    """Return the files of checkpoints that were changed since their commit."""
    changes: set[str] = set()
    for name in names:
        try:
            path = repository.path(name)
            manifest, entries = Manifest.from_bytes((path / MANIFEST_NAME).read_bytes()), scan(path).entries
        except (OSError, CheckpointError):
            # The changed files are no longer a checkpoint.
            changes.add("it is no longer a checkpoint")
            continue
        committed = {(file.path, file.digest) for file in manifest.files}
        changed = committed ^ {*zip((entry.relative for entry in entries), digests(entries), strict=True)}
        changes |= {file for file, _ in changed}
    return sorted(changes)


def _raised(cause: Cause, files: Sequence[Path]) -> str:
    """Return the error and its place; for a command also the end of its output, as its files are deleted."""
    error, named, _ = cause.error.partition(OUTPUT_IN)
    lines = last_lines(files)[-OUTPUT_LINES:] if named else []
    return "\n".join([replace(cause, error=error, log=None).words(), *lines])


def _ended(error: str | None) -> str:
    """Return how a worker process ended, and the last line of its log."""
    how, _, log = (error or "").partition(LOG_FOLLOWS)
    return ": ".join([how, *log.partition("\n\nCurrent thread ")[0].splitlines()[1:][-1:]])


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Discard the log messages and warnings of a study."""
    log = logging.getLogger("phyla")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
