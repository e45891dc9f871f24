"""Creates workers of both kinds of studies from a specification."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from phyla.checkpoints import RemotePlace, place_of
from phyla.client import Client, known_checkpoints, open_checkpoints
from phyla.configuration import digest_rules, edited_code, format_setting, suite_differences
from phyla.errors import (
    RunChanged,
    StudyFailed,
    StudyNotFound,
    advice_on,
)
from phyla.evaluation import Suite
from phyla.machine import TrainRules, WatchRules
from phyla.records import JsonObject, StudyKind, StudyRecord, WorkKind
from phyla.store import Store
from phyla.system.code_digest import code_digest, imported_by
from phyla.validation import check_ran
from phyla.worker import (
    Command,
    EvaluatedStudy,
    Evaluator,
    Sources,
    StudySources,
    Trainer,
    Trial,
    Worker,
    WorkerContext,
)
from phyla.worker.spec import WorkerSpec

Runs: TypeAlias = Sequence[tuple[StudyRecord, EvaluatedStudy]]
"""Watched studies, each with its evaluated study."""
MOST_DIFFERENCES = 5
"""Differences of two suite files that a message names."""


def population_worker(
    client: Client,
    rules: TrainRules,
    train: Callable[[Trial], object],
    setup: Callable[[WorkerContext], Any] | None,
    spec: WorkerSpec,
    **how: Any,
) -> Worker:
    """Create a worker of a study with a population, and call `setup` once. `how` is for `Worker`."""
    study, repository, work_root = client.record, client.repository, Path(spec.work_root)
    state, log = None, _log(spec)
    if setup is not None:
        directory = work_root / f"worker-{spec.index}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StudyFailed(f"cannot make {directory}: {error.strerror}; {advice_on(error)}") from error
        context = WorkerContext(name=spec.name, index=spec.index, study=study.name, working_dir=directory)
        state = check_ran(setup, setup(context))
    evaluator = trainer = None
    if rules.suites and WorkKind.EVALUATE in spec.kinds:
        evaluated = EvaluatedStudy(
            suites=rules.suites,
            sources=StudySources(repository),
            outputs=Path(spec.outputs),
            stop=partial(client.fail_study, study.id),
        )
        evaluator = Evaluator(
            client, {study.id: evaluated}, work_root=work_root, name=spec.name, state=state, log=log
        )
    if WorkKind.TRAIN in spec.kinds:
        trainer = Trainer(
            client,
            repository,
            train,
            metrics=rules.reported_metrics,
            work_root=work_root,
            state=state,
            log=log,
            save_every_s=spec.save_every_s,
            environment=spec.environment,
            edited=_edited(client, train, rules),
        )
    return _worker(client, spec, trainer=trainer, evaluator=evaluator, yields=spec.yields, **how)


def digest_code(train: Callable[[Trial], object], rules: TrainRules) -> dict[str, str]:
    """Return digests of what trains, under the name "train", of the user's code that decides, and of modules."""
    modules = train.modules() if isinstance(train, Command) else imported_by(train)
    return {
        "train": train.digest() if isinstance(train, Command) else code_digest(train),
        **digest_rules(rules),
        **{f"module {name}": digest for name, digest in modules.items()},
    }


def _edited(client: Client, train: Callable[[Trial], object], rules: TrainRules) -> list[str]:
    """Return what this process has imported otherwise than the last run of the study."""
    code: Any = client.study().config.get("code")
    return edited_code(code, code["now"], digest_code(train, rules)) if code else []


# Watched studies


def open_watched(store: Store, suites: Mapping[str, Sequence[Suite]]) -> tuple[Client, Runs]:
    """Open the watched studies of one pool of workers, by name, with their suites from the user's files."""
    runs = [_load_watched(store, name, tuple(declared)) for name, declared in suites.items()]
    rules = [WatchRules(suites=evaluated.suites, lease_s=lease_of(record)) for record, evaluated in runs]
    (first, *rest), (first_rules, *other_rules) = [record for record, _ in runs], rules
    client = Client(store, first, first_rules, watched=list(zip(rest, other_rules, strict=True)))
    return client, runs


def _load_watched(store: Store, name: str, suites: tuple[Suite, ...]) -> tuple[StudyRecord, EvaluatedStudy]:
    from phyla.watcher import DirectorySources

    record = store.find_study(name)
    if record is None or not record.watched:
        raise StudyNotFound(f"watched run {name!r} is gone from {store.url}")
    config: Any = record.config
    sources: Sources = DirectorySources(Path(record.location))
    if record.kind is StudyKind.STUDY:
        source = next(study for study in store.studies() if study.id == record.source)
        repository = open_checkpoints(store, source, place(config["checkpoints"], config["outputs"]))
        if known_checkpoints(store, source):
            repository.check_owner()
        sources = StudySources(repository)

    def changed() -> bool:
        now = store.find_study(name)
        return now is not None and now.config.get("suites") != config.get("suites")

    return record, EvaluatedStudy(
        suites=suites,
        sources=sources,
        outputs=Path(config["outputs"]),
        gin_root=Path(config["gin_root"]),
        changed=changed,
    )


def lease_of(record: StudyRecord) -> float:
    """Return how many seconds a lease of a watched study lasts."""
    config: Any = record.config
    return float(config["lease_s"])


def check_suites(runs: Runs, configs: Mapping[str, JsonObject]) -> None:
    """Reject stored suites that differ from those of the configurations."""
    for record, _ in runs:
        differing = suite_differences(record.config, configs[record.name])
        if differing:
            differences = [
                f"{key}: stored {format_setting(old)}, given {format_setting(new)}"
                for key, (old, new) in differing.items()
            ]
            more = (
                [f"and {len(differences) - MOST_DIFFERENCES} more"] if len(differences) > MOST_DIFFERENCES else []
            )
            listing = "; ".join([*differences[:MOST_DIFFERENCES], *more])
            raise RunChanged(
                f"the suites of run {record.name!r} are not those of the suite file ({listing}); give the file "
                "that the run is watched with, or watch it again with this one"
            )


def watched_worker(client: Client, runs: Runs, spec: WorkerSpec, **how: Any) -> Worker:
    """Create a worker of watched studies; `Worker` gets the arguments in `how`."""
    evaluated = {record.id: evaluated for record, evaluated in runs}
    evaluator = Evaluator(client, evaluated, work_root=Path(spec.work_root), name=spec.name, log=_log(spec))
    return _worker(client, spec, evaluator=evaluator, **how)


def _worker(client: Client, spec: WorkerSpec, **how: Any) -> Worker:
    least, most = spec.gpus
    how |= {"stops_at": spec.stops_at, "run_s": spec.run_s}
    return Worker(client, name=spec.name, gpus=(least, most), labels=tuple(spec.labels), **how)


def _log(spec: WorkerSpec) -> Path | None:
    return Path(spec.log) if spec.log else None


def place(checkpoints: str, outputs: str) -> Path | RemotePlace:
    """Return where checkpoints are; outputs are in a directory of the home."""
    return place_of(checkpoints, Path(outputs).parent.parent)
