"""Built-in strategies and rules are plug-ins like a stranger's: registered by name, and stored under it."""

import functools
import os
import re
import sys
from dataclasses import dataclass, is_dataclass
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

import phyla.strategies
from facts import raises
from phyla import plugins
from phyla.errors import NotImportable
from phyla.integrations.trackers import make_tracker
from phyla.launchers.contract import launcher_named
from phyla.records import Scored
from phyla.strategies import (
    Context,
    Expected,
    Exploited,
    Explored,
    Final,
    Measure,
    Population,
    Reported,
    Start,
    Stop,
    Wait,
)
from phyla.study.files.tables import registered
from phyla.watcher import get_format

NOT_STORED = {Context, Expected, Exploited, Explored, Final, Measure, Reported, Start, Stop, Wait}
"""What rules are given and give back, and settings of a study that are no plug-ins."""


@dataclass(frozen=True)
class Mine:
    """An explore rule of another package."""

    rate: int = 1

    def propose(self, source: Scored, population: Population, context: Context) -> None:
        """Decline."""


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


def test_a_rule_of_another_package_is_stored_by_its_registered_name_which_is_never_one_of_phylas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = EntryPoint("mine", f"{__name__}:Mine", "phyla.explore")
    taken = EntryPoint("perturb", f"{__name__}:Mine", "phyla.explore")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Mine.__module__])
    monkeypatch.setattr(plugins, "entry_points", lambda: EntryPoints([mine, taken]))
    plugins.list_plugins.cache_clear()
    plugins._names.cache_clear()
    try:
        stored = plugins.encode(Mine(rate=2))
        assert stored == {"plugin": "phyla.explore/mine", "rate": 2}
        assert plugins.decode(stored) == Mine(rate=2)
        assert plugins.list_plugins()["phyla.explore/perturb"].load() is phyla.Perturb
        assert plugins.decode({"plugin": "phyla.explore/perturb"}) == phyla.Perturb()
    finally:
        plugins.list_plugins.cache_clear()
        plugins._names.cache_clear()


def test_to_store_and_read_what_phyla_has_no_other_package_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "list_plugins", lambda: pytest.fail("it reads what all packages register"))
    plugins._names.cache_clear()
    test_the_fitness_of_a_suite_is_stored_by_its_registered_name()
    suite = phyla.Suite("all", [phyla.EvalTask("a", len)], aggregates=[phyla.evaluation.Mean("score")])
    assert plugins.decode(plugins.encode(suite), lambda name: len) == suite


def test_a_rule_can_be_deleted_without_touching_another() -> None:
    folder = Path(phyla.strategies.__file__).parent
    for package in ("exploit", "explore", "stopping"):
        for file in (folder / package).glob("[!_]*.py"):
            imported = set(
                re.findall(rf"^from phyla\.strategies\.{package}\.(\w+) import", file.read_text(), re.M)
            )
            # The rule that others have as a default, and what is no rule.
            assert imported <= {"perturb", "gaussian_process"}, file


@pytest.mark.parametrize(
    "value", ["phyla.strategies:Missing", "no_such_package:Rule", "old_binary:Rule", "not_python:Rule"]
)
def test_a_plugin_whose_package_is_broken_matters_only_when_it_is_named(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old_binary.py").write_text("raise ValueError('numpy.dtype size changed')")
    (tmp_path / "not_python.py").write_text("def rule(:")
    monkeypatch.syspath_prepend(tmp_path)
    broken = {group: EntryPoint("broken", value, group) for group in plugins.GROUPS}
    known = {**plugins.list_plugins(), **{f"{group}/broken": point for group, point in broken.items()}}
    monkeypatch.setattr(plugins, "list_plugins", lambda: known)
    plugins._names.cache_clear()
    try:
        mine = Mine(rate=2)
        strategy = phyla.PBT(population_size=2, steps_per_trial=1, total_steps=4, explore=mine)
        assert plugins.decode(plugins.encode(strategy), plugins.loaded_class) == strategy
        for use in (
            lambda: plugins.decode({"plugin": "phyla.explore/broken"}),
            lambda: get_format("broken"),
            lambda: launcher_named("broken"),
            lambda: make_tracker("broken"),
            lambda: registered("phyla.stopping", "broken"),
        ):
            with raises(NotImportable, value, "/broken"):
                use()
    finally:
        plugins._names.cache_clear()


@pytest.mark.parametrize("file", ["<stdin>", "a pipe", None])
def test_a_function_without_a_file_has_no_name_for_workers(
    file: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = os.pipe()
    _set_main(monkeypatch, f"/dev/fd/{ends[0]}" if file == "a pipe" else file)
    try:
        with raises(NotImportable, "train", "workers=0"):
            plugins.reference(train)
    finally:
        for end in ends:
            os.close(end)


@pytest.mark.parametrize("name", ["train", "train.pyw", "train.txt"])
def test_a_script_that_workers_could_not_import_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / name
    script.touch()
    _set_main(monkeypatch, str(script))
    with raises(NotImportable, script, "train", ".py", "workers=0"):
        plugins.reference(train)


def test_a_module_that_only_the_first_process_finds_is_told_from_one_that_lacks_a_name() -> None:
    for target in ("absent.test_it:train", "absent:train"):
        with raises(NotImportable, "train", target.partition(":")[0], "PYTHONPATH"):
            plugins.resolve(target)
    with pytest.raises(NotImportable, match=r"has no attribute 'absent'$"):
        plugins.resolve("json:absent")


class Rule:
    def choose(self) -> None: ...


@pytest.mark.parametrize("target", [Rule, Rule.choose, functools.cache(Rule.choose)])
def test_what_a_main_defines_that_another_one_replaced_is_found_by_its_code(
    target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in `python -m cProfile`, whose own file is that of `__main__` before Python 3.12.
    monkeypatch.setitem(globals(), "__name__", "__main__")
    monkeypatch.setattr(target, "__module__", "__main__")
    _set_main(monkeypatch, plugins.__file__)
    assert plugins.reference(target).startswith(f"{__file__}:Rule")


def train() -> None: ...


def _set_main(monkeypatch: pytest.MonkeyPatch, file: str | None) -> None:
    monkeypatch.setattr(train, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", file, raising=False)
