"""Results of single checkpoints, and how two of them differ."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phyla.errors import UsageError
from phyla.evaluation import Cell, GroupValues
from phyla.evaluation.paired import ModelComparison, ModelScore, compare_models, metrics_in_both
from phyla.evaluation.statistics import PerSeed, is_per_seed, per_seed
from phyla.formatting import format_count, format_estimate, number
from phyla.integrations.harness_results import (
    ModelResults,
    is_of_harness,
    read_harness,
    sample_scores,
    task_name,
)
from phyla.pages import Table
from phyla.records import Checkpoint, JsonObject, escape_name
from phyla.strategies.estimate import SIGNIFICANT
from phyla.worker.evaluating.samples import FILE, NAME, read_samples

if TYPE_CHECKING:
    from phyla.study.results.evaluations import BestEvaluation, Evaluations, MatrixRow

DETAILS = "harness"
"""Name of the file in which an eval task of lm-evaluation-harness saves what it says of the task."""


def rivals_of(evaluations: "Evaluations", best: "BestEvaluation") -> list[GroupValues]:
    """Return the other checkpoints that are not significantly worse than the best (5 %), by age.

    Empty where standard errors are not known. Checkpoints are taken as independent. If they answered the same
    questions, their differences have smaller errors; see `compare`.
    """

    def is_close(other: GroupValues) -> bool:
        measured = other.values.get(best.metric)
        if measured is None or measured.stderr is None or best.stderr is None or other.partial:
            return False
        return abs(measured.value - best.value) <= SIGNIFICANT * math.hypot(measured.stderr, best.stderr)

    others = (
        row for row in evaluations.values(best.suite) if row.seen.id != best.seen.id and not row.group.replicate
    )
    return [row for row in others if is_close(row)]


def describe_rivals(
    evaluations: "Evaluations", best: "BestEvaluation", rivals: Sequence[GroupValues]
) -> Iterator[str]:
    """Yield how many checkpoints may be as good as the best, and how to compare the newest of them with it."""
    for newest in rivals[-1:]:
        measured = newest.values[best.metric]
        compared = ("--checkpoint", _name(newest.seen), "--against", _name(best.seen))
        yield (
            f"{format_count(len(rivals), 'other checkpoint')} may be as good, given the errors of the scores. The "
            f"newest is {newest.seen.name} with {format_estimate(measured.value, measured.stderr)}. "
            f"To compare them: {evaluations.places.command('evaluations', evaluations.name, *compared)}"
        )


def read_model(evaluations: "Evaluations", checkpoint: str) -> ModelResults:
    """Return the results on one checkpoint; see `Evaluations.model_results`."""
    return _read(evaluations, _find(evaluations, checkpoint))


def _read(evaluations: "Evaluations", row: "MatrixRow") -> ModelResults:
    outputs = evaluations.places.folder("outputs", evaluations.name).parent
    cells = [cell for cell in row.cells if cell.status.has_value and cell.replicate == 0]
    samples = {cell.task: _read_samples(outputs, cell) for cell in cells}
    return ModelResults(
        name=_name(row.seen),
        scores={cell.task: _scores(cell, samples[cell.task]) for cell in cells},
        samples=samples,
        groups=_groups(evaluations, row),
        details=_details(outputs, [cell for cell in cells if any(map(is_of_harness, samples[cell.task]))]),
    )


def compare(evaluations: "Evaluations", checkpoint: str, against: str) -> ModelComparison:
    """Return how a checkpoint differs from another one or from a file; see `Evaluations.compare_models`."""
    row = _find(evaluations, checkpoint)
    model = _read(evaluations, row)
    if against.endswith(".json") or Path(against).is_file():
        reference = read_harness(Path(against))
    else:
        other = _find(evaluations, against)
        if other.seen.id == row.seen.id:
            raise UsageError(f"{against} is {model.name} itself; compare another one, with --checkpoint")
        reference = _read(evaluations, other)
    metrics = {task: list(scores)[:1] for task, scores in model.scores.items()}
    both = metrics_in_both(model.scores, reference.scores, metrics)
    if not both:
        raise UsageError(
            f"{model.name} and {reference.name} have no eval task in common: {_names(model)}; {_names(reference)}"
        )
    return ModelComparison(name=model.name, against=reference.name, differences=compare_models(both))


def differences_table(comparison: ModelComparison) -> Table:
    """Return the differences of two models as a table."""
    differences = comparison.differences
    how = "of pairs of samples" if any(row.paired for row in differences) else "of means"
    return Table(
        name="differences",
        title=f"{escape_name(comparison.name)} against {escape_name(comparison.against)}",
        columns=("eval task", "~metric", ">pairs", ">value", ">against", ">difference", ">p", ">adjusted"),
        rows=[
            (
                row.task,
                row.metric,
                number(row.paired) if row.paired else "-",
                number(row.value),
                number(row.reference),
                format_estimate(row.difference, row.stderr),
                "-" if row.p is None else number(row.p, 2),
                "-" if row.adjusted is None else number(row.adjusted, 2),
            )
            for row in differences
        ],
        note=f"differences {how} ± standard errors; p is two-sided, then adjusted for the number of eval tasks",
    )


def _find(evaluations: "Evaluations", checkpoint: str) -> "MatrixRow":
    """Return the results of a checkpoint by its name or step, maybe of a branch, `newest` or `best`."""
    known = list(evaluations.checkpoints())
    if checkpoint == "best":
        suites = [suite.name for suite in evaluations.suites if suite.objective is not None]
        if not suites:
            raise UsageError(without_objective(evaluations.name))
        bests = [best for best in map(evaluations.best, suites) if best is not None]
        chosen: list[Checkpoint] = list({best.seen.id: best.seen for best in bests}.values())
        if len(chosen) > 1:
            each = [f"{best.seen.name}@{best.seen.branch} of suite {best.suite!r}" for best in bests]
            raise UsageError(
                f"suites have different best checkpoints, so give a name: {escape_name(', '.join(each))}"
            )
    elif checkpoint == "newest":
        chosen = known
    else:
        chosen = [seen for seen in known if checkpoint in _names_of(seen)]
    for seen in sorted(chosen, key=lambda seen: (seen.branch, seen.step, seen.number), reverse=True):
        for row in evaluations.rows_of([seen.id]):
            if any(cell.status.has_value for cell in row.cells):
                return row
    names = ", ".join(escape_name(seen.name) for seen in known[-5:]) or "none"
    raise UsageError(
        f"{evaluations.name} has no checkpoint {escape_name(checkpoint)} with a result; give a name, a step, "
        f"newest or best. The newest ones: {names}"
    )


def _name(seen: Checkpoint) -> str:
    """Return the name of a checkpoint, with its branch where training was rewound."""
    return f"{seen.name}@{seen.branch}" if seen.branch else seen.name


def _names_of(seen: Checkpoint) -> set[str]:
    names = (seen.name, str(seen.step))
    return {*names, *(f"{name}@{seen.branch}" for name in names)}


def without_objective(run: str) -> str:
    """Explain why a run has no best checkpoint."""
    return (
        f"no suite of {run!r} has an objective, so there is no best checkpoint; add one, such as "
        'objective=phyla.Maximize("accuracy_mean")'
    )


def _read_samples(outputs: Path, cell: Cell) -> list[JsonObject]:
    """Return the samples that an eval task saved, of all shards; none where the files are gone.

    Its own output of that name, by `save(samples=...)`, is another file.
    """
    paths = [outputs / file for file in cell.files.get(NAME, ())]
    return [sample for path in paths if path.name == FILE and path.is_file() for sample in read_samples(path)]


def _scores(cell: Cell, samples: Sequence[JsonObject]) -> dict[str, ModelScore]:
    """Return the scores of an eval task, its main metric first."""
    names = [name for name in cell.metrics if not is_per_seed(name)]
    names.sort(key=lambda name: name != cell.metric)
    return {
        name: ModelScore(
            value=cell.values[name].value,
            stderr=cell.values[name].stderr,
            n=cell.metrics[name].count,
            **(sample_scores(samples, name) if samples else _seed_scores(cell, name)),
        )
        for name in names
    }


def _seed_scores(cell: Cell, name: str) -> Mapping[str, Any]:
    by_seed = cell.metrics.get(per_seed(name))
    if not isinstance(by_seed, PerSeed):
        return {}
    return {"samples": {str(seed): moments.mean for seed, moments in by_seed.seeds.items() if moments.n}}


def _groups(evaluations: "Evaluations", row: "MatrixRow") -> dict[str, dict[str, ModelScore]]:
    """Return the values of groups of the harness's tasks."""
    groups: dict[str, dict[str, ModelScore]] = {}
    values = {
        name: value for entry in row.values if entry.group.replicate == 0 for name, value in entry.values.items()
    }
    for group in _group_names(evaluations.run.config):
        for name, value in values.items():
            if name.startswith(f"{group}/"):
                score = ModelScore(value=value.value, stderr=value.stderr)
                groups.setdefault(group, {})[name.removeprefix(f"{group}/")] = score
    return groups


def _group_names(config: Mapping[str, Any]) -> Iterator[str]:
    for suite in config.get("suites") or ():
        for aggregate in suite.get("aggregates") or ():
            yield from aggregate.get("groups") or ()


def _details(outputs: Path, cells: Sequence[Cell]) -> dict[str, dict[str, Any]]:
    """Return what the harness says of each of its tasks, such as its version and configuration."""
    details: dict[str, dict[str, Any]] = {}
    for cell in cells:
        for file in list(cell.files.get(DETAILS, ()))[:1]:
            if (outputs / file).is_file():
                for name, values in json.loads((outputs / file).read_text()).items():
                    if isinstance(values, dict):
                        values = {task_name(task): value for task, value in values.items()}
                        details.setdefault(name, {}).update(values)
    for cell in cells:
        if cell.task in details.get("n-samples", {}):
            details["n-samples"][cell.task]["effective"] = cell.n  # of all shards
    return details


def _names(model: ModelResults) -> str:
    return f"{model.name} has {', '.join(model.scores) or 'none'}"
