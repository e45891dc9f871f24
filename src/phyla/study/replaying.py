"""Train what a study found again, or train it on."""

import shlex
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla import plugins
from phyla.controller import from_config, known_to
from phyla.errors import ConfigurationError, NotImportable, StudyChanged, StudyNotFound
from phyla.lineage import Lineage
from phyla.records import CheckpointState, JobKind, JobState, StartFrom, TrialRecord
from phyla.strategies import FixedSchedule, Replay, Strategy
from phyla.study.limits import Retention, Retries
from phyla.study.places import Places, find_study
from phyla.study.replicates import derived_seed
from phyla.study.results import Results
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

    Raises:
        StudyNotFound: there is no such study, or no trial that could be trained again.
        ConfigurationError: the checkpoint to start from is gone, or there is no training function.
        NotImportable: the stored settings name a function that the study does not have.
        StudyChanged: a study of that name exists and is another replay.
        StudyFailed: the new study stopped itself; the message says what to do.
    """
    given = _given(study, home, storage, checkpoints)
    prepared = prepare_replay(*given, trial=trial, from_step=from_step, name=name, train=train, setup=setup)
    return _run(prepared, workers)


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

    Trials are as long as those of the old study; the last one may be shorter. The new study has a seed of its own,
    so training sees other random numbers than the old one did.

    Args:
        study: the study, whose functions are used; or its name, and then `train` is needed.
        steps: how many steps to train.
        trial: id of the trial to go on from; by default the best one.
        name: name of the new study; by default that of the old one with `-continued`.
        workers: as for `replay`, and so are the others.
        train: the training function.
        setup: the setup function.
        home: directory where the study lives.
        storage: URL of its store.
        checkpoints: directory of all studies' checkpoints.

    Raises:
        StudyNotFound: there is no such study, or no trial to go on from.
        ConfigurationError: `steps` is below 1, the checkpoint is gone, or there is no training function.
        NotImportable: the stored settings name a function that the study does not have.
        StudyChanged: a study of that name exists and goes on from elsewhere.
        StudyFailed: the new study stopped itself; the message says what to do.
    """
    old, places, source = _given(study, home, storage, checkpoints)
    prepared = prepare_continuation(old, places, steps, source, trial=trial, name=name, train=train, setup=setup)
    return _run(prepared, workers)


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
    path = old.path(trial)
    root, start = path[0], None
    imported = root.kind is JobKind.IMPORT
    if from_step is None and imported:
        # From our copy, else from what it was copied from.
        origin = StartFrom(
            str(root.origin),
            step=root.end_step,
            index=root.checkpoint_index,
            digest=str(root.reason.get("digest")),
        )
        path, start = path[1:], old.kept(root) or origin
    elif from_step or (from_step == 0 and imported):
        steps = {one.reached_step: index for index, one in enumerate(path[:-1]) if old.kept(one) is not None}
        if from_step not in steps:
            kept = ", ".join(map(str, steps))
            raise ConfigurationError(
                f"study {study!r} keeps no checkpoint at step {from_step} on the way to trial {path[-1].id}, "
                + (f"but at step {kept}: choose one of these, or" if kept else "nor at others:")
                + " leave --from out to train from the start (retention=phyla.Retention(every_steps=...) keeps "
                "more)."
            )
        index = steps[from_step]
        path, start = path[index + 1 :], old.kept(path[index])
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
    last = old.path(trial)[-1]
    start = old.kept(last)
    if start is None:
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
    # The same command gives the same seed, which no other study that is made from the old one has.
    seed = derived_seed(old.record.seed, last.id, 1)
    return old.prepared(last, strategy, start, name or f"{study}-continued", train, setup, seed=seed)


@final
class _Old:
    """The study that something is taken from."""

    def __init__(self, name: str, places: Places, source: Study | None) -> None:
        self.name = name
        self._source = source
        self._places = places
        self._store, self.record = find_study(name, places)
        self._how_to_give = (
            f"name the study file with --file FILE.py, as in: phyla replay {shlex.quote(name)} --file FILE.py "
            "(in Python: phyla.replay(study), with the Study, or train=function)"
        )
        find = plugins.refuse if source is None else known_to(source.rules)
        try:
            self.rules = from_config(self.record.config, find)
        except NotImportable as error:
            raise NotImportable(f"study {name!r}: {error}: {self._how_to_give}") from error
        results = Results(self._store, self.record, places)
        self._lineage = Lineage(results.trials())
        self._rows = {row.name: row for row in results.checkpoints()}

    def path(self, trial: int | None) -> list[TrialRecord]:
        """Return the ancestry of a trial, by default of the best one, from its root."""
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

    def kept(self, trial: TrialRecord) -> StartFrom | None:
        """Return what a trial left, to start from; None if it is not kept."""
        row = self._rows.get(trial.checkpoint or "")
        if row is None or row.state is not CheckpointState.LIVE:
            return None
        path = self._places.checkpoints(self.name) / row.name
        return StartFrom(path, step=row.step, index=trial.checkpoint_index, digest=row.digest)

    def prepared(
        self,
        last: TrialRecord,
        strategy: Strategy,
        start: StartFrom | None,
        name: str,
        train: "Callable[[Trial], object] | None",
        setup: "Callable[[WorkerContext], object] | None",
        *,
        seed: int,
    ) -> Prepared:
        """Make the new study; refuse a name that another study has, while the same again is resumed."""
        from phyla.study.opening import code_digest

        config, rules = self.record.config, self.rules
        if train is None and self._source is not None:
            train, setup = self._source.train, setup or self._source.setup
        if train is None:
            named = f" (the store calls it {config['train']})" if config.get("train") else ""
            raise ConfigurationError(
                f"study {self.name!r} cannot be trained again without its training function{named}, and phyla "
                f"does not import what a database names: {self._how_to_give}"
            )
        study = Study(
            name,
            rules.space,
            rules.objective,
            strategy,
            train,
            setup=setup,
            seed=seed,
            suites=rules.suites,
            start_from=() if start is None else (start,),
            retention=Retention(best=rules.keep_best, front=rules.keep_front, every_steps=rules.keep_every_steps),
            retries=Retries(attempts=rules.max_attempts, broken=rules.max_broken),
        )
        study.places = self._places
        found, given = self._store.find_study(name), study.config()
        if found is not None and any(found.config.get(key) != given[key] for key in ("strategy", "start_from")):
            raise StudyChanged(
                f"there is a study {name!r} already, and it is not this one; give the new one another name "
                "with name= (on the command line: --name)"
            )
        code: Any = config.get("code")
        notes = []
        if code and code["now"] != code_digest(train):
            notes.append(
                f"the training function {config.get('train')} is not what it was when study {self.name!r} last ran"
            )
        row = self._rows.get(last.checkpoint or "")
        return Prepared(
            study=study,
            of=self.name,
            trial=last.id,
            digest=None if row is None else row.digest,
            fitness=last.fitness,
            notes=tuple(notes),
        )
