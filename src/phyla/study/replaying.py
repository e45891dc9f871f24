"""Train what a study found again, or train it on."""

import shlex
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla import plugins
from phyla.controller import from_config, known_to
from phyla.errors import ConfigurationError, NotImportable, StudyChanged, StudyNotFound
from phyla.lineage import Lineage
from phyla.records import (
    Checkpoint,
    CheckpointState,
    JobKind,
    JobState,
    Json,
    StartFrom,
    TrialRecord,
)
from phyla.strategies import FixedSchedule, Replay, Strategy
from phyla.study.limits import Retention, Retries
from phyla.study.opening import find_study
from phyla.study.places import Places
from phyla.study.replicates import derived_seed
from phyla.study.results import Results
from phyla.study.source_digest import code_digest
from phyla.study.study import Study

if TYPE_CHECKING:
    from phyla.worker import Trial, WorkerContext


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A study that is ready to train something again, or on.

    Attributes:
        study: the new study; it does not exist in the store before it runs.
        of: name of the study it comes from.
        trial: the trial there whose training it repeats or goes on with.
        digest: identity of what that trial left.
        fitness: that trial's fitness.
        notes: what a person should know before.
    """

    study: Study
    of: str
    trial: int
    digest: str | None
    fitness: float | None
    notes: tuple[str, ...]


def replay(
    study: str | Study,
    *,
    trial: int | None = None,
    from_step: int | None = None,
    name: str | None = None,
    workers: int = 0,
    train: "Callable[[Trial], object] | None" = None,
    setup: "Callable[[WorkerContext], object] | None" = None,
    home: str | Path | None = None,
    storage: str | None = None,
    checkpoints: str | Path | None = None,
) -> Results:
    """Train the ancestry of a trial again, as one chain of trials in a new study.

    Hyperparameters, step boundaries and trial seeds are those of the original. A training function that depends
    on nothing else (not on the trial's id, or on its member) leaves the same checkpoint, bit for bit. A replay
    that was interrupted goes on where it was.

    Source: Li et al. 2019, arXiv 1902.01894, section 3 (training replay).

    Args:
        study: the study, whose functions are used; or its name, and then `train` is needed.
        trial: id of the trial; by default the best one.
        from_step: only train from this step on, from the ancestor's checkpoint at that step.
        name: name of the new study; by default that of the old one with `-replay`.
        workers: worker processes; 0 trains in this process.
        train: the training function; by default that of the study. What the store names is never imported.
        setup: the same for `setup`.
        home: directory where the study lives; by default where the study says, else `.phyla` or the environment's.
        storage: URL of its store, if that is not in the home.
        checkpoints: directory of all studies' checkpoints, if that is not in the home.

    Returns:
        The results of the new study.

    Raises:
        StudyNotFound: there is no such study, or no trial that could be trained again.
        ConfigurationError: the checkpoint to start from is gone, or there is no training function.
        NotImportable: the stored settings name a function that the study does not have.
        StudyChanged: a study of that name exists and is another replay.
        StudyFailed: the new study stopped itself; the message says what to do.
    """
    old, places, source = _given(study, home, storage, checkpoints)
    return _run(
        prepare_replay(old, places, source, trial=trial, from_step=from_step, name=name, train=train, setup=setup),
        workers,
    )


def continue_training(
    study: str | Study,
    steps: int,
    *,
    trial: int | None = None,
    name: str | None = None,
    workers: int = 0,
    train: "Callable[[Trial], object] | None" = None,
    setup: "Callable[[WorkerContext], object] | None" = None,
    home: str | Path | None = None,
    storage: str | None = None,
    checkpoints: str | Path | None = None,
) -> Results:
    """Train the best checkpoint on, with its last hyperparameters, in a new study.

    Trials are as long as those of the old study; the last one may be shorter. The new study has a seed of its own
    (`continuation_seed`), so training sees other random numbers than the old one did.

    Args:
        study: the study, whose functions are used; or its name, and then `train` is needed.
        steps: how many steps to train.
        trial: id of the trial to go on from; by default the best one.
        name: name of the new study; by default that of the old one with `-continued`.
        workers: worker processes; 0 trains in this process.
        train: the training function; by default that of the study. What the store names is never imported.
        setup: the same for `setup`.
        home: directory where the study lives; by default where the study says, else `.phyla` or the environment's.
        storage: URL of its store, if that is not in the home.
        checkpoints: directory of all studies' checkpoints, if that is not in the home.

    Returns:
        The results of the new study.

    Raises:
        StudyNotFound: there is no such study, or no trial to go on from.
        ConfigurationError: `steps` is below 1, the checkpoint is gone, or there is no training function.
        NotImportable: the stored settings name a function that the study does not have.
        StudyChanged: a study of that name exists and goes on from elsewhere.
        StudyFailed: the new study stopped itself; the message says what to do.
    """
    old, places, source = _given(study, home, storage, checkpoints)
    return _run(
        prepare_continuation(old, places, steps, source, trial=trial, name=name, train=train, setup=setup),
        workers,
    )


def _given(
    study: str | Study,
    home: str | Path | None,
    storage: str | None,
    checkpoints: str | Path | None,
) -> tuple[str, Places, Study | None]:
    """Return the name of a study, where it is, and the study itself if that was given."""
    if plugins.reading_study_file():
        raise plugins.StudyFileRead
    if isinstance(study, str):
        return study, Places.of(home, storage, checkpoints), None
    elsewhere = any(place is not None for place in (home, storage, checkpoints))
    return study.name, Places.of(home, storage, checkpoints) if elsewhere else study.places, study


def _run(prepared: Prepared, workers: int) -> Results:
    for note in prepared.notes:
        warnings.warn(note, stacklevel=3)
    return prepared.study.run(workers)


def prepare_replay(
    study: str,
    places: Places,
    source: Study | None = None,
    *,
    trial: int | None = None,
    from_step: int | None = None,
    name: str | None = None,
    train: "Callable[[Trial], object] | None" = None,
    setup: "Callable[[WorkerContext], object] | None" = None,
) -> Prepared:
    """Make the study of `replay`, whose functions are those of `source`; nothing is stored before it runs."""
    old = _Old(study, places, source)
    path = old.ancestry(trial)
    start: tuple[StartFrom, ...] = ()
    if from_step is not None:
        path, start = old.suffix(path, from_step)
    elif path[0].kind is JobKind.IMPORT:
        path, start = path[1:], (old.imported(path[0]),)
    if not path:
        raise StudyNotFound(f"study {study!r}: the trial was imported, so there is no training to repeat")
    strategy = Replay.along(path, of=study, fitness=old.rules.strategy.fitness)
    return old.prepared(path[-1], strategy, start, name or f"{study}-replay", train, setup, seed=old.record.seed)


def prepare_continuation(
    study: str,
    places: Places,
    steps: int,
    source: Study | None = None,
    *,
    trial: int | None = None,
    name: str | None = None,
    train: "Callable[[Trial], object] | None" = None,
    setup: "Callable[[WorkerContext], object] | None" = None,
) -> Prepared:
    """Make the study of `continue_training`; see `prepare_replay`."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ConfigurationError(f"steps={steps!r}: must be an integer of at least 1")
    old = _Old(study, places, source)
    last = old.ancestry(trial)[-1]
    row = old.live(last)
    if row is None:
        raise ConfigurationError(
            f"study {study!r} does not keep the checkpoint of trial {last.id} any more; go on from the best one, "
            f"or train it again first: phyla replay {study} --file FILE.py --trial {last.id}"
        )
    stored: Any = old.record.config["strategy"]
    steps_per_trial = stored.get("steps_per_trial")
    usual = steps_per_trial if isinstance(steps_per_trial, int) else last.end_step - last.start_step
    strategy = FixedSchedule(
        [(0, dict(last.params))],
        total_steps=steps,
        steps_per_trial=min(usual, steps),
        fitness=old.rules.strategy.fitness,
    )
    start = (old.start_from(last, row),)
    seed = continuation_seed(old.record.seed, last.id)
    return old.prepared(last, strategy, start, name or f"{study}-continued", train, setup, seed=seed)


def continuation_seed(seed: int, trial: int) -> int:
    """Return the seed of a study that trains on, in [0, 2**53).

    The same command gives the same seed. It is none of the old study's, of its replicates', or of a study's that
    trains on from elsewhere in it. NumPy's `SeedSequence` draws it, whose numbers never change.

    Args:
        seed: seed of the study that it goes on from.
        trial: id of the trial there.
    """
    return derived_seed(seed, trial, 1)


def _how_to_give(name: str) -> str:
    return (
        f"name the study file with --file FILE.py, as in: phyla replay {shlex.quote(name)} --file FILE.py "
        "(in Python: phyla.replay(study), with the Study, or train=function)"
    )


@final
class _Old:
    """The study that something is taken from."""

    def __init__(self, name: str, places: Places, source: Study | None) -> None:
        self._store, self.record = find_study(name, places)
        find = plugins.refuse if source is None else known_to(source.rules)
        try:
            self.rules = from_config(self.record.config, find)
        except NotImportable as error:
            raise NotImportable(f"study {name!r}: {error}: {_how_to_give(name)}") from error
        self.name = name
        self._source = source
        self._places = places
        results = Results(self._store, self.record, places)
        self._lineage = Lineage(results.trials())
        self._rows = {row.name: row for row in results.checkpoints()}

    def ancestry(self, trial: int | None) -> list[TrialRecord]:
        if trial is None:
            best = self._lineage.best()
            if best is None:
                raise StudyNotFound(f"study {self.name!r} has no completed trial with a finite fitness yet")
            trial = best.id
        if trial not in self._lineage:
            raise StudyNotFound(f"study {self.name!r} has no training trial {trial}")
        path = list(self._lineage.ancestry(trial))
        if path[-1].state is not JobState.COMPLETED:
            raise StudyNotFound(
                f"trial {trial} of study {self.name!r} is {path[-1].state}; only a completed one can be trained "
                "again, or on"
            )
        return path

    def live(self, trial: TrialRecord) -> Checkpoint | None:
        row = self._rows.get(trial.checkpoint or "")
        return row if row is not None and row.state is CheckpointState.LIVE else None

    def start_from(self, trial: TrialRecord, row: Checkpoint) -> StartFrom:
        return StartFrom(
            self._places.checkpoints(self.name) / row.name,
            step=row.step,
            index=trial.checkpoint_index,
            digest=row.digest,
        )

    def imported(self, root: TrialRecord) -> StartFrom:
        """Return where training began that began with an import: our copy, else what it was copied from."""
        row = self.live(root)
        if row is not None:
            return self.start_from(root, row)
        return StartFrom(
            str(root.origin),
            step=root.end_step,
            index=root.checkpoint_index,
            digest=str(root.reason.get("digest")),
        )

    def suffix(self, path: Sequence[TrialRecord], step: int) -> tuple[list[TrialRecord], tuple[StartFrom, ...]]:
        """Return the trials from a step on, and what they start from."""
        if step == 0 and path[0].kind is not JobKind.IMPORT:
            return list(path), ()
        kept: list[str] = []
        for index, trial in enumerate(path[:-1]):
            row = self.live(trial)
            if row is None:
                continue
            if trial.reached_step == step:
                return list(path[index + 1 :]), (self.start_from(trial, row),)
            kept.append(f"{trial.reached_step}")
        raise ConfigurationError(
            f"study {self.name!r} keeps no checkpoint at step {step} on the way to trial {path[-1].id}, "
            + (f"but at step {', '.join(kept)}: choose one of these, or" if kept else "nor at others:")
            + " leave --from out to train from the start (retention=phyla.Retention(every_steps=...) keeps more)."
        )

    def prepared(
        self,
        last: TrialRecord,
        strategy: Strategy,
        start: tuple[StartFrom, ...],
        name: str,
        train: "Callable[[Trial], object] | None",
        setup: "Callable[[WorkerContext], object] | None",
        *,
        seed: int,
    ) -> Prepared:
        config = self.record.config
        notes: list[str] = []
        if train is None and self._source is not None:
            train, setup = self._source.train, setup or self._source.setup
        if train is None:
            named = f" (the store calls it {config['train']})" if config.get("train") else ""
            raise ConfigurationError(
                f"study {self.name!r} cannot be trained again without its training function{named}, and phyla "
                f"does not import what a database names: {_how_to_give(self.name)}"
            )
        code: Any = config.get("code")
        if code and code["now"] != code_digest(train):
            notes.append(
                f"the training function {config.get('train')} is not what it was when study {self.name!r} last ran"
            )
        rules = self.rules
        study = Study(
            name,
            rules.space,
            rules.objective,
            strategy,
            train,
            setup=setup,
            seed=seed,
            suites=rules.suites,
            start_from=start,
            retention=Retention(best=rules.keep_best, front=rules.keep_front, every_steps=rules.keep_every_steps),
            retries=Retries(attempts=rules.max_attempts, broken=rules.max_broken),
        )
        study.places = self._places
        self._check_new(study)
        digest = self._rows[last.checkpoint or ""].digest if last.checkpoint in self._rows else None
        return Prepared(
            study=study, of=self.name, trial=last.id, digest=digest, fitness=last.fitness, notes=tuple(notes)
        )

    def _check_new(self, study: Study) -> None:
        """Refuse a name that another study has; the same again is resumed."""
        found = self._store.find_study(study.name)
        if found is None:
            return
        stored: dict[str, Json] = {name: found.config.get(name) for name in ("strategy", "start_from")}
        given = study.config()
        if stored != {name: given[name] for name in stored}:
            raise StudyChanged(
                f"there is a study {study.name!r} already, and it is not this one; give the new one another name "
                "with name= (on the command line: --name)"
            )
