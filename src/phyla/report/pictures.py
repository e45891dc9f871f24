"""Pictures that open a page: small SVG without scripts, drawn from a few thousand records at most.

A picture is as wide as its place, so lines are stretched and texts are not: lines are in a nested SVG of 1,000 by
1,000 units, texts are placed in percent around it. Colours are in the style sheet.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias, final

from phyla.evaluation import Estimate, GroupValues, SuiteOutline
from phyla.formatting import format_count, format_estimate, number, score, short
from phyla.pages import Picture, Plot
from phyla.records import Aim, EvalEvent, StudyRecord, TrialRecord
from phyla.report import style
from phyla.report.columns import finite_fitness, trained
from phyla.report.data import Hyperparameter, hyperparameters
from phyla.report.formatting import escape

SIZE = 1000
"""Units of a plot in each direction."""
PANELS = 4
"""Hyperparameters, or suites, that are drawn."""
NAMED = 60
"""Members whose lines have a tooltip; those of more are one path."""
BAND = 1.96
"""Standard errors on each side of a line: 95 % if the error is normal."""
WIDE = 5
"""Ratio of losses from which their axis is logarithmic."""
TICK = 7
"""Characters of a category on an axis."""
DIGITS = 6
"""The most digits of a number on an axis, for which there is room."""
SMALLEST, LARGEST = 1e-300, 1e300
"""Numbers outside of these are drawn as if they were these: beyond them, sums and powers are no numbers."""
FAR = 1e4
"""Lengths of an axis beyond which nothing is drawn: browsers do not read larger numbers."""

Points: TypeAlias = Sequence[tuple[float, float]]


@final
class Scale(NamedTuple):
    """One axis: what its ends are."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def of(cls, values: Iterable[float], *, log: bool = False, margin: float = 0.06) -> "Scale":
        """Return the scale of some values, with a margin; equal values are in the middle."""
        known = [_log(value, log) for value in values]
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        edge = margin * (high - low) if high - low > SMALLEST else abs(low) * 0.05
        edge = min(edge, 5.0) if log else edge  # so that the ends are numbers, too
        edge = edge if edge > SMALLEST else 1.0
        return cls(low - edge, high + edge, log)

    def at(self, value: float) -> float:
        """Return where a value is: 0 at the low end, 1 at the high one."""
        return max(-FAR, min(FAR, (_log(value, self.log) - self.low) / (self.high - self.low)))

    def ticks(self, most: int) -> list[float]:
        """Return up to `most` round values on it."""
        if self.log:
            decades = range(math.ceil(self.low), math.floor(self.high) + 1)
            digits = (1,) if len(decades) > 2 else (1, 2, 5)
            values = [
                digit * 10.0**decade for decade in range(decades.start - 1, decades.stop) for digit in digits
            ]
            inside = [value for value in values if SMALLEST <= value <= LARGEST and 0 <= self.at(value) <= 1]
            if len(inside) > 1:
                return style.pick_evenly(inside, most)
            return Scale(10**self.low, 10**self.high).ticks(most)
        for step in (digit * 10.0**decade for decade in _decades(self.high - self.low) for digit in (1, 2, 5)):
            first, last = math.ceil(self.low / step), math.floor(self.high / step)
            if last - first < most:
                return [step * place for place in range(first, last + 1)]
        return []

    def labels(self, most: int, digits: int = 4) -> list[tuple[float, str]]:
        """Return up to `most` round values on it, and their texts."""
        return _tell_apart(self.ticks(most), number, digits)


def _tell_apart(
    values: Sequence[float], text_of: Callable[[float, int], str], digits: int = 4
) -> list[tuple[float, str]]:
    """Return values with their texts, which have more digits where they would be equal."""
    texts: list[str] = []
    for enough in range(digits, DIGITS + 1):
        texts = [text_of(value, enough) for value in values]
        if len(set(texts)) == len(values):
            break
    return [*zip(values, texts, strict=True)]


def _decades(span: float) -> range:
    return range(math.floor(math.log10(span)) - 2, math.floor(math.log10(span)) + 2)


def _log(value: float, log: bool) -> float:
    inside = max(SMALLEST if log else -LARGEST, min(LARGEST, value))
    return math.log10(inside) if log else float(inside)


@final
class Canvas:
    """Marks on two axes."""

    def __init__(self, x: Scale, y: Scale) -> None:
        self.x, self.y = x, y
        self._marks: list[str] = []

    def add(self, look: str, lines: Iterable[Points], words: str = "") -> None:
        """Draw lines, or dots where they have one point; `look` is a class of the style sheet."""
        path = "".join(map(self._line, filter(None, lines)))
        title = f"<title>{escape(words)}</title>" if words else ""
        if path:
            self._marks.append(f'<path class="{look}" d="{path}">{title}</path>')

    def _line(self, points: Points) -> str:
        places = [f"{SIZE * self.x.at(x):.0f} {SIZE * (1 - self.y.at(y)):.0f}" for x, y in points]
        return f"M{'L'.join(places)}" if len(places) > 1 else f"M{places[0]}h0"

    def plot(self, label: str, words: str, ticks: Iterable[tuple[float, str]], look: str = "") -> Plot:
        """Return the plot with labels of its axes; `words` say what it shows to those who do not see it."""
        return Plot(label, self.svg(words, ticks, f"plot {look}".strip()) + _steps_axis(self.x, 3 if label else 5))

    def svg(self, words: str, ticks: Iterable[tuple[float, str]], look: str) -> str:
        """Return the lines with labels of their values."""
        labels = "".join(_tick(self.y.at(value), text) for value, text in ticks)
        return (
            f'<svg class="{look}" role="img"><title>{escape(words)}</title>{labels}'
            f'<svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" aria-hidden="true" width="100%" '
            'height="100%">'
            f"{''.join(self._marks)}</svg></svg>"
        )


def _tick(place: float, text: str) -> str:
    y = f"{100 * (1 - place):.1f}%"
    return f'<line x1="0" x2="100%" y1="{y}" y2="{y}"/><text x="-6" y="{y}" dy="4">{escape(text)}</text>'


def _steps_axis(x: Scale, most: int) -> str:
    labels: list[str] = []
    for value, text in _tell_apart(x.ticks(most), _steps):
        place = x.at(value)
        anchor = "start" if place < 0.06 else "end" if place > 0.92 else "middle"
        text += "" if labels or most < 5 else " steps"
        labels.append(f'<text x="{100 * place:.1f}%" y="12" text-anchor="{anchor}">{text}</text>')
    return f'<svg class="axis" aria-hidden="true">{"".join(labels)}</svg>'


def _steps(value: float, digits: int) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{number(value / size, digits)}{unit}"
    return number(value, digits)


def spark(values: Sequence[float], words: str) -> str:
    """Return a line of the size of a word; nothing if it has fewer than two finite values."""
    points = [(float(at), value) for at, value in enumerate(values) if math.isfinite(value)]
    if len(points) < 2:
        return ""
    canvas = Canvas(Scale.of((x for x, _ in points), margin=0.04), Scale.of((y for _, y in points), margin=0.12))
    canvas.add("best", [points])
    canvas.add("winner", [points[-1:]])
    return canvas.svg(words, (), "spark")


# A population


@final
class Genealogy:
    """Where the trials of a population are drawn: by the steps of their weights, each after its parent.

    Args:
        trials: some or all trials, by id.
        path: ids of the trials that trained the best weights, root first.
    """

    def __init__(self, trials: Iterable[TrialRecord], path: Sequence[int]) -> None:
        self.trials = {
            trial.id: trial for trial in trials if not trial.measures and trial.reached_step is not None
        }
        known = {trial.id: finite_fitness(trial) for trial in self.trials.values()}
        self.points = {
            key: (float(_end(self.trials[key])), fitness) for key, fitness in known.items() if fitness is not None
        }
        self.path = [key for key in path if key in self.trials]
        self.copies: list[tuple[int, int]] = []  # trials and those whose weights they took from another member
        self.lines: dict[int, list[list[int]]] = defaultdict(list)  # trials of each member, in unbroken lines
        self._connect()

    def _connect(self) -> None:
        for key in self.points:
            trial, lines = self.trials[key], self.lines[self.trials[key].member]
            parent = trial.parent if trial.parent in self.points else None
            before = lines[-1][-1] if lines else None
            if parent is not None and self.trials[parent].member != trial.member:
                self.copies.append((key, parent))
                lines.append([key])
            elif before is not None and parent in (None, before):
                lines[-1].append(key)
            else:
                lines.append([key] if parent is None else [parent, key])

    @property
    def abandoned(self) -> list[int]:
        """Trials whose members continued with the weights of others."""
        return [gone for taker, _ in self.copies if (gone := self.trials[taker].jump_from) in self.points]

    @property
    def steps(self) -> Scale:
        """The axis of steps."""
        last = max(map(_end, self.trials.values()), default=1)
        first = min((trial.start_step for trial in self.trials.values()), default=0)
        return Scale(float(first), max(last, first + 1) + 0.02 * max(last - first, 1))


def _end(trial: TrialRecord) -> int:
    return trial.start_step + trained(trial)


def score_picture(tree: Genealogy, aim: Aim, whole: str) -> Picture:
    """Return the scores of members over steps, which member copied which, and the lineage of the best.

    Args:
        tree: what is drawn.
        aim: what the study selects for.
        whole: how many members are drawn, in words.
    """
    title, points = "Is it working?", tree.points
    best = next((key for key in reversed(tree.path) if key in points), None)
    if best is None:
        return Picture("score", title, "No trial has completed with a finite fitness yet.", more="progress")
    values = [fitness for _, fitness in points.values()]
    limits = style.sensible_range(values, maximize=aim.maximize, always=[points[best][1]])
    inside = [value for value in values if limits is None or limits[0] <= value <= limits[1]]
    # A loss falls fast at first, and would look flat after that.
    log = not aim.maximize and min(inside) > 0 and max(inside) > WIDE * min(inside)
    canvas = Canvas(tree.steps, Scale.of(inside, log=log))
    _draw_members(canvas, tree)
    _draw_best(canvas, tree, aim)
    trial = tree.trials[best]
    what = f"Best {short(aim.name, 40)} {score(trial.fitness)}"
    lead = f"{what}, at step {number(_end(trial))}, by member {trial.member}"
    copies = format_count(len(tree.copies), "copy", "copies")
    look = "many" if len(tree.lines) > NAMED else ""
    words = f"{lead}; {whole}, {copies} of weights"
    plot = canvas.plot("", words, canvas.y.labels(5), look)
    keys = [("best", "ancestors of the best"), ("member", whole)]
    keys += [("copy", copies), ("ended", "given up")] if tree.copies else []
    return Picture("score", title, lead, keys, [plot], "progress")


def _draw_members(canvas: Canvas, tree: Genealogy) -> None:
    points = tree.points
    paths: dict[int, list[Points]] = {
        member: [[points[key] for key in line] for line in lines] for member, lines in tree.lines.items()
    }
    few = len(paths) <= NAMED
    for member, lines in paths.items():
        if few:
            canvas.add("member", lines, f"member {member}, last {score(lines[-1][-1][1])}")
    if not few:
        canvas.add("member", [line for lines in paths.values() for line in lines])
    canvas.add("copy", ([points[donor], points[taker]] for taker, donor in tree.copies))
    canvas.add("head", (lines[-1][-1:] for lines in paths.values()))
    canvas.add("ended", ([points[key]] for key in tree.abandoned))


def _draw_best(canvas: Canvas, tree: Genealogy, aim: Aim) -> None:
    path = [key for key in tree.path if key in tree.points]
    canvas.add("best", [[tree.points[key] for key in path]])
    for before, key in pairwise(path):
        trial, donor = tree.trials[key], tree.trials[before]
        if trial.member != donor.member:
            given_up = tree.trials.get(trial.jump_from or 0)
            from_score = f", whose {short(aim.name, 30)} was {score(donor.fitness)}"
            own = f" instead of its own {score(given_up.fitness)}" if given_up else ""
            words = f"step {number(_end(donor))}: member {trial.member} took over member {donor.member}"
            canvas.add("took", [[tree.points[before]]], words + from_score + own)
    canvas.add("winner", [[tree.points[path[-1]]]], f"best {score(tree.points[path[-1]][1])}")


def schedule_picture(tree: Genealogy, study: StudyRecord) -> Picture:
    """Return the hyperparameters over the steps: members', and those that trained the best weights."""
    title = "What schedule did it find?"
    params = hyperparameters(study, [trial.params for trial in tree.trials.values()])
    if not params:
        why = "The search space has no hyperparameters." if tree.trials else "No trial has completed yet."
        return Picture("schedule", title, why, more="schedules")
    path = [tree.trials[key] for key in tree.path]
    changed = [param for param in params if len({repr(trial.params.get(param.name)) for trial in path}) > 1]
    drawn = [*changed, *(param for param in params if param not in changed)][:PANELS]
    plots = [_schedule(tree, param, path) for param in drawn]
    often = sum(before.params != after.params for before, after in pairwise(path))
    steps = format_count(max(map(_end, tree.trials.values())), "step")
    lead = f"{format_count(often, 'change')} in {steps}" if path else "No best trial yet"
    lead += f"; {len(drawn)} of {len(params)} hyperparameters" if len(drawn) < len(params) else ""
    keys = [("best", "ancestors of the best"), ("member", "members")]
    return Picture("schedule", title, lead, keys, plots, "schedules")


def _schedule(tree: Genealogy, param: Hyperparameter, path: Sequence[TrialRecord]) -> Plot:
    trials = [*tree.trials.values()]
    values = dict(zip(tree.trials, param.values([trial.params for trial in trials]).tolist(), strict=True))
    known = [value for value in values.values() if math.isfinite(value)]
    y = Scale.of(known or [0.0], log=param.log, margin=0.15)
    canvas = Canvas(tree.steps, y)

    def line(trial: TrialRecord) -> tuple[tuple[float, float], ...]:
        value = values[trial.id]
        return ((trial.start_step, value), (_end(trial), value)) if math.isfinite(value) else ()

    canvas.add("member", dict.fromkeys(map(line, trials)))  # many have the same value at the same time
    canvas.add("best", [[point for trial in path for point in line(trial)]])
    used = [number(trial.params[param.name], 3) for trial in path if param.name in trial.params]
    course = " to ".join(dict.fromkeys([used[0], used[-1]])) if used else ""
    label = f"{short(param.name, 40)} {short(course, 60)}".strip()
    look = "many" if len(tree.lines) > NAMED else ""
    return canvas.plot(label, f"Best schedule of {label}", _value_ticks(y, param), look)


def _value_ticks(y: Scale, param: Hyperparameter) -> list[tuple[float, str]]:
    if param.categories is None:
        return y.labels(3, 3)
    places = [at for at in range(len(param.categories)) if 0 <= y.at(at) <= 1]
    places = places if len(places) <= PANELS else style.pick_evenly(places, 3)
    return [(at, short(number(param.categories[at], 3), TICK)) for at in places]


# A watched run


def suites_picture(
    values: Sequence[GroupValues],
    suites: Sequence[SuiteOutline],
    regressions: Sequence[EvalEvent],
    members: Mapping[int, int],
) -> Picture:
    """Return the objective of each suite over steps, with its 95 % band; regressions are marked."""
    title = "Is it getting better?"
    by_suite = [(suite, [row for row in values if row.group.suite == suite.name]) for suite in suites]
    drawn = [(suite, rows) for suite, rows in by_suite if any(_objective(suite, row) for row in rows)]
    if not drawn:
        known = any(_estimate(suite, row) for suite, rows in by_suite for row in rows)
        lead = "Every score is nan or infinite." if known else "No group is complete yet."
        return Picture("suites", title, lead, more="aggregates")
    places = [float(_place(row)) for _, rows in drawn for row in rows]
    x = Scale.of(places, margin=0.02)
    plots = [_suite(suite, rows, regressions, members, x) for suite, rows in drawn[:PANELS]]
    count = format_count(len({row.seen.id for _, rows in drawn for row in rows}), "checkpoint")
    lead = f"{count} up to step {number(int(max(places)))}; {format_count(len(regressions), 'regression')}"
    lead += f"; {PANELS} of {len(drawn)} suites" if len(drawn) > PANELS else ""
    looks = "".join(plot.svg for plot in plots)
    names = {"best": "objective", "member": "members", "band": "95 %", "worse": "regression"}
    keys = [(look, name) for look, name in names.items() if f'class="{look}"' in looks]
    return Picture("suites", title, lead, keys, plots, "aggregates")


def _suite(
    suite: SuiteOutline,
    rows: Sequence[GroupValues],
    regressions: Sequence[EvalEvent],
    members: Mapping[int, int],
    x: Scale,
) -> Plot:
    lines: dict[object, list[tuple[float, float, float]]] = defaultdict(list)
    for row in rows:
        if (point := _objective(suite, row)) is not None:
            lines[members.get(row.seen.trial or 0), row.seen.branch, row.seen.index].append(point)
    edges = [edge for line in lines.values() for _, y, e in line for edge in (y - e, y + e)]
    canvas = Canvas(x, Scale.of(edges))
    for line in map(sorted, lines.values()):
        band = [*((at, y + e) for at, y, e in line), *((at, y - e) for at, y, e in reversed(line))]
        canvas.add("band", [band] if len(line) > 1 and any(e for *_, e in line) else ())
        canvas.add("member" if members else "best", [[(at, y) for at, y, _ in line]])
    messages = {event.seen: event.message for event in regressions if event.suite == suite.name}
    worst = canvas.y.low if suite.maximize else canvas.y.high
    for row in rows:
        if row.seen.id in messages and _estimate(suite, row) is not None:
            point = _objective(suite, row)  # nan and infinity are at the edge
            canvas.add("worse", [[(_place(row), point[1] if point else worst)]], messages[row.seen.id])
    best = next((row for row in rows if row.best and _objective(suite, row)), None)
    label = f"{suite.name}/{_metric(suite, rows[-1])}"
    if best is not None:
        at = _objective(suite, best)
        canvas.add("winner", [[at[:2]]] if at else ())
        estimate = best.values[_metric(suite, best)]
        label += f" {format_estimate(estimate.value, estimate.stderr)} at step {number(best.seen.step)}"
    words = f"{label}, {format_count(len(messages), 'regression')}"
    return canvas.plot(label, words, canvas.y.labels(5))


def _metric(suite: SuiteOutline, row: GroupValues) -> str:
    return suite.objective or next(iter(row.values), "")


def _place(row: GroupValues) -> int:
    return row.seen.step if row.seen.step >= 0 else row.seen.number


def _estimate(suite: SuiteOutline, row: GroupValues) -> Estimate | None:
    """Return the objective of a complete group; None for others, and for replicates."""
    return None if row.partial or row.group.replicate else row.values.get(_metric(suite, row))


def _objective(suite: SuiteOutline, row: GroupValues) -> tuple[float, float, float] | None:
    """Return step, value and half of the band of a complete group; None if it has no finite value."""
    estimate = _estimate(suite, row)
    if estimate is None or not math.isfinite(estimate.value):
        return None
    known = estimate.stderr is not None and math.isfinite(estimate.stderr)
    return float(_place(row)), estimate.value, BAND * (estimate.stderr or 0.0) if known else 0.0
