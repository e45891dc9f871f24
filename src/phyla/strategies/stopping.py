"""The contract of a stopping rule: whether a running trial is worth going on with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

from phyla.errors import ConfigurationError
from phyla.records import JsonObject, Mark, Objective, Report, Tally, TrialRecord
from phyla.space import Params
from phyla.strategies.checks import check_integer


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """What a running trial has reported, up to one report.

    Attributes:
        trial: the trial.
        objective: what is maximised or minimised.
        report: the report that is judged.
        tally: the objective so far, this report included; None before its first report.
        marks: the marks that the trial came to with this report; none unless it has the objective.
        reports: the last reports of this attempt, this one last; as many as the rules ask for with `history`.
    """

    trial: TrialRecord
    objective: Objective
    report: Report
    tally: Tally | None = None
    marks: tuple[Mark, ...] = ()
    reports: Sequence[Report] = ()

    @property
    def params(self) -> Params:
        """The trial's hyperparameters, readable flat and nested."""
        return Params.of_flat(dict(self.trial.params))

    @property
    def step(self) -> int:
        """Age of the weights at the report."""
        return self.report.step

    @property
    def trained_steps(self) -> int:
        """Steps since the trial started."""
        return self.report.step - self.trial.start_step

    def values(self, metric: str) -> list[float]:
        """Return the values of a metric in `reports`, oldest first."""
        return [report.metrics[metric] for report in self.reports if metric in report.metrics]


class Others(Protocol):
    """What the other trials of the study reported."""

    def averages(self, mark: Mark) -> Sequence[float]:
        """Return the running averages of the objective that other trials had at a mark.

        Those of the newest 100 trials that came to it, whatever became of them. nan stands for a trial that had
        reported nan or infinity by then.
        """
        ...


class StoppingRule(Protocol):
    """Judges a running trial report by report. Frozen, pure, and sees no database.

    A plug-in is a frozen dataclass with these members, registered under the entry point group
    `phyla.stopping`. It may also have `watches(objective)`, which returns the names of the metrics without which
    it stops nothing: if training does not report one of them, a warning says so.
    """

    @property
    def marks_every(self) -> int | None:
        """Distance of the marks at which it compares trials, in steps; None if it never does."""
        ...

    @property
    def history(self) -> int:
        """How many of the trial's last reports it looks at; 0 if the one that is judged is enough."""
        ...

    def judge(self, reported: Reported, others: Others) -> JsonObject | None:
        """Return why the trial is to be stopped, as data; None lets it go on.

        The data has to be JSON, with `rule` and `step` among it, and `why` in words unless the rule says it all.
        """
        ...


def check_rule(rule: object) -> None:
    """Refuse what is no stopping rule.

    Raises:
        ConfigurationError: a class instead of an object, or a member is missing or makes no sense.
    """
    members = ("judge", "marks_every", "history")
    missing = [name for name in members if not hasattr(rule, name)]
    if isinstance(rule, type) or missing:
        raise ConfigurationError(
            f"stopping={rule!r}: this is no stopping rule"
            + (f", it has no {' and no '.join(missing)}" if missing else " but a class")
            + "; use MedianStopping(...), Divergence(...) or StopWith(function)"
        )
    name = type(rule).__name__
    every = getattr(rule, "marks_every")  # noqa: B009  # of any object
    if every is not None:
        check_integer(name, "marks_every", every, 1)
    check_integer(name, "history", getattr(rule, "history"), 0)  # noqa: B009
