"""`phyla run`: run the study of a study file."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Exit, Option

from phyla.cli import options
from phyla.cli.best import best_lines
from phyla.cli.output import show as print
from phyla.cli.watch_display import Watch
from phyla.cli.words import again, command, counted, damage_lines, duration, requeued
from phyla.errors import UsageError
from phyla.records import StudyState

if TYPE_CHECKING:
    from phyla.study import Results, Study

EXAMPLE = """  # at the top level of the file, not inside a function or under `if __name__ == "__main__":`
  import phyla
  study = phyla.Study("my-study", space, phyla.Maximize("accuracy"), strategy, train)"""


def run(
    ctx: Context,
    file: options.StudyFile,
    workers: options.Workers = 2,
    evaluators: Annotated[
        int, Option(min=0, help="Further worker processes that only evaluate the study's suites.")
    ] = 0,
    kinds: options.Kinds = options.BOTH,
    study: options.Chosen = None,
    gpus_per_worker: options.Gpus = 0,
    replicates: Annotated[
        int | None,
        Option(
            min=1,
            help="Run the study this many times, with other seeds, as NAME-r0, NAME-r1, ...",
            show_default=False,
        ),
    ] = None,
    stall_timeout: Annotated[
        float | None,
        Option(metavar="SECONDS", help="End a worker process without progress.", show_default="never"),
    ] = None,
    yield_at_report: Annotated[
        bool, Option("--yield-at-report", help="Let trial.report() run an eval task that waits.")
    ] = False,
    overwrite: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Delete what is stored of the study, and start anew; repeat its name to confirm.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a study, or resume it, until it ends. Ctrl-C stops it; running it again resumes it."""
    try:
        chosen = chosen_study(ctx, file, study)
        if overwrite not in (None, chosen.name):
            raise UsageError(
                f"--overwrite {overwrite}: the study is called {chosen.name!r}; nothing was deleted. To delete "
                f"what is stored of it and start anew, write --overwrite {chosen.name}"
            )
        scored = [
            run_study(
                one,
                workers,
                kinds,
                evaluators=evaluators,
                gpus_per_worker=gpus_per_worker,
                stall_timeout_s=stall_timeout,
                yield_at_report=yield_at_report,
                overwrite=overwrite is not None,
            )
            for one in _repeated(chosen, replicates)
        ]
        if replicates is not None:
            print(f"compare them with: {command('compare', chosen.name, chosen.places)}")
    except KeyboardInterrupt:
        raise options.interrupted(f"Interrupted. Resume it with: {again()}") from None
    if not all(scored):
        raise Exit(options.EXIT_FAILED)


def chosen_study(ctx: Context, file: Path, name: str | None) -> "Study":
    """Return the study of a file, by name if there are several, in the place that the options say.

    Raises:
        UsageError: there is no such file or study; the message says how it has to look.
    """
    chosen = _chosen(studies_of(file), file, name)
    options.place(ctx, chosen)
    return chosen


def source_study(file: Path, name: str) -> "Study":
    """Return the study of a file whose functions to use: the one of that name, else the only one.

    Raises:
        UsageError: there is no such file or study.
    """
    found = studies_of(file)
    return _chosen(found, file, None if len(found) == 1 else name)


def studies_of(file: Path) -> "list[Study]":
    """Return the studies that a file defines at its top level."""
    from phyla.study import Study
    from phyla.study.files import read_file

    module = read_file(file, "study")
    found = {id(value): value for value in vars(module).values() if isinstance(value, Study)}
    return list(found.values())


def _chosen(studies: "list[Study]", file: Path, name: str | None) -> "Study":
    if not studies:
        raise UsageError(f"{file} defines no study. It needs a phyla.Study in a variable:\n\n{EXAMPLE}")
    names = ", ".join(repr(study.name) for study in studies)
    fitting = [study for study in studies if name in (None, study.name)] or _replicates_named(studies, name)
    if not fitting:
        raise UsageError(f"{file} has no study {name!r}; there are: {names}")
    if len(fitting) > 1:
        raise UsageError(f"{file} has {len(fitting)} studies: {names}; choose one with --study NAME")
    return fitting[0]


def _replicates_named(studies: "list[Study]", name: str | None) -> "list[Study]":
    """Return the replicate that a name like `NAME-r2` means."""
    of, found, index = (name or "").rpartition("-r")
    if not (found and index.isdecimal() and str(int(index)) == index):
        return []
    return [study.replicate(int(index)) for study in studies if study.name == of]


def _repeated(study: "Study", count: int | None) -> "Iterator[Study]":
    """Return what to run, and say which replicate it is."""
    from phyla.study import replicates

    if count is None:
        yield study
        return
    for number, replicate in enumerate(replicates(study, count), start=1):
        print(f"replicate {number} of {count}: {replicate.name}", flush=True)
        yield replicate


def run_study(study: "Study", workers: int, kinds: str = options.BOTH, **more: Any) -> bool:
    """Run a study with a live view; say at the end what it found, and return whether any score is finite.

    Args:
        study: the study.
        workers: as for `Study.run`.
        kinds: as for `Study.run`, with commas between.
        **more: as for `Study.run`.
    """
    try:
        with Watch(study.name) as watch:
            results = study.run(
                workers,
                kinds=options.listed(kinds),
                on_progress=watch.progressed,
                on_interrupt=watch.interrupted,
                **more,
            )
            watch.progressed(results)
    except KeyboardInterrupt:
        raise options.interrupted(f"{requeued(study.results())}. Resume it with: {again()}") from None
    findings = results.findings()
    for line in _closing(results, watch.seconds, len(findings)):
        print(line)
    record = results.study()
    if record.state is not StudyState.COMPLETED:
        print(f"{study.name} is {record.state}: {record.message}. Let it go on with: {again()}")
        raise Exit(options.EXIT_FAILED)
    return all(finding.kind != "scores" for finding in findings)


def _closing(results: "Results", seconds: float, warned: int) -> list[str]:
    counts = results.counts()
    brief = results.replicate is not None
    cancelled = f", {counts['cancelled']} cancelled" if counts.get("cancelled") else ""
    ended = (
        f"{counted(counts.get('completed', 0), 'trial')} completed, {counts.get('failed', 0)} failed{cancelled}"
    )
    count = len(results.front())
    again = command("best", results.name, results.places)
    front = [f"{counted(count, 'trial')} on the Pareto front: {again}"] if results.aim.tradeoffs and count else []
    # They were shown as soon as they were found.
    shown = f"{counted(warned, 'warning')}, see above or in: {command('status', results.name, results.places)}"
    return [
        f"{ended}, in {duration(seconds)}",
        *damage_lines(results.damaged()),
        *best_lines(results)[: 1 if brief else None],
        *front,
        *([shown] if warned else []),
        f"make the report with: {command('report', results.name, results.places)}",
    ]
