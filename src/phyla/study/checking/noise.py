"""How much a score varies when a checkpoint is measured again, and what that means for the settings of a study."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from phyla.formatting import format_count, number
from phyla.significance import deviation_of
from phyla.study.checking.checked import Checked, Verdict

MEASUREMENTS = 8
"""How many times a checkpoint is measured again, unless that takes too long."""
MOST_REPEATS = 1000
"""Advice to measure more than this many times would be no help."""
MOST_REPORTS = 30
"""The most reports that a fitness is advised to average."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Scores of one metric that trials of a check reported.

    Attributes:
        measured: of one checkpoint, each measured with another seed.
        members: of members with different hyperparameters, after `steps` steps from one checkpoint.
        steps: steps of a trial of the check.
        gain: how much such a trial improves the score; None if that is not known.
        failed: why the measurement after those of `measured` failed, if it did.
        unseeded: whether trials with the same seed, which left the same weights, reported different scores.
        repeated: whether trials draw the same random numbers, whatever their seed is.
    """

    measured: Sequence[float]
    members: Sequence[float] = ()
    steps: int = 1
    gain: float | None = None
    failed: str | None = None
    unseeded: bool = False
    repeated: bool = False


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The settings of a study that noise matters for.

    Attributes:
        trial_steps: steps of one of its trials.
        total_steps: steps of a member; None if that is not known.
        averaged: how many reports of a trial its fitness averages.
        adjustable: whether its strategy has the setting `steps_per_trial`.
        guarded: whether a member needs several scores to donate, or the strategy has no `min_scores`.
    """

    trial_steps: int
    total_steps: int | None = None
    averaged: int = 1
    adjustable: bool = True
    guarded: bool = False


@final
class Noise:
    """The noise of a score, beside what a trial changes in it."""

    def __init__(self, scores: Scores, selection: Selection) -> None:
        self.scores, self.selection = scores, selection
        self.count = sum(map(math.isfinite, scores.measured))
        self.deviation = deviation(scores.measured)
        self.remaining = (self.deviation or 0.0) / math.sqrt(selection.averaged)
        """The noise of a fitness, which may average reports."""
        self.members = sum(map(math.isfinite, scores.members))
        self.spread = deviation(scores.members)
        self.pace = selection.trial_steps / scores.steps
        """How many trials of the check are as long as one of the study."""

    @property
    def exact(self) -> bool:
        """Whether all measurements are equal."""
        return self.deviation == 0 and self.count == len(self.scores.measured) and self.scores.failed is None

    @property
    def lucky(self) -> bool:
        """Whether members differ so little that selection mostly copies luck, even at the pace of the check."""
        spread = self.spread
        if spread is None or (spread == 0 and self.pace > 1):
            return False
        return self.remaining > spread * self.pace / 2

    @property
    def short(self) -> bool:
        """Whether a trial improves the score by less than the noise."""
        gain = self.scores.gain
        if gain is None or not self.selection.adjustable or (gain <= 0 and self.pace > 1):
            return False
        return self.remaining > max(0.0, gain * self.pace)

    @property
    def repeats(self) -> int | None:
        """How many measurements to average, so that noise matters no more; None where no sensible number helps."""
        spread = (self.spread or 0.0) / 2 if self.lucky else 0.0
        gain = self.scores.gain or 0.0 if self.short else 0.0
        wanted = [value * self.pace for value in (spread, gain) if value > 0]
        ratio = max((divide(self.remaining, value) for value in wanted), default=math.inf)
        return math.ceil(ratio * ratio) if ratio * ratio <= MOST_REPEATS else None

    @property
    def longer(self) -> int | None:
        """The length of a trial that improves the score by more than the noise; None if that is not known."""
        gain, most = self.scores.gain or 0.0, self.selection.total_steps or math.inf
        steps = divide(self.remaining, gain) * self.scores.steps if self.short else math.inf
        return round_up(steps) if steps < most and round_up(steps) < most else None

    def numbers(self) -> dict[str, float | None]:
        """Return what was measured."""
        return {
            "measurements": self.count,
            "noise": self.deviation,
            "uncertainty": uncertainty(self.count) if self.count > 1 else None,
            "members": self.members,
            "spread": self.spread,
            "gain": self.scores.gain,
        }


def judge_noise(scores: Scores, selection: Selection, about: str = "") -> Checked:
    """Return how noisy a score is, and what to change in the settings of a study if that matters."""
    noise = Noise(scores, selection)
    prefix = f"{about}: " if about else ""
    verdict, text, change = _judge(noise)
    return Checked("noise", verdict, f"{prefix}{text}", change, about, noise.numbers())


def _judge(noise: Noise) -> tuple[Verdict, str, str]:
    scores, count = noise.scores, noise.count
    if noise.deviation is None:
        why = scores.failed or f"{len(scores.measured) - count} of {len(scores.measured)} scores are not finite"
        text = f"a checkpoint could not be measured again without training: {why}"
        return "not known", text, "if trial.measuring, load, evaluate and report, without training"
    if noise.exact and scores.repeated:
        text = f"{count} measurements of one checkpoint are equal, but all trials draw the same random numbers"
        return "not known", f"{text}: the score may vary with others; see random first", ""
    if noise.exact:
        text = "exact: measuring again gives the same score"
        return "ok", f"{text} ({count} measurements, each with another trial.seed)", ""
    text = "; ".join([_noise_words(noise), *_settings_words(noise), *_failure_words(scores)])
    bad = count < len(scores.measured) or scores.failed is not None
    advice = ["find out why a measurement fails or is not finite"] if bad else []
    advice += _advice(noise) if noise.lucky or noise.short else []
    return "warn" if bad or noise.lucky or noise.short else "ok", text, "; ".join(advice)


def _noise_words(noise: Noise) -> str:
    scores, averaged = noise.scores, noise.selection.averaged
    few = len(scores.measured) < MEASUREMENTS and scores.failed is None
    slow = "; more would take longer than the first trials" if few else ""
    known = f"{noise.count} measurements, known to about {100 * uncertainty(noise.count):.0f} %"
    text = (
        f"the score of one checkpoint varies by {_number(noise.deviation)} (standard deviation of {known}{slow})"
    )
    if averaged > 1:
        text = f"{text}, and the mean of {averaged} reports by {_number(noise.remaining)}"
    if scores.unseeded:
        text = f"{text}, even among trials with the same trial.seed"
    return text


def _settings_words(noise: Noise) -> Iterable[str]:
    gain = noise.scores.gain or 0.0
    if noise.spread is not None:
        luck = ", so selection mostly copies luck" if noise.lucky else ""
        apart = f"{_number(noise.spread)} {_after(noise, noise.spread)}"
        yield f"{noise.members} members with other hyperparameters differ by {apart}{luck}"
    if noise.short and gain <= 0:
        yield "one trial does not improve the score"
    elif noise.short:
        yield f"the score improves by {_number(gain)} {_after(noise, gain)}, which is less than the noise"


def _after(noise: Noise, value: float) -> str:
    if noise.pace == 1:
        return "after one trial"
    later = f"at that pace by {_number(value * noise.pace)} after a trial of {noise.selection.trial_steps:,}"
    return f"after {format_count(noise.scores.steps, 'step')}, {later}"


def _failure_words(scores: Scores) -> Iterable[str]:
    bad = [value for value in scores.measured if not math.isfinite(value)]
    if bad:
        yield f"{len(bad)} of {len(scores.measured)} measurements gave {_number(bad[0])}"
    if scores.failed is not None:
        yield f"measurement {len(scores.measured) + 1} failed: {scores.failed}"


def _advice(noise: Noise) -> Iterable[str]:
    steps, repeats, selection = noise.longer, noise.repeats, noise.selection
    if steps is not None:
        yield f"steps_per_trial={steps} makes the improvement larger than the noise"
    if repeats is not None:
        reports = repeats * selection.averaged
        text = (
            f"{repeats} times as many evaluation samples make the noise {_number(noise.remaining / repeats**0.5)}"
        )
        if reports <= min(selection.trial_steps, MOST_REPORTS):
            text = (
                f"{text}, as does fitness=phyla.strategies.MeanOfLast({reports}) with as many reports near the "
                "end of a trial"
            )
        yield text
    elif steps is None:
        yield "make trials longer, or evaluate on many more samples"
    if noise.lucky and not selection.guarded:
        yield "with min_scores=2 no member donates after a single lucky score"
    if noise.lucky:
        yield "final=phyla.Final() measures the best candidates again at the end"


def deviation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation of the finite values; None if there are fewer than 2."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return None
    return deviation_of(finite)


def uncertainty(count: int) -> float:
    """Return the relative standard error of the standard deviation of this many normal values, at least 2."""
    return 1 / math.sqrt(2 * (count - 1))


def divide(value: float, by: float) -> float:
    """Return a quotient of two numbers, the first not negative; infinite if the second is not positive."""
    return value / by if by > 0 else math.inf


def round_up(value: float) -> int:
    """Return the next larger whole number with two digits that count."""
    unit = int(10 ** max(0, math.floor(math.log10(max(1.0, value))) - 1))
    return (math.floor(value / unit) + 1) * unit


def _number(value: float | None) -> str:
    return number(value, 2)
