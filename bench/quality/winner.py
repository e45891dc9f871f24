"""Who is the winner under noise? `python bench/quality/winner.py`, four minutes of one processor.

With `--selection` another question: does it help to select by estimates, too, with `PBT(fitness=Estimated())`?
Compared are the true values of the best and of the median of the last members, with the same seeds.

A score is a task's true value and normal noise. Reported is the regret of what each rule names: how much worse its
true value is than that of the best checkpoint there ever was. Populations are recorded once, with PBT's own
decisions, all members in step as with `quorum=1.0`, but without a store and files; the file that holds them also
resumes an interrupted run. The model was settled on seeds below 2000; those that are reported begin there.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from comparing import RESULTS
from in_step import advance
from scipy.stats import binomtest
from winner_tasks import TASKS, Params, State, Task

import phyla
from machine import facts
from phyla.records import Member, MemberState, Score
from phyla.strategies import PBT, Context, Start, decision_rng, trial_seed
from phyla.strategies.estimate import Estimates, by_estimate, estimate
from phyla.strategies.final import Expected, expected, next_due

MEMBERS, TRIALS = 16, 20
LEVELS = (0.0, 0.1, 0.3, 1.0, 3.0)
SELECTION_LEVELS = (0.3, 1.0, 3.0)
FIRST_SEED = 2000
BASELINES = ("best ever", "best of last")
ESTIMATE = "estimate"
FINAL = "final"
LAST = ("best of last", "median of last")


@dataclass(frozen=True, kw_only=True)
class Study:
    """The trials of a study, generation by generation, in each by member.

    Attributes:
        task: name of the task.
        level: noise, in units of the task.
        seed: of decisions, training and noise.
        parents: place of the trial whose weights each started from; None for fresh ones.
        scores: what selection saw, as sort keys.
        true: exact values, as sort keys.
        estimated: whether members were compared by estimates.
    """

    task: str
    level: float
    seed: int
    parents: list[int | None]
    scores: list[float]
    true: list[float]
    estimated: bool = False

    @property
    def heads(self) -> range:
        """The last trials of all members."""
        return range(len(self.scores) - MEMBERS, len(self.scores))

    @property
    def luckiest(self) -> int:
        """The trial with the best score."""
        return _best(self.scores, range(len(self.scores)))

    @cached_property
    def estimates(self) -> Estimates:
        """What the model says."""
        return estimate(self.scores, self.parents)


def record(task: Task, level: float, seed: int, *, trials: int = TRIALS, estimated: bool = False) -> Study:
    """Train a population."""
    strategy = PBT(
        population_size=MEMBERS, steps_per_trial=task.steps, total_steps=task.steps * trials, quorum=1.0
    )
    noise = np.random.default_rng([seed, 1, *task.name.encode()]).normal(size=(trials, MEMBERS))
    population = [Member(study=0, index=index, state=MemberState.READY) for index in range(MEMBERS)]
    state = task.fresh(np.random.default_rng([seed, 0]), MEMBERS)
    study = Study(task=task.name, level=level, seed=seed, parents=[], scores=[], true=[], estimated=estimated)
    for generation in range(trials):
        seen = _as_estimated(population, study) if estimated else population
        starts = [_decide(strategy, member, seen, task, seed) for member in seen]
        parents = [None if start.weights is None else start.weights.trial for start in starts]
        origins = [index if parent is None else parent % MEMBERS for index, parent in enumerate(parents)]
        params = {name: np.array([start.params[name] for start in starts]) for name in task.space.parameters}
        rng = np.random.default_rng([seed, 2, generation])
        state = _train(task, {name: values[origins] for name, values in state.items()}, params, rng)
        true = task.true(state) * (1 if task.maximize else -1)
        scores = true + level * task.unit * noise[generation]
        study.parents.extend(parents)
        study.scores.extend(scores.tolist())
        study.true.extend(true.tolist())
        done = zip(population, starts, scores.tolist(), strict=True)
        population = [advance(*trial, MEMBERS) for trial in done]
    return study


def _as_estimated(population: Sequence[Member], study: Study) -> Sequence[Member]:
    """Return members as the machine shows them to a strategy with `Estimated`."""
    rows = enumerate(zip(study.parents, study.scores, strict=True))
    scores = [Score(place, parent, place // MEMBERS, score) for place, (parent, score) in rows]
    return by_estimate(population, scores, len(scores) // MEMBERS)


def _decide(strategy: PBT, member: Member, population: Sequence[Member], task: Task, seed: int) -> Start:
    history: Any = None  # Truncation with min_scores=1 looks no further back.
    rng = decision_rng(seed, member.index, member.generation, 0)
    trial_seed(rng)  # drawn first in a study
    objective = phyla.Maximize("score")
    start = strategy.decide(
        member, population, Context(space=task.space, objective=objective, rng=rng, now=0.0, history=history)
    )
    assert isinstance(start, Start)
    return start


def _train(task: Task, state: State, params: Params, rng: np.random.Generator) -> State:
    for _ in range(task.steps):
        state = task.step(state, params, rng)
    return state


def _best(values: Sequence[float], places: Sequence[int]) -> int:
    return max(places, key=values.__getitem__)


def hold_final(study: Study, final: phyla.Final) -> tuple[int, Expected]:
    """Measure the candidates again; return the winner and its expected score."""
    rng = np.random.default_rng([study.seed, 7, round(10 * study.level), *study.task.encode()])
    noise = study.level * TASKS[study.task].unit
    candidates = study.estimates.candidates(study.heads, study.luckiest, final.candidates)
    measured: dict[int, list[float]] = {place: [] for place in candidates}
    while (due := next_due(final, candidates, measured)).candidates:
        for place in due.candidates:
            measured[place].append(study.true[place] + noise * rng.normal())
    assert due.winner is not None
    score = expected(measured[due.winner][due.confirming :])
    assert score is not None
    return due.winner, score


RULES: dict[str, Callable[[Study], int]] = {
    "best ever": lambda study: study.luckiest,
    "best of last": lambda study: _best(study.scores, study.heads),
    ESTIMATE: lambda study: study.estimates.winner(study.heads, study.luckiest),
    FINAL: lambda study: hold_final(study, phyla.Final())[0],
    "final of 128": lambda study: hold_final(study, phyla.Final(measurements=128))[0],
    "oracle of last": lambda study: _best(study.true, study.heads),
}


def regrets(study: Study) -> dict[str, float]:
    """Return the regret of what each rule names, and of the median of the members' last, in units of the task."""
    unit = TASKS[study.task].unit
    named = {name: study.true[rule(study)] for name, rule in RULES.items()}
    named["median of last"] = median(study.true[place] for place in study.heads)
    return {name: (max(study.true) - value) / unit for name, value in named.items()}


def model_facts(study: Study) -> dict[str, float]:
    """Return what the model says about the noise, and whether intervals have the winners' true values."""
    winner = RULES[ESTIMATE](study)
    estimated = study.estimates.expected(winner, members=MEMBERS, maximize=True)
    finalist, measured = hold_final(study, phyla.Final())
    return {
        "noise": study.estimates.noise / TASKS[study.task].unit,
        "covered": float(_holds(estimated, study.true[winner])),
        "final covered": float(_holds(measured, study.true[finalist])),
        "changed": float(winner != study.luckiest),
    }


def _holds(score: Expected | None, true: float) -> bool:
    """Return whether an interval holds a value; an exact score does."""
    rounding = 1e-9 * abs(true)
    return score is None or score.low - rounding <= true <= score.high + rounding


def recorded(
    path: Path, seeds: Sequence[int], levels: Sequence[float] = LEVELS, *, estimated: bool = False
) -> Iterator[Study]:
    """Iterate over the studies of these seeds; those that the file lacks are trained and added."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    lines = (Study(**json.loads(line)) for line in path.read_text().splitlines())
    stored = {(study.task, study.level, study.seed): study for study in lines if study.estimated == estimated}
    with path.open("a") as file:
        for seed in seeds:
            for name, task in TASKS.items():
                for level in levels:
                    study = stored.get((name, level, seed)) or record(task, level, seed, estimated=estimated)
                    if (name, level, seed) not in stored:
                        file.write(json.dumps(asdict(study)) + "\n")
                    yield study


def summary(studies: Sequence[Study]) -> dict[str, dict[str, float]]:
    """Return what is reported of the studies with one task and one level."""
    by_study = [regrets(study) for study in studies]
    facts = [model_facts(study) for study in studies]
    against = min(BASELINES, key=lambda name: median(row[name] for row in by_study))
    return {
        "median": {name: median(row[name] for row in by_study) for name in by_study[0]},
        "mean": {name: fmean(row[name] for row in by_study) for name in by_study[0]},
        "estimate against the better baseline": {
            "won": sum(row[ESTIMATE] < row[against] for row in by_study),
            "lost": sum(row[ESTIMATE] > row[against] for row in by_study),
        },
        "model": {
            "noise": median(row["noise"] for row in facts),
            "covered": fmean(row["covered"] for row in facts),
            "final covered": fmean(row["final covered"] for row in facts),
            "changed": sum(row["changed"] for row in facts),
        },
    }


def show(table: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print the table."""
    rules = list(next(iter(table.values()))["median"])
    columns = "".join(f"{name:>16}" for name in rules)
    print(f"{'regret, median':<16}{columns}  won lost changed  noise covered  final")
    for cell, row in table.items():
        values = "".join(f"{row['median'][name]:>16.4f}" for name in rules)
        pairs, model = row["estimate against the better baseline"], row["model"]
        counts = f"{pairs['won']:>5}{pairs['lost']:>5}{model['changed']:>8.0f}"
        intervals = f"{model['covered']:>8.2f}{model['final covered']:>7.2f}"
        print(f"{cell:<16}{values}{counts}{model['noise']:>7.2f}{intervals}")


def compare_selection(path: Path, seeds: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Return how much better the last members are if they were selected by estimates, in units of the task."""
    plain = recorded(path, seeds, SELECTION_LEVELS)
    by_estimates = recorded(path, seeds, SELECTION_LEVELS, estimated=True)
    gains: dict[str, list[list[float]]] = {}
    for before, after in zip(plain, by_estimates, strict=True):
        first, second = ([study.true[place] for place in study.heads] for study in (before, after))
        gain = [(pick(second) - pick(first)) / TASKS[before.task].unit for pick in (max, median)]
        gains.setdefault(f"{before.task} {before.level:g}", []).append(gain)
    return {
        cell: {name: _sign_test(list(column)) for name, column in zip(LAST, zip(*rows, strict=True), strict=True)}
        for cell, rows in sorted(gains.items())
    }


def _sign_test(gains: Sequence[float]) -> dict[str, float]:
    won, lost = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    p = float(binomtest(won, won + lost).pvalue) if won + lost else 1.0
    return {"gain": median(gains), "won": won, "lost": lost, "p": p}


def show_selection(table: dict[str, dict[str, Any]]) -> None:
    """Print how selection by estimates compares."""
    print(f"{'gain, median':<16}" + "".join(f"{name:>16}  won lost      p" for name in LAST))
    for cell, row in table.items():
        columns = (f"{row[name]['gain']:>16.4f}{row[name]['won']:>5}{row[name]['lost']:>5}" for name in LAST)
        values = (f"{row[name]['p']:>7.3f}" for name in LAST)
        print(f"{cell:<16}" + "".join(column + p for column, p in zip(columns, values, strict=True)))


def show_winners(path: Path, seeds: Sequence[int]) -> dict[str, dict[str, dict[str, float]]]:
    """Print the table of the winners, and return it."""
    studies = list(recorded(path, seeds))
    cells = sorted({(study.task, study.level) for study in studies})
    table = {
        f"{name} {level:g}": summary([s for s in studies if (s.task, s.level) == (name, level)])
        for name, level in cells
    }
    show(table)
    return table


def main() -> None:
    """Record what is missing, print the table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, help="how many, 50 by default, and 25 with --selection")
    parser.add_argument("--first", type=int, default=FIRST_SEED)
    parser.add_argument("--selection", action="store_true", help="compare selection by estimates with plain PBT")
    parser.add_argument("--recorded", type=Path, default=RESULTS / "winner.jsonl")
    parser.add_argument("--output", type=Path, default=RESULTS / "winner.json")
    options = parser.parse_args()
    seeds = range(options.first, options.first + (options.seeds or (25 if options.selection else 50)))
    table: dict[str, Any]
    with np.errstate(over="ignore", invalid="ignore"):
        if options.selection:
            table = compare_selection(options.recorded, seeds)
            show_selection(table)
        else:
            table = show_winners(options.recorded, seeds)
    document = {"machine": facts(), "seeds": list(seeds), "table": table}
    options.output.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
