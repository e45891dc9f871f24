"""Experiments on a training function: studies of one member, each in a home and a process of its own.

`phyla.study.check` compares what they leave. Nothing of the user's study is touched.
"""

import contextlib
import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from phyla.checkpoints import LocalCheckpoints
from phyla.checkpoints.content import MANIFEST_NAME, Manifest, digests, scan
from phyla.errors import CheckpointError, SpaceError, StudyFailed
from phyla.records import Cause, JobKind, JobState, Member, StartFrom, TrialRecord
from phyla.space import Choice
from phyla.strategies import Context, Decision, Measure, Population, Start, Stop, Strategy
from phyla.study import facts
from phyla.study.checked import Retention, Retries
from phyla.study.results import Results
from phyla.study.study import Study
from phyla.worker.outputs import OUTPUT_IN, last_lines
from phyla.worker.pinned import NOTHING, Pinned

SEEDS = (1_234_567, 7_654_321, 999_983)
OUTPUT_LINES = 12
"""Lines shown of what a command that failed wrote."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Strategy):
    """One member trains the given trials, mappings with `steps`, `seed` and `params`; then it is measured."""

    trials: Sequence[Mapping[str, Any]]
    measures: int
    population_size = 1
    pareto = True

    def finished(self, member: Member) -> bool:
        """Return whether there is nothing to measure either."""
        return member.generation >= len(self.trials) and not self.measures

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        """Return the next trial."""
        if member.broken_trial is not None or context.state is not None:
            return Stop(reason={"why": "there is nothing more to do"})
        if member.generation >= len(self.trials):
            return Measure(times=self.measures, reason={"decision": "measure"}, state="measured")
        wanted = self.trials[member.generation]
        return Start(
            weights=member.head,
            params=context.space.validate(wanted["params"]),
            params_from=None,
            steps=wanted["steps"],
            reason={"decision": "check"},
            seed=wanted["seed"],
        )


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
    kept: Path | None  # a copy of the last checkpoint, if it was asked for
    overwritten: Sequence[str]  # files that were changed in checkpoints which trials loaded


@final
@dataclass(kw_only=True)
class Experiments:
    """Runs experiments one after the other; with `workers=1`, each in a fresh process.

    What is compared is read at once, and the experiment's home is deleted: what goes on from its checkpoint has a
    copy of that, and nothing else.
    """

    study: Study
    root: Path
    workers: int
    count: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        starts, initial = self.study.start_from, self.study.rules.space.initial
        self.params = self._completed(starts[0].params if starts else next(iter(initial), {}), {})
        # Without its hyperparameters, which would count more than those of an experiment.
        self._start = replace(starts[0], params={}) if starts else None

    def _completed(self, given: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
        """Return hyperparameters: these, then the others, then the middle of each range."""
        space = self.study.rules.space
        middle = {
            name: one.values[0] if isinstance(one, Choice) else one.from_unit(0.5)
            for name, one in space.parameters.items()
        }
        return dict(space.complete(given, {**middle, **others}, np.random.default_rng(self.study.seed)))

    def other(self, name: str) -> dict[str, Any] | None:
        """Return the hyperparameters with another value of one of them; None if there is none that is allowed."""
        if name not in self.params:
            return None
        parameter, value = self.study.rules.space.parameters[name], self.params[name]
        if isinstance(parameter, Choice):
            tried: Sequence[Any] = parameter.values
        else:
            at = parameter.unit(value)
            tried = [parameter.from_unit(u) for u in ((at + 0.25, 1, 0) if at <= 0.5 else (at - 0.25, 0, 1))]
        for one in tried:
            try:
                found = self._completed({name: one}, self.params)
            except SpaceError:
                continue
            rest = (self.params.keys() & found.keys()) - {name}
            if one != value and all(found[key] == self.params[key] for key in rest):
                return found
        return None

    def run(
        self,
        *lengths: int,
        values: Sequence[Any] = (None,),
        seed: int = 0,
        start: StartFrom | None = None,
        pinned: int | None = 0,
        measures: int = 0,
        keep: bool = False,
    ) -> Outcome:
        """Train trials of these lengths one after the other, from `start` or as the study does.

        Their hyperparameters are those of `values`, in turn; the numbers they draw are `pinned` as `Pinned` says.
        """
        trials = [
            {"steps": steps, "seed": SEEDS[seed], "params": values[at % len(values)] or self.params}
            for at, steps in enumerate(lengths)
        ]
        start = start or self._start
        self.count += 1
        study, home, failed = self.study, self.root / str(self.count), None
        assert study.train is not None
        made = Study(
            study.name,
            study.rules.space,
            study.rules.objective if study.rules.reported_metrics else NOTHING,
            Plan(trials=trials, measures=measures),
            Pinned(study.train, pinned),
            setup=study.setup,
            seed=study.seed,
            home=home,
            start_from=() if start is None else (start,),
            retention=Retention(every_steps=1),  # so that all are kept
            retries=Retries(attempts=1, broken=1),
        )
        with _silent():
            try:
                made.run(workers=self.workers, gpus_per_worker=0, on_progress=lambda results: None)
            except StudyFailed as error:
                failed = str(error)
            results = made.results()
            outcome = self._outcome(results, LocalCheckpoints(home / "checkpoints" / made.name), failed, keep)
        results._store.close()
        shutil.rmtree(home, ignore_errors=True)
        return outcome

    def _outcome(self, results: Results, repository: LocalCheckpoints, failed: str | None, keep: bool) -> Outcome:
        attempts = {attempt.job: attempt for attempt in results.attempts()}
        rows = {row.name: row for row in results.checkpoints()}
        trials = [trial for trial in results.trials() if trial.kind is not JobKind.IMPORT]
        completed = [trial for trial in trials if trial.state is JobState.COMPLETED]
        trained = [trial for trial in completed if trial.kind is JobKind.TRAIN]
        for trial in trials:
            if trial.state is not JobState.COMPLETED:
                cause = attempts[trial.id].cause if trial.id in attempts else None
                work = results.places.folder("work", results.name) / f"trial-{trial.id}"
                files = [work / f"{stream}-{trial.token}.txt" for stream in ("stderr", "stdout")]
                failed = _ended(trial.error) if cause is None else _raised(cause, files)
        known: facts.Facts = {}
        kept = None
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
            if keep:
                kept = self.root / f"kept-{self.count}"
                # Without its manifest it is imported as a copy, not as links to the same bytes.
                shutil.copytree(path, kept, ignore=shutil.ignore_patterns(MANIFEST_NAME))
        return Outcome(
            trained=trained,
            measured=[trial for trial in completed if trial.kind is JobKind.MEASURE],
            timings=(attempts[trained[-1].id].timings if trained else None) or {},
            size_bytes=rows[trained[-1].checkpoint or ""].size_bytes if trained else 0,
            facts=known,
            failed=failed,
            kept=kept,
            overwritten=_overwritten(repository, filter(None, {one.parent_checkpoint for one in completed})),
        )


def _overwritten(repository: LocalCheckpoints, names: Iterable[str]) -> list[str]:
    """Return the files of checkpoints that were changed since their commit."""
    found: set[str] = set()
    for name in names:
        try:
            path = repository.path(name)
            manifest, entries = Manifest.from_bytes((path / MANIFEST_NAME).read_bytes()), scan(path).entries
        except (OSError, CheckpointError):
            # What it has now is no checkpoint any more.
            found.add("it is no checkpoint any more")
            continue
        committed = {(file.path, file.digest) for file in manifest.files}
        changed = committed ^ {*zip((entry.relative for entry in entries), digests(entries), strict=True)}
        found |= {file for file, _ in changed}
    return sorted(found)


def _raised(cause: Cause, files: Sequence[Path]) -> str:
    """Return what was raised, and where; of a command also how its output ends, since its files are deleted."""
    error, named, _ = cause.error.partition(OUTPUT_IN)
    lines = last_lines(files)[-OUTPUT_LINES:] if named else []
    return "\n".join([replace(cause, error=error, log=None).words(), *lines])


def _ended(error: str | None) -> str:
    """Return how a worker process ended, and the last line of its log."""
    how, _, log = (error or "").partition("; the end of its log:\n")
    return ": ".join([how, *log.splitlines()[-1:]])


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep what a study says in passing to itself."""
    log = logging.getLogger("phyla")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
