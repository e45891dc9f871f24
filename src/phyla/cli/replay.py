"""`phyla replay`: train what a study found again, or train it on."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Context, Option

from phyla.cli import options
from phyla.cli.output import show as print
from phyla.cli.run import run_study, source_study
from phyla.cli.words import again, number
from phyla.errors import UsageError
from phyla.records import CheckpointState

if TYPE_CHECKING:
    from phyla.study import Prepared


def replay(
    ctx: Context,
    study: options.StudyName,
    file: Annotated[
        Path | None,
        Option(metavar="FILE.py", help="The study file, which has the training function.", show_default=False),
    ] = None,
    trial: Annotated[int | None, Option(help="The trial.", show_default="the best")] = None,
    from_step: Annotated[
        int | None,
        Option(
            "--from",
            min=0,
            metavar="STEP",
            help="Train from this step on, where a checkpoint is kept.",
            show_default="the start",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        Option(
            "--continue",
            min=1,
            metavar="STEPS",
            help="Train the checkpoint on for this many steps, instead.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None, Option(help="Name of the new study.", show_default="STUDY-replay, or STUDY-continued")
    ] = None,
    workers: options.Workers = 1,
    gpus_per_worker: options.Gpus = 0,
) -> None:
    """Train the best trial's whole path again, as one chain of trials in a new study; or train it on.

    With --continue the new study starts from the best checkpoint, with its last hyperparameters.
    """
    from phyla.study import prepare_continuation, prepare_replay

    if steps is not None and from_step is not None:
        raise UsageError("--continue and --from exclude each other: a continuation starts from the checkpoint")
    places = options.places(ctx)
    source = None if file is None else source_study(file, study)
    if steps is not None:
        _run(prepare_continuation(study, places, steps, source, trial=trial, name=name), workers, gpus_per_worker)
        return
    prepared = prepare_replay(study, places, source, trial=trial, from_step=from_step, name=name)
    _run(prepared, workers, gpus_per_worker)
    _compare(prepared)


def _run(prepared: "Prepared", workers: int, gpus_per_worker: float) -> None:
    for note in prepared.notes:
        print(f"note: {note}", file=sys.stderr)
    try:
        run_study(prepared.study, workers, gpus_per_worker=gpus_per_worker)
    except KeyboardInterrupt:
        raise options.interrupted(f"Interrupted. Resume it with: {again()}") from None


def _compare(prepared: "Prepared") -> None:
    """Say whether the replay left what the trial had left."""
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
