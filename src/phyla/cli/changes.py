"""What happens in watched runs, line by line: for a person, for a log, or for a program."""

import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, final

from phyla.cli.output import show as print
from phyla.cli.watching import write_at_once
from phyla.cli.words import counted, duration, first_line, number
from phyla.records import shown

if TYPE_CHECKING:
    from phyla.records import Goal, Group
    from phyla.study import Change, Watched

STOPPING = "stopping: running eval tasks go back to the queue; press Ctrl-C again to stop at once"
STOPPING_AT_ONCE = "stopping at once"
VALUES_SHOWN = 3
STYLES = {"partial": "red", "gone": "yellow", "quarantined": "yellow", "complete": "green", "skipped": "dim"}


class ChangeDisplay(Protocol):
    """Shows what happens."""

    def show(self, change: "Change") -> None:
        """Show one change."""
        ...

    def interrupted(self) -> None:
        """Show that a person wants to stop; called inside a signal handler."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


def change_display(
    objectives: "dict[str, Goal | None]",
    *,
    as_json: bool,
    alert: bool,
    step_rule: Callable[[str], str] | None = None,
) -> ChangeDisplay:
    """Return what fits where the output goes.

    Args:
        objectives: of each suite, whose value is shown first.
        as_json: one JSON object per line.
        alert: also show regressions.
        step_rule: says where the step of a checkpoint comes from, by its name; None where no name tells it.
    """
    if as_json:
        return _Json(step_rule)
    steps = _Steps(step_rule)
    if sys.stdout.isatty():
        return _Terminal(objectives, steps, alert=alert)
    return _Lines(objectives, steps, alert=alert)


@final
class _Steps:
    """Says once of each rule that it tells steps."""

    def __init__(self, rule: Callable[[str], str] | None) -> None:
        self._rule = rule
        self._told: set[tuple[str, str]] = set()

    def line(self, change: "Change") -> str:
        seen = change.seen
        if (
            self._rule is None
            or seen is None
            or seen.trial is not None
            or change.kind not in ("seen", "quarantined")
        ):
            return ""
        rule = self._rule(seen.name)
        if (change.run, rule) in self._told:
            return ""
        self._told.add((change.run, rule))
        step = f"is {rule}" if seen.step < 0 else f"is {seen.step}, {rule}"
        return f"{change.run}: the step of {shown(seen.name)} {step}; another rule: --step"


@final
class _Lines:
    def __init__(self, objectives: "dict[str, Goal | None]", steps: _Steps, *, alert: bool) -> None:
        self._objectives = objectives
        self._steps = steps
        self._alert = alert
        self._interrupts = 0

    def show(self, change: "Change") -> None:
        for line in (change_line(change, self._objectives, alert=self._alert), self._steps.line(change)):
            if line:
                print(line, flush=True)

    def interrupted(self) -> None:
        self._interrupts += 1
        write_at_once(STOPPING if self._interrupts == 1 else STOPPING_AT_ONCE)

    def close(self) -> None:
        return


@final
class _Terminal:
    def __init__(self, objectives: "dict[str, Goal | None]", steps: _Steps, *, alert: bool) -> None:
        from rich.live import Live

        from phyla.cli.output import console

        self._objectives = objectives
        self._steps = steps
        self._alert = alert
        self._interrupts = 0
        self._counts: Counter[str] = Counter()
        self._lag_s: float | None = None
        self._message = ""
        self._console = console()
        self._live = Live(console=self._console, get_renderable=self._footer, refresh_per_second=4, transient=True)
        self._live.start()

    def show(self, change: "Change") -> None:
        from rich.text import Text

        self._counts["seen" if change.kind == "quarantined" else change.kind] += 1
        if change.kind == "complete":
            self._lag_s = change.lag_s
        line = change_line(change, self._objectives, alert=self._alert)
        if line:
            regressed = change.event is not None and change.event.kind == "regression"
            self._console.print(Text(line, style="bold red" if regressed else STYLES.get(change.kind, "")))
        told = self._steps.line(change)
        if told:
            self._console.print(Text(told))

    def _footer(self) -> Any:
        from rich.text import Text

        parts = [f"{counted(self._counts['seen'], 'checkpoint')} seen"]
        parts += [f"{self._counts[kind]} {kind}" for kind in ("complete", "partial", "skipped", "gone")]
        if self._lag_s is not None:
            parts.append(f"lag {duration(self._lag_s)}")
        return Text("  ".join(parts) + (f"\n{self._message}" if self._message else ""), style="bold")

    def interrupted(self) -> None:
        self._interrupts += 1
        self._message = STOPPING if self._interrupts == 1 else STOPPING_AT_ONCE

    def close(self) -> None:
        self._live.stop()


@final
class _Json:
    def __init__(self, step_rule: Callable[[str], str] | None) -> None:
        self._step_rule = step_rule

    def show(self, change: "Change") -> None:
        told = change_json(change)
        if change.kind == "seen" and self._step_rule is not None and change.seen and change.seen.trial is None:
            told["step_from"] = self._step_rule(change.seen.name)
        print(json.dumps(told, allow_nan=False), flush=True)

    def interrupted(self) -> None:
        return

    def close(self) -> None:
        return


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
        return f"{start} {name} put aside: {first_line(seen.error)}"
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
    shown = "  ".join(f"{name} {_value(values[name])}" for name in names)
    left = len(values) - len(names)
    return (
        (shown or "no values") + (f"  and {left} more" if left else "") + ("  (best so far)" if group.best else "")
    )


def _value(estimate: Any) -> str:
    shown = number(float(estimate["value"]))
    return shown if estimate["stderr"] is None else f"{shown} ± {float(estimate['stderr']):.2g}"


def change_json(change: "Change") -> dict[str, Any]:
    """Return one change as an object."""
    seen, group, event = change.seen, change.group, change.event
    told: dict[str, Any] = {"run": change.run, "kind": change.kind}
    if event is not None:
        told |= {"kind": event.kind, "message": event.message, "suite": event.suite, "data": dict(event.data)}
    if seen is not None:
        told |= {"checkpoint": seen.name, "step": seen.step, "branch": seen.branch}
    if change.kind == "quarantined" and seen is not None:
        told["why"] = seen.error
    if group is not None:
        told |= {"suite": group.suite, "why": group.why, "values": dict(group.values), "best": group.best}
        told["lag_s"] = change.lag_s
    return told


def finish(watched: "Watched", *, as_json: bool) -> int:
    """Print how it ended and return the exit status: 1 if an evaluation is missing."""
    if as_json:
        told = {
            "kind": "end",
            "runs": {run.name: {"state": run.state, "message": run.message} for run in watched.runs},
            "checkpoints": watched.checkpoints,
            "groups": dict(watched.counts),
            "missing": [
                {"run": m.run, "suite": m.suite, "checkpoint": m.seen.name, "step": m.seen.step, "state": m.state,
                 "why": m.why}
                for m in watched.missing
            ],
        }  # fmt: skip
        print(json.dumps(told, allow_nan=False), flush=True)
        return 1 if watched.missing else 0
    from phyla.cli.output import add_row, console, table

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
    made = table("run", "checkpoint", "step", "suite", "state", "why", right=("step",), elastic=("why",))
    for missing in watched.missing:
        add_row(
            made,
            missing.run,
            shown(missing.seen.name),
            missing.seen.step if missing.seen.step >= 0 else "-",
            missing.suite or "-",
            missing.state,
            first_line(missing.why),
        )
    console().print(made)
    count = len(watched.missing)
    print(f"{counted(count, 'evaluation')} {'is' if count == 1 else 'are'} missing or partial")
    return 1
