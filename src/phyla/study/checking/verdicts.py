"""The verdicts on a training function, from experiments."""

import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np

from phyla.formatting import duration, format_count, join_names, number, params, size
from phyla.machine.retention import bound
from phyla.records import StartFrom
from phyla.study.checking import checkpoint_contents as facts
from phyla.study.checking.checked import Checked
from phyla.study.checking.evidence import FAR, Crashed, Evidence
from phyla.study.checking.experiments import Lengths, Outcome
from phyla.study.checking.noise import MEASUREMENTS, judge_noise
from phyla.worker import Command
from phyla.worker.pinned import STEPPED, UNEVEN

UNREPORTED = "NoFitness: "
"""Begins the error of a trial that did not report its objective."""
NOISE = 1e-5
"""Share of a value by which two equal trials may differ and still count as equal."""
COARSE = 2000
"""Shares with denominators up to this may be equal by chance."""

_ALL = (
    "save all that the next trial needs in trial.checkpoint_dir, nothing in global variables, in working_dir, or "
    "in other files"
)
_SAVE = (
    "save and load the whole state of training: weights, the state of the optimizer, the scheduler, the step; "
    "begin at trial.start_step, and make no generator from a constant seed"
)
_MEASURE = "report the objective after the last step, measured on the weights that are saved"
_LAST = f"{_MEASURE}; its step is the age of the weights, in the unit of steps_per_trial"
_SCHEDULE = (
    "training up to step {k} depends on trial.end_step, as a schedule of that length does, which ends in every "
    "trial: give the schedule the length of the study, total_steps, and only stop at trial.end_step (a script has "
    "one option for each, such as --epochs and --stop-epoch)"
)
_PERHAPS = "; if a schedule is as long as trial.end_step, give it the length of the study instead"
_SET = (
    "set {} after loading: the old value comes back with the state of an optimizer or a scheduler (in PyTorch: "
    "phyla.integrations.torch.keep_hyperparameters), or with a configuration (in PEFT: from_pretrained(config=))"
)
_REMEASURE = "FromSuite({!r}, remeasure=1) evaluates donors again, with another evaluation.seed"


@final
class Verdicts(Evidence):
    """The checks of one training function, each of which may ask for further experiments."""

    def reach(self) -> Iterator[Checked]:
        """Yield what each check found, as soon as it is known."""
        k = self.steps
        begin: list[Lengths] = [((2 * k,), {}), ((k,), {"keep": True}), ((2 * k,), {"copy": 1})]
        if failed := self._train(begin):
            yield failed
            return
        if (noisy := self._noisy()) and self.experiments.workers:
            # Is it noise, or what the process remembers?
            self.separate()
            self.experiments.done.clear()
            if failed := self._train(begin):
                yield failed
                return
            self.experiments.alone = not noisy <= self._noisy()
        self.experiments.measuring_s = sum(outcome.seconds for outcome in (self.whole, self.half, self.again))
        self.middle = StartFrom(str(self.half.copy), step=self.half.trained[-1].end_step)
        yield Checked("runs", "ok", f"trials of {k} and {2 * k} steps train and save")
        yield self._objective()
        yield (end := _judged("end", self._end))
        yield self._equal()
        known, same, repeated = not self.why, False, False
        if end.verdict != "ok":
            self.why = self.why or end.text
        if not self.why:
            self.train_together()
        self.resumed = self.onward(k, measures=MEASUREMENTS if self.metrics else 0)
        if not self.resumed.trained:
            yield self._not_resumed()
            return
        self.leave_out_logs()
        yield (source := _judged("source", self._source))
        if self.resumed.untouched and source.verdict == "FAIL":
            self.why = "training does not load the checkpoint"
        if not self.why:
            yield self._counters()
            resumed = _judged("resume", self._resume)
            same = resumed.verdict == "ok"
            if resumed.kind == "complete" and source.verdict == "FAIL":
                resumed = Checked("complete", "not known", "training changes the checkpoint: see source first")
            yield resumed
            if same:
                yield Checked("complete", "ok", "a copy of the checkpoint elsewhere is enough to resume")
            yield (random := _judged("random", partial(self._random, resumed=resumed.kind)))
            repeated = random.verdict == "FAIL"
        else:
            for kind in ("resume", "random"):
                yield Checked(kind, "not known", f"unknown, because {self.why}")
        for name in self.study.rules.space.parameters:
            judge = partial(self._parameter, name, known=known, same=same)
            yield replace(_judged("parameter", judge, name), about=name)
        weights = self._weights()
        if weights.verdict == "FAIL" and not same:
            # The score is that of the loaded weights, not of the trained ones.
            weights = Checked("weights", "not known", f"{weights.text}; see resume first")
        yield weights
        yield from self._noise(known=known, repeated=repeated)
        yield self._cost()

    def _train(self, begin: Sequence[Lengths]) -> Checked | None:
        """Train the first trials; return why no more can be found out, if one of them failed."""
        self.together(begin)
        trained = [self.run(*lengths, **how) for lengths, how in begin]
        failed = next((outcome.failed for outcome in trained if outcome.failed), None)
        if failed and failed.startswith(UNREPORTED):
            return Checked("objective", "FAIL", failed.removeprefix(UNREPORTED), "report it in each trial")
        if failed:
            return Checked("runs", "FAIL", f"training failed: {failed}", "correct this first")
        self.whole, self.half, self.again = trained
        self.listen()
        return None

    def _noisy(self) -> set[str]:
        return {name for name, noise in self.noise.items() if noise}

    def _objective(self) -> Checked:
        fitness, reported = self.study.rules.suite_fitness, self.whole.trained[-1].metrics
        if fitness is not None:
            return Checked("objective", "ok", f"the suite {fitness.suite!r} gives the fitness")
        values = ", ".join(f"{name} {number(reported[name])}" for name in self.metrics)
        if not all(map(self.is_finite, (self.whole, self.again, self.half))):
            text = f"with {params(self.params)} the objective is not finite: {values}"
            outcomes = (self.run(self.steps, values=[values]) for values in self.first.values())
            if self.is_finite(self.half) or any(map(self.is_finite, outcomes)):
                change = "narrow the space, or give it initial values that train well"
                return Checked("objective", "warn", f"{text}; such trials are never selected", change)
            text = f"{text}, nor with other values; nothing could be selected"
            return Checked("objective", "FAIL", text, "report a finite number: look at the data, and at the loss")
        for outcome in (self.half, self.whole):
            end = outcome.trained[-1].end_step
            last = max((step for step, name in outcome.curve if name in self.metrics), default=end)
            if last < end - 1:  # steps may be counted from 0
                text = f"the objective is last reported at step {last}, and the checkpoint is of step {end}"
                return Checked("objective", "warn", f"{text}: {values}", _LAST)
        return Checked("objective", "ok", f"the objective is reported: {values}")

    def _end(self) -> Checked:
        k, whole, half = self.steps, self.whole, self.half
        names = [name for name in facts.comparable_names(whole.facts, half.facts) if _finite(whole.facts[name])]
        if not names or any(facts.gap(whole.facts[name], half.facts[name]) for name in names):
            return Checked("end", "ok", "training stops at trial.end_step")
        if facts.list_unread(whole.facts) != facts.list_unread(half.facts) and facts.only_metrics(names):
            text = f"trials of {k} and {2 * k} steps report the same, and phyla cannot read the checkpoint"
            return Checked("end", "not known", text)
        text = f"training {2 * k} steps gives the same result as training {k}"
        stepped: Any = whole.trained[-1].metrics
        acting = (
            self.changes(half, self.run(k, values=[values]), name, values) for name, values in self.first.items()
        )
        if stepped.get(STEPPED) == 2 * k or not any(acting):
            change = "try more --steps, if training should change something in so few"
            return Checked("end", "not known", f"{text}, as if nothing were to do", change)
        change = "train from trial.start_step to trial.end_step, and no further"
        return Checked("end", "FAIL", f"{text}: trial.end_step changes nothing", change)

    def _equal(self) -> Checked:
        whole = self.whole.facts
        loud = [name for name, noise in self.noise.items() if not noise <= NOISE]
        metrics = [name for name in whole if name.startswith(facts.OBJECTIVE)]
        quiet = metrics and all(facts.gap(whole[name], self.again.facts.get(name)) == 0 for name in metrics)
        if loud and quiet and len(loud) < len(self.noise):
            # Times and the like, which nothing depends on.
            self.noise = {name: noise for name, noise in self.noise.items() if name not in loud}
            loud = []
        if loud or not self.noise:
            problem = (
                f"two equal trials differ in {join_names(loud)}" if loud else "phyla cannot read the checkpoint"
            )
            self.why = "two equal trials differ" if loud else problem
            change = "draw all random numbers from trial.seed, if you want to know"
            return Checked("equal", "not known", f"{problem}, so most later checks are inconclusive", change)
        bad = [name for name in self.noise if not _finite(whole[name])]
        if bad:
            self.why = "training leads to nan or infinity"
            text = f"training with {params(self.params)} leads to nan or infinity in {join_names(bad)}"
            change = "narrow the space, or give it initial values that train well"
            return Checked("equal", "not known", text, change)
        return Checked("equal", "ok", "two equal trials give the same result")

    def _not_resumed(self) -> Checked:
        if self.run(self.steps, self.steps).failed:
            text = f"training from a checkpoint failed: {self.resumed.failed}"
            change = "correct the error that training from trial.source.path raises"
            if re.search("PermissionError|Permission denied|Read-only file", self.resumed.failed or ""):
                change = "load from trial.source.path, whose files are read-only"
            return Checked("resume", "FAIL", text, change)
        text = f"from a copy of the checkpoint alone, training failed: {self.resumed.failed}"
        return Checked("complete", "FAIL", text, _ALL)

    def _source(self) -> Checked:
        if self.resumed.untouched and self._starts_over():
            text = "training does not load trial.source.path: every trial starts from scratch"
            change = "load the weights from trial.source.path if trial.source is not None"
            if isinstance(self.study.train, Command):
                change = "pass the script the directory to load from, as in ['--resume', '{source}']"
            return Checked("source", "FAIL", text, change)
        if not (changed := self.resumed.overwritten):
            return Checked("source", "ok", "the checkpoint that training loads stays as it is")
        text = f"training changed files in trial.source.path, a finished checkpoint: {join_names(changed)}"
        return Checked("source", "FAIL", text, "save into trial.checkpoint_dir only")

    def _starts_over(self) -> bool:
        """Return whether it makes no difference to a trial what the one before it trained.

        A command may get its source in another way than phyla sees, such as from its environment.
        """
        if self.why or not self.first:
            return not isinstance(self.study.train, Command)
        k, other = self.steps, next(iter(self.first.values()))
        same, changed = self.run(k, k), self.run(k, k, values=[other, self.params])
        return not self.differences(changed, same)

    def _counters(self) -> Checked:
        lost = facts.lost_counters(self.whole.facts, self.half.facts, self.resumed.facts)
        if not lost:
            return Checked("steps", "ok", "the step counter continues from the checkpoint")
        name = lost[0]
        right, wrong = (number(outcome.facts[name]) for outcome in (self.whole, self.resumed))
        text = f"after {2 * self.steps} steps in one trial {name} is {right}, and {wrong} after two trials"
        return Checked("steps", "FAIL", text, "count on from the checkpoint, or from trial.start_step")

    def _resume(self) -> Checked:
        k, whole, resumed = self.steps, self.whole, self.resumed
        names = self.differences(resumed, whole)
        self.exact = not names
        if not names:
            text = f"{k} steps and {k} more from the checkpoint give the same result as {2 * k} in one trial"
            return Checked("resume", "ok", text)
        fresh = self.run(2 * k, copy=2)
        if self.differences(fresh, whole):
            text = "unknown, because two equal trials in two processes differ"
            return Checked("resume", "not known", f"{text} in {join_names(self.differences(fresh, whole))}")
        chain = self.run(k, k)
        if not chain.failed and not self.differences(chain, whole):
            text = (
                "training resumes correctly only if it also finds state of the first trial outside the checkpoint"
            )
            return Checked("complete", "FAIL", f"{text}; otherwise it differs in {join_names(names)}", _ALL)
        self.together([((k,), {"start": self.middle, "seed": seed}) for seed in (1, 2)])
        outcomes = [resumed, *(self.onward(k, seed=seed) for seed in (1, 2))]
        if UNEVEN in resumed.trained[-1].metrics and not self.changes(resumed, outcomes[1]):
            # Random numbers of the first step, such as the order of the data, may last for all steps.
            outcomes = [self.onward(k, seed=seed, pinned=1) for seed in (0, 1, 2)]
        ratio = {}
        for name in names:
            values = [outcome.facts.get(name) for outcome in outcomes]
            inside = max(facts.gap(first, second) for first in values for second in values)
            apart = min(facts.gap(value, whole.facts[name]) for value in values)
            ratio[name] = apart / inside if 0 < inside < math.inf else math.inf
        worst = max(ratio.values())
        differing = join_names(sorted(names, key=lambda name: -ratio[name]))
        text = f"{k} steps and {k} more from the checkpoint differ from {2 * k} in one trial, in {differing}"
        if worst > 3:
            return Checked("resume", "FAIL" if worst > FAR else "warn", text, self._advice())
        return Checked("resume", "ok", f"{text}; but random numbers from another seed differ as much")

    def _advice(self) -> str:
        """Return the advice for trials that do not resume exactly, by what both report, if they do."""
        half, whole = self.half.curve, self.whole.curve
        shared = [key for key in half if key in whole and key[0] < self.steps]
        if any(facts.gap(half[key], whole[key]) > NOISE for key in shared):
            return _SCHEDULE.format(k=self.steps)
        return _SAVE if shared else _SAVE + _PERHAPS

    def _random(self, *, resumed: str) -> Checked:
        k, none = self.steps, "training draws no random numbers, or restores their state from the checkpoint"
        free = self.onward(k, pinned=None)
        if facts.only_metrics(self.noise) and not self.changes(self.resumed, free):
            return Checked("random", "not known", "phyla cannot read whether the checkpoint changes")
        if self.exact and not self.changes(self.resumed, free):
            return Checked("random", "ok", none)
        other = self.onward(k, seed=1, pinned=None)
        if self.changes(free, other):
            return Checked("random", "ok", "each trial draws other random numbers")
        if not self.exact:
            return Checked("random", "not known", f"another seed changes nothing; see {resumed} first")
        whole, chain = self.run(2 * k, pinned=None), self.run(k, k, pinned=None)
        if not self.differences(chain, whole):
            return Checked("random", "ok", none)
        text = "each trial draws the same random numbers again, whatever trial.seed is"
        return Checked("random", "FAIL", text, "make generators from trial.seed, or save and load their state")

    def _parameter(self, name: str, *, known: bool, same: bool) -> Checked:
        k, base, other_values = self.steps, self.resumed, self.others[name]
        if not other_values or not known:
            why = "nothing to compare with: no other value is allowed" if known else self.why
            return Checked("parameter", "not known", f"{name}: {why}")
        for values in other_values:
            change = f"{name} from {_literal(self.params[name])} to {_literal(values[name])}"
            varied = self.onward(k, values=[values])
            if varied.failed and values is other_values[0]:
                return Checked(
                    "parameter", "warn", f"{change}: training failed: {varied.failed}", "narrow the space"
                )
            moved = [] if varied.failed else self.changes(base, varied, name, values)
            if moved:
                break
            if values is other_values[0]:
                # In one fresh process: first this value again, then the others, which may not be needed.
                self.together(
                    [((k,), {"start": self.middle, "values": [values], "copy": 1})]
                    + [((k,), {"start": self.middle, "values": [other]}) for other in other_values[1:]]
                )
            if values is other_values[0] and self.changes(
                base, self.onward(k, values=[values], copy=1), name, values
            ):
                text = f"{change} works only in a fresh process; one that trained before keeps the first value"
                return Checked(
                    "parameter", "FAIL", text, f"rebuild everything that depends on {name} in each trial"
                )
        else:
            return self._without_effect(name, other_values)
        if same and k > 1:
            # If one step with the new value is as good as all steps, the old one may have come back.
            brief = self.onward(1, k - 1, values=[values, self.params])
            gaps = [
                [facts.gap(outcome.facts.get(key), varied.facts.get(key)) for outcome in (brief, base)]
                for key in moved
            ]
            if not brief.failed and all(mine <= 0.01 * theirs < math.inf for mine, theirs in gaps):
                text = f"{change} has an effect in the first step only"
                if old := self._came_back(name, values, varied):
                    text = f"{text}; then training has the old value again, see {old}"
                    return Checked("parameter", "FAIL", text, _SET.format(name))
                return Checked("parameter", "not known", text, f"see that it keeps its value: {_SET.format(name)}")
        return Checked("parameter", "ok", f"{change} changes the checkpoint")

    def _without_effect(self, name: str, other_values: Sequence[Mapping[str, Any]]) -> Checked:
        """Describe a hyperparameter that has no effect on training from the checkpoint."""
        k, tried = self.steps, join_names([_literal(values[name]) for values in other_values])
        change = f"{name} from {_literal(self.params[name])} to {tried}"
        if facts.only_metrics(self.noise):
            return Checked("parameter", "not known", f"{change}: phyla cannot read whether the checkpoint changes")
        deciding = any(name in (other.when or ()) for other in self.study.rules.space.parameters.values())
        if name in self.half.unread and name in self.resumed.unread and not deciding:
            # Training may read it only in some steps, such as at the end of an epoch; longer trials show that.
            text = f"{change} changes nothing: training does not read it in {2 * k} steps"
            return Checked("parameter", "warn", text, f"use trial.params[{name!r}], or leave it out of the space")
        self.together([((k,), {"values": [values]}) for values in other_values])
        acts = False
        for values in other_values:
            if old := self._came_back(name, values, self.onward(k, values=[values])):
                text = "has an effect at a fresh start only: from a checkpoint, training has the old value, see"
                text = f"{name} from {_literal(self.params[name])} to {_literal(values[name])} {text} {old}"
                return Checked("parameter", "FAIL", text, _SET.format(name))
            fresh = self.run(k, values=[values])
            acts |= bool(fresh.trained and self.changes(self.half, fresh, name, values))
        text = f"{change}: no effect here; {k} steps from the same checkpoint give the same result"
        if acts:
            text = f"{text}, but it has an effect at a fresh start"
            return Checked("parameter", "not known", text, f"if it should have one here: {_SET.format(name)}")
        why = f"use trial.params[{name!r}] if training does not, or try more --steps"
        return Checked("parameter", "not known", f"{text}, and so do those from a fresh start", why)

    def _came_back(self, name: str, values: Mapping[str, Any], varied: Outcome) -> str:
        """Return the name of a stored value that is new after a fresh start, but old after resuming."""
        fresh, old, new = self.run(self.steps, values=[values]), self.params[name], values[name]
        return facts.describe_contents((self.half.facts, old), (fresh.facts, new), (varied.facts, old))

    def _weights(self) -> Checked:
        if not self.metrics:
            return Checked("weights", "ok", "the suite measures the saved weights")
        reported, measured = self.values(self.resumed.trained[-1]), [*map(self.values, self.resumed.measured)]
        if len(measured) < 2 or not all(map(math.isfinite, measured[0])):
            return self._last_step()
        first, second = measured[:2]
        if facts.gap(first, second) > NOISE:
            text = f"the objective is noisy: the same checkpoint measures {_numbers(first)} and {_numbers(second)}"
            return Checked("weights", "not known", text)
        if facts.gap(reported, first) > NOISE:
            text = f"{self.name} reported {_numbers(reported)}, and measures {_numbers(first)}"
            text = f"{text} on the checkpoint that it saved"
            return Checked("weights", "FAIL", text, _MEASURE)
        return Checked("weights", "ok", "the objective belongs to the saved weights")

    def _last_step(self) -> Checked:
        """Where nothing is measured without training: look whether the last step changes the objective."""
        single: dict[str, Any] = {"start": self.middle}
        self.together(
            [((1,), how) for how in (single, *({**single, "values": [values]} for values in self.first.values()))]
        )
        base = self.onward(1)
        for name, values in self.first.items() if base.trained and self.noise else ():
            varied = self.onward(1, values=[values])
            if not varied.trained or not self.changes(base, varied, name, values):
                continue
            now, other, before = (self.values(outcome.trained[-1]) for outcome in (base, varied, self.half))
            if facts.gap(now, other) or not facts.gap(now, before):
                return Checked("weights", "ok", "the last step counts in the objective")
            text = f"{name} changes the weights in one step, and {self.name} still reports {_numbers(now)}"
            if all(map(_coarse, now)):
                return Checked(
                    "weights", "not known", f"{text}, which may be chance where few values are possible"
                )
            return Checked("weights", "FAIL", f"{text}: it is measured before the last step", _MEASURE)
        text = f"{self.name} does not measure a checkpoint without training (trial.start_step is trial.end_step)"
        why = self.resumed.failed or "what it reports is not finite"
        return Checked("weights", "not known", f"{text}: {why}")

    def _noise(self, *, known: bool, repeated: bool) -> Iterator[Checked]:
        """Yield how noisy each metric of the objective is."""
        if (fitness := self.study.rules.suite_fitness) is not None:
            text = f"the suite {fitness.suite!r} is not run here; its noise is the standard error of its results"
            change = "" if fitness.remeasure else _REMEASURE.format(fitness.suite)
            yield Checked("noise", "not known", f"{text}: see phyla evaluations", change)
        for metric in self.metrics:
            scores = self.scores(metric, others=known, repeated=repeated)
            yield judge_noise(scores, self.selection(metric), metric if len(self.metrics) > 1 else "")

    def _cost(self) -> Checked:
        rules, last = self.study.rules, self.resumed
        count, steps = bound(rules.keeping), rules.strategy.member_steps
        if rules.keeping.keep_every_steps and steps:
            count += rules.strategy.population_size * (steps // rules.keeping.keep_every_steps)
        loading, saving = (duration(last.timings.get(phase, 0.0)) for phase in ("loading", "saving"))
        text = (
            f"a checkpoint has {size(last.size_bytes)}. The first step came after {loading}, imports included; "
            f"evaluating and saving took {saving}. The study keeps at most {format_count(count, 'checkpoint')}, "
            f"{size(count * last.size_bytes)}"
        )
        place = self.study.places.checkpoint_root
        if not isinstance(place, Path):
            return Checked("cost", "ok", text)
        free = shutil.disk_usage(next(path for path in (place, *place.parents) if path.exists())).free
        if count * last.size_bytes > free:
            change = f"{size(free)} are free at {place}: save less, keep fewer (phyla.Retention), or move them"
            return Checked("cost", "warn", text, change)
        return Checked("cost", "ok", text)


def _judged(kind: str, judge: Callable[[], Checked], about: str = "") -> Checked:
    """Return what a check finds; that it is not known if a trial fails that is as good as those that did not."""
    try:
        return judge()
    except Crashed as error:
        text = f"{about}: unknown" if about else "unknown"
        return Checked(kind, "not known", f"{text}, because a trial failed: {error}", "correct this first")


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(number(value, 6) for value in values)


def _literal(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else repr(value)


def _coarse(value: float) -> bool:
    """Return whether a value is a share of few, as an accuracy is; others hardly ever come twice by chance."""
    return math.isclose(value, Fraction(value).limit_denominator(COARSE), rel_tol=1e-9, abs_tol=1e-12)


def _finite(value: Any) -> bool:
    return isinstance(value, str) or bool(np.all(np.isfinite(value)))
