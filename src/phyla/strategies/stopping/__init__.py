"""Stopping rules: whether to continue a running trial, or the whole study. One file per rule.

A new rule is a frozen dataclass that derives from `StoppingRule`; `divergence.py` is an example. `StopWith` takes
a function instead.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, final

import numpy as np

from phyla.errors import ConfigurationError
from phyla.records import JsonObject, Mark, Member, Objective, Report, Tally, TrialRecord
from phyla.space import Params
from phyla.strategies.checks import check_arguments
from phyla.validation import check, check_value

if TYPE_CHECKING:
    from phyla.strategies.strategy import History, Strategy


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """Reports of a running trial, up to one report.

    Attributes:
        trial: the trial.
        objective: what is maximized or minimized.
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
    """Reports of the other trials of the study."""

    def averages(self, mark: Mark) -> Sequence[float]:
        """Return the running averages of the objective that the newest 100 others had at a mark.

        nan stands for a trial that had reported nan or infinity by then.
        """
        ...


class StoppingRule(Protocol):
    """Judges a running trial report by report: a frozen dataclass with `judge`; everything else has a default.

    Register it under the entry point group `phyla.stopping`. If it has a setting `metric`, a warning says so where
    training does not report that metric.
    """

    @property
    def marks_every(self) -> int | None:
        """Distance of the marks at which it compares trials, in steps; None if it never does."""
        return None

    @property
    def history(self) -> int:
        """How many of the trial's last reports it looks at; 0 if the one that is judged is enough."""
        return 0

    @property
    def pareto(self) -> bool:
        """Whether it works without a single number that orders trials; no rule that has marks does."""
        return self.marks_every is None

    def judge(self, reported: Reported, others: Others) -> JsonObject | None:
        """Return why to stop the trial, as data; None lets it continue.

        The data has to be JSON, with `rule` and `step` among it, and `why` in words unless the rule says it all.
        """
        ...

    def ends(self, members: Sequence[Member], objective: Objective, history: "History") -> str | None:
        """Return why the whole study is complete, in words; None lets it continue.

        It is asked before each new trial, so it has to be quick. `members` are all of them, by index.
        """
        return None

    def check_strategy(self, strategy: "Strategy") -> None:
        """Raise a `ConfigurationError` for a strategy that it cannot work with."""
        return


def check_rule(rule: Any) -> None:
    """Reject what is not a stopping rule."""
    missing = [name for name in ("judge", "ends", "marks_every", "history") if not hasattr(rule, name)]
    if isinstance(rule, type) or missing:
        why = f", it has no {' and no '.join(missing)}" if missing else " but a class"
        do = "use e.g. Divergence(), or derive your own from phyla.strategies.stopping.StoppingRule"
        raise ConfigurationError(f"stopping={rule!r}: this is not a stopping rule{why}; {do}")
    if rule.marks_every is not None:
        check_value(type(rule).__name__, "marks_every", rule.marks_every, 1)
    check_value(type(rule).__name__, "history", rule.history, 0)


StopFunction: TypeAlias = Callable[[Reported], str | bool | None]


@final
@dataclass(frozen=True, slots=True)
class StopWith(StoppingRule):
    """Stop a trial when a function returns a reason.

    Args:
        function: called as `function(reported)` for every report, in order; returns why to stop, in words or True,
            or None or False to go on. It has to be quick, and to depend on nothing else. Worker processes need a
            function of a file.
        history: how many of the trial's last reports `reported.reports` holds; at least 1.
    """

    function: StopFunction
    history: int = 100

    def __post_init__(self) -> None:
        check_arguments(self, "function", "reported")
        check(self, history=1)

    def judge(self, reported: Reported, others: Others) -> JsonObject | None:
        name = getattr(self.function, "__name__", repr(self.function))
        reason = self.function(reported)
        if reason is not None and not isinstance(reason, str | bool | np.bool_):
            raise ConfigurationError(
                f"StopWith({name}) returned {reason!r}; return why to stop, in words, or None"
            )
        if not reason:
            return None
        return {"rule": name, "step": reported.step, **({"why": reason} if isinstance(reason, str) else {})}
