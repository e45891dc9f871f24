"""The contract of a strategy: its inputs and decisions."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, final

import numpy as np

from phyla.errors import ConfigurationError
from phyla.records import Json, JsonObject, Member, MemberState, Objective, Score, Scored, TrialRecord
from phyla.space import Space
from phyla.strategies.checks import check_arguments, items_of
from phyla.strategies.fitness import LAST, FitnessRule, FromSuite
from phyla.validation import Wanted, check, check_integer, check_value, setting_error

Population: TypeAlias = Sequence[Member]
"""The members that are compared, by index, each with what it published. Retired members are left out."""


class History(Protocol):
    """Trials of the study, for strategies that look further back than what members published."""

    def trial(self, trial_id: int) -> TrialRecord:
        """Return a trial, for walking its ancestry by `parent` and `jump_from`."""
        ...

    def results(self, generation: int) -> Mapping[int, float]:
        """Return the order of each member that completed a generation with a fitness: greater is better."""
        ...

    def last_completed(self, count: int) -> Sequence[TrialRecord]:
        """Return the training trials that completed last, newest first, at most `count`."""
        ...

    def ended(self, age: int | None) -> Sequence[TrialRecord]:
        """Return the training trials that broke, were stopped by a rule, or completed at this age or later.

        In the order in which they ended. The age is that of the weights, in steps trained in this study; None
        leaves completed trials out.
        """
        ...

    def scores(self) -> Sequence[Score]:
        """Return the scores of all completed training trials, by id."""
        ...

    def unfinished(self) -> Sequence[TrialRecord]:
        """Return the trials that are running or queued for a retry, by id."""
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Inputs of a decision besides the population.

    Attributes:
        space: the search space.
        objective: what is selected for.
        rng: seeded by (study seed, member, generation, replacement), never by arrival order.
        now: seconds since the epoch by the database's clock.
        history: the study's trials.
        state: the strategy's own JSON state, as it last committed it; None at first.
    """

    space: Space
    objective: Objective
    rng: np.random.Generator
    now: float
    history: History
    state: Json = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Train one trial.

    Attributes:
        weights: the completed trial whose checkpoint to start from; None to start fresh.
        params: flat hyperparameters, valid in the study's space.
        params_from: id of the trial they were taken or derived from; None for fresh ones.
        steps: how many steps to train, at least 1; a trial ends earlier if the age of its weights comes to
            `member_steps`, but not before 1 step.
        reason: why, as data; `decision` is one of start, continue, exploit, explore, replace.
        exploited: whether the member took over another's state, which restarts its ready interval.
        state: new state of the strategy; None leaves it as it is.
        seed: seed for the training code, in [0, 2**31); None draws it.
    """

    weights: Scored | None
    params: JsonObject
    params_from: int | None
    steps: int
    reason: JsonObject
    exploited: bool = False
    state: Json = None
    seed: int | None = None

    def __post_init__(self) -> None:
        check(self, steps=1, exploited=(False, True))
        _check_state(self, "weights")
        for name, least, most in (("params_from", 0, None), ("seed", 0, 2**31 - 1)):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check_integer(name, value, least, most, "Start"))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Ask again later: at each claim, as long as nothing else can be started."""

    reason: JsonObject = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Measure a checkpoint again; its fitness becomes the mean of all measurements.

    Where a suite gives the fitness, it runs again, with other seeds, and the member waits for it. Otherwise the
    training function gets the member's own checkpoint as a trial without steps.

    Attributes:
        times: how many times, at least 1.
        reason: why, as data.
        subject: the completed trial whose checkpoint it is; None for the member's own. Another's needs a suite.
        state: new state of the strategy; None leaves it as it is.
    """

    times: int
    reason: JsonObject
    subject: Scored | None = None
    state: Json = None

    def __post_init__(self) -> None:
        check(self, times=1)
        _check_state(self, "subject")


def _check_state(decision: object, name: str) -> None:
    state = getattr(decision, name)
    if state is not None and not isinstance(state, Scored):
        call = f"{type(decision).__name__}({name}=...)"
        raise ConfigurationError(
            f"{call} has a {type(state).__name__}; give a state of a member, such as its `head` or `published`"
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the member, or the whole study.

    Attributes:
        reason: why, as data; `why` in words.
        study: True ends the study; running trials finish.
        state: new state of the strategy; None leaves it as it is.
    """

    reason: JsonObject = field(default_factory=dict)
    study: bool = False
    state: Json = None


Decision: TypeAlias = Start | Wait | Measure | Stop


class Strategy(Protocol):
    """Decides what each member does next: a frozen dataclass with `population_size` and `decide`.

    It is pure and sees no database. Everything else has a default. Its entry point is in the group
    `phyla.strategies`. It may also have `check_space(space)`, see `check_space`.
    """

    if TYPE_CHECKING:

        @property
        def population_size(self) -> int:
            """Number of members."""
            ...

    @property
    def quorum(self) -> float:
        """Share of the population that must reach a member's progress before the member may decide.

        From 0 (no member waits) to 1 (all members wait, and a study is the same with any number of workers).
        """
        return 0.0

    @property
    def exclusive(self) -> bool:
        """Whether decisions of one study must be made one after the other.

        For strategies that keep state, or wait for decisions about other members; it costs concurrency on
        PostgreSQL.
        """
        return False

    @property
    def fitness(self) -> FitnessRule | FromSuite:
        """How the reports of one trial become its fitness, or which suite gives it."""
        return LAST

    @property
    def member_steps(self) -> int | None:
        """Steps that each member trains in all; by default its setting `total_steps`. None if unknown."""
        return getattr(self, "total_steps", None)

    @property
    def keeps_generations(self) -> int:
        """Decisions may start from trials of this many generations, counted back from the slowest member's."""
        return 0

    @property
    def keeps_best(self) -> bool:
        """Whether decisions may start from the best state that a member ever published."""
        return False

    @property
    def pareto(self) -> bool:
        """Whether it works without a single number that orders trials."""
        return False

    def line(self, progress: int) -> int:
        """Return how many grid lines a member has passed: multiples of `steps_per_trial`, or of 1, and the end."""
        every, end = getattr(self, "steps_per_trial", None) or 1, self.member_steps
        # The last trial may be shorter. Its score is not comparable with scores at the line before.
        at_end = end is not None and progress >= end and end % every > 0
        return progress // every + at_end

    def finished(self, member: Member) -> bool:
        """Return whether the member has nothing more to do."""
        return self.member_steps is not None and member.progress >= self.member_steps

    def check_extension(self, stored: JsonObject) -> None:
        """Reject settings that a study with these stored ones cannot take, with a ConfigurationError."""
        return

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        """Decide about a ready member that is not finished.

        The population is what it is compared with, itself included: all members when the quorum is 0, otherwise
        those that have come as far, each with the states that it had published by then, newest first.
        """
        ...


class Independent(Strategy, Protocol):
    """A strategy of `members` that learn nothing from each other's weights."""

    members: int

    @property
    def population_size(self) -> int:
        return self.members


@final
class Compared(tuple[Member, ...]):
    """Members that several decisions compare, ranked once."""

    @cached_property
    def ranking(self) -> list[Scored]:
        """What they published with a fitness, best first."""
        return _best_first(member.published for member in self)

    @cached_property
    def places(self) -> dict[int, int]:
        """The place of each member in the ranking, from 0, by its index."""
        return {state.member: place for place, state in enumerate(self.ranking)}


def ranked(population: Population) -> list[Scored]:
    """Return what members published with a fitness, best first; of equal scores the higher index first."""
    return list(_compared(population).ranking)


def place_of(member: Member, population: Population) -> int:
    """Return a member's place in `ranked`, from 0; KeyError without a score."""
    return _compared(population).places[member.index]


def _compared(population: Population) -> Compared:
    return population if isinstance(population, Compared) else Compared(population)


def ranked_best(population: Population) -> list[Scored]:
    """Return the best that each member ever published, best first; of equal scores the higher index first."""
    return _best_first(member.best for member in population)


def _best_first(states: Iterable[Scored | None]) -> list[Scored]:
    scored = [state for state in states if state is not None and state.order is not None]
    return sorted(scored, key=attrgetter("order", "member"), reverse=True)


def sort_key(scored: Scored | TrialRecord) -> float:
    """Return what scores are compared by, higher is better; minus infinity without a score."""
    return -math.inf if scored.order is None else scored.order


def since_taken(scored: Scored, history: History) -> Iterator[TrialRecord]:
    """Iterate over the earlier trials of these weights, newest first, back to where the member took them over."""
    trial = history.trial(scored.trial)
    while trial.jump_from is None and trial.parent is not None:
        trial = history.trial(trial.parent)
        yield trial


def lowest_generation(population: Population) -> int | None:
    """Return the lowest generation of the members that are not done; None if all are."""
    return min((member.generation for member in population if member.state is not MemberState.DONE), default=None)


def decision_rng(seed: int, member: int, generation: int, replacement: int) -> np.random.Generator:
    """Return the generator for one decision, independent of worker and time."""
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(member, generation, replacement))
    return np.random.Generator(np.random.PCG64(sequence))


def trial_seed(rng: np.random.Generator) -> int:
    """Draw the seed that a trial's training code gets, in [0, 2**31)."""
    return int(rng.integers(2**31))


def require_strategy(strategy: Any) -> None:
    """Reject what is not a strategy, classes in place of objects, also in its settings, and impossible numbers."""
    if isinstance(strategy, type):
        raise ConfigurationError(f"strategy={strategy.__name__}: {_suggest_instance(strategy)}")
    # `pareto` is needed only where the objective has trade-offs.
    needed = [name for name in vars(Strategy) if not name.startswith("_") and name != "pareto"]
    missing = [name for name in ("population_size", *needed) if not hasattr(strategy, name)]
    if missing:
        how = "use PBT(...) or another one; your own derives from phyla.strategies.Strategy"
        raise ConfigurationError(
            f"strategy={strategy!r} is not a strategy: it has no {' and no '.join(missing)}; {how}"
        )
    for owner, name, value in _settings(strategy):
        if isinstance(value, type) and is_dataclass(value):
            where = f"{type(owner).__name__}({name}=...)"
            raise ConfigurationError(f"{where} has {value.__name__}: {_suggest_instance(value)}")
    _check_numbers(strategy)
    if callable(strategy.fitness):
        check_arguments(strategy, "fitness", "values", "objective")
    elif not isinstance(strategy.fitness, FromSuite):
        raise setting_error(
            strategy, "fitness", "not a rule; give one, such as Last(), or a function of (values, objective)"
        )


def _check_numbers(strategy: Any) -> None:
    """Reject numbers with which no study could run, since a strategy of a user may not check them itself."""
    wanted: dict[str, Wanted] = {"population_size": 1, "quorum": "[0, 1]", "keeps_generations": 0}
    optional = ("total_steps", "member_steps", "steps_per_trial")
    wanted |= {name: 1 for name in optional if getattr(strategy, name, None) is not None}
    settable = {setting.name for setting in fields(strategy)} if is_dataclass(strategy) else set[str]()
    for name, want in wanted.items():
        value = check_value(type(strategy).__name__, name, getattr(strategy, name), want)
        if name in settable:
            object.__setattr__(strategy, name, value)  # Python's own number in place of one of NumPy


def check_space(plugin: object, space: Space) -> None:
    """Ask a strategy or rule, and those in its settings, whether they go with a search space.

    The method `check_space(space)` is optional, for settings that name parameters or hold values of them. It
    raises SpaceError or ConfigurationError, naming plug-in, place and values.
    """
    for part in (plugin, *(value for _, _, value in _settings(plugin))):
        check = getattr(part, "check_space", None)
        if check is not None:
            check(space)


def check_population(strategy: Strategy) -> None:
    """Ask the rules of a strategy whether they go with its number of members.

    The method `check_population(size)` is optional, too, and raises ConfigurationError.
    """
    for _, _, part in _settings(strategy):
        check = None if isinstance(part, type) else getattr(part, "check_population", None)
        if check is not None:
            check(strategy.population_size)


def _settings(plugin: object) -> Iterator[tuple[object, str, object]]:
    """Iterate over the settings of a plug-in and of those in its settings: whose, its name, and each item."""
    for setting in fields(plugin) if is_dataclass(plugin) and not isinstance(plugin, type) else ():
        for value in items_of(getattr(plugin, setting.name)):
            yield plugin, setting.name, value
            yield from _settings(value)


def _suggest_instance(kind: type) -> str:
    needed = fields(kind) if is_dataclass(kind) else ()
    required = [field.name for field in needed if field.default is MISSING and field.default_factory is MISSING]
    example = ", ".join(f"{name}=..." for name in required)
    return f"this is the class, not an object of it; make one, as in {kind.__name__}({example})"
