"""The display of watched runs."""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, final

from rich.console import RenderableType
from rich.text import Text

from phyla import records
from phyla.evaluation.matrix import group_values
from phyla.formatting import duration, format_count, format_estimate
from phyla.records import escape_name, summarize_error
from phyla.terminal import Display
from phyla.watcher.formats.step_source import StepFrom

if TYPE_CHECKING:
    from phyla.records import Goal
    from phyla.study.results.watched_runs import Change

VALUES_SHOWN = 3
STYLES = {"partial": "red", "gone": "yellow", "quarantined": "yellow", "complete": "green", "skipped": "dim"}


@final
class ChangeDisplay(Display):
    """Shows what happens in watched runs: lines, and counts below them on a terminal.

    The values of the suites' `objectives` come first. `alert` shows regressions, too. `step_rule` says where the
    step of a checkpoint comes from, by its name.
    """

    def __init__(
        self,
        objectives: "dict[str, Goal | None]",
        *,
        alert: bool = False,
        step_rule: Callable[[str], str] | None = None,
    ) -> None:
        self._objectives = objectives
        self._alert = alert
        self._step_rule = step_rule
        self._told: set[tuple[str, str]] = set()
        self._counts: Counter[str] = Counter()
        self._lag_s: float | None = None
        super().__init__()

    def draw(self) -> RenderableType:
        """Return how much happened."""
        parts = [f"{format_count(self._counts['seen'], 'checkpoint')} seen"]
        parts += [f"{self._counts[kind]} {kind}" for kind in ("complete", "partial", "skipped", "gone")]
        parts += [] if self._lag_s is None else [f"lag {duration(self._lag_s)}"]
        return Text("  ".join(parts), style="bold")

    def show(self, change: "Change") -> None:
        """Show one change."""
        seen, rule = change.seen, None
        if self._step_rule and seen and seen.trial is None and change.kind in ("seen", "quarantined"):
            rule = StepFrom.describe(self._step_rule(seen.name), seen.step)
        self._counts["seen" if change.kind == "quarantined" else change.kind] += 1
        self._lag_s = change.lag_s if change.kind == "complete" else self._lag_s
        kind = "" if change.event is None else change.event.kind
        if self._alert or kind not in ("regression", "withdrawn"):
            self.print(self._line(change), "bold red" if kind == "regression" else STYLES.get(change.kind, ""))
        if seen is not None and rule is not None and (change.run, rule) not in self._told:
            self._told.add((change.run, rule))
            step = f"is {rule}" if seen.step < 0 else f"is {seen.step}, {rule}"
            self.print(f"{change.run}: the step of {escape_name(seen.name)} {step}; another rule: --step")

    def _line(self, change: "Change") -> str:
        if change.event is not None or change.seen is None:
            return f"{change.run}: {change.event and change.event.message}"
        seen, group = change.seen, change.group
        name = f"{change.run}: {escape_name(seen.name)}" + (f" (step {seen.step})" if seen.step >= 0 else "")
        if group is None:
            return f"{name} seen" if change.kind == "seen" else f"{name} put aside: {summarize_error(seen.error)}"
        if change.kind != "complete":
            return f"{name} {group.suite} {change.kind}: {self._explain(change.run, group)}"
        lag = "" if change.lag_s is None else f"  lag {duration(change.lag_s)}"
        return f"{name} {group.suite} complete: {self._values(seen, group)}{lag}"

    def _explain(self, run: str, group: records.Group) -> str:
        """Return why a group has no result; a long failure is printed in full once."""
        key = (f"{run} {group.suite}", group.why or "")
        if group.state is records.GroupState.PARTIAL and key in self._told:
            return "failed as above"
        self._told.add(key)
        return str(group.why)

    def _values(self, seen: records.Checkpoint, group: records.Group) -> str:
        values = group_values(seen, group).values
        objective = self._objectives.get(group.suite)
        main = objective.metric if objective is not None else None
        names = sorted(values, key=lambda name: (name != main, "/" in name))
        shown = [(name, values[name]) for name in names[:VALUES_SHOWN]]
        words = "  ".join(f"{name} {format_estimate(known.value, known.stderr)}" for name, known in shown)
        more = f"  and {len(names) - VALUES_SHOWN} more" if len(names) > VALUES_SHOWN else ""
        return f"{words or 'no values'}{more}{'  (best so far)' if group.best else ''}"
