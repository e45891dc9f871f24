"""`phyla simulate`: what a study would take, before it is run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import BadParameter, Context, Option

from phyla.cli import options
from phyla.cli.output import print_json, print_table
from phyla.cli.run import chosen_study
from phyla.errors import UsageError
from phyla.formatting import counted, duration
from phyla.terminal import NOTHING
from phyla.terminal import show as print
from phyla.validation import suggestion

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
            metavar="N[,N...]", help="Worker processes; several are compared.", show_default="8, and 1, 2, 4, ..."
        ),
    ] = "",
    evaluators: Annotated[int, Option(min=0, help="Further ones that only evaluate.")] = 0,
    kinds: options.Kinds = options.BOTH,
    seconds: Annotated[
        list[str] | None,
        Option(
            metavar="WHAT=TIME",
            help="Mean time of one step, or of one trial instead, and of one load, save, eval (an eval task) "
            "and restart; several times, such as --seconds step=0.1 --seconds trial=10m.",
            show_default="restart=60",
        ),
    ] = None,
    spread: Annotated[float, Option(min=0, help="Standard deviation of the logarithm of each duration.")] = 0,
    per_hour: Annotated[
        list[str] | None,
        Option(metavar="WHAT=N", help="How often each worker is preempted, or crashes: preempt=N, crash=N."),
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
    given: dict[str, Any] = {
        "evaluators": evaluators,
        "kinds": options.listed(kinds),
        "spread": spread,
        "fail": fail,
        "seed": seed,
        "runs": runs,
        **_named("--seconds", seconds, "_s", ("step", "trial", "load", "save", "eval", "restart")),
        **_named("--per-hour", per_hour, "_per_hour", ("preempt", "crash")),
    }
    population = chosen.rules.strategy.population_size
    counts = [DEFAULT_WORKERS, *(1 << exponent for exponent in range(population.bit_length())), population]
    if workers:
        words = options.listed(workers)
        if not all(word.isdecimal() and int(word) > 0 for word in words):
            raise UsageError(
                f"--workers {workers}: give a number, or several as in --workers 8,1,2,4; each at least 1"
            )
        counts = [int(word) for word in words]
    # The first number is the one that was asked about; with others, all are compared.
    found = {count: predict(chosen, count, **given) for count in dict.fromkeys(counts)}
    asked = found[counts[0]]
    compared = [found[count] for count in sorted(found)] if len(counts) > 1 else []
    if as_json:
        shown = ("workers", "wall_s", "wall_range_s", "shares", "wasted")
        rows = [{name: row[name] for name in shown} for row in (one.to_json() for one in compared)]
        print_json({"study": chosen.name, **asked.to_json(), "by_workers": rows})
    else:
        _print(chosen, asked, compared)


def _named(option: str, given: list[str] | None, suffix: str, names: tuple[str, ...]) -> dict[str, float]:
    """Read values such as `step=0.1`."""
    found: dict[str, float] = {}
    for text in given or ():
        name, _, number = text.partition("=")
        if name not in names:
            raise UsageError(
                f"{option} {text}: {suggestion(name, names)}; write for example {option} {names[0]}=0.5"
            )
        try:
            value = options.seconds(number) if suffix == "_s" and number.endswith(tuple("dhms")) else float(number)
        except (ValueError, BadParameter):
            raise UsageError(f"{option} {text}: {number!r} is not a number") from None
        if not value >= 0:
            raise UsageError(f"{option} {text}: must be at least 0")
        found[f"{name}{suffix}"] = value
    return found


def _print(study: "Study", asked: "Simulated", compared: "Sequence[Simulated]") -> None:
    each = asked.runs
    runs = counted(len(each), "run")
    crew = counted(asked.workers, "worker")
    crew += f" and {counted(asked.evaluators, 'evaluator')}" if asked.evaluators else ""
    low, high = map(duration, asked.wall_range_s)
    print(f"{study.name} with {crew}: {duration(asked.wall_s)} ({runs}: {low} to {high})")
    ended = [run for run in each if run.state != "completed"]
    if ended:
        print(f"{len(ended)} of {runs} did not complete; the first: {ended[0].message or NOTHING}")
    for note in asked.notes:
        print(f"note: {note}")
    completed, failed = _range([run.completed for run in each]), _range([run.failed for run in each])
    print(
        f"trials: {completed} completed in {_range([run.attempts for run in each], 'attempt')}, {failed} given up"
    )
    print(
        f"checkpoints at the same time: at most {max(run.checkpoints for run in each)} "
        f"(in use or best: at most {asked.bound})"
    )
    for suite in study.rules.suites:
        lags = [run.lag[suite.name] for run in each]
        print(
            f"evaluation of {suite.name}: {_range([lag.complete for lag in lags], 'group')} complete, "
            f"{_range([lag.others for lag in lags])} not; behind by {duration(max(lag.median_s for lag in lags))} "
            f"in the median, {duration(max(lag.longest_s for lag in lags))} at most"
        )
    for heading, share, words, its in (
        ("time of the workers", ">share", SPENT, asked.shares()),
        ("trained for nothing", ">of all steps", WASTED, asked.wasted()),
    ):
        print_table((heading, share), ((words[name], f"{part:.1%}") for name, part in its.items()), gap=True)
    shares = ("training", "waiting", "lost")
    print_table(
        (">workers", ">wall time", ">shortest", ">longest", ">worker-hours", *(f">{name}" for name in shares)),
        (
            (
                one.workers,
                *map(duration, (one.wall_s, *one.wall_range_s)),
                f"{one.wall_s * (one.workers + one.evaluators) / 3600:.4g}",
                *(f"{one.shares()[name]:.1%}" for name in shares),
            )
            for one in compared
        ),
        ["" if one.completes else "red" for one in compared],
        gap=True,
    )


def _range(values: list[int], noun: str = "") -> str:
    low, high = min(values), max(values)
    text = str(low) if low == high else f"{low} to {high}"
    return f"{text} {noun}{'' if high == 1 == low else 's'}" if noun else text
