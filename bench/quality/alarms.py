"""False alarms and power of the test for regressions: `python bench/quality/alarms.py --runs 200`, 40 minutes.

A run is 200 checkpoints, each evaluated on 500 items. A checkpoint answers an item if its skill is above the
difficulty (normal, with standard deviation 1) by more than luck of its own (0.5). Skills are as each scene says;
`wander` is training that wanders by 0.1, several times the noise of the evaluation, as autoregressive noise does.
What the test gets is the mean and standard error ("means"), or each item under a seed of its own ("items").

Runs are appended to a file as they end, with the seed of each, and those that it has are not repeated. The
thresholds of the test were settled on the seeds of `--settling`, which are others than those reported.

`--order` tells how results arrive; each time one does, the alarms are computed anew. Counted are the alarms that
a person would have got, and those that do not hold at the end.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phyla.evaluation.regression import HISTORY, SURE, Measured, error_of, regressions

CHECKPOINTS, ITEMS, LUCK, SKILL, WANDER = 200, 500, 0.5, 0.3, 0.1
ORDERS = ("live", "backlog", "slow", "shuffled")

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator], Floats]
TIME = np.arange(CHECKPOINTS, dtype=float)


def fall(size: float, at: int, over: int = 1) -> Floats:
    """Return a skill that falls at a checkpoint, at once or over many."""
    return -size * np.clip((TIME - at + 1) / over, 0, 1)


def wander(rng: np.random.Generator, correlation: float) -> Floats:
    """Return a skill that goes up and down around a level."""
    skill, steps = np.zeros(CHECKPOINTS), rng.normal(size=CHECKPOINTS) * WANDER
    skill[0] = steps[0]
    for time in range(1, CHECKPOINTS):
        skill[time] = correlation * skill[time - 1] + np.sqrt(1 - correlation**2) * steps[time]
    return skill


RISE, KNEE = 0.25 * np.log1p(TIME) - 0.8, np.minimum(0, (TIME - 100) * 0.01)
SCENES: dict[str, tuple[int | None, Draw]] = {
    "equal": (None, lambda rng: 0 * TIME),
    "equal, other items each time": (None, lambda rng: 0 * TIME),
    "rises": (None, lambda rng: RISE),
    "rises, then level": (None, lambda rng: KNEE),
    "wanders, independently": (None, lambda rng: wander(rng, 0.0)),
    "wanders, correlation 0.8": (None, lambda rng: wander(rng, 0.8)),
    "rises, then level, wanders": (None, lambda rng: KNEE + wander(rng, 0.8)),
    "falls by 0.12 at 150": (150, lambda rng: fall(0.12, 150)),
    "falls by 0.35 at 150": (150, lambda rng: fall(0.35, 150)),
    "falls by 0.12 at 40": (40, lambda rng: fall(0.12, 40)),
    "falls by 0.35 at 10": (10, lambda rng: fall(0.35, 10)),
    "falls by 0.35, other items each time": (150, lambda rng: fall(0.35, 150)),
    "rises, falls by 0.35 at 100": (100, lambda rng: RISE + fall(0.35, 100)),
    "decays by 0.2 over 50": (100, lambda rng: fall(0.2, 100, 50)),
    "decays by 0.35 over 50": (100, lambda rng: fall(0.35, 100, 50)),
}
"""What happens in a run: when the skill falls, and the skill of each checkpoint."""


def measure(scene: str, seed: Sequence[int], *, items: bool) -> list[Measured]:
    """Return what one run's evaluation measures."""
    rng = np.random.default_rng(seed)
    skill = SKILL + SCENES[scene][1](rng)[:, np.newaxis]
    difficulty = rng.normal(size=(CHECKPOINTS if "other items" in scene else 1, ITEMS))
    answers = (skill - difficulty + LUCK * rng.normal(size=(CHECKPOINTS, ITEMS)) > 0).astype(float)
    return [
        Measured(
            value=float(row.mean()),
            stderr=float(row.std(ddof=1)) / ITEMS**0.5,
            seeds=dict(enumerate(row.tolist())) if items and "other items" not in scene else {},
        )
        for row in answers
    ]


def outcome(scene: str, seed: Sequence[int], *, items: bool, metrics: int = 1) -> dict[str, Any]:
    """Return the alarms of one run."""
    alarms = regressions(measure(scene, seed, items=items), metrics=metrics)
    return {"alarms": [alarm.place for alarm in alarms]}


def arrivals(order: str, rng: np.random.Generator) -> Iterator[int]:
    """Yield checkpoints in the order of their results; a slow worker takes the newest of what is there."""
    if order == "slow":
        waiting: list[int] = []
        for time in range(3 * CHECKPOINTS):
            waiting += [time] if time < CHECKPOINTS else []
            if time % 3 == 2 and waiting:
                yield waiting.pop()
        return
    places = {"live": range(CHECKPOINTS), "backlog": range(CHECKPOINTS)[::-1]}
    yield from places.get(order, rng.permutation(CHECKPOINTS).tolist())


def told(measured: Sequence[Measured], order: str, seed: Sequence[int]) -> dict[str, Any]:
    """Return the alarms at the end, how many a person would have got, and how many of these do not hold."""
    there: set[int] = set()
    known: set[int] = set()
    heard: list[set[int]] = []
    for place in arrivals(order, np.random.default_rng(seed)):
        there.add(place)
        for checkpoints, provisional in _falls(measured, sorted(there)):
            heard += [] if provisional or known & checkpoints else [checkpoints]
            known |= set() if provisional else checkpoints
    final = [checkpoints for checkpoints, _ in _falls(measured, sorted(there))]
    wrong = sum(not any(checkpoints & each for each in final) for checkpoints in heard)
    return {"final": [min(each) for each in final], "heard": len(heard), "wrong": wrong}


def _falls(measured: Sequence[Measured], places: Sequence[int]) -> list[tuple[set[int], bool]]:
    """Return the checkpoints of each alarm, and whether it is provisional."""
    found = []
    for alarm in regressions([measured[place] for place in places]):
        certain = alarm.first >= HISTORY or alarm.p <= SURE * error_of(1)
        checkpoints = {places[number] for number in range(alarm.first, alarm.last + 1)}
        found.append((checkpoints, not certain and min(checkpoints) > alarm.first))
    return found


def row(scene: str, runs: Sequence[dict[str, Any]]) -> str:
    """Return a row of the table: false alarms in 1,000 checkpoints before a fall, and how soon it is seen."""
    at = SCENES[scene][0]
    alarms = [run["alarms"] for run in runs]
    end = CHECKPOINTS if at is None else at
    false = sum(place < end for each in alarms for place in each) / (end * len(runs)) * 1000
    seen = [
        "" if at is None else f"{np.mean([any(at <= place < at + k for place in each) for each in alarms]):.2f}"
        for k in (1, 5, 60)
    ]
    return f"| {scene} | {false:.2f} | {' | '.join(seen)} |"


def main() -> None:
    """Run what the file does not have yet, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--metrics", type=int, default=1, help="how many metrics share the error")
    parser.add_argument("--order", choices=ORDERS, help="count what a person gets as results arrive")
    parser.add_argument("--settling", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("build/alarms.jsonl"))
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    known = {json.dumps(line["key"]): line for line in map(json.loads, lines)}
    with given.out.open("a") as file:
        for items in (False, True):
            print(
                f"\n{'items' if items else 'means'}\n\n| scene | false in 1,000 | at once | within 5 | within 60 |"
            )
            print("|---|---|---|---|---|")
            for number, scene in enumerate(SCENES):
                runs = []
                for index in range(given.runs):
                    seed = [1 if given.settling else 0, number, index]
                    key = json.dumps([scene, seed, items, given.metrics, given.order])
                    if key not in known:
                        found = outcome(scene, seed, items=items, metrics=given.metrics)
                        if given.order:
                            found |= told(measure(scene, seed, items=items), given.order, seed)
                        known[key] = {"key": json.loads(key), **found}
                        file.write(json.dumps(known[key]) + "\n")
                        file.flush()
                    runs.append(known[key])
                print(row(scene, runs) + _heard(runs), flush=True)


def _heard(runs: Sequence[dict[str, Any]]) -> str:
    if "heard" not in runs[0]:
        return ""
    heard, wrong = (sum(run[name] for run in runs) for name in ("heard", "wrong"))
    final = sum(len(run["final"]) for run in runs)
    return f" {heard} heard, {wrong} of them wrong; {final} at the end |"


if __name__ == "__main__":
    main()
