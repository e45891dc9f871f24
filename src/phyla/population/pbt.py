"""Population based training (Jaderberg et al. 2017, arXiv 1711.09846, algorithm 1)."""

from dataclasses import dataclass
from typing import Literal, final

from phyla.errors import ConfigurationError
from phyla.population.checks import check_boolean, check_integer, check_rule, check_seconds, check_steps
from phyla.population.copying import Copy, check_copy, taken_over
from phyla.population.decision import Decision, Measure, Start
from phyla.population.equal_progress import EqualProgress
from phyla.population.exploit import Exploit, Exploited, Truncation
from phyla.population.explore import Explore, Perturb
from phyla.population.fitness import FitnessRule, Last
from phyla.population.from_suite import FromSuite
from phyla.population.keeps import NOTHING, Keeps
from phyla.population.protocol import Population
from phyla.population.starts import replaces
from phyla.population.strategy import Context
from phyla.records import JsonObject, Member, Scored, replace

Compare = Literal["latest", "equal progress"]

DRAWS = 5
"""How often an exploit rule is asked whose choice may not donate."""

_TRUNCATION, _PERTURB, _LAST = Truncation(), Perturb(), Last()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PBT:
    """Train a population; from time to time bad members take over good ones and explore from there.

    Args:
        population_size: number of members; may be larger than the number of workers.
        steps_per_trial: training steps between two decisions about a member.
        total_steps: steps each member spends in all; the last trial may be shorter.
        exploit: who abandons its state for whose; None never does, and then hyperparameters are explored at
            every ready interval.
        explore: how hyperparameters change after an exploit; None copies them unchanged.
        fitness: how the reports of one trial become its fitness, or the suite that gives it (`FromSuite`).
        ready_interval: steps a member must spend after taking over a state before it may do so again; the
            default is `steps_per_trial`.
        ready_s: the same in seconds, in place of `ready_interval`. What counts is how long the member's completed
            trials took since (`Member.spent_s`): each from the claim of the attempt that completed it to its
            completion, by the store's clock. That includes loading, saving and evaluation within the trial.
            Time in which a member waits for a worker, failed and preempted attempts, and a study that is stopped
            do not count. So the decision follows from what is stored, whenever it is made; but how long trials
            take differs from run to run, and so whole studies do, synchronous ones, too.
        burn_in: no exploit before a member has spent this many steps.
        synchronous: members wait for each other after every trial; whole studies are then reproducible with
            any number of workers, at the price of idle ones.
        copy: what exploit takes over: weights and hyperparameters, or only one of them.
        min_scores: how many scores a line of training must have to donate: a member that took over weights must
            have scored so often since, and one that started fresh, so often at all. So one lucky score does not
            spread. A choice that may not donate is drawn again, 5 times at most.
        compare: "latest" compares the last scores of members, as in the paper. That is fair while members are
            equally fast. If they are not, the fast ones have trained longer, score higher for that reason
            alone, and become everybody's donors. With "equal progress" a score counts by where it stands among
            all scores of equally old weights, and only who stands better and scores higher may donate. It
            tells little as long as few have got as far, and decisions are made one after the other; so it is
            not the default. In synchronous studies it changes little.

    Raises:
        ConfigurationError: a number is out of range, or nobody would ever exploit.
    """

    population_size: int
    steps_per_trial: int
    total_steps: int
    exploit: Exploit | None = _TRUNCATION
    explore: Explore | None = _PERTURB
    fitness: FitnessRule | FromSuite = _LAST
    ready_interval: int | None = None
    ready_s: float | None = None
    burn_in: int = 0
    synchronous: bool = False
    copy: Copy = "both"
    min_scores: int = 1
    compare: Compare = "latest"

    def __post_init__(self) -> None:
        for name, least in (
            ("population_size", 1),
            ("steps_per_trial", 1),
            ("total_steps", 1),
            ("burn_in", 0),
            ("min_scores", 1),
        ):
            check_integer("PBT", name, getattr(self, name), least)
        check_steps("PBT", self.steps_per_trial, self.total_steps)
        if self.ready_interval is not None:
            check_integer("PBT", "ready_interval", self.ready_interval, 1)
        for name in ("ready_interval", "burn_in"):
            steps = getattr(self, name)
            if steps is not None and steps >= self.total_steps:
                raise ConfigurationError(
                    f"PBT({name}={steps}, total_steps={self.total_steps}): every member ends before that, so "
                    f"nobody would ever exploit or explore; lower {name} or raise total_steps, or use RandomSearch"
                )
        if self.ready_s is not None:
            check_seconds("PBT", "ready_s", self.ready_s)
            if self.ready_interval is not None:
                raise ConfigurationError(
                    f"PBT(ready_interval={self.ready_interval!r}, ready_s={self.ready_s!r}): the interval is "
                    "in steps or in seconds, so leave one of them out"
                )
        check_boolean("PBT", "synchronous", self.synchronous)
        check_copy("PBT", self.copy)
        if self.exploit is not None:
            check_rule("PBT", "exploit", self.exploit, "choose")
        if self.explore is not None:
            check_rule("PBT", "explore", self.explore, "propose")
        if self.compare not in ("latest", "equal progress"):
            raise ConfigurationError(f"PBT(compare={self.compare!r}): choose 'latest' or 'equal progress'")
        if self.compare == "equal progress" and self.exploit is not None and self.exploit.pareto:
            raise ConfigurationError(
                f"PBT(compare='equal progress', exploit={type(self.exploit).__name__}(...)): where a score stands "
                "among those of equally old weights is one number, and a front has none; use compare='latest'"
            )

    @property
    def exclusive(self) -> bool:
        """Barriers, waiting for evaluations, and ranks at equal progress need decisions one after the other.

        Such a rank is counted by several queries, between which nobody may publish a score.
        """
        return self.synchronous or isinstance(self.fitness, FromSuite) or self.compare == "equal progress"

    @property
    def member_steps(self) -> int:
        """Steps each member spends in all."""
        return self.total_steps

    @property
    def keeps(self) -> Keeps:
        """What the exploit rule may choose."""
        return NOTHING if self.exploit is None else self.exploit.keeps

    @property
    def pareto(self) -> bool:
        """Whether the exploit rule can compare without a single number."""
        return self.exploit is None or self.exploit.pareto

    def finished(self, member: Member) -> bool:
        """Return whether the member has spent its steps."""
        return member.spent_steps >= self.total_steps

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        """Start fresh, continue, or take over a better member's state and explore."""
        steps = min(self.steps_per_trial, self.total_steps - member.spent_steps)
        if member.head is None:
            first = member.broken_trial is None
            params = context.space.sample(context.rng, member=member.index if first else None)
            return Start(
                weights=None,
                params=params,
                params_from=None,
                steps=steps,
                reason={"decision": "start" if first else "replace", **replaces(member)},
            )
        head = member.head
        compared: JsonObject = {"why": "not ready"}
        if self._ready(member):
            if self.exploit is None:
                return self._explored(member, population, None, steps, context, {"rule": "none"})
            choice = self._chosen(self.exploit, member, population, context)
            if choice.donor is not None and choice.donor.trial != head.trial:
                wanted = self.fitness.remeasure + 1 if isinstance(self.fitness, FromSuite) else 1
                if choice.donor.measurements < wanted:
                    return Measure(
                        times=wanted - choice.donor.measurements,
                        subject=choice.donor,
                        reason={"decision": "measure", "compared": choice.reason},
                    )
                return self._explored(member, population, choice.donor, steps, context, choice.reason)
            compared = choice.reason
        if member.broken_trial is not None:
            return self._explored(
                member, population, None, steps, context, {"why": "the same work broke or was stopped before"}
            )
        return Start(
            weights=head,
            params=head.params,
            params_from=head.trial,
            steps=steps,
            reason={"decision": "continue", "compared": compared},
        )

    def _chosen(self, exploit: Exploit, member: Member, population: Population, context: Context) -> Exploited:
        """Ask the exploit rule, again if who it chose may not donate."""
        fair = EqualProgress(population, self.steps_per_trial) if self.compare == "equal progress" else None
        asked = fair.shown(member) if fair else member
        choice = Exploited(donor=None, reason={})
        for _ in range(DRAWS):
            choice = exploit.choose(asked, fair or population, context)
            reason: JsonObject = {**choice.reason, "compare": self.compare} if fair else choice.reason
            if choice.donor is None or (member.head is not None and choice.donor.trial == member.head.trial):
                return replace(choice, reason=reason) if fair else choice
            donor = fair.real(choice.donor) if fair else choice.donor
            why = self._refused(member, donor, population)
            if why is None:
                return Exploited(donor=donor, reason=reason)
            choice = Exploited(donor=None, reason={**reason, "why": why})
        return choice

    def _refused(self, member: Member, donor: Scored, population: Population) -> str | None:
        """Return why somebody whom the rule chose may not donate, or None."""
        own = member.published.order if member.published else None
        if self.compare == "equal progress" and own is not None and (donor.order is None or donor.order <= own):
            return "who stands better at equal progress does not score higher"
        scores = _scores_of_line(donor, population, self.min_scores)
        if scores < self.min_scores:
            return f"the donor has {scores} of the {self.min_scores} scores it needs"
        return None

    def _ready(self, member: Member) -> bool:
        spent = member.spent_steps
        if spent < self.burn_in:
            return False
        if self.ready_s is not None:
            return member.spent_s - member.decided_s >= self.ready_s
        return spent - member.decided_steps >= (self.ready_interval or self.steps_per_trial)

    def _explored(
        self,
        member: Member,
        population: Population,
        donor: Scored | None,
        steps: int,
        context: Context,
        compared: JsonObject,
    ) -> Start:
        head = member.head
        assert head is not None
        weights, source = taken_over(head, donor or head, self.copy)
        explored = self.explore.propose(source, population, context) if self.explore else None
        reason: JsonObject = {
            "decision": "exploit" if donor else "explore",
            **({"copied": self.copy} if donor else {}),
            "compared": compared,
            "changes": explored.changes if explored else {},
            **(explored.facts if explored else {}),
            **replaces(member),
        }
        return Start(
            weights=weights,
            params=explored.params if explored else source.params,
            params_from=source.trial,
            steps=steps,
            reason=reason,
            exploited=True,
        )


def _scores_of_line(scored: Scored, population: Population, most: int) -> int:
    """Return how many scores, at most so many, there are of these weights since they were taken over."""
    if most == 1:
        return 1
    trial = population.trial(scored.trial)
    count = 1
    while count < most and trial.jump_from is None and trial.parent is not None:
        trial = population.trial(trial.parent)
        count += trial.order is not None
    return count
