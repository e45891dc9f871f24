"""What happens in watched runs, line by line: for a person, for a log, or for a program."""

import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, final

from rich.live import Live
from rich.text import Text

from phyla.cli.output import console, picked, table, to_json, write_at_once
from phyla.cli.output import show as print
from phyla.cli.words import counted, duration, value
from phyla.records import said_by, shown

if TYPE_CHECKING:
    from phyla.records import Goal, Group
    from phyla.study import Change, Watched

STOPPING = "stopping: running eval tasks go back to the queue; press Ctrl-C again to stop at once"
STOPPING_AT_ONCE = "stopping at once"
VALUES_SHOWN = 3
STYLES = {"partial": "red", "gone": "yellow", "quarantined": "yellow", "complete": "green", "skipped": "dim"}


@final
class ChangeDisplay:
    """Shows what happens: lines, on a terminal with counts below them; or one JSON object per line.

    Args:
        objectives: of each suite, whose value is shown first.
        as_json: whether to print JSON.
        alert: also show regressions.
        step_rule: says where the step of a checkpoint comes from, by its name; None where no name tells it.
    """

    def __init__(
        self,
        objectives: "dict[str, Goal | None]",
        *,
        as_json: bool = False,
        alert: bool = False,
        step_rule: Callable[[str], str] | None = None,
    ) -> None:
        self._objectives = objectives
        self._as_json = as_json
        self._alert = alert
        self._step_rule = step_rule
        self._told: set[tuple[str, str]] = set()
        self._counts: Counter[str] = Counter()
        self._lag_s: float | None = None
        self._stopping = ""
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if sys.stdout.isatty() and not self._as_json:
            self._live = Live(console=console(), get_renderable=self._footer, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, change: "Change") -> None:
        """Show one change."""
        rule = self._rule(change)
        if self._as_json:
            told = change_json(change)
            if rule is not None and change.kind == "seen":
                told["step_from"] = rule
            print(to_json(told, indent=None), flush=True)
            return
        self._counts["seen" if change.kind == "quarantined" else change.kind] += 1
        self._lag_s = change.lag_s if change.kind == "complete" else self._lag_s
        regressed = change.event is not None and change.event.kind == "regression"
        self._print(
            change_line(change, self._objectives, alert=self._alert),
            style="bold red" if regressed else STYLES.get(change.kind, ""),
        )
        seen = change.seen
        if seen is not None and rule is not None and (change.run, rule) not in self._told:
            self._told.add((change.run, rule))
            step = f"is {rule}" if seen.step < 0 else f"is {seen.step}, {rule}"
            self._print(f"{change.run}: the step of {shown(seen.name)} {step}; another rule: --step")

    def interrupted(self) -> None:
        """Show that a person wants to stop; called inside a signal handler."""
        self._stopping = STOPPING_AT_ONCE if self._stopping else STOPPING
        if self._live is None and not self._as_json:
            write_at_once(self._stopping)

    def _rule(self, change: "Change") -> str | None:
        """Return where the step of a checkpoint that was found comes from."""
        seen = change.seen
        if self._step_rule is None or seen is None or seen.trial is not None:
            return None
        return self._step_rule(seen.name) if change.kind in ("seen", "quarantined") else None

    def _print(self, line: str, style: str = "") -> None:
        if line and self._live is not None:
            self._live.console.print(line, style=style)
        elif line:
            print(line, flush=True)

    def _footer(self) -> Text:
        parts = [f"{counted(self._counts['seen'], 'checkpoint')} seen"]
        parts += [f"{self._counts[kind]} {kind}" for kind in ("complete", "partial", "skipped", "gone")]
        if self._lag_s is not None:
            parts.append(f"lag {duration(self._lag_s)}")
        return Text("  ".join(parts) + (f"\n{self._stopping}" if self._stopping else ""), style="bold")


def change_line(change: "Change", objectives: "dict[str, Goal | None]", *, alert: bool) -> str:
    """Return one change on one line; an empty one for what is not shown."""
    start = f"{change.run}:"
    seen, group, event = change.seen, change.group, change.event
    if event is not None:
        return "" if event.kind == "regression" and not alert else f"{start} {event.message}"
    assert seen is not None
    name = shown(seen.name) + (f" (step {seen.step})" if seen.step >= 0 else "")
    if change.kind == "seen":
        return f"{start} {name} seen"
    if change.kind == "quarantined":
        return f"{start} {name} put aside: {said_by(seen.error)}"
    assert group is not None
    start = f"{start} {name} {group.suite}"
    if change.kind == "complete":
        lag = "" if change.lag_s is None else f"  lag {duration(change.lag_s)}"
        return f"{start} complete: {_values(group, objectives.get(group.suite))}{lag}"
    return f"{start} {change.kind}: {group.why}"


def _values(group: "Group", objective: "Goal | None") -> str:
    values: dict[str, Any] = dict(group.values)
    main = objective.metric if objective is not None else None
    names = sorted(values, key=lambda name: (name != main, "/" in name))[:VALUES_SHOWN]
    told = "  ".join(f"{name} {value(**values[name])}" for name in names)
    left = len(values) - len(names)
    return (
        (told or "no values") + (f"  and {left} more" if left else "") + ("  (best so far)" if group.best else "")
    )


def change_json(change: "Change") -> dict[str, Any]:
    """Return one change as an object."""
    seen, group, event = change.seen, change.group, change.event
    told: dict[str, Any] = {"run": change.run, "kind": change.kind}
    if event is not None:
        told |= {"kind": event.kind, **picked(event, "message", "suite", "data")}
    if seen is not None:
        told |= {"checkpoint": seen.name, **picked(seen, "step", "branch")}
        if change.kind == "quarantined":
            told["why"] = seen.error
    if group is not None:
        told |= {**picked(group, "suite", "why", "values", "best"), "lag_s": change.lag_s}
    return told


def finish(watched: "Watched", *, as_json: bool) -> int:
    """Print how it ended and return the exit status: 1 if an evaluation is missing."""
    if as_json:
        told = {
            "kind": "end",
            "runs": {run.name: picked(run, "state", "message") for run in watched.runs},
            "checkpoints": watched.checkpoints,
            "groups": watched.counts,
            "missing": [
                {**picked(one, "run", "suite"), "checkpoint": one.seen.name, "step": one.seen.step,
                 **picked(one, "state", "why")}
                for one in watched.missing
            ],
        }  # fmt: skip
        print(to_json(told, indent=None), flush=True)
        return 1 if watched.missing else 0
    groups = ", ".join(f"{count} {state}" for state, count in sorted(watched.counts.items())) or "none"
    for run in watched.runs:
        print(f"{run.name} {run.state}" + (f": {run.message}" if run.message else ""))
    print(f"{counted(watched.checkpoints, 'checkpoint')} seen; evaluations: {groups}")
    if not watched.checkpoints:
        where = ", ".join(run.location or run.name for run in watched.runs)
        print(
            f"nothing in {where} was taken for a finished checkpoint: is it the directory that holds "
            "them, and does --format (with marker=NAME or steps=NAMES) fit what is written there?",
            file=sys.stderr,
        )
    if not watched.missing:
        return 0
    rows = (
        {
            "run": one.run,
            "checkpoint": shown(one.seen.name),
            "step": one.seen.step if one.seen.step >= 0 else None,
            "suite": one.suite,
            "state": one.state,
            "why": said_by(one.why),
        }
        for one in watched.missing
    )
    made = table(rows, right=("step",), elastic=("why",))
    console().print(made)
    count = len(watched.missing)
    print(f"{counted(count, 'evaluation')} {'is' if count == 1 else 'are'} missing or partial")
    return 1
