"""Train a study again: replay its best schedule, or continue training from a checkpoint."""

import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from phyla import plugins, study_modules
from phyla.checkpoints import RemotePlace, local_copy
from phyla.configuration import from_config, make_resolver
from phyla.errors import ConfigurationError, NotImportable, StudyChanged, StudyNotFound
from phyla.lineage import Lineage
from phyla.records import Checkpoint, CheckpointState, JobKind, JobState, StartFrom, StudyRecord, TrialRecord
from phyla.strategies import FixedSchedule, Replay, Strategy
from phyla.study.declaration import Retention, Retries, replicate_seed
from phyla.study.places import Places, find_study
from phyla.study.results.results import Results
from phyla.study.study import Study
from phyla.validation import check_integer

if TYPE_CHECKING:
    from phyla.worker import Trial, WorkerContext


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A study, not stored yet, that is ready to train something again, or on."""

    study: Study
    notes: tuple[str, ...]  # to show before it runs


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
    on nothing else (not on the trial's id, or on its member) leaves the same checkpoint, bit for bit. An
    interrupted replay continues where it stopped.

    Source: Li et al. 2019, arXiv 1902.01894, section 3 (training replay).

    Args:
        study: the study, whose functions are used; or its name, and then `train` is needed.
        trial: id of the trial; by default the best one.
        from_step: only train from this step on, from the ancestor's checkpoint at that step.
        name: name of the new study; by default that of the old one with `-replay`.
        workers: worker processes; 0 trains in this process.
        train: the training function; by default that of the study. What the store names is never imported.
        setup: the same for `setup`.
        home: where studies live, as for `Study`.
        storage: URL of the database, as for `Study`.
        checkpoints: where the checkpoints are, as for `Study`.

    Raises:
        StudyNotFound: there is no such study, or no trial that could be trained again.
        ConfigurationError: the checkpoint to start from is gone, or there is no training function.
        NotImportable: the stored settings name a function that the study does not have.
        StudyChanged: a study of that name exists and is another replay.
        StudyFailed: the new study stopped itself; the message says what to do.
    """
    return _run(
        study,
        workers,
        (home, storage, checkpoints),
        trial=trial,
        from_step=from_step,
        name=name,
        train=train,
        setup=setup,
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
    """Continue to train the best checkpoint, with its last hyperparameters, in a new study.

    Trials are as long as those of the old study; the last one may be shorter. The new study has a seed of its own,
    so training sees other random numbers than the old one did.

    Args:
        study: the study, whose functions are used; or its name, and then `train` is needed.
        steps: how many steps to train.
        trial: id of the trial to continue; by default the best one.
        name: name of the new study; by default that of the old one with `-continued`.
        workers: as for `replay`, like the other arguments.
        train: the training function.
        setup: the setup function.
        home: where studies live, as for `Study`.
        storage: URL of the database, as for `Study`.
        checkpoints: where the checkpoints are, as for `Study`.

    Raises:
        StudyNotFound: there is no such study, or no trial to continue.
        ConfigurationError: `steps` is below 1, the checkpoint is gone, or there is no training function.
        StudyChanged: a study of that name exists and continues another checkpoint.
        StudyFailed: the new study stopped itself; the message says what to do.
    """
    steps = check_integer("steps", steps)
    return _run(
        study, workers, (home, storage, checkpoints), steps=steps, trial=trial, name=name, train=train, setup=setup
    )


def _run(study: str | Study, workers: int, where: Sequence[Any], **options: Any) -> Results:
    study_modules.only_when_run()
    if isinstance(study, str):
        prepared = prepare(study, Places.of(*where), **options)
    else:
        places = Places.of(*where) if any(where) else study.places
        prepared = prepare(study.name, places, study, **options)
    for note in prepared.notes:
        warnings.warn(note, stacklevel=3)
    return prepared.study.run(workers)


def prepare(
    study: str,
    places: Places,
    source: Study | None = None,
    *,
    steps: int | None = None,
    trial: int | None = None,
    from_step: int | None = None,
    name: str | None = None,
    train: "Callable[[Trial], object] | None" = None,
    setup: "Callable[[WorkerContext], object] | None" = None,
) -> Prepared:
    """Make the study of `replay`, or with `steps` of `continue_training`; nothing is stored before it runs.

    Functions are those of `source`. The name of another study is rejected; the same replay or continuation is
    resumed.
    """
    store, record = find_study(study, places)
    how_to_give = (
        f"name the study file with --file FILE, as in: phyla replay {shlex.quote(study)} --file FILE "
        "(in Python: phyla.replay(study), with the Study, or train=function)"
    )
    try:
        rules = from_config(record.config, plugins.refuse if source is None else make_resolver(source.rules))
    except NotImportable as error:
        raise NotImportable(f"study {study!r}: {error}: {how_to_give}") from error
    results = Results(store, record, places)
    rows = {row.name: row for row in results.checkpoints()}
    origin = _Source(study, results.trials(), rows, places.checkpoints(study, record.config))
    best = results.best if trial is None else None
    path = origin.path(trial if best is None else best.trial)
    last = path[-1]
    start: StartFrom | None
    if steps is None:
        path, start = _way(origin, path, from_step)
        strategy: Strategy = Replay.along(path, of=study, fitness=rules.strategy.fitness)
        seed = record.seed
    else:
        start = origin.kept(last)
        if start is None:
            raise ConfigurationError(
                f"study {study!r} does not keep the checkpoint of trial {last.id} any more; go on from the best "
                f"one, or train it again first: phyla replay {study} --file FILE --trial {last.id}"
            )
        usual = getattr(rules.strategy, "steps_per_trial", None) or last.end_step - last.start_step
        schedule, per_trial, fitness = [(0, dict(last.params))], min(usual, steps), rules.strategy.fitness
        strategy = FixedSchedule(schedule, total_steps=steps, steps_per_trial=per_trial, fitness=fitness)
        # The same command gives the same seed, which no other study that is made from the old one has.
        seed = replicate_seed(record.seed, last.id, 1)
    if train is None and source is not None:
        train, setup = source.train, setup or source.declared.setup
    stored: Any = record.config
    if train is None:
        named = f" (the store calls it {stored['train']})" if isinstance(stored.get("train"), str) else ""
        raise ConfigurationError(
            f"study {study!r} cannot be trained again without its training function{named}, and phyla does not "
            f"import what a database names: {how_to_give}"
        )
    replay = Study(
        name or f"{study}-{'replay' if steps is None else 'continued'}",
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
    replay.places = places.like(record.config)
    config: Any = replay.config()
    _check_same(store.find_study(replay.name), config, replay.name)
    notes = []
    if stored.get("code") and stored["code"]["now"]["train"] != config["code"]["now"]["train"]:
        notes.append(
            f"the training code, {stored['code']['name']}, is not what it was when study {study!r} last ran"
        )
    return Prepared(study=replay, notes=tuple(notes))


def _check_same(stored: StudyRecord | None, config: Any, name: str) -> None:
    """Reject a name that another study has."""
    if stored is not None and any(stored.config.get(key) != config[key] for key in ("strategy", "start_from")):
        raise StudyChanged(
            f"there is a study {name!r} already, and it is not this one; give the new one another name with "
            "name= (on the command line: --name)"
        )


@final
@dataclass(frozen=True, slots=True)
class _Source:
    """What a study found, to train it again."""

    name: str
    trials: Sequence[TrialRecord]
    rows: Mapping[str, Checkpoint]
    root: Path | RemotePlace

    def path(self, trial: int | None) -> list[TrialRecord]:
        """Return the ancestry of a trial, by default of the best one, from its root."""
        lineage = Lineage(self.trials)
        if trial is None:
            best = lineage.best()
            if best is None:
                raise StudyNotFound(f"study {self.name!r} has no completed trial with a finite fitness yet")
            trial = best.id
        if trial not in lineage:
            raise StudyNotFound(f"study {self.name!r} has no training trial {trial}")
        path = list(lineage.ancestry(trial))
        if path[-1].state is not JobState.COMPLETED:
            raise StudyNotFound(
                f"trial {trial} of study {self.name!r} is {path[-1].state}; only a completed one can be trained "
                "again, or on"
            )
        return path

    def kept(self, trial: TrialRecord) -> StartFrom | None:
        """Return what a trial left, to start from; None if it is not kept."""
        row = self.rows.get(trial.checkpoint or "")
        if row is None or row.state is not CheckpointState.LIVE:
            return None
        path = local_copy(self.root / row.name, row.digest)
        return StartFrom(path, step=row.step, index=trial.checkpoint_index, digest=row.digest)


def _way(
    source: _Source, path: list[TrialRecord], from_step: int | None
) -> tuple[list[TrialRecord], StartFrom | None]:
    """Return the trials to train again, and what the first one starts from."""
    root, start = path[0], None
    last, imported = path[-1], root.kind is JobKind.IMPORT
    if from_step is None and imported:
        # From our copy, else from what it was copied from.
        digest = str(root.reason.get("digest"))
        origin = StartFrom(str(root.origin), step=root.end_step, index=root.checkpoint_index, digest=digest)
        path, start = path[1:], source.kept(root) or origin
    elif from_step or (from_step == 0 and imported):
        steps = {
            trial.reached_step: index for index, trial in enumerate(path[:-1]) if source.kept(trial) is not None
        }
        if from_step not in steps:
            kept_steps = ", ".join(map(str, steps))
            raise ConfigurationError(
                f"study {source.name!r} keeps no checkpoint at step {from_step} on the way to trial {last.id}, "
                + (f"but at step {kept_steps}: choose one of these, or" if kept_steps else "nor at others:")
                + " leave --from out to train from the start (retention=phyla.Retention(every_steps=...) keeps "
                "more)."
            )
        index = steps[from_step]
        path, start = path[index + 1 :], source.kept(path[index])
    if not path:
        raise StudyNotFound(f"study {source.name!r}: the trial was imported, so there is no training to repeat")
    return path, start
