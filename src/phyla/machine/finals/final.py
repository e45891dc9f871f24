"""The final of a study: when training has ended, workers measure its best candidates again."""

import math
from collections import Counter

from phyla.machine.commands import Command, SetStudyState
from phyla.machine.evaluating.groups import replicate
from phyla.machine.evaluating.score import FINALIST, judged_values
from phyla.machine.finals.winner import Standing, lacks_score, measurements, orders
from phyla.machine.rules import TrainRules
from phyla.machine.view import View
from phyla.records import JobState, JsonObject, Scored, StudyState, TrialRecord, summarize_error
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
    due = next_due(final, list(candidates), orders(measurements(trials, view.study())))
    if not due.candidates and all(trial.ended_at is not None for trial in trials):
        return None
    return [scored_trial(candidates[candidate]) for candidate in due.candidates]


def running_measurements(view: View) -> list[Scored]:
    """Return what the final measures now, the newest first."""
    running = [trial.parent for trial in view.final_trials() if trial.ended_at is None]
    return [scored_trial(view.trial(parent)) for parent in reversed(running) if parent is not None]


def end_final(view: View, rules: TrainRules, final: Final, end: SetStudyState) -> SetStudyState:
    """Return the end of a study after its final: failed, if no candidate could be measured."""
    candidates = [trial.id for trial in Standing(view).candidates(final.candidates)]
    measured = measurements(view.final_trials(), view.study())
    unscored = [trial for candidate in candidates for trial in measured.get(candidate, ()) if lacks_score(trial)]
    if not unscored or next_due(final, candidates, orders(measured)).winner is not None:
        return end
    last = max(unscored, key=lambda trial: trial.id)
    count = sum(trial.state is last.state for trial in unscored)
    message = (
        f"the final has no winner: {count} of its measurements {_describe(last, rules)}, then run the study again."
    )
    return SetStudyState(StudyState.FAILED, message)


def _describe(last: TrialRecord, rules: TrainRules) -> str:
    """Return why measurements have no score, by the last of them, and what to do."""
    if last.state is JobState.FAILED:
        return (
            f"failed, the last one (trial {last.id}) with: {summarize_error(last.error)}. Training is complete. "
            "A measurement is a trial without steps: load the checkpoint, score it, report. Fix the error"
        )
    values = judged_values(last, rules.objective)
    wrong = ", ".join(f"{name}={value}" for name, value in values.items() if not math.isfinite(value))
    if rules.suite_fitness is not None:
        return (
            f"have no finite score, the last one (trial {last.id}) has {wrong} from suite "
            f"{rules.suite_fitness.suite!r}. Training is complete. Fix the eval task, which gets another "
            "evaluation.seed each time"
        )
    return (
        f"have no finite score, the last one (trial {last.id}) reported {wrong}. Training is complete. "
        "A measurement is a trial without steps, so a mean over the steps of training is nan there. Let "
        "training load the checkpoint, score it, and report that"
    )


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
