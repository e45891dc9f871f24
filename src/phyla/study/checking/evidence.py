"""The results of the experiments on one training function, and which of them are equal."""

import inspect
import math
from pathlib import Path
from typing import Any, final

from phyla.records import StartFrom, TrialRecord
from phyla.strategies import MeanOfLast
from phyla.study.checking import checkpoint_contents as facts
from phyla.study.checking.experiments import Experiments, Lengths, Outcome
from phyla.study.checking.noise import MEASUREMENTS, Scores, Selection
from phyla.study.study import Study
from phyla.worker import Command

SHARE = 1e-3
"""The smallest difference that counts, as a share of what training changes."""
FAR = 10.0
"""Differences this many times larger than noise, or than the effect of other random numbers, are not chance."""


@final
class Crashed(Exception):
    """A trial failed, so that what it left cannot be compared."""


class Evidence:
    """The results of trials that differ in one setting each.

    Attributes:
        whole: 2k steps in one go.
        again: the same.
        half: k steps.
        resumed: k more from its checkpoint.
        noise: how much equal trials differ, by the name of the value.
        labels: names of values that only say which trial saved them, in a process that trains several.
        why: why few conclusions are possible; empty otherwise.
    """

    whole: Outcome
    again: Outcome
    half: Outcome
    resumed: Outcome

    def __init__(self, study: Study, steps: int, experiments: Experiments) -> None:
        self.study, self.steps, self.params = study, steps, experiments.params
        self.experiments, self.run, self.together = experiments, experiments.run, experiments.together
        self.others = {name: experiments.others(name) for name in self.study.rules.space.parameters}
        self.first = {name: values[0] for name, values in self.others.items() if values}
        self.middle: StartFrom | None = None
        self.why = ""
        self.exact = False
        self.name = "the command" if isinstance(study.train, Command) else function_name(study)
        self.metrics = study.rules.reported_metrics
        self.noise: dict[str, float] = {}
        self.labels: set[str] = set()

    def listen(self) -> None:
        """Note how much equal trials differ."""
        trials = [(outcome.facts, outcome.trained[-1]) for outcome in (self.whole, self.half, self.again)]
        if len({trial.id for _, trial in trials}) > 1:
            self.labels = {
                name
                for name in self.whole.facts
                if any(
                    all(facts.are(known.get(name), getattr(trial, label)) for known, trial in trials)
                    for label in ("id", "member")
                )
            }
        known = {name: value for name, value in self.whole.facts.items() if name not in self.labels}
        names = facts.comparable_names(known, self.half.facts)
        self.noise = {name: facts.gap(self.whole.facts[name], self.again.facts.get(name)) for name in names}

    def leave_out_logs(self) -> None:
        """Compare no items of lists that the second trial made longer: if nothing else is left, the objective."""
        logs = facts.grown_lists(self.half.facts, self.resumed.facts)
        noise = {name: noise for name, noise in self.noise.items() if logs.isdisjoint(facts.lists(name))}
        metrics = [name for name in self.whole.facts if name.startswith(facts.OBJECTIVE)]
        self.noise = noise or {
            name: facts.gap(self.whole.facts[name], self.again.facts.get(name)) for name in metrics
        }

    def train_together(self) -> None:
        """Resume from the checkpoint in one process, and train twice to see whether training keeps state there."""
        k, start, first = self.steps, self.middle, self.first.values()
        measured = {"measures": MEASUREMENTS if self.metrics else 0}
        wanted: list[Lengths] = [
            *[((k,), how) for how in (measured, {"pinned": None}, {"seed": 1, "pinned": None})],
            *[((k,), {"values": [values]}) for values in first],
            *[((1, k - 1), {"values": [values, self.params]}) for values in first if k > 1],
            *[((k,), how) for how in ({"copy": 1}, {"pinned": None, "copy": 1})],
        ]
        self.together([(lengths, {"start": start, **how}) for lengths, how in wanted])
        pairs = (measured, {"copy": 1}), ({"pinned": None}, {"pinned": None, "copy": 1})
        outcomes = [(self.onward(k, **here), self.onward(k, **elsewhere)) for here, elsewhere in pairs]
        if any(first.crashed or second.crashed or self.changes(first, second) for first, second in outcomes):
            # The process remembers something. The first one is as in a process of its own.
            self.separate()
            self.experiments.done = {
                key: outcome
                for key, outcome in self.experiments.done.items()
                if outcome is self.onward(k, **measured)
            }

    def separate(self) -> None:
        """From here on, run each experiment in a process of its own, if they run in others at all."""
        self.experiments.alone = self.experiments.workers > 0

    def onward(self, *lengths: int, **how: Any) -> Outcome:
        """Train trials from the checkpoint after half of the steps."""
        return self.run(*lengths, start=self.middle, **how)

    def differences(self, outcome: Outcome, whole: Outcome) -> list[str]:
        """Return the names of values that differ by more than noise and by a share of what training changed."""
        _none_crashed(outcome, whole)
        names = []
        for name, noise in self.noise.items():
            value = whole.facts[name]
            moved = min(1.0, facts.gap(self.half.facts.get(name), value))
            if facts.gap(outcome.facts.get(name), value) > max(1e-6, FAR * noise, SHARE * moved):
                names.append(name)
        return names

    def changes(self, before: Outcome, after: Outcome, about: str = "", values: Any = None) -> list[str]:
        """Return the names of values that differ, except hyperparameters that are only recorded."""
        _none_crashed(before, after)
        names = []
        for name, noise in self.noise.items():
            first, second = before.facts.get(name), after.facts.get(name)
            copied = about and facts.are(first, self.params[about]) and facts.are(second, values[about])
            if not copied and facts.gap(first, second) > FAR * noise:
                names.append(name)
        return names

    def values(self, trial: TrialRecord) -> tuple[float, ...]:
        """Return what a trial reported last, of the metrics of the objective."""
        reported: Any = trial.metrics
        return tuple(float(reported[metric]) for metric in self.metrics)

    def scores(self, metric: str, *, others: bool, repeated: bool) -> Scores:
        """Return what trials reported of a metric; `others`: those with other hyperparameters have run."""
        at, half, resumed = self.metrics.index(metric), self.half.trained[-1], self.resumed.trained[-1]
        members = [self.onward(self.steps, values=[values]).trained for values in self.first.values() if others]
        before, after = self.values(half)[at], self.values(resumed)[at]
        (goal,) = (goal for goal in self.study.rules.objective.goals if goal.metric == metric)
        gain = goal.order(after) - goal.order(before)
        name, single = f"{facts.OBJECTIVE}{metric}", len(self.metrics) == 1
        return Scores(
            measured=[self.values(trial)[at] for trial in self.resumed.measured],
            members=[after, *(self.values(trials[-1])[at] for trials in members if trials)],
            steps=self.steps,
            gain=gain if single and math.isfinite(gain) else None,
            failed=self.resumed.failed,
            unseeded=not self.why and facts.gap(self.whole.facts[name], self.again.facts[name]) > 0,
            repeated=repeated,
        )

    def selection(self, metric: str) -> Selection:
        """Return the settings of the study that the noise of a metric matters for."""
        strategy, fitness = self.study.rules.strategy, self.study.rules.strategy.fitness
        steps: int | None = getattr(strategy, "steps_per_trial", None)
        reports = sum(name == metric for _, name in self.resumed.curve)
        return Selection(
            trial_steps=steps or strategy.member_steps or self.steps,
            total_steps=strategy.member_steps,
            averaged=max(1, min(fitness.k, reports)) if isinstance(fitness, MeanOfLast) else 1,
            adjustable=steps is not None,
            guarded=getattr(strategy, "min_scores", 2) > 1,
        )

    def is_finite(self, outcome: Outcome) -> bool:
        """Return whether the objective of the last trial is finite."""
        return bool(outcome.trained) and all(map(math.isfinite, self.values(outcome.trained[-1])))


def _none_crashed(*outcomes: Outcome) -> None:
    for outcome in outcomes:
        if outcome.crashed:
            raise Crashed(outcome.crashed)


def function_name(study: Study) -> str:
    """Return what the training function is called, and where it is."""
    train: Any = inspect.unwrap(study.train) if study.train else None
    name, code = getattr(train, "__name__", None), getattr(train, "__code__", None)
    if code is None:
        return f"{name}()" if name else str(train)
    return f"{name}() ({Path(code.co_filename).name}, line {code.co_firstlineno})"
