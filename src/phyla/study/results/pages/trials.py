"""The pages of trials and members."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from phyla.formatting import (
    duration,
    fitness,
    format_count,
    infeasible,
    moment,
    number,
    params,
    score,
    short,
    size,
)
from phyla.machine import Reader
from phyla.pages import Fact, Page, Passage, Row, Span, Table, Text
from phyla.records import Attempt, Group, JobKind, JobState, StudyRecord, StudyState, TrialRecord, summarize_error
from phyla.strategies import describe
from phyla.study.places import Places, where_of
from phyla.study.results.progress import mark_lost_workers, progress_of
from phyla.study.results.story import Event, format_values, read_story

ROWS = 100
"""Rows of a table on one page; links lead to the rest."""
ANCESTORS = 12
LOG_BYTES = 16 * 1024


def trial_link(trial: int, text: str | None = None) -> Span:
    """Return a link to a trial."""
    return Span(str(trial) if text is None else text, f"trials/{trial}")


def trials_page(study: StudyRecord, trials: Sequence[TrialRecord], count: int, *, newest: bool) -> Page:
    """Return one page of a study's trials: the newest, or else those after another one."""
    note = f"{number(len(trials))} of {format_count(count, 'trial')}" if len(trials) < count else ""
    links = [Span("from the oldest", "?after=0")]
    if not newest:
        links += [*later_link(trials), Span("the newest", "?")]
    section = trials_table(trials, "trials-table", "Trials", anchors=True, note=note, links=links)
    return Page(study=study.name, title=f"Trials of {study.name}", key="trials", sections=[section])


def later_link(trials: Sequence[TrialRecord]) -> list[Span]:
    """Return a link to later trials, if there may be more."""
    return [Span("later", f"?after={trials[-1].id}")] if len(trials) == ROWS else []


def links_around(first: int, end: int, total: int) -> list[Span]:
    """Return links to the rows before and after some of them."""
    before = [Span("before", f"?from={max(0, first - ROWS)}")] if first else []
    return [*before, *([Span("after", f"?from={end}")] if end < total else [])]


def trials_table(trials: Iterable[TrialRecord], name: str, title: str, **more: Any) -> Table:
    """Return trials as a table."""
    columns = (">trial", ">member", ">gen", "state", ">parent", "steps", ">fitness")
    words = ("~hyperparameters", "~decision")
    return Table(name=name, title=title, columns=(*columns, *words), rows=[*map(_trial_row, trials)], **more)


def _trial_row(trial: TrialRecord) -> Row:
    # A trial that a rule stopped early is not just cancelled.
    state = "stopped" if trial.stop_reason is not None else trial.state.value
    return (
        trial_link(trial.id),
        Span(str(trial.member), f"members/{trial.member}"),
        str(trial.generation),
        Span(
            state if trial.kind is JobKind.TRAIN else f"{trial.state} ({trial.kind})",
            look="odd" if trial.state is JobState.FAILED else "",
        ),
        trial_link(trial.parent) if trial.parent is not None else "-",
        _steps(trial),
        fitness(trial),
        short(params(trial.params), 400),
        short(_decision(trial), 400),
    )


def _steps(trial: TrialRecord) -> str:
    end = trial.end_step if trial.reached_step is None else trial.reached_step
    return f"{number(trial.start_step)} to {number(end)}"


def _decision(trial: TrialRecord) -> str:
    """Return how a trial ended where that is odd, and the decision that led to it."""
    text = describe(trial.reason)
    if trial.stop_reason is not None:
        text = f"{describe(trial.stop_reason)} ({text})"
    elif trial.error and trial.state is not JobState.COMPLETED:
        text = f"{summarize_error(trial.error)} ({text})"
    return f"{infeasible(trial)} ({text})" if infeasible(trial) else text


def _values_table(name: str, title: str, values: Mapping[str, Any], lead: str = "") -> Table:
    rows = [(key, short(number(value, 6), 80)) for key, value in values.items()]
    return Table(name=name, title=title, lead=lead, columns=("name", ">value"), rows=rows, empty="None.")


# A member


def member_page(reader: Reader, index: int, after: int, places: Places) -> Page:
    """Return the page of a member, with a page of its trials after an id."""
    member = reader.member(index)
    progress = mark_lost_workers(progress_of(reader, [member]), places.locks)
    study, trial, planned = progress.study, progress.trials.get(index), progress.member_steps
    rows = [*reader.trials(member=index, after=after, limit=ROWS)]
    lines: list[Row] = [(f"{short(progress.aim.name, 40)} of its last completed trial",)]
    if trial is not None:
        lines.append(("its newest trial is ", trial_link(trial.id), f": {describe(trial.reason)}"))
    if member.given_up:
        broken = trial_link(member.broken_trial or 0, f"trial {member.broken_trial}")
        lines.append(("its trials broke again and again, the last one was ", broken))
    return Page(
        study=study.name,
        key=f"members/{index}",
        title=f"Member {index} of {study.name}",
        messages=["It was given up."] if member.given_up else [],
        score=fitness(member.head),
        lines=lines,
        facts=[
            Fact("doing", "given up" if member.given_up else progress.doing(member)),
            Fact("steps", number(member.progress), f"of {number(planned)}" if planned else ""),
            Fact("trials completed", number(member.generation - member.joined_generation)),
        ],
        actions=[Span("Retry", "do/retry")] if member.given_up and takes_retries(study) else [],
        sections=[
            *([_values_table("now", "Hyperparameters of its newest trial", trial.params)] if trial else []),
            trials_table(rows, "history", "Trials", links=later_link(rows)),
        ],
    )


def takes_retries(study: StudyRecord) -> bool:
    """Return whether members that were given up may be retried."""
    return study.state in (StudyState.RUNNING, StudyState.COMPLETED)


# A trial


def trial_page(reader: Reader, trial: TrialRecord, places: Places) -> Page:
    """Return the page of a trial, with its story, relatives, evaluations and log."""
    study, attempts = reader.study(), [*reader.attempts(trial.id)]
    reported = [*reader.reports(trial.id)[-1:]]
    member = Span(f"member {trial.member}", f"members/{trial.member}")
    took_s = trial.started_at and (trial.ended_at or reader.now()) - trial.started_at
    failures = format_count(trial.failures, "failure") if trial.failures else ""
    return Page(
        study=study.name,
        key=f"trials/{trial.id}",
        title=f"Trial {trial.id} of {study.name}",
        state=trial.state,
        messages=[describe(trial.stop_reason)] if trial.stop_reason else [],
        score=score(trial.fitness) if trial.fitness is not None else "",
        lines=[(member, f", generation {trial.generation}: {describe(trial.reason)}")],
        facts=[
            Fact("fitness", fitness(trial), infeasible(trial)),
            Fact("steps", _steps(trial)),
            Fact("took", duration(took_s) if took_s else "-", "so far" if took_s and not trial.ended_at else ""),
            Fact("attempts", number(trial.token), failures),
        ],
        sections=[
            story_table(read_story(reader, trial.id)),
            *_errors(trial, attempts),
            _values_table("values", "Hyperparameters", trial.params),
            _values_table("metrics", "Metrics", trial.metrics or (reported[0].metrics if reported else {})),
            *_checkpoint(reader, trial, study, places),
            trials_table(
                reader.ancestry(trial.id, 1 + ANCESTORS)[1:],
                "lineage",
                "Parents",
                lead="The origin of its weights, nearest first.",
                empty="It started fresh.",
            ),
            *_end_of_log(places, study.name, trial, attempts),
        ],
    )


def story_table(events: Sequence[Event]) -> Table:
    """Return what happened to a trial."""
    rows: list[Row] = []
    for event in events:
        words: Text = short(event.words, 400)
        if event.what == "descendant":
            words = Span(short(event.words, 400), f"trials/{event.facts['trial']}")
        rows.append(("-" if event.at is None else moment(event.at), words))
    note = f"the first {ROWS} of {number(len(rows))}" if len(rows) > ROWS else ""
    return Table(
        name="story", title="What happened", columns=("when (UTC)", "=what happened"), rows=rows[:ROWS], note=note
    )


def _errors(trial: TrialRecord, attempts: Sequence[Attempt]) -> list[Passage]:
    failed = [attempt for attempt in attempts if attempt.error or attempt.cause]
    texts = [f"{attempt.words}\n{short(attempt.error or '', 20_000)}" for attempt in failed]
    lead = "The trial stays as it is; its member decides again." if trial.state is JobState.FAILED else ""
    return [Passage("errors", "What went wrong", lead, "\n\n".join(texts))] if texts else []


def _checkpoint(reader: Reader, trial: TrialRecord, study: StudyRecord, places: Places) -> list[Table]:
    row = None if trial.checkpoint is None else reader.checkpoint(trial.checkpoint)
    seen = None if row is None else reader.find_seen(row.name, trial.checkpoint_index)
    rows: list[Row] = []
    if row is not None:
        path = Span(where_of(row, places.checkpoints(study.name, study.config)), look="code")
        facts = (row.state, number(row.step), size(row.size_bytes), short(row.digest, 20), row.error or "-")
        rows.append((path, *facts))
    columns = ("=checkpoint", "state", ">step", ">size", "digest", "=problem")
    groups = [] if seen is None else reader.groups_of(seen.id)
    usable = seen is not None and seen.usable
    return [
        Table(name="checkpoint", title="Checkpoint", columns=columns, rows=rows, empty="It has none."),
        Table(
            name="evaluations",
            title="Evaluations of the checkpoint",
            columns=("suite", "state", "=values", "=why", ""),
            rows=[_evaluation(group, usable) for group in groups],
        ),
    ]


def _evaluation(group: Group, usable: bool) -> Row:
    again = Span("evaluate again", f"do/evaluate?checkpoint={group.seen}&suite={quote(group.suite)}")
    repetition = f", repetition {group.replicate}" if group.replicate else ""
    suite = Span(group.suite + repetition, "evaluations")
    return (suite, group.state, format_values(group), short(group.why or "", 180), again if usable else "")


def _end_of_log(places: Places, study: str, trial: TrialRecord, attempts: Sequence[Attempt]) -> list[Passage]:
    """Return the end of the log of a trial's newest attempt, if it is on this machine.

    Nothing from the store becomes part of a path, except the number of a worker.
    """
    if not attempts:
        return []
    token, slot = attempts[-1].token, attempts[-1].worker.split(":")[1:2]
    work = places.folder("work", study) / f"trial-{trial.id}"
    files = [work / f"{name}-{token}.txt" for name in ("stderr", "stdout")]
    if slot and slot[0].isdecimal():
        files.append(places.folder("logs", study) / f"worker-{slot[0]}.log")
    for file in files:
        if file.is_file() and not file.is_symlink() and file.stat().st_size:
            with file.open("rb") as opened:
                opened.seek(max(0, file.stat().st_size - LOG_BYTES))
                text = opened.read(LOG_BYTES).decode("utf-8", "replace")
            lead = f"{file}; trials that the same worker did later are in it, too."
            return [Passage("log", "End of the log", lead, text)]
    return []
