"""`phyla simulate`: what a study would take, before it is run."""

from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Option

from phyla.arguments import suggestion
from phyla.cli import options
from phyla.cli.output import NOTHING, console, print_json, table
from phyla.cli.output import show as print
from phyla.cli.run import chosen_study
from phyla.cli.words import counted, duration
from phyla.errors import UsageError

if TYPE_CHECKING:
    from phyla.study import Simulated, Study

DEFAULT_WORKERS = 8
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
    ctx: Context,
    file: options.StudyFile,
    workers: Annotated[
        str,
        Option(
            metavar="N[,N...]",
            help="Worker processes; the further numbers are compared with the first.",
            show_default="8, compared with 1, 2, 4, ...",
        ),
    ] = "",
    evaluators: Annotated[int, Option(min=0, help="Further ones that only evaluate.")] = 0,
    kinds: options.Kinds = options.BOTH,
    seconds: Annotated[
        list[str] | None,
        Option(
            metavar="WHAT=S",
            help="Mean seconds of one step, or of one trial instead, and of one load, save, eval (an eval task) "
            "and restart; several times, such as --seconds step=0.1 --seconds load=5.",
            show_default="restart=60",
        ),
    ] = None,
    like: Annotated[
        str | None, Option(metavar="STUDY", help="Durations as measured in a study, instead.", show_default=False)
    ] = None,
    spread: Annotated[float, Option(min=0, help="Standard deviation of the logarithm of each duration.")] = 0,
    per_hour: Annotated[
        list[str] | None,
        Option(
            metavar="WHAT=N",
            help="How often each worker is preempted, or crashes with its machine; several times.",
            show_default="preempt=0, crash=0",
        ),
    ] = None,
    fail: Annotated[float, Option(min=0, max=1, help="Probability that an attempt at a trial fails.")] = 0,
    seed: Annotated[int, Option(min=0, help="Of what is drawn.")] = 0,
    runs: Annotated[int, Option(min=1, help="How often to simulate.")] = 5,
    study: options.Chosen = None,
    as_json: options.AsJson = False,
) -> None:
    """Predict on a virtual clock what running a study will take. Nothing is trained."""
    from phyla.study import simulate as predict

    chosen = chosen_study(ctx, file, study)
    spent = _named("--seconds", seconds, ("step", "trial", "load", "save", "eval", "restart"))
    rates = _named("--per-hour", per_hour, ("preempt", "crash"))
    named: dict[str, Any] = {f"{what}_s": value for what, value in spent.items()}
    named |= {f"{what}_per_hour": value for what, value in rates.items()}
    counts = _counts(workers, chosen.rules.strategy.population_size)

    def at(count: int) -> "Simulated":
        return predict(
            chosen,
            count,
            evaluators=evaluators,
            kinds=options.listed(kinds),
            like=like,
            spread=spread,
            fail=fail,
            seed=seed,
            runs=runs,
            **named,
        )

    asked = at(counts[0])
    others = [asked if count == counts[0] else at(count) for count in sorted({*counts})]
    if len(others) == 1:
        others = []
    if as_json:
        shown = ("workers", "wall_s", "wall_range_s", "shares", "wasted")
        rows = [{name: row[name] for name in shown} for row in (one.to_json() for one in others)]
        print_json({"study": chosen.name, **asked.to_json(), "by_workers": rows})
    else:
        _print(chosen, asked, others)


def _counts(workers: str, population: int) -> list[int]:
    """Return how many workers to simulate, the most important number first."""
    if not workers:
        powers = [1 << exponent for exponent in range(population.bit_length()) if 1 << exponent <= population]
        return [DEFAULT_WORKERS, *powers, population]
    words = options.listed(workers)
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UsageError(
            f"--workers {workers}: give a number, or several as in --workers 8,1,2,4; each at least 1"
        )
    return [int(word) for word in words]


def _named(option: str, given: list[str] | None, names: tuple[str, ...]) -> dict[str, float]:
    """Read values such as `step=0.1`."""
    found: dict[str, float] = {}
    for text in given or ():
        name, _, number = text.partition("=")
        if name not in names:
            raise UsageError(
                f"{option} {text}: {suggestion(name, names)}; write for example {option} {names[0]}=0.5"
            )
        try:
            found[name] = float(number)
        except ValueError:
            raise UsageError(f"{option} {text}: {number!r} is not a number") from None
        if not found[name] >= 0:
            raise UsageError(f"{option} {text}: must be at least 0")
    return found


def _print(study: "Study", asked: "Simulated", others: "list[Simulated]") -> None:
    crew = counted(asked.workers, "worker")
    crew += f" and {counted(asked.evaluators, 'evaluator')}" if asked.evaluators else ""
    low, high = asked.wall_range_s
    times = f"{counted(len(asked.runs), 'run')}: {duration(low)} to {duration(high)}"
    lines = [f"{study.name} with {crew}: {duration(asked.wall_s)} ({times})"]
    ended = [run for run in asked.runs if run.state != "completed"]
    if ended:
        runs = counted(len(asked.runs), "run")
        lines.append(f"{len(ended)} of {runs} did not complete; the first: {ended[0].message or NOTHING}")
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
    print("\n".join(lines))
    _print_shares("time of the workers", "share", SPENT, asked.shares())
    _print_shares("trained for nothing", "of all steps", WASTED, asked.wasted())
    if others:
        print()
        console().print(_comparison(others))


def _print_shares(what: str, of: str, names: dict[str, str], shares: dict[str, float]) -> None:
    made = table(({what: names[name], of: f"{share:.1%}"} for name, share in shares.items()), right=(of,))
    print()
    console().print(made)


def _comparison(others: "list[Simulated]") -> Any:
    rows: list[dict[str, object]] = []
    for one in others:
        hours = one.wall_s * (one.workers + one.evaluators) / 3600
        walls = zip(("wall time", "shortest", "longest"), (one.wall_s, *one.wall_range_s), strict=True)
        rows.append(
            {
                "workers": one.workers,
                **{name: duration(seconds) for name, seconds in walls},
                "worker-hours": f"{hours:.4g}",
                **{name: f"{one.shares()[name]:.1%}" for name in ("training", "waiting", "lost")},
            }
        )
    return table(rows, right=list(rows[0]), styles=["" if one.completes else "red" for one in others])


def _counted(values: list[int], noun: str) -> str:
    return f"{_range(values)} {noun}{'' if set(values) == {1} else 's'}"


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"
