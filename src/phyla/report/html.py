"""The report of a study."""

import os
from collections.abc import Callable, Iterable, Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from phyla.records import Json, TrialRecord, TrialState
from phyla.report.data import StudyData, finite_fitness
from phyla.report.evaluation import EvaluationData
from phyla.report.evaluation_page import evaluation_sections
from phyla.report.fitness import fitness_figure
from phyla.report.front import front_figure
from phyla.report.page import ROWS, Cell, Section, document, figure_section, section, table, write_page
from phyla.report.schedules import schedules_figure
from phyla.report.timeline import timeline_figure
from phyla.report.times import time_figure, time_spent
from phyla.report.tree import lineage_figure
from phyla.report.words import counted, duration, moment, number, outcome, score, short
from phyla.strategies import describe

if TYPE_CHECKING:
    import plotly.graph_objects as go

FIGURES: tuple[Callable[[StudyData], "go.Figure"], ...] = (
    fitness_figure,
    schedules_figure,
    lineage_figure,
    timeline_figure,
)


def write_report(
    data: StudyData,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    evaluation: EvaluationData | None = None,
    extra_sections: Iterable[Section] = (),
) -> Path:
    """Write a report of a study as one HTML file that works offline.

    The file appears complete or not at all; folders on the way are created.

    Args:
        data: the study.
        path: the file; one that exists is replaced.
        title: heading of the report; the default is the study's name.
        evaluation: what its suites have found, if it has any.
        extra_sections: what to put at its end.

    Returns:
        The file.

    Raises:
        OSError: the file cannot be written.
    """
    heading = title or data.study.name
    front = (figure_section("figure-front", front_figure(data)), _front(data)) if data.tradeoffs else ()
    drawn = [figure_section(f"figure-{index}", draw(data)) for index, draw in enumerate(FIGURES)]
    body = (
        _header(data, heading),
        *_damaged(data),
        *front,
        _winner(data),
        drawn[0],
        *(() if evaluation is None else evaluation_sections(evaluation)),
        _members(data),
        *drawn[1:],
        *_times(data),
        *(section(escape(one.title), one.html) for one in extra_sections),
    )
    return write_page(Path(path), document(heading, body, data.last_moment))


def _times(data: StudyData) -> Iterator[str]:
    spent = time_spent(data.attempts, data.evaluating)
    if spent.timed:
        yield figure_section("times", time_figure({data.study.name: spent}, spent.words().capitalize()))


def _header(data: StudyData, title: str) -> str:
    study, counts = data.study, data.counts
    failed, cancelled = counts[TrialState.FAILED], counts[TrialState.CANCELLED]
    unfinished = counts[TrialState.RUNNING] + counts[TrialState.PENDING]
    facts = [
        ("members", f"{study.population_size:,}", ""),
        (
            "trials completed",
            f"{counts[TrialState.COMPLETED]:,}",
            f"{unfinished:,} unfinished" if unfinished else "",
        ),
        ("trials failed", f"{failed:,}", f"{cancelled:,} cancelled" if cancelled else ""),
        ("total steps", f"{data.total_steps:,}", ""),
        ("wall time", duration(data.wall_seconds), f"since {moment(study.created_at):%Y-%m-%d %H:%M} UTC"),
    ]
    best = data.best
    if best is None:
        top = '<p class="score none">no finite fitness yet</p>'
    else:
        top = (
            f'<p class="score">{escape(score(best.fitness))}</p>'
            f"<p>best {escape(data.metric)}, by trial {best.id} of member {best.member} "
            f"at step {best.reached_step or 0:,}{_others(data)}</p>{_checkpoint(data, best.checkpoint)}"
        )
    message = f'<p class="message">{escape(study.message)}</p>' if study.message else ""
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd><dd class=small>{escape(more)}</dd></div>"
        for name, value, more in facts
    )
    return f"""<header>
<p class="kind">population based training, {escape(data.aim)}</p>
<h1>{escape(title)} <span class="state {escape(study.state.value)}">{escape(study.state.value)}</span></h1>
{message}
<div class="summary"><div class="best">{top}</div><dl>{cells}</dl></div>
</header>"""


def _damaged(data: StudyData) -> Iterator[str]:
    if not data.damaged:
        return
    rows: list[list[Cell]] = [
        [(row.name, ""), (str(row.trial), "n"), (f"{row.step:,}", "n"), (row.damage or "", "words")]
        for row in data.damaged[:ROWS]
    ]
    lead = (
        f"{counted(len(data.damaged), 'checkpoint')} did not hold what was committed. "
        "No trial has started from one since, and their files are kept."
    )
    yield section(
        "Damaged checkpoints", table(["checkpoint", "trial", "step", "what"], ["", "n", "n", ""], rows), lead
    )


def _others(data: StudyData) -> str:
    return f"; {counted(len(data.front), 'trial')} on the Pareto front" if data.tradeoffs else ""


def _front(data: StudyData) -> str:
    names = [goal.metric for goal in data.tradeoffs]
    rows: list[list[Cell]] = []
    kept = [trial for trial in data.front if _kept(data, trial)]
    for trial in kept[:ROWS]:
        values = trial.criteria.values if trial.criteria is not None else {}
        place = data.checkpoint_path(trial.checkpoint) if trial.checkpoint is not None else None
        rows.append(
            [
                (str(trial.id), "n"),
                (str(trial.member), "n"),
                (f"{trial.reached_step or 0:,}", "n"),
                *((score(values[name]), "n") for name in names),
                (place or "", "words"),
            ]
        )
    head = ["trial", "member", "step", *names, "checkpoint"]
    lead = f"Trials that no other beats in everything, the best in {names[0]} first."
    if len(kept) < len(data.front):
        lead += f" Of {len(data.front):,} these {len(kept):,} have their checkpoints; the most crowded went."
    return section("The front", table(head, [*["n"] * (len(head) - 1), ""], rows), escape(lead))


def _kept(data: StudyData, trial: TrialRecord) -> bool:
    known = trial.checkpoint is not None and data.checkpoint_path(trial.checkpoint) is not None
    return known or data.checkpoint_paths is None


def _checkpoint(data: StudyData, name: str | None) -> str:
    if name is None:
        return ""
    path = data.checkpoint_path(name)
    where = f"<code>{escape(path)}</code>" if path else f"<code>{escape(name)}</code>"
    return f'<p class="path">checkpoint {where}</p>'


def _winner(data: StudyData) -> str:
    if data.schedule is None:
        return ""
    names = data.schedule.names()
    changes = data.schedule.changes()
    rows: list[list[Cell]] = []
    before: dict[str, Json] = {}
    for segment in changes[:ROWS]:
        row = [(f"{segment.start_step:,}", "n"), (f"{segment.end_step:,}", "n")]
        for name in names:
            shown = number(segment.params[name]) if name in segment.params else "-"
            changed = bool(before) and before.get(name) != segment.params.get(name)
            row.append((short(shown, 60), "n changed" if changed else "n"))
        rows.append([*row, (f"{segment.member}", "n"), (f"{segment.trial}", "n")])
        before = dict(segment.params)
    head = ["from step", "to step", *names, "member", "trial"]
    times = f"changed {counted(len(changes) - 1, 'time')}" if len(changes) > 1 else "never changed"
    lead = (
        f"Hyperparameters that trained the weights {_whose(data)}, {data.schedule.steps:,} steps in all; "
        f"they {times}. Changed values are set in bold."
    )
    return section("The winner's schedule", table(head, ["n"] * len(head), rows), escape(lead))


def _whose(data: StudyData) -> str:
    return f"that are best in {data.tradeoffs[0].metric}" if data.tradeoffs else "of the winner"


def _members(data: StudyData) -> str:
    states = {member.index: member for member in data.members}
    elites = data.lineage.elites()
    rows: list[list[Cell]] = []
    for index, trials in list(data.by_member.items())[:ROWS]:
        member = states.get(index)
        done = [trial for trial in trials if trial.state is TrialState.COMPLETED]
        last = trials[-1] if trials else None
        elite = elites.get(index)
        state = member.state.value if member else ""
        spent = max((data.spent[trial.id].end or 0 for trial in done), default=0)
        finite = bool(done) and finite_fitness(done[-1]) is not None
        decision = describe(last.reason) if last else ""
        if last and last.state in (TrialState.FAILED, TrialState.CANCELLED):
            decision += f" ({outcome(last, data.metric)})"
        rows.append(
            [
                (str(index), "n winner" if data.best and data.best.member == index else "n"),
                (state, ""),
                (f"{len(done):,}", "n"),
                (f"{spent:,}", "n"),
                (score(done[-1].fitness) if done else "-", "n" if finite or not done else "n odd"),
                (score(elite.fitness) if elite else "-", "n"),
                (short(decision, 180), "words"),
            ]
        )
    head = [
        "member",
        "state",
        "trials",
        "steps spent",
        f"last {data.metric}",
        f"best {data.metric}",
        "last decision",
    ]
    return section("Members", table(head, ["n", "", "n", "n", "n", "n", ""], rows))
