"""What a stored suite says of itself, without the functions that it names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, final

from phyla.evaluation.suite import compared_metric
from phyla.records import JsonObject

PERCENTILE = re.compile(r".*_p\d+(\.\d+)?")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutline:
    """An eval task without its function.

    Attributes:
        name: unique in its suite.
        tags: names of the groups it belongs to.
        samples: how many samples all shards count together; None if that was not said.
    """

    name: str
    tags: tuple[str, ...] = ()
    samples: int | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteOutline:
    """A suite without its functions: enough to read its results anywhere.

    Attributes:
        name: unique in its run.
        tasks: its eval tasks, in order.
        objective: the aggregate that says how good a checkpoint is; None without one.
        maximize: whether a higher objective is better.
    """

    name: str
    tasks: tuple[TaskOutline, ...] = ()
    objective: str | None = None
    maximize: bool = True

    @classmethod
    def from_json(cls, raw: JsonObject) -> Self:
        """Read a suite as it is stored in the configuration of its study or run."""
        tasks: Any = raw.get("tasks", ())
        objective: Any = raw.get("objective")
        return cls(
            name=str(raw["name"]),
            tasks=tuple(
                TaskOutline(name=str(task["name"]), tags=tuple(task.get("tags", ())), samples=task.get("samples"))
                for task in tasks
            ),
            objective=None if objective is None else str(objective["metric"]),
            maximize=objective is None or str(objective["plugin"]).endswith(("maximize", "Maximize")),
        )

    @property
    def metric(self) -> str | None:
        """The metric of single eval tasks that the objective is made of; None without an objective."""
        if self.objective is None:
            return None
        return compared_metric(self.objective, {tag for task in self.tasks for tag in task.tags})

    def task(self, name: str) -> TaskOutline:
        """Return an eval task by name; one that the suite no longer has is known by its name only."""
        return next((task for task in self.tasks if task.name == name), TaskOutline(name=name))


def outlines(config: Mapping[str, Any]) -> tuple[SuiteOutline, ...]:
    """Return the suites of a study, or of a run, from its configuration; imports nothing."""
    return tuple(SuiteOutline.from_json(raw) for raw in config.get("suites") or ())
