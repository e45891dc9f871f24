"""Whole runs proposed by a sampler of Optuna."""

import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, final

from phyla.arguments import suggest_arguments
from phyla.errors import ConfigurationError
from phyla.integrations.optuna_space import anywhere, distribution, suggested, writer
from phyla.records import Json, JsonObject, Member, MemberState, TrialRecord, TrialState
from phyla.space import Scalar, Space
from phyla.space.conditions import conditions, hold, ordered
from phyla.strategies import Context, Decision, FitnessRule, FromSuite, History, Last, Population, Strategy, Wait
from phyla.strategies.checks import check_steps
from phyla.strategies.starts import fresh, given_up, proceed

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

SAMPLERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "tpe": ("TPESampler", ()),
    "gp": ("GPSampler", ("torch",)),
    "cma-es": ("CmaEsSampler", ("cmaes",)),
    "qmc": ("QMCSampler", ()),
    "random": ("RandomSampler", ()),
}
"""Optuna's class, and the packages it needs besides Optuna, by name."""

INSTALL: Final = {"torch": 'pip install "phyla[optuna]" torch'}

TRIES: Final = 10
"""Suggestions that constraints may reject before the prior is drawn from."""

_LAST = Last()
_NEVER = float("-inf")
_REJECTED: Final = {"not_used": f"constraints rejected {TRIES} suggestions"}


@final
@dataclass(frozen=True, slots=True)
class Optuna(Strategy):
    """Every member trains from the first step to the last with hyperparameters that an Optuna sampler suggests.

    What Optuna calls a trial, a whole run, is a member here. When a member starts, the sampler is shown the
    runs that have finished, with their final fitness, and those that are being trained, so that it does not
    suggest the same again. Runs that broke, that a stopping rule ended, or whose final score is nan or infinite
    are shown as a little worse than the worst of the others. There should be more members than workers, or there
    is nothing to learn from.

    With `steps_per_trial`, a member that has begun goes on before another one starts.

    Optuna keeps nothing: its study is made anew, in memory, for each suggestion. What a sampler needs to remember
    of a trial is kept in our trial's reason, and the state of CMA-ES is computed again from all runs that ended,
    in the order in which they did. Starting points of the space (`Space(initial=[...])`) are trained first,
    without the sampler; the `initial` of single parameters is not used. What constraints reject is suggested
    again, 10 times in all, and then drawn from the priors.

    Conditional parameters suit TPE. CMA-ES and the Gaussian process model those that all finished members
    have, and CMA-ES no choices; the rest is drawn at random. A conditional parameter has its place in the
    quasi-random sequence also where it is inactive.

    Source: Akiba et al. 2019, Optuna, arXiv 1907.10902. TPE: Watanabe 2023, arXiv 2304.11127. CMA-ES: Hansen 2016,
    arXiv 1604.00772.

    Args:
        members: number of members, each with hyperparameters of its own.
        total_steps: steps each member spends in all.
        sampler: "tpe", "gp" (needs torch), "cma-es", "qmc" or "random".
        settings: keyword arguments of Optuna's sampler, as JSON values; no seed, which comes from the study's.
        steps_per_trial: steps of one trial, after which there are a checkpoint and a score; None makes one
            trial of the whole training.
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
    fitness: FitnessRule | FromSuite = _LAST

    def __post_init__(self) -> None:
        check_integers(self, members=1)
        check_steps(self)
        if self.sampler not in SAMPLERS:
            known = ", ".join(map(repr, SAMPLERS))
            raise ConfigurationError(
                f"Optuna(sampler={self.sampler!r}): there is none of that name; choose {known}"
            )
        for package in ("optuna", *SAMPLERS[self.sampler][1]):
            if importlib.util.find_spec(package) is None:
                how = INSTALL.get(package, 'pip install "phyla[optuna]"')
                raise ConfigurationError(f"Optuna(sampler={self.sampler!r}) needs the package {package}: {how}")
        if "seed" in self.settings:
            raise ConfigurationError(
                f"Optuna(settings={dict(self.settings)!r}): leave the seed out; it comes from the study's seed"
            )
        if self.settings:
            self._made(0)

    @property
    def population_size(self) -> int:
        """Number of members."""
        return self.members

    @property
    def exclusive(self) -> bool:
        """Each suggestion has to know of the ones before."""
        return True

    @property
    def member_steps(self) -> int:
        """Steps each member spends in all."""
        return self.total_steps

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        """Ask the sampler for hyperparameters, or go on with them.

        Raises:
            SpaceError: no hyperparameters that the constraints allow were found.
        """
        steps = steps_left(member, self.steps_per_trial, self.total_steps)
        if member.head is not None:
            stop = given_up(member)
            if stop is not None:
                return stop
            start = proceed(member, steps)
            noted = context.history.trial(member.head.trial).reason.get("optuna")
            return start if noted is None else replace(start, reason={**start.reason, "optuna": noted})
        if any(one.state is MemberState.READY and one.progress for one in population):
            # Claims go to whoever has trained least. But what was begun is to be finished first, or all members
            # would start before there is anything to learn from.
            return Wait(reason={"why": "those that have begun go first"})
        first = member.broken_trial is None
        decision: JsonObject = {"decision": "start" if first else "replace"}
        if first and member.index < len(context.space.initial):
            return fresh(member, context.space.sample(context.rng, member=member.index), steps, decision)
        seed = int(context.rng.integers(2**31))
        with _quiet():
            if self.sampler == "qmc":
                return self._of_sequence(member, context, seed, steps, decision)
            params, about = self._suggest(context, seed)
        return fresh(member, params, steps, {**decision, "optuna": about})

    def _suggest(self, context: Context, seed: int) -> tuple[JsonObject, JsonObject]:
        """Return hyperparameters, and what the reason notes about them."""
        space = context.space
        about: dict[str, Any] = {"sampler": self.sampler}
        if self.sampler == "random":
            study = self._new([], space, seed)
        else:
            ended, running = self._history(context.history)
            study = self._informed(ended, running, space, seed)
            unscored = sum(not one.scored for one in ended)
            about |= {"finished": len(ended) - unscored, "running": len(running)}
            about |= {"broken or stopped": unscored} if unscored else {}
        for _ in range(TRIES):
            trial, params, attributes = _asked(study, space)
            if space.contains(params):
                kept = {key: value for key, value in attributes.items() if not _derived(key)}
                return space.validate(params), {**about, **({"attributes": kept} if kept else {})}
            study.tell(trial, state=_states().FAIL)
        return space.sample(context.rng), {**about, **_REJECTED}

    def _of_sequence(
        self, member: Member, context: Context, seed: int, steps: int, decision: JsonObject
    ) -> Decision:
        """Start at the next place of one sequence for all: the first ones belong to the members."""
        state = context.state if isinstance(context.state, Mapping) else {"seed": seed}
        seed, extra = int(str(state["seed"])), int(str(state.get("extra", 0)))
        noted: JsonObject = {"sampler": self.sampler}
        for attempt in range(TRIES):
            place = member.index
            if attempt or member.broken_trial is not None:
                place, extra = self.members + extra, extra + 1
            _, params, _ = _asked(self._sequence(context.space, seed, place), context.space)
            if context.space.contains(params):
                chosen = context.space.validate(params)
                break
        else:
            chosen, noted = context.space.sample(context.rng), {**noted, **_REJECTED}
        start = fresh(member, chosen, steps, {**decision, "optuna": noted})
        return replace(start, state={"seed": seed, "extra": extra})

    def _informed(
        self, ended: Sequence["_Shown"], running: Sequence["_Shown"], space: Space, seed: int
    ) -> "Study":
        """Return a study as it would be had Optuna run all members."""
        if self.sampler != "cma-es" or not ended:
            return self._new([*ended, *running], space, seed)
        # CMA-ES notes its state with the trial that a generation was complete for. Such a state is a pickle, which
        # we do not keep; so it is computed again, a generation at a time, until nothing changes.
        study, newest = self._new([*ended, *running], space, seed), len(ended) - 1
        state: dict[str, Any] = {}
        for _ in ended:
            trial, _, attributes = _asked(study, space)
            study.tell(trial, state=_states().FAIL)
            found = {key: value for key, value in attributes.items() if _STATE in key}
            if not found:
                break
            state = found
            kept = {**ended[newest].attributes, **state}
            study._storage.get_trial(newest).system_attrs = kept
        last = replace(ended[newest], attributes={**ended[newest].attributes, **state})
        return self._new([*ended[:newest], last, *running], space, seed)

    def _sequence(self, space: Space, seed: int, place: int) -> "Study":
        """Return a study that is at a place of the quasi-random sequence over all parameters."""
        # The first trial says what the sequence ranges over.
        study = self._new([_Shown(anywhere(space), 0.0, {})], space, seed)
        if place > 0:
            _asked(study, space)
            storage, key = study._storage, study._study_id
            for name in storage.get_study_system_attrs(key):
                storage.set_study_system_attr(key, name, place - 1)
        return study

    def _history(self, history: History) -> tuple[list["_Shown"], list["_Shown"]]:
        """Return the runs that ended, in that order, and those that are being trained."""
        ended, underway = [], []
        for trial in history.ended(self.total_steps):
            if trial.state is TrialState.COMPLETED and trial.order is None:
                # What waits for its evaluation is no different from what is still trained.
                underway.append(trial)
            elif trial.state is not TrialState.FAILED or trial.generation == 0:
                # A run that has begun, and broke, is tried again with the same hyperparameters.
                ended.append(trial)
        underway += history.unfinished()
        orders = [_NEVER if trial.order is None else trial.order for trial in ended]
        finite = [order for order in orders if order > _NEVER] or [0.0]
        # Worse than all others, but not so much that a Gaussian process sees nothing else.
        bad = min(finite) - ((max(finite) - min(finite)) / 10 or 1.0)
        return (
            [
                _Shown(trial.params, max(bad, order), _attributes(trial), scored=trial.order is not None)
                for trial, order in zip(ended, orders, strict=True)
            ],
            [_Shown(trial.params, None, _attributes(trial)) for trial in underway],
        )

    def _new(self, shown: Sequence["_Shown"], space: Space, seed: int) -> "Study":
        import optuna

        from phyla.integrations.optuna_storage import Shown

        told: dict[str, BaseDistribution] = {
            name: distribution(parameter) for name, parameter in space.parameters.items()
        }
        write = {name: writer(parameter) for name, parameter in space.parameters.items()}
        storage = Shown([one.frozen(told, write) for one in shown])
        return optuna.create_study(direction="maximize", sampler=self._made(seed), storage=storage)

    def _made(self, seed: int) -> "BaseSampler":
        import optuna

        settings: dict[str, Any] = {"seed": seed, **self.settings}
        if self.sampler == "tpe":
            settings.setdefault("constant_liar", True)
        if self.sampler in ("cma-es", "gp", "qmc"):
            settings.setdefault("warn_independent_sampling", False)
        try:
            with warnings.catch_warnings():
                # Chosen by name; that Optuna may still change it is for the one who raises the version to see.
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                made: BaseSampler = getattr(optuna.samplers, SAMPLERS[self.sampler][0])(**settings)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"Optuna(sampler={self.sampler!r}) does not take the settings {dict(self.settings)!r}: {error}"
            ) from error
        return made


@final
@dataclass(frozen=True, slots=True)
class _Shown:
    """A run as Optuna is shown it; the value is more for better, None while it is being trained."""

    params: JsonObject
    value: float | None
    attributes: Mapping[str, Any]
    scored: bool = True

    def frozen(
        self, told: "dict[str, BaseDistribution]", write: Mapping[str, Callable[[Any], Any]]
    ) -> "FrozenTrial":
        from optuna.trial import FrozenTrial
        from optuna.trial import TrialState as States

        params = {name: way(self.params[name]) for name, way in write.items() if name in self.params}
        return FrozenTrial(
            number=0,
            state=States.RUNNING if self.value is None else States.COMPLETE,
            value=self.value,
            datetime_start=None,
            datetime_complete=None,
            params=params,
            # Most have all parameters; then they share what says so.
            distributions=told if len(params) == len(told) else {name: told[name] for name in params},
            user_attrs={},
            system_attrs=dict(self.attributes),
            intermediate_values={},
            trial_id=0,
        )


_STATE: Final = ":optimizer:"


def _derived(attribute: str) -> bool:
    """Return whether an attribute need not be kept, since it is computed again or repeats the parameters."""
    return _STATE in attribute or "relative_params" in attribute


def _attributes(trial: TrialRecord) -> Mapping[str, Any]:
    noted = trial.reason.get("optuna")
    attributes = noted.get("attributes") if isinstance(noted, Mapping) else None
    return attributes if isinstance(attributes, Mapping) else {}


def _states() -> Any:
    import optuna

    return optuna.trial.TrialState


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna from telling of every study that is made, and of greenlet, a package that it does without."""
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


def _asked(study: "Study", space: Space) -> tuple["Trial", dict[str, Scalar], Mapping[str, Any]]:
    """Ask for one point: the trial, its active parameters, and what the sampler noted with it."""
    trial = study.ask()
    params: dict[str, Scalar] = {}
    for name in ordered(space.parameters):
        parameter = space.parameters[name]
        if hold(conditions(parameter), params):
            params[name] = suggested(trial, name, parameter)
    return trial, params, study.get_trials(deepcopy=False)[trial.number].system_attrs


suggest_arguments(Optuna)
