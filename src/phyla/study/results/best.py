"""The best trials of a study, and the checkpoints that trials left."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, final

from phyla.checkpoints import RemotePlace, is_there, local_copy
from phyla.errors import CheckpointMissing
from phyla.formatting import duration, fitness, format_count, format_expected, number
from phyla.machine import Winner
from phyla.queries import BestTrial
from phyla.records import Aim, Checkpoint, Phase, StudyState, TrialRecord
from phyla.space import Params
from phyla.strategies import Expected, Final

if TYPE_CHECKING:
    from phyla.study.results.results import Results

Root: TypeAlias = Callable[[], Path | RemotePlace]
"""Returns where the checkpoints of a study are."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BestCheckpoint:
    """The checkpoint of the best trial."""

    name: str
    location: Path | RemotePlace | None  # where it is; None of one that a black-box client keeps
    step: int  # age of the weights
    digest: str  # identity of its content
    size_bytes: int  # bytes of its files together
    index: int  # place within it, when it holds several models

    @property
    def path(self) -> Path:
        """Its directory, which is read-only; of one on an object store a verified copy, downloaded if need be."""
        if self.location is None:
            raise CheckpointMissing(f"checkpoint {self.name!r}: only the client that made it has its files")
        return local_copy(self.location, self.digest)

    @property
    def where(self) -> str:
        """Its directory or URL as text; the client's name for a checkpoint that a black-box client keeps."""
        return str(self.location or self.name)

    @property
    def gone(self) -> bool:
        """Whether its files are gone; False if an object store cannot be reached."""
        return self.location is None or not is_there(self.location)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best trial of a study."""

    fitness: float
    checkpoint: BestCheckpoint
    params: Params  # the trial's hyperparameters; the whole path there is in `Results.schedule()`
    metrics: Mapping[str, Any]  # last reported value of each metric
    trial: int
    member: int
    values: Mapping[str, float]  # what it was judged by: the metrics that the objective names
    expected: Expected | None = None  # fitness expected when it is measured again; None where scores are exact
    measurements: int = 0  # how many of a final that comes from; 0 if it is an estimate from other trials' scores
    noise: float | None = None  # standard deviation of the noise of one score; None if it is not known
    unclear: bool = False  # whether there are too few trials to tell if scores are exact or noisy
    luckiest: TrialRecord | None = None  # the trial with the best score, if that is another one
    lead: float | None = None  # how much better it is than the next member's newest, by estimate, if that is known

    def __repr__(self) -> str:
        where = f"trial {self.trial} of member {self.member}, step {self.checkpoint.step}"
        return f"<Best: fitness {self.fitness:g}, {where}, in {self.checkpoint.where}>"


def explain_best(best: Best) -> list[tuple[str, str]]:
    """Return why a trial is the best one, as labels and texts; empty where scores are exact."""
    lines = []
    if best.unclear:
        lines.append(("expected", "not known: too few trials to tell luck from progress; a final measures it"))
    if best.expected is not None:
        how = f"{best.measurements} new measurements in the final"
        if not best.measurements:
            varies = "" if best.noise is None else f"; a single score varies by {number(best.noise, 2)}"
            how = f"the scores of its relatives{varies}"
        lines.append(("expected", f"{format_expected(best.expected)} with 95 % confidence, by {how}"))
    luckiest = best.luckiest
    if luckiest is not None:
        score = f"trial {luckiest.id} of member {luckiest.member} scored {fitness(luckiest)}"
        known = "which the final did not confirm" if best.measurements else "probably by luck"
        lines.append(("luckiest", f"{score}, {known}"))
    return lines


def suggest_final(results: "Results") -> list[str]:
    """Return what a final would cost, if luck may have chosen the best trial of a completed study."""
    best = results.best
    if best is None or best.measurements or best.noise is None or best.lead is None or best.noise <= best.lead:
        return []
    if best.expected is None or results.state is not StudyState.COMPLETED:
        return []
    final, spent = Final(), results.time_spent()
    apart = (Phase.EVALUATING,) if spent.seconds[Phase.EVALUATING] else (Phase.LOADING, Phase.SAVING)
    seconds = final.measurements * sum(spent.seconds[phase] for phase in apart) / max(1, spent.timed)
    count = format_count(final.measurements, "measurement")
    words = (
        f"a single score varies by {number(best.noise, 2)}, and the best trial leads by {number(best.lead, 2)} "
        f"only: luck may have chosen it. To measure the best {final.candidates} again ({count}, about "
        f"{duration(seconds)} of work): {results.places.command('final', results.name)} --file FILE"
    )
    return [words]


def front_of(study: str, aim: Aim, best: Sequence[BestTrial], root: Root) -> list[Best]:
    """Return the trials on the Pareto front whose checkpoints are kept; without trade-offs the best one."""
    return [
        Best(
            fitness=trial.fitness,
            checkpoint=checkpoint_of(study, trial, row, root),
            params=Params.of_flat(dict(trial.params)),
            metrics=trial.metrics,
            trial=trial.id,
            member=trial.member,
            values={aim.name: trial.fitness} if trial.criteria is None else trial.criteria.values,
            **_why_best(winner),
        )
        for trial, row, winner in ((entry.trial, entry.checkpoint, entry.winner) for entry in best)
        if trial.fitness is not None and row is not None
    ]


def _why_best(winner: Winner | None) -> dict[str, Any]:
    names = ("expected", "measurements", "noise", "unclear", "luckiest", "lead")
    return {} if winner is None else {name: getattr(winner, name) for name in names}


def checkpoint_of(study: str, trial: TrialRecord, row: Checkpoint | None, root: Root) -> BestCheckpoint:
    """Return the checkpoint that a trial left; raise CheckpointMissing if there is none."""
    if row is None:
        none = f"is {trial.state}, and left none"
        why = none if trial.checkpoint is None else "left a checkpoint that was collected since"
        raise CheckpointMissing(f"study {study!r} has no checkpoint of trial {trial.id}: it {why}")
    return BestCheckpoint(
        name=row.name,
        location=None if row.weak else root() / row.name,
        step=row.step,
        digest=row.digest,
        size_bytes=row.size_bytes,
        index=trial.checkpoint_index,
    )
