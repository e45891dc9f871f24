"""Population based training (Jaderberg et al. 2017, arXiv 1711.09846, algorithm 1)."""

from dataclasses import dataclass
from itertools import islice
from typing import final

from phyla.records import Member, Scored
from phyla.strategies.checks import check_rules, check_steps
from phyla.strategies.exploit import Exploit, Exploited, choose_donor, keep
from phyla.strategies.exploit.truncation import Truncation
from phyla.strategies.explore import Explore
from phyla.strategies.explore.perturb import PERTURB
from phyla.strategies.fitness import LAST, FitnessRule, FromSuite
from phyla.strategies.starts import COPIES, Copy, explore_from, proceed, sampled, steps_to_line
from phyla.strategies.strategy import (
    Context,
    Decision,
    History,
    Measure,
    Population,
    Strategy,
    check_population,
    since_taken,
)
from phyla.validation import check, setting_error

DRAWS = 5
"""How often an exploit rule is asked whose choice may not donate."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PBT(Strategy):
    """Train a population; periodically, bad members take over the state of good ones and explore from there.

    Args:
        population_size: number of members; may be larger than the number of workers.
        steps_per_trial: training steps between two decisions about a member.
        total_steps: steps each member spends in all; the last trial may be shorter.
        exploit: the rule for taking over another member's state; None explores at every ready interval instead.
        explore: how hyperparameters change after an exploit, and without one (`exploit=None`) at every trial; None
            copies them unchanged.
        fitness: where the fitness of a trial comes from: its reports, or a suite (`FromSuite`).
        ready_interval: steps a member must train after it took over a state, or explored, before it may do so
            again; the default is `steps_per_trial`.
        burn_in: no exploit before a member has trained this many steps.
        quorum: share of the population, from 0 to 1, that must reach a member's progress before the member may
            decide. It is compared only with those, each as it was at that progress. At 1.0 all wait for the
            slowest member, and a study is the same with any number of workers. At 0 no member waits, and newest
            scores are compared, as in the paper; that selects for age if members differ in speed or outnumber the
            workers.
        copy: what exploit takes over: weights and hyperparameters, or only one of them.
        min_scores: how many scores a member must have, since it started or took over weights, to donate, so that
            one lucky score does not spread. A choice that may not donate is drawn again, at most 5 times.
    """

    population_size: int
    steps_per_trial: int
    total_steps: int
    exploit: Exploit | None = Truncation()  # noqa: RUF009  # frozen
    explore: Explore | None = PERTURB
    fitness: FitnessRule | FromSuite = LAST
    ready_interval: int | None = None
    burn_in: int = 0
    quorum: float = 0.8
    copy: Copy = "both"
    min_scores: int = 1

    def __post_init__(self) -> None:
        check(self, population_size=1, burn_in=0, min_scores=1, ready_interval=1, quorum="[0, 1]", copy=COPIES)
        check_steps(self)
        check_rules(self, "choose", "exploit", optional=True)
        check_rules(self, "propose", "explore", optional=True)
        check_population(self)
        self._check_decisions()

    def _check_decisions(self) -> None:
        """Reject settings with which no member is ready, or no donor allowed, at any decision."""
        decisions = (self.total_steps - 1) // self.steps_per_trial
        last = decisions * self.steps_per_trial
        for name in ("ready_interval", "burn_in"):
            if (getattr(self, name) or 0) > last:
                why = f"no member would ever exploit or explore: the last decision is at step {last}; "
                lower = f"use at most {last}, or RandomSearch" if last else "use shorter trials, or RandomSearch"
                raise setting_error(self, f"{name} steps_per_trial total_steps", why + lower)
        if self.exploit is not None and self.min_scores > max(1, decisions):
            why = f"no member would ever donate: it has {decisions} scores at the last decision, at step {last}"
            lower = f"use at most {max(1, decisions)}, or shorter trials"
            raise setting_error(self, "min_scores steps_per_trial total_steps", f"{why}; {lower}")

    @property
    def exclusive(self) -> bool:
        return isinstance(self.fitness, FromSuite) and self.fitness.remeasure > 0

    @property
    def keeps_best(self) -> bool:
        return self.exploit is not None and self.exploit.keeps_best

    @property
    def pareto(self) -> bool:
        return self.exploit is None or self.exploit.pareto

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        if member.head is None:
            steps = steps_to_line(member.progress, self.steps_per_trial, self.total_steps)
            return sampled(member, steps, context)
        choice = Exploited(donor=None, reason={"why": "not ready"})
        if self._ready(member):
            choice = self._choose_donor(member, population, context)
        donor, compared = choice.donor, choice.reason
        if donor is not None and donor.trial != member.head.trial:
            wanted = self.fitness.remeasure + 1 if isinstance(self.fitness, FromSuite) else 1
            if donor.measurements < wanted:
                return Measure(
                    times=wanted - donor.measurements,
                    subject=donor,
                    reason={"decision": "measure", "compared": compared},
                )
        if donor is None and member.broken_trial is not None:
            choice = Exploited(donor=member.head, reason={"why": "the same work failed or was stopped before"})
        if choice.donor is not None:
            return explore_from(self, member, choice, population, context)
        at = max(member.progress, member.head.age)
        return proceed(member, steps_to_line(at, self.steps_per_trial, self.total_steps), compared=compared)

    def _choose_donor(self, member: Member, population: Population, context: Context) -> Exploited:
        """Ask the exploit rule, and repeat if its choice may not donate."""
        if self.exploit is None:
            return Exploited(donor=member.head, reason={"rule": "none"})
        for _ in range(DRAWS):
            choice = choose_donor(self.exploit, member, population, context)
            donor = choice.donor
            if donor is None or (member.head is not None and donor.trial == member.head.trial):
                return choice
            why = self._refusal_reason(donor, context.history)
            if why is None:
                return choice
            choice = keep(choice.reason, why)
        return choice

    def _refusal_reason(self, donor: Scored, history: History) -> str | None:
        """Return why a donor that a rule chose may not donate, or None."""
        if max(donor.age, donor.progress) >= self.total_steps:
            return "the donor has trained all its steps"
        earlier = (trial for trial in since_taken(donor, history) if trial.order is not None)
        scores = 1 + sum(1 for _ in islice(earlier, self.min_scores - 1))
        if scores < self.min_scores:
            return f"the donor has {scores} of the {self.min_scores} scores it needs"
        return None

    def _ready(self, member: Member) -> bool:
        published = [state for state in member.states if state.judged]
        if not published or member.progress < self.burn_in:
            return False
        lines = [self.line(state.progress) for state in published[:2]]
        if len(lines) > len(set(lines)):
            return False  # Its trial ended early. It was compared at this line before.
        return published[0].progress - member.decided_at >= (self.ready_interval or self.steps_per_trial)
