"""The final of a study: when training has ended, workers measure its best candidates again."""

from collections import Counter

from phyla.machine.commands import Command
from phyla.machine.evaluating.groups import replicate
from phyla.machine.evaluating.score import FINALIST
from phyla.machine.rules import TrainRules
from phyla.machine.view import View
from phyla.machine.winner import Standing, measurements, orders
from phyla.records import Scored
from phyla.strategies.final import Final, next_due
from phyla.strategies.starts import scored_trial


def due_measurements(view: View, final: Final) -> list[Scored]:
    """Return what the final needs next, once for each measurement; empty when it runs, or has ended."""
    # One process decides at a time.
    view.locked_member(0)
    candidates = {trial.id: trial for trial in Standing(view).candidates(final.candidates)}
    due = next_due(final, list(candidates), orders(measurements(view.final_trials())))
    return [scored_trial(candidates[candidate]) for candidate in due.candidates]


def evaluate_finalists(view: View, rules: TrainRules, due: list[Scored]) -> list[Command]:
    """Queue the suite that gives fitness on candidates, with other seeds."""
    counts = Counter(subject.trial for subject in due)
    subjects = {subject.trial: subject for subject in due}
    return [
        command
        for trial, times in counts.items()
        for command in replicate(view, rules, subjects[trial], times, guaranteed=FINALIST)
    ]
