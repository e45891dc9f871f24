"""The page of a study with a population, and the pages of its report."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from phyla import queries
from phyla.formatting import (
    duration,
    fitness,
    format_count,
    infeasible,
    lag_words,
    moment,
    number,
    params,
    score,
    short,
    size,
    time_words,
)
from phyla.pages import Fact, Later, Page, Picture, Row, Span, Table
from phyla.records import (
    Checkpoint,
    Member,
    StudyRecord,
    StudyState,
    TrialRecord,
    summarize_error,
)
from phyla.strategies import describe
from phyla.study.places import CLIENTS, format_path
from phyla.study.results.best import explain_best
from phyla.study.results.course import histories
from phyla.study.results.decision_log import decisions
from phyla.study.results.pages.evaluations import evaluations_page, waiting_lines
from phyla.study.results.pages.record import newest_of, record_table, since
from phyla.study.results.pages.trials import ROWS, links_around, takes_retries, trial_link, trials_page
from phyla.study.results.progress import Progress, lease_s

if TYPE_CHECKING:
    from phyla.study.results.best import Best, BestCheckpoint
    from phyla.study.results.evaluations import BestEvaluation
    from phyla.study.results.results import Results

FEW = 20
DECISIONS = 12
STUDY_SECTIONS = (
    *("progress", "phylogeny", "front", "front-trials", "schedules", "schedule", "gains", "selection", "timeline"),
)


def study_page(results: "Results", *, first: int = 0, most: int = ROWS, pictures: bool = False) -> Page:
    """Return the page of a study, with the best members from the `first` on; for browsers with pictures."""
    progress, front = results.progress(first + most, first), results.front()
    study, tradeoffs, best = progress.study, progress.aim.tradeoffs, next(iter(front), None)
    later = [name for name in STUDY_SECTIONS if tradeoffs or not name.startswith("front")]
    return Page(
        study=study.name,
        title=study.name,
        state=study.state,
        kind=short(progress.aim.description, 200),
        messages=[*_messages(results, progress)],
        pictures=study_pictures(results, best.trial if best else None) if pictures else (),
        score=score(best.fitness) if best else "",
        lines=[*_lines(results, front)],
        facts=facts(progress),
        actions=_actions(study, progress.given_up),
        sections=[
            decisions_table(results),
            members_table(progress, progress.members, first),
            _running_table(progress),
            _failed_table(results),
            *map(Later, later),
            _damaged_table(progress.damaged),
            record_table(results._query(queries.events), results.changes(), results.starts()),
        ],
    )


def _messages(results: "Results", progress: Progress) -> Iterator[str]:
    if progress.study.message:
        yield progress.study.message
    if progress.silent_s is not None:
        problem = "no worker has renewed its lease"
        if not progress.running:
            problem = "no trial is running, and nothing has happened"
        yield f"{problem} for {duration(progress.silent_s)}; run the study again to resume"
    if progress.damaged:
        yield f"{format_count(len(progress.damaged), 'damaged checkpoint')}, no longer used; the files are kept"
    yield from (f"warning: {finding.text}" for finding in results.findings())
    if results.has_suites:
        yield from waiting_lines(results.evaluations())


def study_pictures(results: "Results", best: int | None) -> list[Picture]:
    """Return what opens the page of a study: its scores, and the schedule beside them."""
    from phyla.report.pictures import Genealogy, schedule_picture, score_picture

    read, study = results._query(histories, best), results.study()
    tree, size = Genealogy(read.trials, read.path), study.population_size
    whole = format_count(size, "member") if read.members >= size else f"{read.members} of {number(size)} members"
    return [score_picture(tree, results.aim, whole), schedule_picture(tree, study)]


def _lines(results: "Results", front: "Sequence[Best]") -> Iterator[Row]:
    yield from best_lines(results, front)
    spent = results.time_spent()
    if spent.timed:
        yield (f"time of workers: {time_words(spent)}",)
    yield from ((line,) for line in lag_lines(results))


def best_lines(results: "Results", front: "Sequence[Best]") -> list[Row]:
    """Return the best trial, the first of the front: its values, its place in the study, and its checkpoint."""
    goals = [goal.metric for goal in results.aim.tradeoffs] or [results.metric]
    if not front:
        return [(results.no_best(),)]
    best, checkpoint = front[0], front[0].checkpoint
    others = ", ".join(f"{name} {number(value, 6)}" for name, value in best.values.items() if name not in goals)
    values = ", ".join(number(best.values.get(name, best.fitness), 6) for name in goals)
    bytes_words = f" ({size(checkpoint.size_bytes)})" if checkpoint.size_bytes else ""
    return [
        (f"best {short(', '.join(goals), 60)}  {values}{f' ({others})' if others else ''}",),
        *((f"{label:<12}{text}",) for label, text in explain_best(best)),
        (
            "trial       ",
            trial_link(best.trial),
            " of ",
            Span(f"member {best.member}", f"members/{best.member}"),
            f", step {number(checkpoint.step)}",
            f"; {len(front) - 1} more on the Pareto front" if results.aim.tradeoffs else "",
        ),
        ("with        ", params(best.params.flat())),
        ("checkpoint  ", Span(format_checkpoint(checkpoint), look="code"), bytes_words),
    ]


def format_checkpoint(checkpoint: "BestCheckpoint | BestEvaluation") -> str:
    """Return where a checkpoint is, as text."""
    if checkpoint.location is None:
        return f"{checkpoint.where} {CLIENTS}"
    return f"{format_path(checkpoint.location)}{f', index {checkpoint.index}' if checkpoint.index else ''}"


def lag_lines(results: "Results") -> list[str]:
    """Return the lag of each suite's evaluation."""
    lags = results.evaluations().lag() if results.has_suites else []
    return [f"evaluation of {lag_words(lag)}" for lag in lags]


def facts(progress: Progress) -> list[Fact]:
    """Return the progress of a study in numbers."""
    counts = {state: count for state, count in progress.counts.items() if state != "completed"}
    counts_by_state = [f"{number(count)} {state}" for state, count in counts.items()]
    counts_by_state += [f"{len(progress.gone)} held by workers that are gone"] if progress.gone else []
    given_up = format_count(progress.given_up, "member was", "members were") + " given up"
    time_left = [Fact("time left", duration(progress.left_s), "at the present pace")] if progress.left_s else []
    return [
        Fact("trials completed", completed_words(progress), ", ".join(counts_by_state)),
        Fact("steps", _of(progress.spent_steps, progress.total_steps)),
        Fact("members", number(progress.active), given_up if progress.given_up else ""),
        *([Fact("final", final_words(progress))] if progress.final is not None else []),
        *time_left,
        Fact("last activity", f"{duration(progress.now - progress.last_activity)} ago"),
        since(progress.study),
    ]


def completed_words(progress: Progress) -> str:
    """Return how many of the trials are completed."""
    return _of(progress.completed, progress.planned_trials)


def final_words(progress: Progress) -> str:
    """Return how many of the measurements of a final have ended; empty before it begins."""
    return "" if progress.final is None else f"{_of(*progress.final)} measurements"


def _of(count: int, planned: int | None) -> str:
    return f"{number(count)} of {'?' if planned is None else number(planned)}"


def _actions(study: StudyRecord, given_up: int) -> list[Span]:
    actions = [Span("Trials", "trials")]
    actions += [Span("Evaluations", "evaluations")] if study.config.get("suites") else []
    actions += [Span("Compare with others", f"/compare?study={quote(study.name)}")]
    actions += [Span("Stop", "do/stop")] if study.state is StudyState.RUNNING else []
    actions += [Span("Resume", "do/resume")] if study.state in (StudyState.STOPPED, StudyState.FAILED) else []
    return actions + ([Span("Retry given-up members", "do/retry")] if given_up and takes_retries(study) else [])


def decisions_table(results: "Results") -> Table:
    """Return the last decisions and failures, newest first."""
    entries = decisions(results, limit=DECISIONS)
    return Table(
        name="feed",
        title="Decisions",
        lead="Newest first; members that continue unchanged are left out.",
        columns=("when (UTC)", "=what", ">trial"),
        rows=[(moment(entry.at), short(entry.words, 240), trial_link(entry.trial)) for entry in entries],
        empty="No decisions yet.",
    )


def members_table(progress: Progress, members: Sequence[Member], first: int = 0) -> Table:
    """Return the progress, fitness, hyperparameters and last decision of members."""
    front = {trial.id for trial in progress.front}
    # A member's present state may be worse than its best.
    best = {trial.member: fitness(trial) for trial in progress.front}
    if progress.aim.tradeoffs:
        # Members on the Pareto front now.
        best = {member.index: "*" for member in members if member.head and member.head.trial in front}
    last = "front" if progress.aim.tradeoffs else ">best score"
    end = first + len(members)
    which = f"the best {number(len(members))}" if not first else f"{first + 1} to {end}, by fitness,"
    whole = format_count(progress.size, "member")
    whole = f"{which} of {whole}" if members else whole
    states = Counter[str]()
    for cohort in progress.cohorts:
        states[cohort.state] += cohort.size
    counts = ", ".join(f"{number(count)} {state}" for state, count in states.items())
    return Table(
        name="members",
        title="Members",
        lead="The best first.",
        # The widest columns come last, so that they squeeze no other.
        columns=(">member", ">steps", ">gen", ">fitness", last, "state", "~hyperparameters", "~last decision"),
        rows=[_member(progress, member, best) for member in members],
        note=f"{whole} ({counts})" if len(members) < progress.size else "",
        links=links_around(first, end, progress.size),
        anchors=True,
    )


def _member(progress: Progress, member: Member, best: Mapping[int, str]) -> Row:
    trial, scored = progress.trials.get(member.index), progress.scored(member)
    odd = scored is not None and scored.fitness is not None and not math.isfinite(scored.fitness)
    return (
        Span(str(member.index), f"members/{member.index}", "winner" if member.index in best else ""),
        f"{number(member.progress)}/{number(progress.member_steps) if progress.member_steps else '?'}",
        trial_link(trial.id, str(member.generation)) if trial else str(member.generation),
        Span(fitness(scored), look="odd" if odd else ""),
        best.get(member.index, ""),
        "given up" if member.given_up else progress.doing(member),
        short(params(trial.params), 200) if trial else "-",
        short("; ".join(filter(None, (infeasible(member.head), describe(trial.reason)))), 180) if trial else "-",
    )


def _running_table(progress: Progress) -> Table:
    length_s, rows = lease_s(progress.study.config), list[Row]()
    for attempt in progress.running:
        left_s, gone = attempt.expires_at - progress.now, attempt.job in progress.gone
        silent = duration(progress.now - max(attempt.claimed_at, attempt.expires_at - length_s))
        lease = f"renewed {silent} ago"
        if gone and left_s >= 0:
            lease = f"its process is gone; ends in {duration(left_s)}"
        elif left_s < 0:
            lease = f"no progress for {silent}, ran out {duration(-left_s)} ago"
        job, member, for_s = (
            trial_link(attempt.job),
            str(progress.unfinished[attempt.job].member),
            duration(progress.now - attempt.claimed_at),
        )
        rows.append(
            (job, str(attempt.token), member, attempt.worker, for_s, Span(lease, look="odd" if gone else ""))
        )
    columns = (">running trial", ">attempt", ">member", "~worker", "for", "=lease")
    return Table(name="running", title="Running", columns=columns, rows=rows)


def _failed_table(results: "Results") -> Table:
    failed = results.failed()
    newest = failed[: -FEW - 1 : -1]
    causes = results.causes(newest)
    return Table(
        name="failed",
        title="What failed",
        lead="Trials that failed for good, and trials that are retried; newest first.",
        columns=(">failed trial", ">member", ">failures", "state", "=last error"),
        rows=[
            (trial_link(trial.id), str(trial.member), str(trial.failures), trial.state, _error(trial, causes))
            for trial in newest
        ],
        note=newest_of(FEW, len(failed)),
    )


def _error(trial: TrialRecord, causes: Mapping[int, Any]) -> str:
    return short(causes[trial.id].words() if trial.id in causes else summarize_error(trial.error), 400)


def _damaged_table(damaged: Sequence[Checkpoint]) -> Table:
    return Table(
        name="damaged",
        title="Damaged checkpoints",
        lead="Their files differ from what was committed. No trial has used them since; the files are kept.",
        columns=("damaged checkpoint", ">trial", ">step", "=what"),
        rows=[
            (checkpoint.name, trial_link(checkpoint.trial or 0), number(checkpoint.step), checkpoint.error or "")
            for checkpoint in damaged[:ROWS]
        ],
        note=f"the first {ROWS} of {number(len(damaged))}" if len(damaged) > ROWS else "",
    )


def pages_of(results: "Results") -> list[Page]:
    """Return the pages of a report of a study."""
    newest = results._query(queries.recent, newest=ROWS).trials[-ROWS:][::-1]
    pages = [
        study_page(results, pictures=True),
        trials_page(results.study(), newest, sum(results.counts().values()), newest=True),
    ]
    return [*pages, *([evaluations_page(results.evaluations())] if results.has_suites else [])]
