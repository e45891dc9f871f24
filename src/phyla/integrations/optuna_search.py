"""Whole runs with hyperparameters from an Optuna sampler."""

import importlib.util
import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from phyla.errors import ConfigurationError
from phyla.records import JobState, Json, JsonObject, Member, MemberState
from phyla.space import Choice, Int, Ordinal, Parameter, Scalar, Space
from phyla.space.declaration import hold, make_plan
from phyla.space.ranges import NEAR_ONE
from phyla.strategies import Context, Decision, FitnessRule, FromSuite, History, Population, Wait
from phyla.strategies.checks import check_steps
from phyla.strategies.fitness import LAST
from phyla.strategies.starts import end_if_broken, fresh, proceed, sampled, steps_to_line
from phyla.strategies.strategy import Independent
from phyla.validation import check, suggest_arguments

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

SAMPLERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "tpe": ("TPESampler", ()),
    "gp": ("GPSampler", ("torch",)),
    "cma-es": ("CmaEsSampler", ("cmaes",)),
}
"""Optuna's class, and the packages it needs besides Optuna, by name."""

INSTALL: Final = {"torch": 'pip install "phyla[optuna]" torch'}

TRIES: Final = 10
"""Suggestions that constraints may reject before the prior is drawn from."""

_NEVER = float("-inf")
_STATE: Final = ":optimizer"
"""In the names of what CMA-ES notes as a pickle, which is neither stored nor taken from a store."""
_REJECTED: Final = {"not_used": f"constraints rejected {TRIES} suggestions"}


@final
@dataclass(frozen=True, slots=True)
class Optuna(Independent):
    """Every member trains from the first step to the last with hyperparameters that an Optuna sampler suggests.

    What Optuna calls a trial, a whole run, is a member here. When a member starts, the sampler sees the runs that
    have finished, with their final fitness, and those that are being trained. It sees runs that broke, were
    stopped, or ended infeasible, at nan or at an infinity, as a little worse than the worst of the others. Use
    more members than workers, or the sampler has no results to learn from. With `steps_per_trial`, members that
    have started finish before others start.

    Optuna's study is made in memory for each suggestion, from our results. Starting points of the space
    (`Space(initial=[...])`) are trained first; the `initial` of single parameters is not used. After 10
    suggestions that constraints reject, hyperparameters are drawn from the priors.

    Conditional parameters suit TPE. CMA-ES and the Gaussian process model those that all finished members
    have, and CMA-ES no choices; the rest is drawn at random.

    Source: Akiba et al. 2019, Optuna, arXiv 1907.10902. TPE: Watanabe 2023, arXiv 2304.11127. CMA-ES: Hansen 2016,
    arXiv 1604.00772.

    Args:
        members: number of members, each with its own hyperparameters.
        total_steps: total steps of each member.
        sampler: "tpe", "gp" (needs torch) or "cma-es".
        settings: keyword arguments of Optuna's sampler, as JSON values; without a seed, which comes from the
            study.
        steps_per_trial: steps of one trial, after which there are a checkpoint and a score; None makes one trial
            of the whole training.
        fitness: how the reports of one trial become its fitness, or the suite that gives it (`FromSuite`).

    Raises:
        ConfigurationError: a number is out of range, there is no such sampler, it does not take these settings,
            or a package that it needs is not installed.
    """

    members: int
    total_steps: int
    sampler: str = "tpe"
    settings: Mapping[str, Json] = field(default_factory=dict)
    steps_per_trial: int | None = None
    fitness: FitnessRule | FromSuite = LAST
    exclusive = True  # each suggestion has to see the previous ones

    def __post_init__(self) -> None:
        check(self, members=1)
        check_steps(self)
        if self.sampler not in SAMPLERS:
            known = ", ".join(map(repr, SAMPLERS))
            raise ConfigurationError(f"Optuna(sampler={self.sampler!r}): unknown sampler; choose {known}")
        for package in ("optuna", *SAMPLERS[self.sampler][1]):
            if importlib.util.find_spec(package) is None:
                how = INSTALL.get(package, 'pip install "phyla[optuna]"')
                raise ConfigurationError(f"Optuna(sampler={self.sampler!r}) needs the package {package}: {how}")
        if "seed" in self.settings:
            raise ConfigurationError(
                f"Optuna(settings={dict(self.settings)!r}): leave the seed out; it comes from the study's seed"
            )
        if self.settings:
            self._make_sampler(0)

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        """Ask the sampler for hyperparameters, or continue with those of the member."""
        steps = steps_to_line(member.progress, self.steps_per_trial, self.total_steps)
        if member.head is not None:
            noted = context.history.trial(member.head.trial).reason.get("optuna")
            return end_if_broken(member) or proceed(member, steps, **({} if noted is None else {"optuna": noted}))
        if any(peer.state is MemberState.READY and peer.progress for peer in population):
            # Claims go to the member that has trained least. But members that have begun finish first, or all
            # members would start before the sampler has results.
            return Wait(reason={"why": "members that have started go first"})
        if member.broken_trial is None and member.index < len(context.space.initial):
            return sampled(member, steps, context)
        seed = int(context.rng.integers(2**31))
        with _quiet():
            params, noted = self._suggest(population, context, seed)
        return fresh(member, params, steps, optuna=noted)

    def _suggest(self, population: Population, context: Context, seed: int) -> tuple[JsonObject, JsonObject]:
        """Return hyperparameters, and facts about them for the reason."""
        from optuna.trial import TrialState as State

        space = context.space
        given_up = {peer.broken_trial for peer in population if peer.given_up}
        trials, counts = _make_trials(context.history, self.total_steps, space, given_up)
        noted: dict[str, Json] = {"sampler": self.sampler, **counts}
        study = self._make_study(trials, space, seed)
        for _ in range(TRIES):
            trial, params, attributes = _ask_point(study, space)
            if space.contains(params):
                # The others are computed again, or repeat the parameters.
                useful = {
                    key: value
                    for key, value in attributes.items()
                    if _STATE not in key and "relative_params" not in key
                }
                return space.validate(params), {**noted, **({"attributes": useful} if useful else {})}
            study.tell(trial, state=State.FAIL)
        return space.sample(context.rng), {**noted, **_REJECTED}

    def _make_study(self, trials: Sequence["FrozenTrial"], space: Space, seed: int) -> "Study":
        """Return an in-memory study, as if Optuna had run all members."""
        import optuna
        from optuna.trial import TrialState as State

        study = optuna.create_study(direction="maximize", sampler=self._make_sampler(seed))
        study.add_trials(trials)
        ended = [trial for trial in study.get_trials(deepcopy=False) if trial.state is State.COMPLETE]
        if self.sampler == "cma-es" and ended:
            # CMA-ES notes its state with the trial that a generation was complete for. It is computed again, a
            # generation at a time, until nothing changes.
            newest, previous = ended[-1], ended[-1].system_attrs
            for _ in ended:
                trial, _, attributes = _ask_point(study, space)
                study.tell(trial, state=State.FAIL)
                state = {key: value for key, value in attributes.items() if _STATE in key}
                if not state:
                    break
                newest.system_attrs = {**previous, **state}
        return study

    def _make_sampler(self, seed: int) -> "BaseSampler":
        import optuna

        settings: dict[str, Any] = {"seed": seed, **self.settings}
        if self.sampler == "tpe":
            settings.setdefault("constant_liar", True)
        if self.sampler in ("cma-es", "gp"):
            settings.setdefault("warn_independent_sampling", False)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                sampler: BaseSampler = getattr(optuna.samplers, SAMPLERS[self.sampler][0])(**settings)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"Optuna(sampler={self.sampler!r}) does not take the settings {dict(self.settings)!r}: {error}"
            ) from error
        return sampler


def _make_trials(
    history: History, total_steps: int, space: Space, given_up: Collection[int | None] = ()
) -> tuple[list["FrozenTrial"], dict[str, Json]]:
    """Return runs as trials of Optuna, and their counts: more is better, None while a run is trained.

    `given_up` has the last trials of members that were given up.
    """
    ended, running = [], []
    for trial in history.ended(total_steps):
        if trial.state is JobState.COMPLETED and trial.order is None:
            # A run that waits for its evaluation counts as still being trained.
            running.append(trial)
        elif trial.state is not JobState.FAILED or trial.generation == 0 or trial.id in given_up:
            # A run that broke after its start is retried with the same hyperparameters, until it is given up.
            ended.append(trial)
    running += history.unfinished()
    orders = [_NEVER if trial.order is None else trial.order for trial in ended]
    finite = [order for order in orders if order > _NEVER] or [0.0]
    # Worse than all others, but not by so much that it dominates a Gaussian process.
    bad = min(finite) - ((max(finite) - min(finite)) / 10 or 1.0)
    frozen = []
    for trial, order in zip([*ended, *running], [*orders, *([None] * len(running))], strict=True):
        noted: Any = trial.reason.get("optuna")
        attributes = (noted.get("attributes") if isinstance(noted, Mapping) else None) or {}
        value = None if order is None else max(bad, order)
        safe = {key: item for key, item in attributes.items() if _STATE not in key}
        frozen.append(_frozen(space, trial.params, value, safe))
    unscored = sum(trial.order is None for trial in ended)
    counts: dict[str, Json] = {"finished": len(ended) - unscored, "running": len(running)}
    return frozen, counts | ({"broken or stopped": unscored} if unscored else {})


def _frozen(space: Space, params: JsonObject, value: float | None, attributes: Mapping[str, Any]) -> "FrozenTrial":
    from optuna.trial import TrialState as State
    from optuna.trial import create_trial

    active = {name: view(parameter) for name, parameter in space.parameters.items() if name in params}
    return create_trial(
        state=State.RUNNING if value is None else State.COMPLETE,
        value=value,
        params={name: seen.write(params[name]) for name, seen in active.items()},
        distributions={name: seen.distribution for name, seen in active.items()},
        system_attrs=dict(attributes),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Optuna's messages on each new study and on greenlet, an optional package."""
    import optuna

    before = optuna.logging.get_verbosity()
    gaussian = logging.getLogger("optuna._gp.batched_lbfgsb")
    level = gaussian.level
    optuna.logging.set_verbosity(max(before, optuna.logging.WARNING))
    gaussian.setLevel(logging.ERROR)
    try:
        yield
    finally:
        gaussian.setLevel(level)
        optuna.logging.set_verbosity(before)


def _ask_point(study: "Study", space: Space) -> tuple["Trial", dict[str, Scalar], Mapping[str, Any]]:
    """Ask for one point: the trial, its active parameters, and the sampler's attributes."""
    trial = study.ask()
    params: dict[str, Scalar] = {}
    for name, parameter, needed in make_plan(space.parameters):
        if hold(needed, params):
            distribution, _, read = view(parameter)
            params[name] = read(trial._suggest(name, distribution))
    return trial, params, study.get_trials(deepcopy=False)[trial.number].system_attrs


class OptunaParameter(NamedTuple):
    """A parameter for Optuna: its distribution, and the conversions of values to and from it."""

    distribution: "BaseDistribution"
    write: Callable[[Any], Any]
    read: Callable[[Any], Scalar]


def view(parameter: Parameter) -> OptunaParameter:
    """Return a parameter for Optuna.

    Listed values and steps of a Float are stored by their position, since to Optuna True and 1 are the same, and
    its steps of floats collect rounding errors. Optuna has no steps on log scales, and no scale "1-x"; there it is
    told the position on the scale, which is rounded to a step when it is read.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(parameter, Choice | Ordinal):
        values = list(parameter.values)
        choice = isinstance(parameter, Choice)
        places = CategoricalDistribution(range(len(values))) if choice else IntDistribution(0, len(values) - 1)
        return OptunaParameter(places, lambda value: values.index(parameter.check(value)), values.__getitem__)
    log, step = parameter.log, parameter.step
    if log == NEAR_ONE or (log and step not in (None, 1 if isinstance(parameter, Int) else None)):
        return OptunaParameter(FloatDistribution(0.0, 1.0), parameter.unit, parameter.from_unit)
    if isinstance(parameter, Int):
        distribution = IntDistribution(parameter.low, parameter.high, log=log, step=parameter.step)
        return OptunaParameter(distribution, int, parameter.check)
    if step is None:
        return OptunaParameter(FloatDistribution(parameter.low, parameter.high, log=log), float, parameter.check)
    last = round((parameter.high - parameter.low) / step)
    return OptunaParameter(
        IntDistribution(0, last),
        lambda value: round(parameter.unit(value) * last),
        lambda value: parameter.from_unit(value / last),
    )


suggest_arguments(Optuna)
