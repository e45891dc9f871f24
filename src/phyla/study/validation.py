"""Rejects invalid arguments of studies and runs."""

import functools
import math
import signal
from collections.abc import Container, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from phyla import plugins
from phyla.errors import ConfigurationError, NotImportable, SpaceError
from phyla.formatting import format_count
from phyla.records import Maximize, Minimize, StartFrom
from phyla.space import Space
from phyla.strategies import FixedSchedule, GridSearch, Replay, SingleWorkerExplore, Strategy

if TYPE_CHECKING:
    from phyla.evaluation import EvalTask, Suite
    from phyla.machine import TrainRules
    from phyla.supervision.term import Term

UNUSABLE = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}


def check_gpus(name: str, gpus: Sequence[str | int] | None) -> tuple[str, ...] | None:
    """Return GPUs as `CUDA_VISIBLE_DEVICES` names them; each must be given once, and be visible."""
    from phyla.supervision.gpus import visible_gpus

    if gpus is None:
        return None
    names = tuple(str(gpu).strip() for gpu in ([gpus] if isinstance(gpus, str) else gpus))
    if not all(names) or not names or len({*names}) < len(names):
        raise ConfigurationError(f"{name}={gpus!r}: name each GPU once, as CUDA_VISIBLE_DEVICES does: ['6', '7']")
    visible = visible_gpus()
    hidden = [gpu for gpu in names if gpu.isdecimal() and gpu not in visible]
    if hidden and visible and all(gpu.isdecimal() for gpu in visible):
        raise ConfigurationError(
            f"{name}={list(names)}: GPU {hidden[0]} is not visible here; choose from {', '.join(visible)}"
        )
    return names


def check_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the labels of workers."""
    from phyla.evaluation.suite import check_label

    names = (labels,) if isinstance(labels, str) else tuple(labels)
    for label in names:
        check_label(label, f"labels={labels!r}")
    return names


def check_tasks(suites: "Sequence[Suite]", pool: Sequence[str]) -> None:
    """Make sure that there are as many GPUs as any eval task asks for; labelled ones run on other machines."""
    asking = [(task.gpus, task.name, suite.name) for suite in suites for task in suite.tasks if not task.label]
    gpus, name, of = max(asking, default=(0, "", ""))
    if gpus > len(pool):
        there = f"{'is' if len(pool) == 1 else 'are'} {len(pool) or 'none'} for evaluation"
        there += f" ({', '.join(pool)})" if pool else ""
        raise ConfigurationError(
            f"eval task {name!r} of suite {of!r} asks for {format_count(gpus, 'GPU')}, and there {there}, so no "
            "worker of this run could run it; ask for fewer, or run it on a machine that has as many"
        )


def make_term(stop_signal: str | int | None, time_limit_s: float | None, grace_s: float | None = None) -> "Term":
    """Return when a run has to stop; a signal is given as its number, or by name as `USR1` or `SIGUSR1`."""
    from phyla.supervision.term import GRACE_S, Term

    check_seconds("time_limit_s", time_limit_s)
    term = Term(limit_s=time_limit_s, grace_s=check_seconds("grace_s", grace_s) or GRACE_S)
    if stop_signal is None:
        return term
    word = str(stop_signal).upper().removeprefix("SIG")
    known = [number for number in signal.Signals if number not in UNUSABLE]
    fitting = [number for number in known if word in (number.name.removeprefix("SIG"), str(int(number)))]
    if not fitting:
        raise ConfigurationError(
            f"stop_signal={stop_signal!r}: name a signal that a process can handle, such as 'USR1'"
        )
    return replace(term, stop_signal=fitting[0])


def _check_identities(suites: "Sequence[Suite]") -> None:
    """Reject different eval tasks with one identity: the ledger would give one the results of the other."""
    known: dict[str, tuple[EvalTask, Suite]] = {}
    for suite in suites:
        for task in suite.tasks:
            first, of = known.setdefault(task.identity, (task, suite))
            if _runs(first, of) != _runs(task, suite):
                raise ConfigurationError(
                    f"suites {of.name!r} and {suite.name!r} both have an eval task {task.name!r}, with functions "
                    "of the same names, or the same command in different directories. phyla could not tell their "
                    "results apart: rename one of the eval tasks, or give it another version"
                )


def _runs(task: "EvalTask", suite: "Suite") -> list[object]:
    """Return what evaluates, equal only if that is the same; a file may have been imported twice."""
    prepare = suite.preparation
    functions = (task.evaluate, suite.load, prepare and prepare.function)
    return [task.cwd, prepare and prepare.cwd, *map(_reference, functions)]


def _reference(function: Any) -> object:
    """Return the name by which a function is imported, or else itself; that of the class of an object.

    Of a partial, it is that of its function, with its arguments.
    """
    if function is None:
        return None
    if isinstance(function, functools.partial):
        return _reference(function.func), repr((function.args, function.keywords))
    try:
        return plugins.reference(function if hasattr(function, "__qualname__") else type(function))
    except NotImportable:
        return function


def check_seconds(name: str, seconds: float | None) -> float | None:
    """Return a number of seconds above 0, or None."""
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if seconds is not None and not (number and 0 < seconds < math.inf):
        raise ConfigurationError(f"{name}={seconds!r}: must be a number of seconds above 0, or None")
    return seconds


def check_kinds(kinds: Sequence[str]) -> frozenset[str]:
    """Return what workers do."""
    wanted = frozenset(kinds)
    if not wanted or not wanted <= {"train", "evaluate"}:
        raise ConfigurationError(f"kinds={kinds!r}: choose 'train', 'evaluate', or both")
    return wanted


def check_starts(starts: Any, space: Space, strategy: Strategy) -> tuple[StartFrom, ...]:
    """Return `start_from` with hyperparameters from the space; reject those that no member or strategy uses."""
    points, members = space.initial, strategy.population_size
    # These have hyperparameters of their own, or one member whatever space they are compared on.
    own = FixedSchedule | GridSearch | Replay | SingleWorkerExplore
    if len(points) > members and not isinstance(strategy, own):
        few = f"{format_count(len(points), 'starting point')}, and the study {format_count(members, 'member')}"
        raise SpaceError(
            f"Space(initial=...) has {few}: {points[members]!r} has no member to start; leave it out, or use "
            "more members"
        )
    if isinstance(starts, str | PathLike | StartFrom) or not isinstance(starts, Sequence):
        raise ConfigurationError(f"start_from={starts!r}: must be a list, as in start_from=[{starts!r}]")
    checked = []
    for number, entry in enumerate(map(StartFrom.of, starts)):
        try:
            checked.append(replace(entry, params=space.check_part(entry.params)))
        except SpaceError as error:
            raise SpaceError(f"start_from[{number}]: {error}") from error
        twice = [name for name in checked[-1].params if name in _names_given(strategy, space)]
        if twice:
            names, kind = ", ".join(map(repr, twice)), type(strategy).__name__
            raise ConfigurationError(
                f"start_from[{number}]: params={dict(entry.params)!r} would replace what {kind} gives itself: "
                f"{names}; leave {'it' if len(twice) == 1 else 'them'} out"
            )
    return tuple(checked)


def _names_given(strategy: Strategy, space: Space) -> Container[str]:
    """Return the parameters whose values are among the settings of a strategy."""
    if isinstance(strategy, GridSearch):
        return strategy.grid
    return space.parameters if isinstance(strategy, FixedSchedule | Replay) else ()


def check_suites(suites: "Sequence[Suite]", rules: "TrainRules | None" = None) -> None:
    """Make sure that suites can give what their objectives name, and that of a study with these rules.

    None may take over the results of an eval task that only looks the same.
    """
    from phyla.evaluation.suite import check_aggregate, suite_named

    _check_identities(suites)
    for suite in suites:
        if suite.objective is not None:
            check_aggregate(suite, suite.objective.metric, f"the objective of suite {suite.name!r}")
        for goal in suite.watch:
            check_aggregate(suite, goal.metric, f"watch of suite {suite.name!r}")
    if rules is not None and rules.suite_fitness is not None:
        suite = suite_named(suites, rules.suite_fitness.suite)
        where = "the objective" if rules.suite_fitness.metric is None else "FromSuite"
        for name in rules.aggregates.values():
            check_aggregate(suite, name, where)
        _check_direction(suite, rules)


def _check_direction(suite: "Suite", rules: "TrainRules") -> None:
    """Reject an objective that gives a metric of the suite the opposite of the suite's own direction."""
    objective = rules.objective
    if not isinstance(objective, Maximize | Minimize):
        return
    metric = rules.aggregates[objective.metric]
    if any(goal.metric == metric and goal.maximize != objective.maximize for goal in suite.goals):
        kind, other = (Maximize, Minimize) if objective.maximize else (Minimize, Maximize)
        raise ConfigurationError(
            f"objective={kind.__name__}({objective.metric!r}) would {kind.__name__.lower()} {metric!r} of suite "
            f"{suite.name!r}, which has {other.__name__}({metric!r}): the fitness comes from the suite, and its "
            f"direction from the objective of the study. Write objective={other.__name__}({metric!r})"
        )
