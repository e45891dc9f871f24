"""Fitness of every member over the steps that it trained."""

from collections.abc import Iterable
from typing import Any

from phyla.records import JobState, TrialRecord
from phyla.report import style
from phyla.report.data import StudyData, finite_fitness
from phyla.report.words import hover, plain
from phyla.words import counted, score

POINTS = 8_000
"""Points of all members' lines together; beyond, lines keep only their outline."""
ARROWS = 300
"""Jumps that are drawn; beyond, an even selection, and all on the winner's path."""
BOTH = "lines+markers"
EDGE = 1_000
"""Marks of one kind at the edge; beyond, an even selection."""


def fitness_figure(data: StudyData) -> style.Figure:
    """Return the fitness of every member over the steps it has spent, with jumps and the winner's path on top."""
    better = "higher" if data.aim.maximize else "lower"
    title = f"Fitness of every member: {data.aim.name}, {better} is better"
    if not data.completed:
        return style.empty(title, "No trial has completed yet.")
    notes: list[str] = []
    traces = [*_member_lines(data, notes), *_best_so_far(data), *_jumps(data, notes)]
    path, best = data.winner_path, data.best
    if best is not None:
        marker = {"color": style.WINNER, "size": [*[5 if len(path) <= 60 else 0] * (len(path) - 1), 10]}
        name = f"the winner's path: to trial {best.id} of member {best.member}, {plain(score(best.fitness))}"
        traces += style.line(_told(data, path), name, style.WINNER, 2.4, mode=BOTH, marker=marker)
    values = [trial.fitness or 0.0 for trial in data.scored]
    limits = style.sensible_range(values, maximize=data.aim.maximize)
    inside = [value for value in values if limits is None or limits[0] <= value <= limits[1]]
    # On a linear axis a loss that falls by orders of magnitude is a flat line after the first trials.
    log = style.is_wide(inside)
    if limits is not None and not log:
        outside = counted(len(values) - len(inside), "point")
        notes.append(f"Outside of the range shown: {outside}; double-click to see all.")
    subtitle = "A line is a member; an arrow leads from a donor to the member that took it over"
    figure = style.figure(title, subtitle, height=560, notes=notes)
    figure.add_traces([*traces, *_mishaps(data)])
    figure.update_xaxes(title_text="steps spent by the member", rangemode="tozero", tickformat="~s")
    figure.update_yaxes(
        title_text=plain(data.aim.name), type="log" if log else None, range=None if log else limits
    )
    figure.update_layout(yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True})
    return figure


def _told(data: StudyData, trials: Iterable[TrialRecord]) -> list[style.Row]:
    """Return where trials lie on their members' clocks, and what appears under the pointer."""
    return [(data.spent[trial.id], finite_fitness(trial), hover(trial, data.aim.name)) for trial in trials]


def _member_lines(data: StudyData, notes: list[str]) -> list[dict[str, Any]]:
    """Return one line per member, with gaps where there is no finite fitness."""
    path = {trial.id for trial in data.winner_path}
    limit = max(20, POINTS // max(1, len(data.by_member)))
    mode = "lines" if len(data.by_member) > 20 else BOTH
    marker = {"color": style.MUTED, "size": 4}
    lines: list[dict[str, Any]] = []
    for member, trials in data.by_member.items():
        done = [(trial, finite_fitness(trial)) for trial in trials if trial.state is JobState.COMPLETED]
        on_path = [place for place, (trial, _) in enumerate(done) if trial.id in path]
        rows = _told(data, (trial for trial, _ in style.outline(done, limit, on_path)))
        look: dict[str, Any] = {"legendgroup": "members", "showlegend": not lines, "meta": {"member": member}}
        lines += style.line(rows, "members", style.MUTED, 1, mode=mode, marker=marker, **look)
    shown = sum(len(line["x"]) for line in lines)
    if shown < len(data.completed):
        notes.append(f"The members' lines show {shown:,} of {len(data.completed):,} trials: their outline.")
    return lines


def _jumps(data: StudyData, notes: list[str]) -> list[dict[str, Any]]:
    """Return an arrow from donor to child for every jump where both have a finite fitness."""
    scored, path = {trial.id for trial in data.scored}, {trial.id for trial in data.winner_path}
    pairs = [(data.lineage.parent(child), data.lineage.trial(child)) for _, child in data.lineage.jumps]
    jumps = [(donor, child) for donor, child in pairs if donor and donor.id in scored and child.id in scored]
    even = {child.id for _, child in style.kept(jumps, ARROWS)}
    chosen = [jump for jump in jumps if jump[1].id in even | path]
    if not chosen:
        return []
    what = counted(len(jumps), "jump")
    if len(chosen) < len(jumps):
        notes.append(f"{len(chosen):,} of {what} are drawn: an even selection, and all on the winner's path.")
    marker = {
        "color": style.JUMP,
        "symbol": ["circle", "arrow", "circle"] * len(chosen),
        "size": [3, 9, 0] * len(chosen),
        "angleref": "previous",
    }
    opacity = 0.85 if len(chosen) <= 60 else 0.45
    rows = style.pieces([(data.spent[trial.id], trial.fitness) for trial in jump] for jump in chosen)
    return style.line(rows, what, style.JUMP, 1.2, mode=BOTH, line_dash="3px,3px", marker=marker, opacity=opacity)


def _best_so_far(data: StudyData) -> list[dict[str, Any]]:
    sign = -1 if data.aim.maximize else 1
    points = sorted((data.spent[trial.id], sign * (trial.fitness or 0.0), trial.id) for trial in data.scored)
    rows: list[style.Row] = []
    for x, low, trial in points:
        if not rows or low < sign * rows[-1][1]:
            rows.append((x, sign * low, f"best so far: {score(sign * low)}, trial {trial}"))
    rows += [(points[-1][0], *rows[-1][1:])] if rows else []
    return style.line(rows, "best so far", style.BEST, 1.8, line_shape="hv")


def _mishaps(data: StudyData) -> list[dict[str, Any]]:
    """Return marks at the edge of bad values, where trials failed and where a fitness is not a finite number."""
    edge = 0.012 if data.aim.maximize else 0.988
    unfit = [trial for trial in data.completed if finite_fitness(trial) is None]
    infeasible = [trial for trial in unfit if trial.criteria and trial.criteria.infeasible]
    odd = [trial for trial in unfit if not (trial.criteria and trial.criteria.infeasible)]
    broken = [trial for trial in data.lineage if trial.state is JobState.FAILED]
    cancelled = [trial for trial in data.lineage if trial.state is JobState.CANCELLED]
    traces = []
    for name, trials, symbol in (
        (f"{len(infeasible):,} infeasible", infeasible, "x-thin-open"),
        (f"{len(odd):,} nan or infinite", odd, "triangle-up"),
        (counted(len(broken), "failed trial"), broken, "x"),
        (f"{len(cancelled):,} cancelled", cancelled, "x-open"),
    ):
        rows = [(x, edge, told) for x, _, told in _told(data, style.kept(trials, EDGE))]
        traces += style.marks(rows, name, style.FAILED, 8, marker_symbol=symbol, yaxis="y2", cliponaxis=False)
    return traces
