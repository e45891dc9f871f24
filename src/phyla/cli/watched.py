"""How watched runs stand, for `phyla status`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phyla.records import Seen
    from phyla.study import Evaluations, Places, Standing, SuiteStanding

STATES = ("complete", "queued", "partial", "skipped", "gone")
QUARANTINED_SHOWN = 10
CELLS_OF = 20
"""Newest checkpoints whose failures are told."""


def runs_table(runs: "Sequence[Standing]") -> Any:
    """Return a table of watched runs."""
    from phyla.cli.output import add_row, table
    from phyla.cli.words import NOTHING

    counted = ("checkpoints", "newest step", *STATES[:-1], "quarantined")
    made = table("watched run", "state", "directory", *counted, "best", right=counted, elastic=("directory",))
    for one in runs:
        counts = one.counts
        best = next((suite.best for suite in one.suites if suite.best is not None), None)
        add_row(
            made,
            one.run.name,
            one.state,
            _where(one),
            one.checkpoints,
            NOTHING if one.newest is None else _step(one.newest.step),
            *(counts[state] for state in STATES[:-1]),
            len(one.quarantined),
            NOTHING if best is None else f"{best.suite}/{best.metric} {best.value:.4g} at step {_step(best.step)}",
        )
    return made


def summary(one: "Standing") -> dict[str, Any]:
    """Return how a watched run stands, as JSON."""
    run, newest = one.run, one.newest
    return {
        "run": run.name,
        "kind": run.kind,
        "location": run.location,
        "state": run.state,
        "message": run.message,
        "watcher": one.watcher,
        "checkpoints": one.checkpoints,
        "newest": None
        if newest is None
        else {
            "name": newest.name,
            "step": newest.step,
            "step_from": one.step_from,
            "written_at": newest.written_at,
        },
        "suites": [_suite(suite) for suite in one.suites],
        "quarantined": [
            {"name": seen.name, "step": seen.step, "why": seen.error, "seen_at": seen.seen_at}
            for seen in one.quarantined
        ],
    }


def _suite(suite: "SuiteStanding") -> dict[str, Any]:
    best = suite.best
    return {
        "name": suite.name,
        "objective": suite.objective,
        "counts": suite.counts,
        "best": None
        if best is None
        else {
            "value": best.value,
            "stderr": best.stderr,
            "checkpoint": best.checkpoint,
            "path": str(best.path),
            "gone": best.gone,
            "step": best.step,
        },
    }


def show(found: "Evaluations", one: "Standing", places: "Places", *, as_json: bool) -> None:
    """Show one watched run: its checkpoints, its suites, how far they are behind, and what went wrong."""
    from phyla.cli.evaluations import events, lag_line, lag_row, whys
    from phyla.cli.output import console, print_json

    lags = found.lag()
    if as_json:
        print_json(
            {
                **summary(one),
                "evaluation": [lag_row(lag) for lag in lags],
                "events": [
                    {"kind": event.kind, "message": event.message, "created_at": event.created_at}
                    for event in found.events()
                ],
            }
        )
        return
    out = console()
    for line in _head(one, places):
        out.print(line, markup=False, soft_wrap=True)
    for lag in lags:
        out.print(f"evaluation of {lag_line(lag)}", markup=False, soft_wrap=True)
    out.print()
    out.print(_suites_table(one))
    if one.quarantined:
        out.print()
        out.print(_quarantined_table(one.quarantined))
    out.print()
    whys(out, [cell for cell in found.cells(last=CELLS_OF) if cell.status.value not in ("quarantined", "skipped")])
    events(out, found)


def _head(one: "Standing", places: "Places") -> list[str]:
    from phyla.cli.words import command, counted
    from phyla.records import RunState, shown

    run, newest = one.run, one.newest
    lines = [f"{run.name}: {run.state}{f', {run.message}' if run.message else ''}; {_where(one)}"]
    if one.watcher is not None:
        lines.append(f"watched by {one.watcher}")
    elif run.state is not RunState.ENDED:
        lines.append("no process of this machine watches it; the same `phyla watch` command goes on with it")
    told = f"{counted(one.checkpoints, 'checkpoint')} seen"
    if newest is not None:
        rule = "" if one.step_from is None else f", {one.step_from}"
        told += f"; the newest is {shown(newest.name)} at step {_step(newest.step)}{rule}"
    lines.append(told)
    lines.append(f"every eval task: {command('evaluations', run.name, places)}")
    return lines


def _suites_table(one: "Standing") -> Any:
    from phyla.cli.output import add_row, table
    from phyla.cli.words import NOTHING, value
    from phyla.records import shown

    made = table(
        "suite", *STATES, "objective", "best", "at step", "checkpoint", right=(*STATES, "best", "at step")
    )
    for suite in one.suites:
        best = suite.best
        add_row(
            made,
            suite.name,
            *(suite.counts.get(state, 0) for state in STATES),
            suite.objective or NOTHING,
            NOTHING if best is None else value(best.value, best.stderr),
            NOTHING if best is None else _step(best.step),
            NOTHING if best is None else f"{shown(str(best.path))}{' (gone)' if best.gone else ''}",
        )
    return made


def _quarantined_table(quarantined: "Sequence[Seen]") -> Any:
    from phyla.cli.output import add_row, table
    from phyla.cli.words import first_line
    from phyla.records import shown

    made = table("quarantined", "step", "why", right=("step",))
    made.columns[-1].no_wrap = False
    for seen in quarantined[-QUARANTINED_SHOWN:]:
        add_row(made, shown(seen.name), _step(seen.step), first_line(seen.error))
    if len(quarantined) > QUARANTINED_SHOWN:
        made.caption = f"the last {QUARANTINED_SHOWN} of {len(quarantined)}; all: --json"
    return made


def _where(one: "Standing") -> str:
    from phyla.records import shown

    return shown(one.run.location) if one.run.study is None else f"study number {one.run.study}"


def _step(step: int) -> str:
    return str(step) if step >= 0 else "unknown"
