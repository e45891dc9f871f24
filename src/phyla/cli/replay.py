"""`phyla replay` and `phyla continue`: train what a study found again, or train it on."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from phyla.cli import options
from phyla.cli.output import show as print

if TYPE_CHECKING:
    from phyla.study import Prepared

Trial: TypeAlias = Annotated[int | None, typer.Option(help="The trial.", show_default="the best")]
Workers: TypeAlias = Annotated[int, typer.Option(min=0, help="Worker processes; 0 trains in this process.")]
File: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="FILE.py", help="The study file, which has the training function.", show_default=False),
]
Gpus: TypeAlias = Annotated[float, typer.Option(min=0, help="GPUs that each worker sees.")]


def replay(
    study: options.StudyName,
    file: File = None,
    trial: Trial = None,
    from_step: Annotated[
        int | None,
        typer.Option(
            "--from",
            min=0,
            metavar="STEP",
            help="Train from this step on, where a checkpoint is kept.",
            show_default="the start",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the new study.", show_default="STUDY-replay")] = None,
    workers: Workers = 1,
    gpus_per_worker: Gpus = 0,
    home: options.Home = None,
    storage: options.Storage = None,
    checkpoints: options.Checkpoints = None,
) -> None:
    """Train the best trial's whole path again, as one chain of trials in a new study."""
    from phyla.cli.run import source_study
    from phyla.study import Places, prepare_replay

    places = Places.of(home, storage, checkpoints)
    source = None if file is None else source_study(file, study)
    prepared = prepare_replay(study, places, source, trial=trial, from_step=from_step, name=name)
    _run(prepared, workers, gpus_per_worker)
    _compare(prepared)


def continue_(
    study: options.StudyName,
    steps: Annotated[int, typer.Argument(min=1, metavar="STEPS", help="How many steps to train.")],
    file: File = None,
    trial: Trial = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the new study.", show_default="STUDY-continued")
    ] = None,
    workers: Workers = 1,
    gpus_per_worker: Gpus = 0,
    home: options.Home = None,
    storage: options.Storage = None,
    checkpoints: options.Checkpoints = None,
) -> None:
    """Train the best checkpoint on with its last hyperparameters, in a new study."""
    from phyla.cli.run import source_study
    from phyla.study import Places, prepare_continuation

    places = Places.of(home, storage, checkpoints)
    source = None if file is None else source_study(file, study)
    prepared = prepare_continuation(study, places, steps, source, trial=trial, name=name)
    _run(prepared, workers, gpus_per_worker)


def _run(prepared: "Prepared", workers: int, gpus_per_worker: float) -> None:
    from phyla.cli.run import EXIT_INTERRUPTED, run_study

    for note in prepared.notes:
        print(f"note: {note}", file=sys.stderr)
    again = shlex.join(["phyla", *(Path(word).name if word == sys.argv[0] else word for word in sys.argv[1:])])
    try:
        run_study(prepared.study, workers, again=again, gpus_per_worker=gpus_per_worker)
    except KeyboardInterrupt:
        print(f"Interrupted. Resume it with: {again}", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _compare(prepared: "Prepared") -> None:
    """Say whether the replay left what the trial had left."""
    from phyla.cli.words import number
    from phyla.records import CheckpointState
    from phyla.study import load_study

    places = prepared.study.places
    results = load_study(
        prepared.study.name, home=places.home, storage=places.storage, checkpoints=places.checkpoint_root
    )
    head = results.members()[0].head
    rows = {row.name: row for row in results.checkpoints() if row.state is not CheckpointState.LOST}
    if head is None or head.checkpoint not in rows:
        return
    what = f"trial {prepared.trial} of {prepared.of}"
    if rows[head.checkpoint].digest == prepared.digest:
        print(f"the checkpoint is that of {what}, bit for bit")
    else:
        print(
            f"the checkpoint is not that of {what}, bit for bit; its fitness is {number(head.fitness)}, "
            f"that of the other {number(prepared.fitness)}"
        )
