"""The final of a study: when training has ended, workers measure its best candidates again."""

from collections import Counter

from phyla.machine.commands import Command, SetStudyState
from phyla.machine.evaluating.groups import replicate
from phyla.machine.evaluating.score import FINALIST
from phyla.machine.rules import TrainRules
from phyla.machine.view import View
from phyla.machine.winner import Standing, measurements, orders
from phyla.records import JsonObject, Scored, StudyState
from phyla.strategies.final import Final, next_due
from phyla.strategies.starts import scored_trial


def due_measurements(view: View, final: Final) -> list[Scored] | None:
    """Return what the final needs next, once for each measurement; empty while it runs, None when it has ended."""
    # One process decides at a time.
    view.locked_member(0)
    if view.open_groups():
        return []
    candidates = {trial.id: trial for trial in Standing(view).candidates(final.candidates)}
    # Read once, since measurements end meanwhile.
    trials = view.final_trials()
    due = next_due(final, list(candidates), orders(measurements(trials)))
    if not due.candidates and all(trial.ended_at is not None for trial in trials):
        return None
    return [scored_trial(candidates[candidate]) for candidate in due.candidates]


def begin_final(view: View, before: JsonObject) -> list[Command]:
    """Resume a completed study whose configuration has another final than before; it trains no more."""
    study = view.study()
    if study.state is not StudyState.COMPLETED or study.config.get("final") in (None, before.get("final")):
        return []
    return [SetStudyState(StudyState.RUNNING, study.message)]


def evaluate_finalists(view: View, rules: TrainRules, due: list[Scored]) -> list[Command]:
    """Queue the suite that gives fitness on candidates, with other seeds."""
    counts = Counter(subject.trial for subject in due)
    subjects = {subject.trial: subject for subject in due}
    return [
        command
        for trial, times in counts.items()
        for command in replicate(view, rules, subjects[trial], times, guaranteed=FINALIST)
    ]
