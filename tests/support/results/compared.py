"""Studies made of trials that a test writes down, for tests of comparisons."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from phyla.records import (
    Aim,
    Attempt,
    AttemptState,
    JobState,
    Json,
    Maximize,
    Member,
    MemberState,
    Minimize,
    StudyRecord,
    StudyState,
    TrialRecord,
)
from phyla.report import ComparedStudy, StudyData
from phyla.report.columns import Attempts
from report_study import columns

Line = tuple[int, int, float, float | None]
"""A completed trial: member, steps, when it ended, and its fitness; it began when the one before it ended."""


def attempt(job: int, begin: float, end: float, **more: Any) -> Attempt:
    """Make an attempt that completed."""
    made = Attempt(
        job=job,
        token=1,
        study=1,
        worker="host:0:1:1",
        state=AttemptState.COMPLETED,
        claimed_at=begin,
        expires_at=end + 60,
        ended_at=end,
    )
    return replace(made, **more)


def study_of(
    lines: Sequence[Line],
    *,
    name: str = "s",
    seed: int = 0,
    maximize: bool = True,
    state: StudyState = StudyState.COMPLETED,
    params: Sequence[dict[str, Any]] = (),
    parameters: Sequence[Json] = (),
    metric: str = "score",
) -> StudyData:
    """Make a study; each trial continues the one of its member before."""
    trials: list[TrialRecord] = []
    attempts: list[Attempt] = []
    last: dict[int, TrialRecord] = {}
    began = 0.0
    for index, (member, steps, ended, fitness) in enumerate(lines):
        before = last.get(member)
        start = 0 if before is None else (before.reached_step or 0)
        trial = TrialRecord(
            id=index + 1,
            study=1,
            member=member,
            generation=0 if before is None else before.generation + 1,
            state=JobState.COMPLETED,
            parent=None if before is None else before.id,
            params=params[index] if params else {},
            start_step=start,
            end_step=start + steps,
            reached_step=start + steps,
            seed=0,
            token=1,
            fitness=fitness,
            order=fitness,
            checkpoint=f"{index + 1}.1",
            created_at=began,
            started_at=began,
            ended_at=ended,
        )
        trials.append(trial)
        last[member] = trial
        attempts.append(attempt(trial.id, began, ended))
        began = ended
    size = 1 + max((line[0] for line in lines), default=0)
    return StudyData(
        study=StudyRecord(
            id=1,
            name=name,
            state=state,
            config={"space": {"parameters": list(parameters)}},
            seed=seed,
            population_size=size,
            created_at=0.0,
        ),
        members=[Member(study=1, index=index, state=MemberState.DONE) for index in range(size)],
        trials=columns(trials),
        attempts=Attempts.of(attempts),
        aim=Aim.of(Maximize(metric) if maximize else Minimize(metric)),
    )


def replicates_of(group: str, finals: Sequence[float | None], *, first_seed: int = 0) -> list[ComparedStudy]:
    """Make replicates of one trial each, with these fitnesses, whose seeds count up."""
    return [
        ComparedStudy(
            data=study_of([(0, 10, 5.0, final)], name=f"{group}-r{index}", seed=first_seed + index),
            group=group,
            replicate=index,
        )
        for index, final in enumerate(finals)
    ]
