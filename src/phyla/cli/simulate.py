"""`phyla simulate`: what a study would take, before it is run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phyla.cli import options

if TYPE_CHECKING:
    from phyla.study import Simulated, Study

SPENT = {
    "training": "training",
    "evaluating": "evaluating",
    "moving": "loading and saving",
    "waiting": "waiting: at barriers, for evaluations, or with no member left",
    "lost": "lost: work that did not complete, workers that were gone",
}
WASTED = {
    "abandoned": "abandoned by exploits",
    "preempted": "preempted or crashed",
    "failed": "failed",
}


def simulate(
    file: Annotated[Path, typer.Argument(metavar="FILE.py", help="The file that defines the study.")],
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 8,
    evaluators: Annotated[int, typer.Option(min=0, help="Further ones that only evaluate.")] = 0,
    kinds: Annotated[str, typer.Option(help="What the workers do: train, evaluate, or both.")] = "train,evaluate",
    step_seconds: Annotated[
        float | None, typer.Option(min=0, help="Mean seconds of one training step.", show_default=False)
    ] = None,
    trial_seconds: Annotated[
        float | None,
        typer.Option(
            min=0, help="Mean seconds of one trial, however many steps it has, instead.", show_default=False
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(metavar="STUDY", help="Durations as measured in a study, instead.", show_default=False),
    ] = None,
    load_seconds: Annotated[float, typer.Option(min=0, help="Mean seconds of loading a checkpoint.")] = 0,
    save_seconds: Annotated[float, typer.Option(min=0, help="Mean seconds of saving one.")] = 0,
    eval_seconds: Annotated[
        float, typer.Option(min=0, help="Mean seconds of one eval task, all its shards together.")
    ] = 0,
    spread: Annotated[
        float, typer.Option(min=0, help="Standard deviation of the logarithm of each duration.")
    ] = 0,
    preempt_per_hour: Annotated[
        float, typer.Option(min=0, help="How often each worker is told to leave, per hour.")
    ] = 0,
    crash_per_hour: Annotated[
        float, typer.Option(min=0, help="How often each worker vanishes with its machine, per hour.")
    ] = 0,
    restart_seconds: Annotated[float, typer.Option(min=0, help="Seconds until it is back.")] = 60,
    fail: Annotated[float, typer.Option(min=0, max=1, help="Probability that an attempt at a trial fails.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of what is drawn.")] = 0,
    runs: Annotated[int, typer.Option(min=1, help="How often to simulate.")] = 5,
    table: Annotated[
        bool, typer.Option("--table/--no-table", help="Also simulate 1, 2, 4, ... workers, to compare.")
    ] = True,
    study: Annotated[
        str | None, typer.Option(help="Name of the study, if the file has several.", show_default=False)
    ] = None,
    home: options.FileHome = None,
    storage: options.FileStorage = None,
    as_json: options.AsJson = False,
) -> None:
    """Predict on a virtual clock what running a study will take. Nothing is trained."""
    from phyla.cli.output import print_json
    from phyla.cli.run import chosen_study
    from phyla.study import simulate as predict

    chosen = chosen_study(file, study, home, storage)

    def at(count: int) -> "Simulated":
        return predict(
            chosen,
            count,
            evaluators=evaluators,
            kinds=[kind.strip() for kind in kinds.split(",")],
            step_s=step_seconds,
            trial_s=trial_seconds,
            like=like,
            load_s=load_seconds,
            save_s=save_seconds,
            eval_s=eval_seconds,
            spread=spread,
            preempt_per_hour=preempt_per_hour,
            crash_per_hour=crash_per_hour,
            restart_s=restart_seconds,
            fail=fail,
            seed=seed,
            runs=runs,
        )

    asked = at(workers)
    counts = _counts(workers, chosen.rules.strategy.population_size) if table else []
    others = {count: asked if count == workers else at(count) for count in counts}
    if as_json:
        listed = [_row(simulated) for simulated in others.values()]
        print_json({"study": chosen.name, **asked.to_json(), "by_workers": listed})
        return
    _print(chosen, asked, list(others.values()))


def _counts(workers: int, population: int) -> list[int]:
    """Return 1, 2, 4, ... up to the population, and what was asked for."""
    powers = {1 << exponent for exponent in range(population.bit_length()) if 1 << exponent <= population}
    return sorted({*powers, population, workers})


def _row(simulated: "Simulated") -> dict[str, Any]:
    whole = simulated.to_json()
    return {name: whole[name] for name in ("workers", "wall_s", "wall_range_s", "shares", "wasted")}


def _print(study: "Study", asked: "Simulated", others: "list[Simulated]") -> None:
    from phyla.cli.output import add_row, console, table
    from phyla.cli.words import counted, duration

    out = console()
    crew = counted(asked.workers, "worker")
    crew += f" and {counted(asked.evaluators, 'evaluator')}" if asked.evaluators else ""
    low, high = asked.wall_range_s
    times = f"{counted(len(asked.runs), 'run')}: {duration(low)} to {duration(high)}"
    lines = [f"{study.name} with {crew}: {duration(asked.wall_s)} ({times})"]
    lines += _troubles(asked)
    lines += (f"note: {note}" for note in asked.notes)
    lines.append(
        f"trials: {_range([run.completed for run in asked.runs])} completed in "
        f"{_counted([run.attempts for run in asked.runs], 'attempt')}, "
        f"{_range([run.failed for run in asked.runs])} given up"
    )
    lines.append(
        f"checkpoints at the same time: at most {max(run.checkpoints for run in asked.runs)} "
        f"(in use or best: at most {asked.bound})"
    )
    for suite in study.rules.suites:
        lags = [run.lag[suite.name] for run in asked.runs]
        lines.append(
            f"evaluation of {suite.name}: {_counted([lag.complete for lag in lags], 'group')} complete, "
            f"{_range([lag.others for lag in lags])} not; behind by {duration(max(lag.median_s for lag in lags))} "
            f"in the median, {duration(max(lag.longest_s for lag in lags))} at most"
        )
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)
    out.print()
    spent = table("time of the workers", "share", right=("share",))
    for name, share in asked.shares().items():
        add_row(spent, SPENT[name], f"{share:.1%}")
    out.print(spent)
    out.print()
    wasted = table("trained for nothing", "of all steps", right=("of all steps",))
    for name, share in asked.wasted().items():
        add_row(wasted, WASTED[name], f"{share:.1%}")
    out.print(wasted)
    if others:
        out.print()
        out.print(_comparison(others))


def _troubles(asked: "Simulated") -> list[str]:
    from phyla.cli.words import NOTHING, counted

    ended = [run for run in asked.runs if run.state != "completed"]
    if not ended:
        return []
    runs = counted(len(asked.runs), "run")
    return [f"{len(ended)} of {runs} did not complete; the first: {ended[0].message or NOTHING}"]


def _comparison(others: "list[Simulated]") -> Any:
    from phyla.cli.output import add_row, table
    from phyla.cli.words import duration

    numbers = ("workers", "wall time", "shortest", "longest", "worker-hours", "training", "waiting", "lost")
    made = table(*numbers, right=numbers)
    for one in others:
        shares = one.shares()
        hours = one.wall_s * (one.workers + one.evaluators) / 3600
        walls = (duration(seconds) for seconds in (one.wall_s, *one.wall_range_s))
        told = (f"{shares[name]:.1%}" for name in ("training", "waiting", "lost"))
        add_row(made, one.workers, *walls, f"{hours:.4g}", *told, style="" if one.completes else "red")
    return made


def _counted(values: list[int], noun: str) -> str:
    return f"{_range(values)} {noun}{'' if set(values) == {1} else 's'}"


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"
