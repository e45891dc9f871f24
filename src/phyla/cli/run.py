"""`phyla run`, `phyla worker` and `phyla replay`: train what a study file defines."""

import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Exit, Option

from phyla.cli import options
from phyla.cli.best import best_lines
from phyla.cli.live import StudyDisplay
from phyla.cli.output import show as print
from phyla.cli.watch import ChangeDisplay, finish
from phyla.cli.words import again, command, counted, damage_lines, duration, number, progress_line, requeued
from phyla.errors import UsageError
from phyla.records import CheckpointState, StudyState

if TYPE_CHECKING:
    from phyla.study import Prepared, Results, Study

EXAMPLE = """  # at the top level of the file, not inside a function or under `if __name__ == "__main__":`
  import phyla
  study = phyla.Study("my-study", space, phyla.Maximize("accuracy"), strategy, train)"""


def run(
    ctx: Context,
    file: options.StudyFile,
    workers: options.Workers = 2,
    evaluators: Annotated[int, Option(min=0, help="Further processes that only evaluate the suites.")] = 0,
    kinds: options.Kinds = options.BOTH,
    study: options.Chosen = None,
    gpus_per_worker: options.Gpus = 0,
    replicates: Annotated[
        int | None, Option(min=1, help="Run it this many times, with other seeds, as NAME-r0, ...")
    ] = None,
    stall_timeout: Annotated[
        float | None,
        Option(metavar="SECONDS", help="End a worker process without progress.", show_default="never"),
    ] = None,
    yield_at_report: Annotated[bool, Option("--yield-at-report", help="Evaluate in trial.report().")] = False,
    overwrite: Annotated[
        str | None, Option(metavar="NAME", help="Delete what is stored of study NAME, and start anew.")
    ] = None,
) -> None:
    """Run a study, or resume it, until it ends. Ctrl-C stops it; running it again resumes it."""
    from phyla.study import replicates as replicates_of

    with options.interruptible(lambda: f"Interrupted. Resume it with: {again()}"):
        chosen = chosen_study(ctx, file, study)
        if overwrite not in (None, chosen.name):
            raise UsageError(
                f"--overwrite {overwrite}: the study is called {chosen.name!r}; nothing was deleted. To delete "
                f"what is stored of it and start anew, write --overwrite {chosen.name}"
            )
        how = {
            "kinds": options.listed(kinds),
            "evaluators": evaluators,
            "gpus_per_worker": gpus_per_worker,
            "stall_timeout_s": stall_timeout,
            "yield_at_report": yield_at_report,
            "overwrite": overwrite is not None,
        }
        if replicates is None:
            scored = [_run(chosen, workers, **how)]
        else:
            scored = []
            for index, one in enumerate(replicates_of(chosen, replicates), start=1):
                print(f"replicate {index} of {replicates}: {one.name}", flush=True)
                scored.append(_run(one, workers, **how))
            print(f"compare them with: {command('compare', chosen.name, chosen.places)}")
    if not all(scored):
        raise Exit(options.EXIT_FAILED)


def worker(
    ctx: Context,
    files: Annotated[
        list[str],
        Argument(
            metavar="FILE...",
            help="The study file; or the suite files of a watched run (file.py, file.py:name, module:name, "
            "file.toml); or the name of a watched run all of whose parts are registered plug-ins.",
        ),
    ],
    workers: options.Workers = 2,
    kinds: options.Kinds = options.BOTH,
    study: Annotated[str | None, Option(help="Name of the study or watched run, if the file has several.")] = None,
    gpus_per_worker: options.Gpus = 0,
    gin: options.Gin = None,
) -> None:
    """Add workers to a study or to watched runs until they end; never make or change one. Ctrl-C stops them.

    Functions and commands come from the file, never from the store. A file that differs from what is stored is
    refused, with what differs.
    """
    from phyla.study.watching import evaluate

    file = Path(files[0])
    with options.interruptible(lambda: "interrupted; the study goes on without these workers"):
        if len(files) == 1 and file.suffix == ".py" and _studies_of(file):
            chosen = chosen_study(ctx, file, study)
            with StudyDisplay(chosen.name) as display:
                results = chosen.work(
                    workers,
                    kinds=options.listed(kinds),
                    gpus_per_worker=gpus_per_worker,
                    on_progress=display.progressed,
                    on_interrupt=display.interrupted,
                )
            progress = results.progress()
            print(f"{chosen.name} is {progress.study.state}: {progress_line(progress)}")
            return
        # A word that names neither a file nor a module names a run.
        named = len(files) == 1 and ":" not in files[0] and file.suffix not in (".py", ".toml")
        with closing(ChangeDisplay({})) as changes:
            watched = evaluate(
                files if named else [study] if study is not None else [],
                () if named else files,
                workers,
                gpus_per_worker=gpus_per_worker,
                gin_bindings=gin or (),
                on_change=changes.show,
                on_interrupt=changes.interrupted,
                **options.where(ctx),
            )
    raise Exit(finish(watched, as_json=False))


def replay(
    ctx: Context,
    study: options.StudyName,
    file: Annotated[
        Path | None, Option(metavar="FILE.py", help="The study file, which has the training function.")
    ] = None,
    trial: Annotated[int | None, Option(help="The trial.", show_default="the best")] = None,
    from_step: Annotated[
        int | None,
        Option("--from", min=0, metavar="STEP", help="Train from this step on.", show_default="the start"),
    ] = None,
    steps: Annotated[
        int | None, Option("--continue", min=1, metavar="STEPS", help="Train the checkpoint on, instead.")
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
    from phyla.study import prepare

    if steps is not None and from_step is not None:
        raise UsageError("--continue and --from exclude each other: a continuation starts from the checkpoint")
    places, source = options.places(ctx), None
    if file is not None:
        found = _studies_of(file)
        source = _chosen(found, file, None if len(found) == 1 else study)
    prepared = prepare(study, places, source, steps=steps, trial=trial, from_step=from_step, name=name)
    for note in prepared.notes:
        print(f"note: {note}", file=sys.stderr)
    _run(prepared.study, workers, gpus_per_worker=gpus_per_worker)
    if steps is None:
        _print_likeness(prepared)


def _print_likeness(prepared: "Prepared") -> None:
    """Say whether a replay left what the trial had left."""
    results = prepared.study.results()
    head = results.members()[0].head
    rows = {row.name: row for row in results.checkpoints() if row.state is not CheckpointState.LOST}
    if head is None or head.checkpoint not in rows:
        return
    what = f"that of trial {prepared.trial} of {prepared.of}"
    if rows[head.checkpoint].digest == prepared.digest:
        print(f"the checkpoint is {what}, bit for bit")
    else:
        print(
            f"the checkpoint is not {what}, bit for bit; its fitness is {number(head.fitness)}, "
            f"that of the other {number(prepared.fitness)}"
        )


def chosen_study(ctx: Context, file: Path, name: str | None) -> "Study":
    """Return the study of a file, by name if there are several, in the place that the options say."""
    chosen = _chosen(_studies_of(file), file, name)
    options.place(ctx, chosen)
    return chosen


def _studies_of(file: Path) -> "list[Study]":
    from phyla.study import Study
    from phyla.study.files import read_file

    values = vars(read_file(file, "study")).values()
    return list({id(value): value for value in values if isinstance(value, Study)}.values())


def _chosen(studies: "Sequence[Study]", file: Path, name: str | None) -> "Study":
    if not studies:
        raise UsageError(f"{file} defines no study. It needs a phyla.Study in a variable:\n\n{EXAMPLE}")
    names = ", ".join(repr(study.name) for study in studies)
    fitting = [study for study in studies if name in (None, study.name)]
    # `NAME-r2` means a replicate.
    of, found, index = (name or "").rpartition("-r")
    if not fitting and found and index.isdecimal() and str(int(index)) == index:
        fitting = [study.replicate(int(index)) for study in studies if study.name == of]
    if not fitting:
        raise UsageError(f"{file} has no study {name!r}; there are: {names}")
    if len(fitting) > 1:
        raise UsageError(f"{file} has {len(fitting)} studies: {names}; choose one with --study NAME")
    return fitting[0]


def _run(study: "Study", workers: int, **more: Any) -> bool:
    """Run a study with a live view; say at the end what it found, and return whether any score is finite."""
    queued = options.interruptible(lambda: f"{requeued(study.results())}. Resume it with: {again()}")
    with queued, StudyDisplay(study.name) as display:
        results = study.run(workers, on_progress=display.progressed, on_interrupt=display.interrupted, **more)
        display.progressed(results)
    findings = results.findings()
    for line in _closing(results, display.seconds, len(findings)):
        print(line)
    record = results.study()
    if record.state is not StudyState.COMPLETED:
        print(f"{study.name} is {record.state}: {record.message}. Let it go on with: {again()}")
        raise Exit(options.EXIT_FAILED)
    return all(finding.kind != "scores" for finding in findings)


def _closing(results: "Results", seconds: float, warned: int) -> "Iterable[str]":
    def look(name: str) -> str:
        return command(name, results.name, results.places)

    counts = results.counts()
    cancelled = f", {counts['cancelled']} cancelled" if counts.get("cancelled") else ""
    completed, failed = counted(counts.get("completed", 0), "trial"), counts.get("failed", 0)
    yield f"{completed} completed, {failed} failed{cancelled}, in {duration(seconds)}"
    yield from damage_lines(results.damaged())
    yield from best_lines(results)[: None if results.replicate is None else 1]
    count = len(results.front()) if results.aim.tradeoffs else 0
    if count:
        yield f"{counted(count, 'trial')} on the Pareto front: {look('best')}"
    if warned:
        # They were shown as soon as they were found.
        yield f"{counted(warned, 'warning')}, see above or in: {look('status')}"
    yield f"make the report with: {look('report')}"
