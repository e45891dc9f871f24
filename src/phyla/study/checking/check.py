"""Finds out by controlled experiments whether a training function does what populations need.

What a running study shows by itself is in `phyla.study.results.findings`.
"""

import inspect
import math
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

import numpy as np

from phyla import study_modules
from phyla.errors import ConfigurationError
from phyla.formatting import counted, duration, listed, number, params, size
from phyla.machine.retention import bound
from phyla.records import StartFrom, TrialRecord
from phyla.study.checking import checkpoint_contents as facts
from phyla.study.study import Study
from phyla.validation import check_integer
from phyla.worker import Command
from phyla.worker.commands.placeholders import spoken
from phyla.worker.pinned import STEPPED, UNEVEN

if TYPE_CHECKING:
    from phyla.study.checking.experiments import Experiments, Lengths, Outcome

STEPS = 10
"""Steps of a trial at most, unless told otherwise."""
UNREPORTED = "NoFitness: "
"""Begins the error of a trial that did not report its objective."""
NOISE = 1e-5
"""Share of a value by which two equal trials may differ and still count as equal."""
SHARE = 1e-3
"""The smallest difference that counts, as a share of what training changes."""
FAR = 10.0
"""Differences this many times larger than noise, or than what other random numbers make, are no accident."""

COARSE = 2000
"""Shares with denominators up to this may be equal by chance."""

Verdict: TypeAlias = Literal["ok", "warn", "FAIL", "not known"]


@final
@dataclass(frozen=True, slots=True)
class Checked:
    """What one check found.

    Attributes:
        kind: `runs`, `objective`, `end`, `equal`, `source`, `steps`, `resume`, `complete`, `random`, `parameter`,
            `weights` or `cost`.
        verdict: `ok`, `warn`, `FAIL` or `not known`.
        text: what was found; of `not known`, why. Further lines have the end of what a command
            printed that failed.
        change: what to do about it; empty if nothing.
        about: name of the hyperparameter, of `parameter`.
    """

    kind: str
    verdict: Verdict
    text: str
    change: str = ""
    about: str = ""


def check(study: Study, *, steps: int | None = None, workers: int = 1) -> list[Checked]:
    """Find out by short experiments whether a study's training function can be resumed, and explored, correctly.

    It runs the function a dozen times or more, in studies of its own in a temporary directory, which it deletes.
    Nothing is read from or written to the study's home.

    Args:
        study: the study; it need not exist in its store.
        steps: steps of one trial; by default those of the study, at most 10. Some trials train twice as many.
        workers: 1 runs them in two fresh processes, and where that gives cause for doubt each in one of its own;
            0 runs all of them in this process.

    Raises:
        ConfigurationError: an argument makes no sense, or the study has no training function.
        NotImportable: a process could not find a function; the message shows the way out.
    """
    return [*checks(study, steps=steps, workers=workers)]


def checks(study: Study, *, steps: int | None = None, workers: int = 1) -> Iterator[Checked]:
    """Yield what `check` returns, as soon as it is known."""
    from phyla.study.checking.experiments import Experiments

    study_modules.only_when_run()
    if study.train is None:
        raise ConfigurationError("Study(train=...) is needed to check it: there is no training function")
    workers = check_integer("workers", workers, 0, 1)
    length = check_integer("steps", steps_of(study) if steps is None else steps)
    with tempfile.TemporaryDirectory(prefix="phyla-check-") as folder:
        by_command = isinstance(study.train, Command)
        experiments = Experiments(study=study, root=Path(folder), workers=workers)
        for found in _Check(study, length, experiments)():
            where = f"in {called(study)}: " if found.verdict == "FAIL" and not by_command else ""
            told = replace(found, change=f"{where}{found.change}") if found.change else found
            if by_command:
                # What the command printed stays as it is.
                text, *output = told.text.split("\n")
                told = replace(told, text="\n".join([spoken(text), *output]), change=spoken(told.change))
            yield told


def steps_of(study: Study) -> int:
    """Return how many steps a trial of a check has by default."""
    strategy = study.rules.strategy
    return min(getattr(strategy, "steps_per_trial", None) or strategy.member_steps or STEPS, STEPS)


def called(study: Study) -> str:
    """Return what the training function is called, and where it is."""
    train: Any = inspect.unwrap(study.train) if study.train else None
    name, code = getattr(train, "__name__", None), getattr(train, "__code__", None)
    if code is None:
        return f"{name}()" if name else str(train)
    return f"{name}() ({Path(code.co_filename).name}, line {code.co_firstlineno})"


_ALL = (
    "save all that the next trial needs in trial.checkpoint_dir, nothing in global variables, in working_dir, or "
    "in other files"
)
_SAVE = (
    "save and load all that training goes on with: weights, the state of the optimizer, the scheduler, the step; "
    "begin at trial.start_step, and make no generator from a constant seed"
)
_MEASURE = "report the objective after the last step, measured on the weights that are saved"
_SCHEDULE = (
    "training up to step {k} depends on trial.end_step, as a schedule of that length does, which ends in every "
    "trial: give the schedule the length of the study, total_steps, and only stop at trial.end_step (a script has "
    "one option for each, such as --epochs and --stop-epoch)"
)
_PERHAPS = "; if a schedule is as long as trial.end_step, give it the length of the study instead"
_SET = (
    "set {} after loading: with the optimizer's state, or the scheduler's, the old value comes back (in PyTorch: "
    "phyla.integrations.torch.keep_hyperparameters)"
)


@final
class _Check:
    """The experiments on one training function, and what follows from them."""

    whole: "Outcome"  # 2k steps in one go
    again: "Outcome"  # the same
    half: "Outcome"  # k steps
    resumed: "Outcome"  # k more from its checkpoint

    def __init__(self, study: Study, steps: int, experiments: "Experiments") -> None:
        self.study, self.steps, self.params = study, steps, experiments.params
        self.experiments, self.run, self.together = experiments, experiments.run, experiments.together
        self.others = {name: experiments.others(name) for name in self.study.rules.space.parameters}
        self.first = {name: others[0] for name, others in self.others.items() if others}
        self.middle: StartFrom | None = None
        self.why = ""  # why little can be told
        self.exact = False
        self.name = "the command" if isinstance(study.train, Command) else called(study)
        self.metrics = study.rules.reported_metrics
        self.noise: dict[str, float] = {}

    def __call__(self) -> Iterator[Checked]:
        k = self.steps
        begin: list[Lengths] = [((2 * k,), {}), ((k,), {"keep": True}), ((2 * k,), {"copy": 1})]
        self.together(begin)
        trained: list[Outcome] = []
        for lengths, how in begin:
            trained.append(self.run(*lengths, **how))
            failed = trained[-1].failed
            if failed and failed.startswith(UNREPORTED):
                yield Checked("objective", "FAIL", failed.removeprefix(UNREPORTED), "report it in each trial")
            elif failed:
                yield Checked("runs", "FAIL", f"training failed: {failed}", "correct this first")
            if failed:
                return
        self.whole, self.half, self.again = trained
        self.listen()
        if any(self.noise.values()) and self.experiments.workers:
            # Is it noise, or what the process remembers?
            self.separate()
            self.experiments.done.clear()
            self.whole, self.half, self.again = (self.run(*lengths, **how) for lengths, how in begin)
            self.listen()
        self.middle = StartFrom(str(self.half.kept), step=self.half.trained[-1].end_step)
        yield Checked("runs", "ok", f"trials of {k} and {2 * k} steps train and save")
        yield self.objective()
        yield (end := self.end())
        yield self.equal()
        known, same = not self.why, False
        if end.verdict != "ok":
            self.why = self.why or end.text
        if not self.why:
            self.train_together()
        self.resumed = self.onward(k, measures=2 if self.metrics else 0)
        if not self.resumed.trained:
            yield self.not_resumed()
            return
        yield (source := self.source())
        if not self.why:
            yield self.counters()
            found = self.resume()
            same = found.verdict == "ok"
            if found.kind == "complete" and source.verdict == "FAIL":
                found = Checked("complete", "not known", "training changes the checkpoint: see source first")
            yield found
            if same:
                yield Checked("complete", "ok", "a copy of the checkpoint, elsewhere, is enough to go on")
            yield self.random(same=same, resumed=found.kind)
        else:
            for kind in ("resume", "random"):
                yield Checked(kind, "not known", f"cannot be told, because {self.why}")
        for name in self.study.rules.space.parameters:
            yield replace(self.parameter(name, known=known, same=same), about=name)
        weights = self.weights()
        if weights.verdict == "FAIL" and not same:
            # What was measured is what was loaded, and that is not right.
            weights = Checked("weights", "not known", f"{weights.text}; see resume first")
        yield weights
        yield self.cost()

    def listen(self) -> None:
        """Note how much equal trials differ."""
        names = facts.compared(self.whole.facts, self.half.facts)
        self.noise = {name: facts.gap(self.whole.facts[name], self.again.facts.get(name)) for name in names}

    def train_together(self) -> None:
        """Train in one process what goes on from the checkpoint, and twice what tells whether it remembers."""
        k, start, first = self.steps, self.middle, self.first.values()
        measured = {"measures": 2 if self.metrics else 0}
        wanted: list[Lengths] = [
            *[((k,), how) for how in (measured, {"pinned": None}, {"seed": 1, "pinned": None})],
            *[((k,), {"values": [values]}) for values in first],
            *[((1, k - 1), {"values": [values, self.params]}) for values in first if k > 1],
            *[((k,), how) for how in ({"copy": 1}, {"pinned": None, "copy": 1})],
        ]
        self.together([(lengths, {"start": start, **how}) for lengths, how in wanted])
        pairs = (measured, {"copy": 1}), ({"pinned": None}, {"pinned": None, "copy": 1})
        if any(self.changed(self.onward(k, **one), self.onward(k, **two)) for one, two in pairs):
            # The process remembers something. The first one is as in a process of its own.
            self.separate()
            self.experiments.done = {
                key: one for key, one in self.experiments.done.items() if one is self.onward(k, **measured)
            }

    def separate(self) -> None:
        """From here on, run each experiment in a process of its own, if they run in others at all."""
        self.experiments.alone = self.experiments.workers > 0

    def onward(self, *lengths: int, **how: Any) -> "Outcome":
        """Train trials from the checkpoint that is half way."""
        return self.run(*lengths, start=self.middle, **how)

    def differing(self, one: "Outcome", whole: "Outcome") -> list[str]:
        """Return the names of what differs, by more than noise and by more than a share of what training moved."""
        found = []
        for name, noise in self.noise.items():
            value = whole.facts[name]
            moved = min(1.0, facts.gap(self.half.facts.get(name), value))
            if facts.gap(one.facts.get(name), value) > max(1e-6, FAR * noise, SHARE * moved):
                found.append(name)
        return found

    def changed(self, one: "Outcome", other: "Outcome", about: str = "", values: Any = None) -> list[str]:
        """Return the names of what is not equal; a hyperparameter that is only written down is left out."""
        found = []
        for name, noise in self.noise.items():
            first, second = one.facts.get(name), other.facts.get(name)
            copied = about and facts.are(first, self.params[about]) and facts.are(second, values[about])
            if not copied and facts.gap(first, second) > FAR * noise:
                found.append(name)
        return found

    # What follows

    def objective(self) -> Checked:
        fitness, reported = self.study.rules.suite_fitness, self.whole.trained[-1].metrics
        if fitness is not None:
            return Checked("objective", "ok", f"the suite {fitness.suite!r} gives the fitness")
        values = ", ".join(f"{name} {number(reported[name])}" for name in self.metrics)
        if not all(map(self.finite, (self.whole, self.again, self.half))):
            text = f"with {params(self.params)} the objective is no finite number: {values}"
            others = (self.run(self.steps, values=[values]) for values in self.first.values())
            if self.finite(self.half) or any(map(self.finite, others)):
                change = "narrow the space, or give it initial values that train well"
                return Checked("objective", "warn", f"{text}; such trials are never selected", change)
            text = f"{text}, nor with other values; nothing could be selected"
            return Checked("objective", "FAIL", text, "report a finite number: look at the data, and at the loss")
        return Checked("objective", "ok", f"the objective is reported: {values}")

    def end(self) -> Checked:
        k, whole, half = self.steps, self.whole, self.half
        names = [name for name in facts.compared(whole.facts, half.facts) if _finite(whole.facts[name])]
        if not names or any(facts.gap(whole.facts[name], half.facts[name]) for name in names):
            return Checked("end", "ok", "training stops at trial.end_step")
        if facts.unread(whole.facts) != facts.unread(half.facts) and facts.only_metrics(names):
            text = f"trials of {k} and {2 * k} steps report the same, and phyla cannot read the checkpoint"
            return Checked("end", "not known", text)
        text = f"training {2 * k} steps leaves the same as training {k}"
        stepped: Any = whole.trained[-1].metrics
        acting = (
            self.changed(half, self.run(k, values=[values]), name, values) for name, values in self.first.items()
        )
        if stepped.get(STEPPED) == 2 * k or not any(acting):
            change = "try more --steps, if training should change something in so few"
            return Checked("end", "not known", f"{text}, as if nothing were to do", change)
        change = "train from trial.start_step to trial.end_step, and no further"
        return Checked("end", "FAIL", f"{text}: trial.end_step changes nothing", change)

    def equal(self) -> Checked:
        whole = self.whole.facts
        loud = [name for name, noise in self.noise.items() if not noise <= NOISE]
        metrics = [name for name in whole if name.startswith(facts.OBJECTIVE)]
        quiet = metrics and all(facts.gap(whole[name], self.again.facts.get(name)) == 0 for name in metrics)
        if loud and quiet and len(loud) < len(self.noise):
            # Times and the like, which nothing depends on.
            self.noise = {name: noise for name, noise in self.noise.items() if name not in loud}
            loud = []
        if loud or not self.noise:
            what = f"two equal trials differ in {listed(loud)}" if loud else "phyla cannot read the checkpoint"
            self.why = "two equal trials differ" if loud else what
            change = "draw all random numbers from trial.seed, if you want to know"
            return Checked("equal", "not known", f"{what}, so most of what follows cannot be told", change)
        bad = [name for name in self.noise if not _finite(whole[name])]
        if bad:
            self.why = "training leads to nan or infinity"
            text = f"training with {params(self.params)} leads to nan or infinity in {listed(bad)}"
            change = "narrow the space, or give it initial values that train well"
            return Checked("equal", "not known", text, change)
        return Checked("equal", "ok", "two equal trials leave the same")

    def not_resumed(self) -> Checked:
        if self.run(self.steps, self.steps).failed:
            text = f"training from a checkpoint failed: {self.resumed.failed}"
            change = "correct the error that training from trial.source.path raises"
            if re.search("PermissionError|Permission denied|Read-only file", self.resumed.failed or ""):
                change = "load from trial.source.path, whose files are read-only"
            return Checked("resume", "FAIL", text, change)
        text = f"from a copy of the checkpoint alone, training failed: {self.resumed.failed}"
        return Checked("complete", "FAIL", text, _ALL)

    def source(self) -> Checked:
        if not (changed := self.resumed.overwritten):
            return Checked("source", "ok", "the checkpoint that training loads stays as it is")
        text = f"training changed files in trial.source.path, a finished checkpoint: {listed(changed)}"
        return Checked("source", "FAIL", text, "save into trial.checkpoint_dir only")

    def counters(self) -> Checked:
        lost = facts.lost_counters(self.whole.facts, self.half.facts, self.resumed.facts)
        if not lost:
            return Checked("steps", "ok", "what counts steps goes on from the checkpoint")
        one, two = (number(each.facts[lost[0]]) for each in (self.whole, self.resumed))
        text = f"after {2 * self.steps} steps in one trial {lost[0]} is {one}, and {two} after two trials"
        return Checked("steps", "FAIL", text, "count on from the checkpoint, or from trial.start_step")

    def resume(self) -> Checked:
        k, whole, resumed = self.steps, self.whole, self.resumed
        names = self.differing(resumed, whole)
        self.exact = not names
        if not names:
            text = f"{k} steps, and {k} more from the checkpoint, leave the same as {2 * k} in one go"
            return Checked("resume", "ok", text)
        fresh = self.run(2 * k, copy=2)
        if self.differing(fresh, whole):
            text = "cannot be told, because two equal trials in two processes differ"
            return Checked("resume", "not known", f"{text} in {listed(self.differing(fresh, whole))}")
        chain = self.run(k, k)
        if not chain.failed and not self.differing(chain, whole):
            text = "training goes on correctly only where more than its checkpoint is left of the first trial"
            return Checked("complete", "FAIL", f"{text}; else what differs is {listed(names)}", _ALL)
        self.together([((k,), {"start": self.middle, "seed": seed}) for seed in (1, 2)])
        others = [resumed, *(self.onward(k, seed=seed) for seed in (1, 2))]
        if UNEVEN in resumed.trained[-1].metrics and not self.changed(resumed, others[1]):
            # What is drawn in the first step may last for all of them, such as the order of the data.
            others = [self.onward(k, seed=seed, pinned=1) for seed in (0, 1, 2)]
        ratio = {}
        for name in names:
            values = [one.facts.get(name) for one in others]
            inside = max(facts.gap(one, other) for one in values for other in values)
            apart = min(facts.gap(one, whole.facts[name]) for one in values)
            ratio[name] = apart / inside if 0 < inside < math.inf else math.inf
        worst = max(ratio.values())
        what = listed(sorted(names, key=lambda name: -ratio[name]))
        text = f"{k} steps, and {k} more from the checkpoint, are not {2 * k} in one go; what differs is {what}"
        if worst > 3:
            return Checked("resume", "FAIL" if worst > FAR else "warn", text, self.advice())
        return Checked("resume", "ok", f"{text}; but random numbers from another seed differ as much")

    def advice(self) -> str:
        """Return what to do where trials do not go on as a longer one does: by what both report, if they do."""
        one, two = self.half.curve, self.whole.curve
        shared = [key for key in one if key in two and key[0] < self.steps]
        if any(facts.gap(one[key], two[key]) > NOISE for key in shared):
            return _SCHEDULE.format(k=self.steps)
        return _SAVE if shared else _SAVE + _PERHAPS

    def random(self, *, same: bool, resumed: str) -> Checked:
        k, none = self.steps, "training draws no random numbers, or goes on with those of the checkpoint"
        one = self.onward(k, pinned=None)
        if facts.only_metrics(self.noise) and not self.changed(self.resumed, one):
            return Checked("random", "not known", "phyla cannot read whether the checkpoint changes")
        if self.exact and not one.failed and not self.changed(self.resumed, one):
            return Checked("random", "ok", none)
        other = self.onward(k, seed=1, pinned=None)
        if one.failed or other.failed or self.changed(one, other):
            return Checked("random", "ok", "each trial draws other random numbers")
        if not self.exact:
            return Checked("random", "not known", f"another seed changes nothing; see {resumed} first")
        whole, chain = self.run(2 * k, pinned=None), self.run(k, k, pinned=None)
        if whole.failed or chain.failed or not self.differing(chain, whole):
            return Checked("random", "ok", none)
        text = "each trial draws the same random numbers again, whatever trial.seed is"
        return Checked("random", "FAIL", text, "make generators from trial.seed, or save and load their state")

    def parameter(self, name: str, *, known: bool, same: bool) -> Checked:
        k, base, others = self.steps, self.resumed, self.others[name]
        if not others or not known:
            why = "nothing to compare with: no other value is allowed" if known else self.why
            return Checked("parameter", "not known", f"{name}: {why}")
        for values in others:
            change = f"{name} from {_shown(self.params[name])} to {_shown(values[name])}"
            varied = self.onward(k, values=[values])
            if varied.failed and values is others[0]:
                return Checked(
                    "parameter", "warn", f"{change}: training failed: {varied.failed}", "narrow the space"
                )
            moved = [] if varied.failed else self.changed(base, varied, name, values)
            if moved:
                break
            if values is others[0] and self.changed(base, self.onward(k, values=[values], copy=1), name, values):
                text = (
                    f"{change} acts in a process that trained no other trial before; others keep the first value"
                )
                return Checked("parameter", "FAIL", text, f"make what depends on {name} anew in each trial")
        else:
            return self.without_effect(name, others)
        if same and k > 1:
            # If one step with the new value is as good as all steps, the old one may have come back.
            brief = self.onward(1, k - 1, values=[values, self.params])
            gaps = [
                [facts.gap(one.facts.get(key), varied.facts.get(key)) for one in (brief, base)] for key in moved
            ]
            if not brief.failed and all(left <= 0.01 * right < math.inf for left, right in gaps):
                text = f"{change} acts in the first step only"
                if old := self.came_back(name, values, varied):
                    text = f"{text}; then training has the old value again, as {old} says"
                    return Checked("parameter", "FAIL", text, _SET.format(name))
                return Checked("parameter", "not known", text, f"see that it keeps its value: {_SET.format(name)}")
        return Checked("parameter", "ok", f"{change} changes the checkpoint")

    def without_effect(self, name: str, others: Sequence[Mapping[str, Any]]) -> Checked:
        """Say what is seen of a hyperparameter that does not act from the checkpoint on."""
        k, tried = self.steps, listed([_shown(values[name]) for values in others])
        change = f"{name} from {_shown(self.params[name])} to {tried}"
        if facts.only_metrics(self.noise):
            return Checked("parameter", "not known", f"{change}: phyla cannot read whether the checkpoint changes")
        if name in self.half.unread and name in self.resumed.unread:
            # What is read in some step, as at the end of an epoch, is read in longer trials.
            text = f"{change} changes nothing: training does not read it in {2 * k} steps"
            return Checked("parameter", "warn", text, f"use trial.params[{name!r}], or leave it out of the space")
        self.together([((k,), {"values": [values]}) for values in others])
        acts = False
        for values in others:
            if old := self.came_back(name, values, self.onward(k, values=[values])):
                text = "acts at a fresh start only: from a checkpoint, training has the old value, as"
                text = f"{name} from {_shown(self.params[name])} to {_shown(values[name])} {text} {old} says"
                return Checked("parameter", "FAIL", text, _SET.format(name))
            fresh = self.run(k, values=[values])
            acts |= bool(fresh.trained and self.changed(self.half, fresh, name, values))
        text = f"{change}: no effect here; {k} steps from the same checkpoint leave the same"
        if acts:
            text = f"{text}, though it acts at a fresh start"
            return Checked("parameter", "not known", text, f"if it should act there: {_SET.format(name)}")
        why = f"use trial.params[{name!r}] if training does not, or try more --steps"
        return Checked("parameter", "not known", f"{text}, and so do those from a fresh start", why)

    def came_back(self, name: str, values: Mapping[str, Any], varied: "Outcome") -> str:
        """Return what in the checkpoint is the new value after a fresh start, and the old one after going on."""
        fresh, old, new = self.run(self.steps, values=[values]), self.params[name], values[name]
        return facts.holding((self.half.facts, old), (fresh.facts, new), (varied.facts, old))

    def weights(self) -> Checked:
        if not self.metrics:
            return Checked("weights", "ok", "the suite measures the weights that are saved")
        said, measured = self.values(self.resumed.trained[-1]), [*map(self.values, self.resumed.measured)]
        if len(measured) < 2 or not all(map(math.isfinite, measured[0])):
            return self.last_step()
        first, second = measured
        if facts.gap(first, second) > NOISE:
            text = f"the objective is noisy: the same checkpoint measures {_said(first)} and {_said(second)}"
            return Checked("weights", "not known", text)
        if facts.gap(said, first) > NOISE:
            text = (
                f"{self.name} reported {_said(said)}, and measures {_said(first)} on the checkpoint that it saved"
            )
            return Checked("weights", "FAIL", text, _MEASURE)
        return Checked("weights", "ok", "the objective is that of the weights that are saved")

    def last_step(self) -> Checked:
        """Where nothing is measured without training: look whether the last step changes the objective."""
        single: dict[str, Any] = {"start": self.middle}
        self.together(
            [((1,), how) for how in (single, *({**single, "values": [one]} for one in self.first.values()))]
        )
        base = self.onward(1)
        for name, values in self.first.items() if base.trained and self.noise else ():
            varied = self.onward(1, values=[values])
            if not varied.trained or not self.changed(base, varied, name, values):
                continue
            now, other, before = (self.values(one.trained[-1]) for one in (base, varied, self.half))
            if facts.gap(now, other) or not facts.gap(now, before):
                return Checked("weights", "ok", "the last step counts in the objective")
            text = f"{name} changes the weights in one step, and {self.name} still reports {_said(now)}"
            if all(map(_coarse, now)):
                return Checked(
                    "weights", "not known", f"{text}, which may be chance where few values are possible"
                )
            return Checked("weights", "FAIL", f"{text}: it is measured before the last step", _MEASURE)
        text = f"{self.name} does not measure a checkpoint without training (trial.start_step is trial.end_step)"
        why = self.resumed.failed or "what it reports is not finite"
        return Checked("weights", "not known", f"{text}: {why}")

    def values(self, trial: TrialRecord) -> tuple[float, ...]:
        reported: Any = trial.metrics
        return tuple(float(reported[metric]) for metric in self.metrics)

    def finite(self, outcome: "Outcome") -> bool:
        return bool(outcome.trained) and all(map(math.isfinite, self.values(outcome.trained[-1])))

    def cost(self) -> Checked:
        rules, last = self.study.rules, self.resumed
        kept, steps = bound(rules.keeping), rules.strategy.member_steps
        if rules.keeping.keep_every_steps and steps:
            kept += rules.strategy.population_size * (steps // rules.keeping.keep_every_steps)
        loading, saving = (duration(last.timings.get(phase, 0.0)) for phase in ("loading", "saving"))
        text = (
            f"a checkpoint has {size(last.size_bytes)}; loading took {loading}, evaluating and saving {saving}. "
            f"The study keeps at most {counted(kept, 'checkpoint')}, {size(kept * last.size_bytes)}"
        )
        place = self.study.places.checkpoint_root
        if not isinstance(place, Path):
            return Checked("cost", "ok", text)
        free = shutil.disk_usage(next(one for one in (place, *place.parents) if one.exists())).free
        if kept * last.size_bytes > free:
            change = f"{size(free)} are free at {place}: save less, keep fewer (phyla.Retention), or move them"
            return Checked("cost", "warn", text, change)
        return Checked("cost", "ok", text)


def _said(values: Sequence[float]) -> str:
    return ", ".join(number(value, 6) for value in values)


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else repr(value)


def _coarse(value: float) -> bool:
    """Return whether a value is a share of few, as an accuracy is; others hardly ever come twice by chance."""
    return math.isclose(value, Fraction(value).limit_denominator(COARSE), rel_tol=1e-9, abs_tol=1e-12)


def _finite(value: Any) -> bool:
    return isinstance(value, str) or bool(np.all(np.isfinite(value)))
