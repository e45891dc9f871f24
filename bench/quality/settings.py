"""What each setting of PBT is worth: `python bench/quality/settings.py`, fifteen minutes of one processor.

One setting at a time differs from the defaults, on the tasks of `schedules.py`, at an equal number of steps of all
members, with some decisions and with many. Seeds are others than those of `schedules.py`. A run that was
interrupted goes on where it was.
"""

import hashlib
import inspect
import json
import time
from dataclasses import dataclass, replace
from typing import Any

import lockstep
import numpy as np
import schedule_tasks
from lockstep import Task, Way, constant
from schedule_tasks import TASKS
from schedules import PBT, complete, make_parser, pbt, seeds_from
from settings_page import table
from tables import rows as table_rows

from machine import facts
from phyla import Perturb, Truncation, plugins
from phyla.strategies import Strategy

FIRST_SEED, SEEDS, BATCH = 4000, 25, 25

SETTINGS: dict[str, dict[str, Any]] = {
    PBT: {},
    "factors 0.9, 1.1": {"explore": Perturb(factors=(0.9, 1.1))},
    "factors 0.67, 1.5": {"explore": Perturb(factors=(0.67, 1.5))},
    "factors 0.5, 2": {"explore": Perturb(factors=(0.5, 2.0))},
    "resample 0.1": {"explore": Perturb(resample=0.1)},
    "resample 0.25": {"explore": Perturb(resample=0.25)},
    "quantile 0.1": {"exploit": Truncation(0.1)},
    "quantile 0.3": {"exploit": Truncation(0.3)},
    "quantile 0.4": {"exploit": Truncation(0.4)},
    "burn-in of a tenth": {"burn_in": 0.1},
    "half the members": {"members": 0.5},
    "twice the members": {"members": 2.0},
}
"""What differs from the defaults. `burn_in` is a share of the steps; members that are fewer train longer."""
INTERVALS = (1, 0)
"""Of each task: the usual one, and the short one."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Some studies that are trained together.

    Attributes:
        task: name of the task.
        label: name of the setting.
        interval: which of the task's intervals.
        seeds: of the studies.
    """

    task: str
    label: str
    interval: int
    seeds: tuple[int, ...]

    def made(self) -> tuple[Task, Strategy]:
        """Return the task and the strategy."""
        settings, task = dict(SETTINGS[self.label]), TASKS[self.task]
        factor = settings.pop("members", 1.0)
        task = replace(task, members=round(task.members * factor), steps=round(task.steps / factor))
        if "burn_in" in settings:
            settings["burn_in"] = round(settings["burn_in"] * task.steps)
        return task, pbt(task, self.interval, **settings)

    @property
    def key(self) -> str:
        """Digest of everything that the results depend on, but the version of phyla."""
        task, strategy = self.made()
        sources = [
            hashlib.sha256(inspect.getsource(part).encode()).hexdigest() for part in (lockstep, schedule_tasks)
        ]
        settings = [sources, plugins.encode(strategy), task.name, task.members, task.steps, self.seeds]
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:24]

    def run(self) -> list[dict[str, Any]]:
        """Return what the studies came to."""
        began, (task, strategy) = time.process_time(), self.made()
        with np.errstate(all="ignore"):
            found = lockstep.run(task, Way(strategy=strategy, decay=constant), self.seeds)
        seconds = (time.process_time() - began) / len(self.seeds)
        names = {"task": self.task, "label": self.label, "interval": self.interval}
        return [{**names, "process_s": seconds, **row} for row in found]


def summary(found: list[dict[str, Any]], seeds: range) -> dict[str, Any]:
    """Return a table for each interval and task, whose rows are compared with the defaults."""
    tables = [
        [
            _compared(task, [row for row in found if (row["task"], row["interval"]) == (task.name, interval)])
            for task in TASKS.values()
        ]
        for interval in INTERVALS
    ]
    seconds = sum(row["process_s"] for row in found)
    return {"machine": facts(), "seeds": list(seeds), "process_s": seconds, "tables": tables}


def _compared(task: Task, found: list[dict[str, Any]]) -> dict[str, Any]:
    outcomes = [{**row, "final": {"report": row["value"]}} for row in found]
    rows = {row["label"]: row for row in table_rows(outcomes, PBT, maximize=task.maximize)}
    return {"name": task.name, "maximize": task.maximize, "rows": rows}


def main() -> None:
    """Run what is missing, print the table, and write the JSON."""
    options = make_parser(__doc__, SEEDS).parse_args()
    seeds = seeds_from(FIRST_SEED, options)
    jobs = [
        Job(task=task, label=label, interval=interval, seeds=tuple(batch))
        for batch in lockstep.batches(seeds, BATCH)
        for interval in INTERVALS
        for task in TASKS
        for label in SETTINGS
    ]
    document = summary(complete(jobs, options.folder / "settings.jsonl", options.processes), seeds)
    (options.folder / "settings.json").write_text(json.dumps(document, indent=1))
    print(*map(table, document["tables"]), f"{document['process_s']:.0f} s of one processor", sep="\n\n")


if __name__ == "__main__":
    main()
