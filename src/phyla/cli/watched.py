"""How watched runs stand, for `phyla status`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phyla.cli.evaluations import lag_line, print_events, print_whys
from phyla.cli.output import console, picked, print_json, table
from phyla.cli.output import show as print
from phyla.cli.words import command, counted, step, value
from phyla.records import StudyState, said_by, shown

if TYPE_CHECKING:
    from phyla.records import Seen
    from phyla.study import Evaluations, Places, Standing

STATES = ("complete", "queued", "partial", "skipped", "gone")
QUARANTINED_SHOWN = 10
CELLS_OF = 20
"""Newest checkpoints whose failures are told."""


def runs_table(runs: "Sequence[Standing]") -> Any:
    """Return a table of watched runs."""
    rows = []
    for one in runs:
        best = next((suite.best for suite in one.suites if suite.best is not None), None)
        rows.append(
            {
                "watched run": one.run.name,
                "state": one.state,
                "directory": _where(one),
                "checkpoints": one.checkpoints,
                "newest step": one.newest and step(one.newest.step),
                **{state: one.counts[state] for state in STATES[:-1]},
                "quarantined": len(one.quarantined),
                "best": best and f"{best.suite}/{best.metric} {best.value:.4g} at step {step(best.step)}",
            }
        )
    numbers = ("checkpoints", "newest step", *STATES, "quarantined")
    return table(rows, right=numbers, elastic=("directory",))


def summary(one: "Standing") -> dict[str, Any]:
    """Return how a watched run stands, as JSON."""
    newest = one.newest
    return {
        "run": one.run.name,
        **picked(one.run, "kind", "location", "state", "message"),
        **picked(one, "watcher", "checkpoints"),
        "newest": newest and {**picked(newest, "name", "step", "written_at"), "step_from": one.step_from},
        "suites": [
            {
                **picked(suite, "name", "objective", "counts"),
                "best": suite.best and picked(suite.best, "value", "stderr", "checkpoint", "path", "gone", "step"),
            }
            for suite in one.suites
        ],
        "quarantined": [
            {**picked(seen, "name", "step", "seen_at"), "why": seen.error} for seen in one.quarantined
        ],
    }


def show(found: "Evaluations", one: "Standing", places: "Places", *, as_json: bool) -> None:
    """Show one watched run: its checkpoints, its suites, how far they are behind, and what went wrong."""
    lags = found.lag()
    if as_json:
        events = [picked(event, "kind", "message", "created_at") for event in found.events()]
        print_json({**summary(one), "evaluation": lags, "events": events})
        return
    for line in _head(one, places):
        print(line)
    for lag in lags:
        print(f"evaluation of {lag_line(lag)}")
    print()
    console().print(_suites_table(one))
    if one.quarantined:
        print()
        console().print(_quarantined_table(one.quarantined))
    print()
    print_whys(cell for cell in found.cells(last=CELLS_OF) if cell.status.value not in ("quarantined", "skipped"))
    print_events(found)


def _head(one: "Standing", places: "Places") -> list[str]:
    run, newest = one.run, one.newest
    lines = [f"{run.name}: {run.state}{f', {run.message}' if run.message else ''}; {_where(one)}"]
    if one.watcher is not None:
        lines.append(f"watched by {one.watcher}")
    elif run.state is not StudyState.COMPLETED:
        lines.append("no process of this machine watches it; the same `phyla watch` command goes on with it")
    told = f"{counted(one.checkpoints, 'checkpoint')} seen"
    if newest is not None:
        rule = "" if one.step_from is None else f", {one.step_from}"
        told += f"; the newest is {shown(newest.name)} at step {step(newest.step)}{rule}"
    return [*lines, told, f"every eval task: {command('evaluations', run.name, places)}"]


def _suites_table(one: "Standing") -> Any:
    rows = []
    for suite in one.suites:
        best = suite.best
        rows.append(
            {
                "suite": suite.name,
                **{state: suite.counts.get(state, 0) for state in STATES},
                "objective": suite.objective,
                "best": best and value(best.value, best.stderr),
                "at step": best and step(best.step),
                "checkpoint": best and f"{shown(str(best.path))}{' (gone)' if best.gone else ''}",
            }
        )
    return table(rows, right=(*STATES, "best", "at step"))


def _quarantined_table(quarantined: "Sequence[Seen]") -> Any:
    rows = (
        {"quarantined": shown(seen.name), "step": step(seen.step), "why": said_by(seen.error)}
        for seen in quarantined[-QUARANTINED_SHOWN:]
    )
    made = table(rows, right=("step",), wrapped=("why",))
    if len(quarantined) > QUARANTINED_SHOWN:
        made.caption = f"the last {QUARANTINED_SHOWN} of {len(quarantined)}; all: --json"
    return made


def _where(one: "Standing") -> str:
    return shown(one.run.location) if one.run.source is None else f"study number {one.run.source}"
