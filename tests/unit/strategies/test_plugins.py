"""Built-in strategies and rules are plug-ins like a stranger's: registered by name, and stored under it."""

import re
from dataclasses import is_dataclass
from pathlib import Path

import phyla.strategies
from phyla import plugins
from phyla.strategies import Context, Expected, Exploited, Explored, Final, Measure, Reported, Start, Stop, Wait

NOT_STORED = {Context, Expected, Exploited, Explored, Final, Measure, Reported, Start, Stop, Wait}
"""What rules are given and give back, and settings of a study that are no plug-ins."""


def test_every_strategy_and_rule_is_registered() -> None:
    registered = {point.load() for point in plugins.list_plugins().values()}
    public = {getattr(phyla.strategies, name) for name in phyla.strategies.__all__}
    settings = {kind for kind in public if isinstance(kind, type) and is_dataclass(kind)} - NOT_STORED
    missing = settings - registered
    assert not missing, f"{missing}: add them to the entry points in pyproject.toml, and install phyla again"


def test_the_fitness_of_a_suite_is_stored_by_its_registered_name() -> None:
    strategy = phyla.PBT(
        population_size=2, steps_per_trial=1, total_steps=4, fitness=phyla.FromSuite("held-out", max_lag=1)
    )
    stored = plugins.encode(strategy)
    assert isinstance(stored, dict)
    assert stored["plugin"] == "phyla.strategies/pbt"
    assert stored["fitness"]["plugin"] == "phyla.fitness/from-suite"
    assert plugins.decode(stored) == strategy


def test_a_rule_can_be_deleted_without_touching_another() -> None:
    folder = Path(phyla.strategies.__file__).parent
    for package in ("exploit", "explore", "stopping"):
        for file in (folder / package).glob("[!_]*.py"):
            imported = set(
                re.findall(rf"^from phyla\.strategies\.{package}\.(\w+) import", file.read_text(), re.M)
            )
            # The rule that others have as a default, and what is no rule.
            assert imported <= {"perturb", "gaussian_process"}, file
