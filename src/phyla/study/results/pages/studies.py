"""The pages of a store: its studies and watched runs, and what workers do."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from phyla.formatting import (
    duration,
    fitness,
    format_count,
    format_estimate,
    mask_password,
    moment,
    number,
    score,
    short,
    step,
)
from phyla.machine import Reader
from phyla.pages import Page, Row, Span, Table
from phyla.records import Attempt, RunStart, StudyRecord, TrialRecord
from phyla.study.results.pages.evaluations import count_evaluations, format_location
from phyla.study.results.pages.study import completed_words
from phyla.study.results.pages.trials import ROWS

if TYPE_CHECKING:
    from phyla.study.results.progress import Progress
    from phyla.study.results.watched_runs import WatchedRunStatus

JOBS = 10 * ROWS
"""Jobs that the page of workers shows."""


def studies_page(
    studies: Iterable["Progress"],
    runs: Iterable["WatchedRunStatus"],
    place: str,
    *,
    links: Sequence[Span] = (),
    courses: Mapping[str, Sequence[float]] | None = None,
) -> Page:
    """Return the list of studies and of watched runs; `courses` are the best scores so far over time, by study."""
    rows, run_rows = [_study(progress, courses) for progress in studies], [*map(_run, runs)]
    course = () if courses is None else ("score so far",)
    best = (">best score", "~metric", "time left", "last activity")
    columns = ("run", "=state", "~directory", ">checkpoints", ">at step", "=evaluations", "~best")
    return Page(
        study="",
        title="Studies",
        messages=[] if rows or run_rows else [f"no studies yet in {mask_password(place)}, and no watched runs"],
        sections=[
            Table(
                name="studies",
                title="Populations",
                columns=("study", *course, "=state", ">trials", "running", *best),
                rows=rows,
                links=() if run_rows else links,
            ),
            Table(name="runs", title="Watched runs", columns=columns, rows=run_rows, links=links),
        ],
    )


def _link(study: str, text: str | None = None, below: str = "") -> Span:
    return Span(study if text is None else text, f"/studies/{quote(study, safe='')}{below}")


def _study(progress: "Progress", courses: Mapping[str, Sequence[float]] | None) -> Row:
    state = [str(progress.study.state)]
    state += ["no worker"] if progress.silent_s is not None else []
    state += [format_count(len(progress.damaged), "damaged checkpoint")] if progress.damaged else []
    return (
        _link(progress.study.name),
        *([] if courses is None else [_course(progress, courses.get(progress.study.name, ()))]),
        Span(", ".join(state), look="state"),
        completed_words(progress),
        running_words(progress),
        fitness(progress.best),
        short(progress.aim.name, 40),
        duration(progress.left_s) if progress.left_s else "-",
        f"{duration(progress.now - progress.last_activity)} ago",
    )


def running_words(progress: "Progress") -> str:
    """Return what runs now, and on how many workers."""
    held = [attempt for attempt in progress.held if attempt.job not in progress.gone]
    trials = sum(attempt.job in progress.unfinished for attempt in held)
    counts = [format_count(trials, "trial")] if trials else []
    counts += [format_count(len(held) - trials, "eval task")] if len(held) > trials else []
    workers = format_count(len({attempt.worker for attempt in held}), "worker")
    return f"{', '.join(counts)} on {workers}" if held else "-"


def _course(progress: "Progress", values: Sequence[float]) -> Span:
    from phyla.report.pictures import spark

    name, ends = progress.study.name, map(score, [*values[:1], *values[-1:]])
    return Span("", svg=spark(values, f"best {progress.aim.name} of {name} so far: {' to '.join(ends)}"))


def _run(status: "WatchedRunStatus") -> Row:
    best = next(iter(status.best.values()), None)
    at_best = (
        best and f"{best.suite}/{best.metric} {format_estimate(best.value, best.stderr)} at step {step(best.step)}"
    )
    return (
        _link(status.run.name),
        Span(status.state, look="state"),
        format_location(status),
        number(status.checkpoints),
        step(status.newest.step) if status.newest else "-",
        count_evaluations({**status.counts, "quarantined": len(status.quarantined)}) or "-",
        at_best or "-",
    )


def workers_page(jobs: Sequence[Row], machines: Sequence[Row]) -> Page:
    """Return what workers do, and where studies that go on were started last; see `job_rows` and `machine_row`."""
    columns = ("machine", ">worker", ">process", "study", "at", ">for", "lease")
    where = ("machine", "system", ">cores", "=devices", "study", "started (UTC)")
    work = Table(
        name="jobs",
        title="At work",
        lead=f"{format_count(len(jobs), 'job')} under way",
        columns=columns,
        rows=sorted(jobs, key=lambda row: (*row[:3], row[3]))[:JOBS],
        empty="No worker is at work.",
    )
    lead = "Where studies that go on were started last."
    starts = Table(name="machines", title="Machines", lead=lead, columns=where, rows=machines)
    return Page(study="", key="workers", title="Workers and devices", sections=[work, starts])


def job_rows(reader: Reader, study: StudyRecord, gone: frozenset[int]) -> list[Row]:
    """Return the running jobs of a study; `gone` are those whose process is known to be gone."""
    now = reader.now()
    return [_job(reader, study, attempt, now, gone) for attempt in reader.running()]


def _job(reader: Reader, study: StudyRecord, attempt: Attempt, now: float, gone: frozenset[int]) -> Row:
    machine, slot, process = [*attempt.worker.split(":"), "", "", ""][:3]
    job = reader.job(attempt.job)
    if isinstance(job, TrialRecord):
        at = _link(study.name, f"trial {job.id} of member {job.member}", f"/trials/{job.id}")
    else:
        at = _link(study.name, (job and job.task) or "aggregation", "/evaluations")
    left_s = attempt.expires_at - now
    lease = Span(f"ends in {duration(left_s)} unless renewed")
    if attempt.job in gone or left_s < 0:
        lease = Span("its process is gone", look="odd")
    return (machine, slot, process, _link(study.name), at, duration(now - attempt.claimed_at), lease)


def machine_row(study: StudyRecord, start: RunStart) -> Row:
    """Return the machine on which a study was started."""
    facts: Any = start.facts
    name, system, cores = (str(facts["machine"][key]) for key in ("name", "system", "cpus"))
    devices = short(", ".join(facts.get("devices") or ["none"]), 200)
    return (name, system, cores, devices, _link(study.name), moment(start.at))
