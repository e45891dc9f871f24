"""`phyla run`, `phyla watch` and `phyla replay`: run studies."""

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Exit, Option

from phyla.cli import options
from phyla.cli.export import warn_if_best_ended_early
from phyla.cli.options import resume_command
from phyla.cli.output import print_table
from phyla.cli.trials import best_lines
from phyla.errors import Preempted, TimeTooShort, UsageError
from phyla.formatting import duration, format_count, quote_command, step
from phyla.records import JobState, StudyState, escape_name, summarize_error
from phyla.system.garbage import pause_collection
from phyla.terminal import show as print

if TYPE_CHECKING:
    from phyla.evaluation import Suite
    from phyla.study import Results, Study, Watched
    from phyla.study.results.watched_runs import Missing
    from phyla.study.watching.plan import Planned

DAMAGED_SHOWN = 5
EXAMPLE = """  # at the top level of the file, not inside a function or under `if __name__ == "__main__":`
  import phyla
  study = phyla.Study("my-study", space, phyla.Maximize("accuracy"), strategy, train)"""
INTERRUPTED = "Interrupted; running eval tasks will start over. Run the same command to resume"


def run(
    ctx: Context,
    file: options.StudyFile,
    workers: options.Workers = 2,
    evaluators: Annotated[int, Option(min=0, help="Additional processes that only evaluate suites.")] = 0,
    kinds: options.Kinds = options.BOTH,
    study: options.Chosen = None,
    gpus_per_worker: options.Gpus = "auto",
    eval_gpus: Annotated[
        str | None,
        Option(
            metavar="GPUS", help="GPUs for evaluation, such as 6,7: one evaluator each; other workers only train."
        ),
    ] = None,
    replicates: Annotated[
        int | None, Option(min=1, help="Run it N times, with different seeds: NAME-r0, ...")
    ] = None,
    stall_timeout: Annotated[
        Any, options.time_option("Kill a worker without progress for this time, such as 1h.")
    ] = None,
    yield_at_report: Annotated[bool, Option("--yield-at-report", help="Evaluate in trial.report().")] = False,
    time_limit: options.TimeLimit = None,
    save_every: options.SaveEvery = None,
    stop_signal: options.StopSignal = None,
    grace: options.Grace = None,
    tracker: Annotated[
        list[str] | None,
        Option(
            metavar="NAME[=PLACE]",
            help="Log to tensorboard[=DIR], wandb[=PROJECT] or mlflow[=URI]; repeatable.",
        ),
    ] = None,
    overwrite: Annotated[
        str | None, Option(metavar="NAME", help="Delete the stored study NAME and start over.")
    ] = None,
    launcher: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Where the workers run: local, slurm, ray or kubernetes; by default, child processes.",
        ),
    ] = None,
    launcher_option: options.LauncherOptions = None,
) -> None:
    """Run a study, or resume it, until it ends. Ctrl-C stops it; running it again resumes it."""
    if sys.stderr.isatty():
        print(f"reading {file}", file=sys.stderr)
    if launcher is None and launcher_option:
        raise UsageError(f"--launcher-option {launcher_option[0]}: give --launcher, too")
    if launcher is not None:
        for name in ("evaluators", "eval_gpus", "stall_timeout", "yield_at_report", "grace"):
            if ctx.params[name]:
                option = name.replace("_", "-")
                raise UsageError(f"--{option} is for child processes; leave it out with --launcher")

    options.contain_children(workers)
    with options.interruptible(lambda: f"Interrupted. Resume it with: {resume_command()}"):
        chosen = chosen_study(ctx, file, study, to_run=True)
        if overwrite not in (None, chosen.name):
            raise UsageError(
                f"--overwrite {overwrite}: the study is called {chosen.name!r}; nothing was deleted. To delete "
                f"it and start over, write --overwrite {chosen.name}"
            )
        how = {
            "workers": workers,
            "kinds": options.split_list(kinds),
            "evaluators": evaluators,
            "gpus_per_worker": gpus_per_worker,
            "eval_gpus": None if eval_gpus is None else options.split_list(eval_gpus),
            "stall_timeout_s": stall_timeout,
            "yield_at_report": yield_at_report,
            "stop_signal": stop_signal,
            "grace_s": grace,
            "save_every_s": save_every,
            "overwrite": overwrite is not None,
            "trackers": tracker or (),
        }
        if not _run_all(ctx, file, chosen, how):
            raise Exit(options.EXIT_FAILED)


def _run_all(ctx: Context, file: Path, chosen: "Study", how: dict[str, Any]) -> bool:
    """Run a study, or its replicates one after another; return whether all are complete."""
    from phyla.cli.pools import pool_of
    from phyla.study.repeating.replicates import replicates as replicates_of

    study, replicates, time_limit = (ctx.params[name] for name in ("study", "replicates", "time_limit"))
    named = ["--study", study] if study else []
    check = quote_command(["phyla", "check", str(file), *named, *options.file_arguments(dashes=True)])
    hint = "" if replicates else f"check how it trains with: {check}"
    complete, began = True, time.monotonic()
    for index, part in enumerate(replicates_of(chosen, replicates) if replicates else [chosen], start=1):
        if replicates:
            print(f"replicate {index} of {replicates}: {part.name}", flush=True)
        if ctx.params["launcher"] is not None:
            how["pool"] = pool_of(
                ctx.params,
                [file],
                part.places,
                name=part.name,
                study=part.name,
                resources=getattr(part.train, "resources", None),
            )
        elif time_limit is not None:
            how["time_limit_s"] = max(1.0, time_limit - (time.monotonic() - began))
        try:
            complete = _run(part, hint, **how) and complete
        except TimeTooShort as error:
            if how["time_limit_s"] > 0.9 * time_limit:
                raise
            # Earlier replicates used up the time; the next run has all of it.
            raise Preempted(str(error)) from error
    if replicates:
        print(f"compare them with: {chosen.places.command('compare', chosen.name)}")
    return complete


def watch(
    ctx: Context,
    paths: Annotated[
        list[str], Argument(metavar="DIR...", help="Directories or s3:// URLs of checkpoints; or a study's name.")
    ],
    suite: options.Suites = None,
    lm_eval: options.HarnessTasks = None,
    lm_eval_option: options.HarnessSettings = None,
    workers: Annotated[int, Option(min=0, help="Worker processes; 0 evaluates in this process.")] = 2,
    name: Annotated[str | None, Option(help="Name of the run.", show_default="made from the directory")] = None,
    format: Annotated[  # noqa: A002
        str,
        Option(help="Format of checkpoints; quiet: any file or directory; also marker=NAME, steps=TEMPLATE."),
    ] = "auto",
    step: Annotated[
        str | None,
        Option(
            help="Where steps come from: a regular expression with a group `step`, or json:FILE#KEY.",
            show_default="the number after step, iter, checkpoint or epoch in the name, else the last one",
        ),
    ] = None,
    quiet: Annotated[
        Any, options.time_option("Time without changes after which a checkpoint counts as finished.", "30s")
    ] = None,
    snapshots: Annotated[
        str, Option(help="How to keep checkpoints readable: link, copy or none; link=DIR.")
    ] = "link",
    done: Annotated[str, Option(help="File in the directory that marks the end of training.")] = "DONE",
    idle: Annotated[Any, options.time_option("Stop after this time without a new checkpoint.")] = None,
    once: Annotated[bool, Option("--once", help="Evaluate the existing checkpoints, then stop.")] = False,
    poll: Annotated[Any, options.time_option("Maximum time between two scans.", "10s")] = "10s",
    gpus_per_worker: options.Gpus = "auto",
    gpus: options.WatchGpus = None,
    grace: options.Grace = None,
    alert: Annotated[bool, Option("--alert", help="Print regressions as they are found.")] = False,
    on_alert: Annotated[
        str | None, Option(metavar="COMMAND", help="Command to start for each regression, without a shell.")
    ] = None,
    tensorboard: options.Board = None,
    tracker: options.WatchTrackers = None,
    plan: Annotated[bool, Option("--plan", help="Print what would be computed; change nothing.")] = False,
) -> None:
    """Evaluate every checkpoint that a training job writes, until it ends. Ctrl-C stops it."""
    from phyla.study.files.load import chosen_suites
    from phyla.study.watching.display import ChangeDisplay
    from phyla.study.watching.plan import plan as planned
    from phyla.study.watching.watch import watch as follow
    from phyla.watcher import Following, get_format

    how, _, snapshot_dir = snapshots.partition("=")
    following = Following(snapshots=how, done=done, idle_s=idle, once=once)  # type: ignore[arg-type]  # it checks
    common: dict[str, Any] = {"name": name, "following": following, **options.where(ctx)}
    common |= _format_of(format, step, quiet)
    options.contain_children(workers)
    suites = chosen_suites([*(suite or ()), *_harness_suites(lm_eval, lm_eval_option or ())])
    _note_missing_objectives(suites, harness=lm_eval is not None)
    if plan:
        _print_plan(planned(paths, suites, workers, **common), workers)
        return
    objectives = {suite.name: suite.objective for suite in suites}
    step_rule = get_format(common["format"], **common["options"]).step_rule
    display = ChangeDisplay(objectives, alert=alert, step_rule=step_rule)
    with options.interruptible(lambda: INTERRUPTED), options.late_end(grace) as late, display:
        watched = follow(
            paths,
            suites,
            workers,
            **common,
            snapshot_dir=snapshot_dir or None,
            poll_s=poll,
            gpus_per_worker=gpus_per_worker,
            gpus=None if gpus is None else options.split_list(gpus),
            grace_s=grace,
            tensorboard=tensorboard,
            trackers=tracker or (),
            on_alert=on_alert,
            on_change=display.show,
            on_interrupt=late.after(display.interrupted),
        )
    raise Exit(finish(watched))


def _note_missing_objectives(suites: "Sequence[Suite]", *, harness: bool) -> None:
    """Say which suites with known metrics will have no best checkpoint, and how to choose one of the metrics."""
    for suite in suites:
        if suite.objective is None and suite.watch:
            goal = suite.watch[0]
            how = f'objective=phyla.{type(goal).__name__}("{goal.metric}")'
            if harness and suite is suites[-1]:
                objective = f"{type(goal).__name__.lower()} {goal.metric}"
                how = quote_command(["--lm-eval-option", f"objective={objective}"])
            problem = f"suite {suite.name!r} has no objective, so it will have no best checkpoint"
            print(f"note: {problem}; give one, as in {how}", file=sys.stderr)


def _format_of(text: str, step: str | None, quiet: float | None) -> dict[str, Any]:
    """Return the name of a format and its options."""
    name, _, files = text.partition("=")
    if files and name not in ("marker", "steps"):
        raise UsageError(f"--format {text}: only marker and steps take file names")
    how: dict[str, Any] = {"step": step, "quiet_s": quiet}
    if files:
        how |= {"marker": files} if name == "marker" else {"templates": files.split(",")}
    return {"format": name, "options": {key: value for key, value in how.items() if value}}


def replay(
    ctx: Context,
    study: options.StudyName,
    file: Annotated[
        Path | None, Option(metavar="FILE", help="The study file, with the training function or command.")
    ] = None,
    trial: Annotated[int | None, Option(help="The trial.", show_default="the best")] = None,
    from_step: Annotated[
        int | None,
        Option("--from", min=0, metavar="STEP", help="Train from this step on.", show_default="the start"),
    ] = None,
    steps: Annotated[
        int | None,
        Option("--continue", min=1, metavar="STEPS", help="Instead, continue from the checkpoint for N steps."),
    ] = None,
    name: Annotated[
        str | None, Option(help="Name of the new study.", show_default="STUDY-replay, or STUDY-continued")
    ] = None,
    workers: options.Workers = 1,
    gpus_per_worker: options.Gpus = "auto",
) -> None:
    """Train the path to the best trial again, as one chain of trials in a new study; or continue from it.

    With --continue the new study starts from the best checkpoint, with its last hyperparameters.
    """
    from phyla.study import load_study
    from phyla.study.files.load import load_studies
    from phyla.study.repeating.replay import prepare

    if steps is not None and from_step is not None:
        raise UsageError("give --continue or --from, not both: a continuation starts from the checkpoint")
    options.contain_children(workers)
    places, source = options.places(ctx), None
    if file is not None:
        studies = load_studies(file)
        source = _chosen(studies, file, None if len(studies) == 1 else study)
    prepared = prepare(study, places, source, steps=steps, trial=trial, from_step=from_step, name=name)
    for note in prepared.notes:
        print(f"note: {note}", file=sys.stderr)
    if trial is None and steps is None:
        warn_if_best_ended_early(load_study(study, **options.where(ctx)))
    if not _run(prepared.study, workers=workers, gpus_per_worker=gpus_per_worker):
        raise Exit(options.EXIT_FAILED)


def _harness_suites(tasks: str | None, settings: Sequence[str]) -> "list[Suite]":
    """Return the suite of tasks of lm-evaluation-harness that the options name, if any."""
    if tasks is None:
        if settings:
            raise UsageError("--lm-eval-option is for --lm-eval TASKS")
        return []
    from phyla.study.files.tables import Where
    from phyla.study.files.toml import HARNESS, harness_suite

    table = {HARNESS: options.split_list(tasks), **dict(_harness_setting(setting) for setting in settings)}
    return [harness_suite()(table, Where(Path("--lm-eval, --lm-eval-option")))]


def _harness_setting(setting: str) -> tuple[str, Any]:
    """Read `name=value`, where the value is JSON, or else text."""
    name, equals, value = setting.partition("=")
    if not equals:
        raise UsageError(f"--lm-eval-option {setting}: write NAME=VALUE, as in batch_size=8")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def final(
    ctx: Context,
    study: options.StudyName,
    file: Annotated[
        Path | None,
        Option(metavar="FILE", help="The study file, with the training function or command; required."),
    ] = None,
    candidates: Annotated[int, Option(min=1, help="Checkpoints in the first round.")] = 8,
    measurements: Annotated[int, Option(min=2, help="Measurements in all rounds together.")] = 32,
    workers: options.Workers = 2,
    gpus_per_worker: options.Gpus = "auto",
) -> None:
    """Measure the best candidates of a completed study again; the winner is the best by these measurements.

    The same as final=phyla.Final(...) in the study file, afterwards. It can be interrupted and run again.
    """
    from phyla.strategies import Final
    from phyla.study.repeating.final import with_final

    if file is None:
        raise UsageError(
            "the candidates are measured by the study's training function: name its file, as in: "
            + quote_command(["phyla", "final", study, "--file", "study.py"])
        )
    options.contain_children(workers)
    declared = with_final(chosen_study(ctx, file, study), Final(candidates=candidates, measurements=measurements))
    if not _run(declared, workers=workers, gpus_per_worker=gpus_per_worker):
        raise Exit(options.EXIT_FAILED)


def chosen_study(ctx: Context, file: Path, name: str | None, *, to_run: bool = False) -> "Study":
    """Return the study of a file, by name if there are several, in the place that the options say."""
    with pause_collection():
        from phyla.study.files.load import load_studies

    if file.suffix == ".toml" and (words := options.file_arguments()):
        raise UsageError(f"{quote_command(['--', *words])}: {file} is not a Python file, so it takes no arguments")
    chosen = _chosen(load_studies(file, to_run=to_run), file, name)
    options.apply_places(ctx, chosen)
    return chosen


def _chosen(studies: "Sequence[Study]", file: Path, name: str | None) -> "Study":
    if not studies and file.suffix == ".toml":
        raise UsageError(
            f"{file} is a suite file, not a study file; to evaluate with it: phyla watch DIR --suite {file}. "
            "In a study file, suites are tables [[eval]]"
        )
    if not studies:
        raise UsageError(f"{file} defines no study. It needs a phyla.Study in a variable:\n\n{EXAMPLE}")
    names = ", ".join(repr(study.name) for study in studies)
    fitting = [study for study in studies if name in (None, study.name)]
    # `NAME-r2` means a replicate.
    of, separator, index = (name or "").rpartition("-r")
    if not fitting and separator and index.isdecimal() and str(int(index)) == index:
        fitting = [study.replicate(int(index)) for study in studies if study.name == of]
    if not fitting:
        raise UsageError(f"{file} has no study {name!r}; it has: {names}")
    if len(fitting) > 1:
        raise UsageError(f"{file} has {len(fitting)} studies: {names}; choose one with --study NAME")
    return fitting[0]


def _run(study: "Study", hint: str = "", *, workers: int, **more: Any) -> bool:
    """Run a study with a live view, print the results, and return whether the study is complete.

    It is incomplete if no score is finite, or if members were given up.
    """
    from phyla.study.running.display import StudyDisplay, starting_line

    display = StudyDisplay(study.name, hint, starting_line(study.declared, workers))
    with (
        options.interruptible(
            lambda: f"{_describe_requeued(display.results)}. Resume it with: {resume_command()}"
        ),
        options.late_end(more.get("grace_s"), placed="pool" in more) as late,
        display,
    ):
        interrupted = late.after(display.interrupted)
        results = study.run(workers, on_progress=display.progressed, on_interrupt=interrupted, **more)
        display.progressed(results)
    findings = results.findings()
    for line in _summary_lines(results, display.seconds, len(findings)):
        display.print(line)
    record = results.study()
    if record.state is not StudyState.COMPLETED:
        print(f"{study.name} is {record.state}: {record.message}. Resume it with: {resume_command()}")
        raise Exit(options.EXIT_FAILED)
    incomplete = results.incomplete
    if incomplete is not None:
        print(f"{incomplete}: {resume_command()}")
    return incomplete is None and all(finding.kind != "scores" for finding in findings)


def _describe_requeued(results: "Results | None") -> str:
    """Describe an interrupted run: the trials that are queued again, and the training that they repeat."""
    if results is None:
        # Perhaps during imports.
        return "Interrupted"
    queued = [trial for trial in results.trials() if trial.state is JobState.PENDING]
    if not queued:
        return "Interrupted; no training has to be repeated"
    saved = sum(trial.progress is not None for trial in queued)
    back = f"Interrupted; {format_count(len(queued), 'trial goes', 'trials go')} back to the queue"
    if not saved:
        return f"{back} and will start over: nothing was saved"
    over = f", {len(queued) - saved} will start over" if saved < len(queued) else ""
    return f"{back}: {saved} will continue from the last save{over}. Training since then is repeated"


def _summary_lines(results: "Results", seconds: float, warned: int) -> Iterator[str]:
    from phyla.study.results.best import suggest_final

    name, command = results.name, results.places.command
    counts = results.counts()
    cancelled = f", {counts['cancelled']} cancelled" if counts.get("cancelled") else ""
    completed, failed = format_count(counts.get("completed", 0), "trial"), counts.get("failed", 0)
    yield f"{completed} completed, {failed} failed{cancelled}, in {duration(seconds)}"
    if damaged := results.damaged():
        yield f"{format_count(len(damaged), 'damaged checkpoint')}, no longer used; the files are kept:"
        yield from (f"  {row.error}" for row in damaged[:DAMAGED_SHOWN])
    yield from best_lines(results)[: None if results.replicate is None else 1]
    yield from suggest_final(results) if results.replicate is None else ()
    front = results.front() if results.aim.tradeoffs else ()
    if front:
        yield f"{format_count(len(front), 'trial')} on the Pareto front: {command('best', name)}"
    if warned:
        # They were shown when they occurred.
        yield f"{format_count(warned, 'warning')}, see above or in: {command('status', name)}"
    yield f"write a report with: {command('report', name)}"


def _print_plan(rows: "list[Planned]", workers: int) -> None:
    times = [
        [None if seconds is None else duration(seconds) for seconds in (row.mean_s, row.seconds)] for row in rows
    ]
    print_table(
        ("run", "suite", "eval task", ">to compute", ">known", "each", "together"),
        (
            (row.run, row.suite, row.task, row.cells, row.known, *seconds)
            for row, seconds in zip(rows, times, strict=True)
        ),
    )
    known = [row.seconds for row in rows if row.seconds is not None]
    total = f", about {duration(sum(known))} with {format_count(max(1, workers), 'worker')}" if known else ""
    unknown = any(row.cells and row.seconds is None for row in rows)
    rest = "; tasks that never ran are not in the estimate" if unknown else ""
    print(f"{format_count(sum(row.cells for row in rows), 'shard')} would be computed{total}{rest}")
    _print_unrecognized(dict.fromkeys(row.location for row in rows if not row.checkpoints and row.location))


def _print_unrecognized(directories: Iterable[str]) -> None:
    """Say what to do about directories, or their URLs, in which no checkpoint was recognized."""
    from phyla.watcher import describe_below, get_format

    for where in directories:
        below = describe_below(Path(where), get_format("auto"))
        which = (
            f", but {below}"
            if below
            else ": is it the right directory? --format quiet accepts any file or directory; see also --format "
            "marker=NAME and steps=TEMPLATE"
        )
        print(f"no finished checkpoint in {where}{which}", file=sys.stderr)


def _missing_rows(missing: "Iterable[Missing]") -> Iterator[tuple[object, ...]]:
    """Yield a row for each missing evaluation; each failure is in full once, as it may be long."""
    full: dict[tuple[str, str | None, str], str] = {}
    for lacking in missing:
        name, why = escape_name(lacking.seen.name), summarize_error(lacking.why)
        first = full.setdefault((lacking.run, lacking.suite, why), name)
        if lacking.state == "partial" and first != name:
            why = f"as {first}"
        yield lacking.run, name, step(lacking.seen.step), lacking.suite, lacking.state, why


def finish(watched: "Watched") -> int:
    """Print the outcome of a watch, and return the exit status: 1 if an evaluation is missing."""
    missing = watched.missing
    for run in watched.runs:
        print(f"{run.name} {run.state}" + (f": {run.message}" if run.message else ""))
    groups = ", ".join(f"{count} {state}" for state, count in sorted(watched.counts.items())) or "none"
    print(f"{format_count(watched.checkpoints, 'checkpoint')} seen; evaluations: {groups}")
    empty = [standing.run.location for standing in watched.standings if not standing.checkpoints]
    _print_unrecognized(filter(None, empty))
    print_table(
        ("run", "checkpoint", ">step", "suite", "state", "~why"),
        _missing_rows(missing),
    )
    if missing:
        print(f"{format_count(len(missing), 'evaluation is', 'evaluations are')} missing or partial")
    if any(lacking.state == "partial" for lacking in missing):
        from phyla.study.results.pages.evaluations import AGAIN

        print(AGAIN)
    return 1 if missing else 0
