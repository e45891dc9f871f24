"""Where the time went: seconds of workers by phase."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from phyla.records import Attempt, Phase
from phyla.report import style
from phyla.report.data import Interval
from phyla.report.words import counted, duration, plain, short

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLORS = {
    Phase.TRAINING: style.BEST,
    Phase.LOADING: "#56B4E9",
    Phase.SAVING: style.JUMP,
    Phase.EVALUATING: "#E69F00",
    Phase.CONTROL: style.FAILED,
    Phase.WAITING: "#9AA1AB",
}
"""One colour per phase, in the order in which they are told."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpent:
    """Where the time of attempts went.

    Attributes:
        seconds: by phase, added up over attempts and workers; every phase is there.
        timed: attempts of which it is known.
        ended: attempts that have ended.
    """

    seconds: Mapping[Phase, float]
    timed: int
    ended: int

    @property
    def total_s(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())

    def words(self) -> str:
        """Return the shares of the phases, largest first: `training 91 %, saving 6 %, loading 3 %`."""
        if not self.total_s:
            return "not known"
        shares = sorted(((100 * s / self.total_s, p) for p, s in self.seconds.items() if s), reverse=True)
        told = ", ".join(f"{phase} {share:.0f} %" if share >= 0.5 else f"{phase} < 1 %" for share, phase in shares)
        return f"{told} of {duration(self.total_s)}"


def time_spent(attempts: Sequence[Attempt], evaluating: Sequence[Interval] = ()) -> TimeSpent:
    """Add up where the time of attempts went.

    Args:
        attempts: of one study. Those that went back to the queue, crashed, or were made by an older version tell
            nothing.
        evaluating: when each eval task of the study ran, whoever ran it. Where there are any, they tell the time
            of evaluation; the attempts know only of those that training workers ran.
    """
    seconds = dict.fromkeys(COLORS, 0.0)
    known = [attempt.timings for attempt in attempts if attempt.timings is not None]
    for timings in known:
        for phase in COLORS:
            seconds[phase] += timings.get(phase.value, 0.0)
    if evaluating:
        seconds[Phase.EVALUATING] = sum(max(0.0, end - begin) for begin, end in evaluating)
    return TimeSpent(
        seconds=seconds, timed=len(known), ended=sum(attempt.ended_at is not None for attempt in attempts)
    )


def time_figure(spent: Mapping[str, TimeSpent], subtitle: str = "") -> "go.Figure":
    """Return a bar for each name, stacked by phase.

    Args:
        spent: by name.
        subtitle: how to read it.
    """
    title = "Where the time went"
    if not any(one.total_s for one in spent.values()):
        return style.empty(title, "No attempt has told where its time went.")
    import plotly.graph_objects as go

    notes = [
        f"{name}: known of {one.timed:,} of {counted(one.ended, 'attempt')}."
        for name, one in spent.items()
        if one.timed < one.ended
    ]
    figure = style.figure(title, subtitle, height=170 + 34 * len(spent) + 18 * len(notes), notes=notes)
    largest = max(one.total_s for one in spent.values())
    unit, size = ("s", 1.0) if largest < 300 else ("min", 60.0) if largest < 3 * 3600 else ("h", 3600.0)
    names = [plain(short(name, 40)) for name in spent]
    for phase, color in COLORS.items():
        if not any(one.seconds[phase] for one in spent.values()):
            continue
        figure.add_trace(
            go.Bar(
                orientation="h",
                y=names,
                x=[one.seconds[phase] / size for one in spent.values()],
                text=[
                    f"{phase}: {duration(one.seconds[phase])}, {one.seconds[phase] / (one.total_s or 1):.1%}"
                    for one in spent.values()
                ],
                textposition="none",
                hovertemplate="%{text}<extra></extra>",
                marker={"color": color},
                name=phase.value,
            )
        )
    figure.update_layout(
        barmode="stack",
        bargap=0.35,
        showlegend=True,
        legend={"traceorder": "normal"},
        xaxis=style.axis(f"time of workers ({unit})"),
        yaxis=style.categories(),
    )
    return figure
