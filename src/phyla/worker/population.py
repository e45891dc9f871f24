"""The worker of a study with a population: it trains, evaluates, or does both."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

from phyla.api import Client
from phyla.checkpoints import LocalCheckpoints, advice_on
from phyla.errors import StudyFailed
from phyla.machine import TrainRules
from phyla.records import StudyRecord, StudyState, WorkKind
from phyla.worker.evaluated_study import Bindings, EvaluatedStudy, StudySources
from phyla.worker.evaluator import Evaluator
from phyla.worker.loop import Beat, Worker
from phyla.worker.trainer import Trainer
from phyla.worker.trial import Trial


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """What the study's `setup(worker)` gets, once per process.

    Attributes:
        name: `host:slot:pid:launch` of this process.
        index: 0 .. workers - 1.
        study: name of the study.
        working_dir: a directory of this worker, for caches and logs.
    """

    name: str
    index: int
    study: str
    working_dir: Path


def population_worker(
    client: Client,
    study: StudyRecord,
    repository: LocalCheckpoints,
    rules: TrainRules,
    train: Callable[[Trial], object],
    setup: Callable[[WorkerContext], Any] | None,
    *,
    name: str,
    index: int = 0,
    kinds: Collection[str],
    work_root: Path,
    outputs: Path,
    log: Path | None,
    gin_bindings: Sequence[str] = (),
    renew_s: float | None = None,
    beat: Beat = lambda progress, done, deadline: None,
    yields: bool = False,
) -> Worker:
    """Set up this process as a worker of a study; `setup` is called here, once.

    The arguments are those of `Worker`, `Trainer` and `EvaluatedStudy`.

    Raises:
        StudyFailed: the working directory of the worker cannot be made.
    """
    state = None
    if setup is not None:
        directory = work_root / f"worker-{index}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StudyFailed(f"cannot make {directory}: {error.strerror}; {advice_on(error)}") from error
        state = setup(WorkerContext(name=name, index=index, study=study.name, working_dir=directory))
    evaluator = None
    if rules.suites and WorkKind.EVALUATE in kinds:
        evaluated = EvaluatedStudy(
            suites=rules.suites,
            sources=StudySources(repository),
            outputs=outputs,
            stop=partial(client.end_study, study.id, StudyState.FAILED),
            bindings=Bindings(worker=tuple(gin_bindings)),
        )
        evaluator = Evaluator(client, {study.id: evaluated}, work_root=work_root, name=name, state=state)
    trainer = None
    if WorkKind.TRAIN in kinds:
        metrics = rules.reported_metrics
        trainer = Trainer(client, repository, train, metrics=metrics, work_root=work_root, state=state, log=log)
    return Worker(
        client, name=name, trainer=trainer, evaluator=evaluator, renew_s=renew_s, beat=beat, yields=yields
    )
