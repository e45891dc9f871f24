"""A trial: one short training session of one member."""

from dataclasses import dataclass, field
from typing import NamedTuple, final

from phyla.errors import UsageError
from phyla.records.job import JobKind, JobState
from phyla.records.json import JsonObject
from phyla.records.objective import Criteria


@final
class Score(NamedTuple):
    """The score of a completed training trial, and where it is in the lineage.

    Attributes:
        parent: trial whose weights it started from; None when it started fresh.
        generation: how many completed trials the member had before it.
        order: sort key of the fitness, higher is better; nan without a fitness.
    """

    trial: int
    parent: int | None
    generation: int
    order: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One trial.

    Attributes:
        generation: how many completed trials the member had before it.
        parent: trial whose weights it started from; None when it started fresh.
        parent_checkpoint: name of that trial's checkpoint.
        parent_index: place within that checkpoint.
        jump_from: the trial that was abandoned for `parent`; a jump edge of the lineage.
        params_from: trial whose hyperparameters it took or derived its own from.
        replaces: broken trial that it replaces.
        start_step: step of the weights at the start, as training counts it.
        end_step: step it is asked to reach.
        reached_step: step it reached; None until it completes. Where a rule stopped it, the step of that report.
        seed: seed for the training code, in [0, 2**31).
        token: newest fencing token; the number of claims so far.
        failures: attempts that failed (a preemption is none).
        progress: name of the newest progress checkpoint, where a retry resumes.
        progress_step: age of the weights in `progress`.
        exploited: whether the decision took over another's state or explored.
        order: sort key of the fitness, higher is better; -inf for nan, infinities and infeasible trials.
        metrics: last reported value of each metric.
        reason: the decision that made it: who was compared with whom, by which rule, what changed.
        error: text of its last error.
        created_at: when it was decided.
        started_at: when its newest attempt was claimed.
        ended_at: when it reached a final state.
        stop_reason: why a rule stopped it early, as data; None unless one did. It is then cancelled.
        origin: of an import, the directory or file that it was imported from; else None.
        criteria: the metrics that the fitness was made of; None where the fitness is the metric.
        age: age of the weights at the start: steps trained in this study along their lineage.
    """

    id: int
    study: int
    member: int
    generation: int
    kind: JobKind = JobKind.TRAIN
    state: JobState
    parent: int | None = None
    parent_checkpoint: str | None = None
    parent_index: int = 0
    jump_from: int | None = None
    params_from: int | None = None
    replaces: int | None = None
    params: JsonObject
    start_step: int
    end_step: int
    reached_step: int | None = None
    seed: int
    token: int = 0
    failures: int = 0
    progress: str | None = None
    progress_step: int | None = None
    exploited: bool = False
    fitness: float | None = None
    order: float | None = None
    metrics: JsonObject = field(default_factory=dict)
    checkpoint: str | None = None
    checkpoint_index: int = 0
    reason: JsonObject = field(default_factory=dict)
    error: str | None = None
    worker: str | None = None
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    stop_reason: JsonObject | None = None
    origin: str | None = None
    criteria: Criteria | None = None
    age: int = 0

    def __repr__(self) -> str:
        steps = f"steps {self.start_step} to {self.end_step}"
        fitness = "" if self.fitness is None else f", fitness {self.fitness:g}"
        return f"<Trial {self.id} of member {self.member}: {steps}, {self.state}{fitness}, {self.params}>"

    @property
    def measures(self) -> bool:
        """Whether it measures the checkpoint of its parent again, and trains nothing."""
        return self.kind in (JobKind.MEASURE, JobKind.FINAL)

    @property
    def reached_age(self) -> int | None:
        """Age of the weights at the end, as `age` is that at the start; None until it completes."""
        return None if self.reached_step is None else self.age + max(0, self.reached_step - self.start_step)

    def check_progress(self, step: int) -> None:
        """Reject progress at a step outside of this trial.

        Raises:
            UsageError: the step is before `start_step` or beyond `end_step`.
        """
        if not self.start_step <= step <= self.end_step:
            raise UsageError(
                f"save_progress(step={step}): trial {self.id} trains from step {self.start_step} to step "
                f"{self.end_step}; pass the age of the weights in steps, which lies between these"
            )
