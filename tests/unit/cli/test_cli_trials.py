"""A lineage stays readable, whatever its size."""

import re
from typing import Any

import numpy as np
from rich.console import Console

from phyla.cli.trials import Shown, drawn
from phyla.lineage import Lineage
from phyla.records import JobState, TrialRecord


def trial(key: int, member: int, generation: int, parent: int | None, **more: Any) -> TrialRecord:
    values: dict[str, Any] = {
        "state": JobState.COMPLETED,
        "params": {"lr": 0.1},
        "fitness": key / 1000,
        "order": key / 1000,
        "reached_step": 10 * generation + 10,
        "checkpoint": f"{key}.1",
        **more,
    }
    return TrialRecord(
        id=key,
        study=1,
        member=member,
        generation=generation,
        parent=parent,
        start_step=10 * generation,
        end_step=10 * generation + 10,
        seed=0,
        created_at=0.0,
        **values,
    )


def text(lineage: Lineage, shown: Shown) -> str:
    console = Console(width=100_000, highlight=False)
    with console.capture() as capture:
        console.print(drawn("s", lineage, shown))
    return capture.get()


def test_plain_continuations_are_one_line() -> None:
    lineage = Lineage([trial(1, 0, 0, None), trial(2, 0, 1, 1), trial(3, 0, 2, 2)])
    assert "trials 1..3 (3 of member 0) steps 0 -> 30  0.003" in text(lineage, Shown.of(lineage, "all"))


def test_jumps_and_failures_are_marked() -> None:
    lineage = Lineage(
        [
            trial(1, 0, 0, None),
            trial(2, 1, 0, None),
            trial(3, 0, 1, 2, jump_from=1, params={"lr": 0.2}),
            trial(4, 1, 1, 2, state=JobState.FAILED, fitness=None, order=None, error="Traceback\nValueError: [x]"),
        ]
    )
    lines = text(lineage, Shown.of(lineage, "all"))
    assert "then trial 3 (member 0) steps 10 -> 20  0.003  lr=0.2  from trial 2 <- jumped from trial 1" in lines
    assert "failed: ValueError: [x]" in lines
    assert "2 shown" in text(lineage, Shown.of(lineage, "best"))
    assert "failed" not in text(lineage, Shown.of(lineage, "best"))


def population(members: int, generations: int) -> Lineage:
    """Members that continue, or take over a random other one."""
    rng = np.random.default_rng(0)
    heads: list[int] = []
    trials: list[TrialRecord] = []
    for generation in range(generations):
        before = list(heads)
        for member in range(members):
            key = len(trials) + 1
            if generation == 0:
                trials.append(trial(key, member, 0, None))
                heads.append(key)
                continue
            donor = int(rng.integers(members)) if rng.random() < 0.3 else member
            jump = {} if donor == member else {"jump_from": before[member], "params": {"lr": float(rng.random())}}
            params = {"params": trials[before[member] - 1].params} | jump
            trials.append(trial(key, member, generation, before[donor], **params))
            heads[member] = key
    return Lineage(trials)


def test_thousands_of_trials_are_not_deep_and_none_is_lost() -> None:
    lineage = population(40, 100)
    lines = text(lineage, Shown.of(lineage, "all")).splitlines()
    depth = max(len(re.match(r"[│├└─ ]*", line).group()) // 4 for line in lines)  # type: ignore[union-attr]  # it matches ""
    assert depth <= 12
    counted = 0
    for line in lines[1:]:
        several = re.search(r"\((\d+) of member", line)
        counted += int(several.group(1)) if several else 1
    assert counted == len(lineage) == 4000


def test_what_is_left_out_is_counted() -> None:
    lineage = population(10, 30)
    best = lineage.best()
    assert best is not None
    for shown in (Shown.of(lineage, "best"), Shown.of(lineage, "all")):
        lines = text(lineage, shown).splitlines()
        counted = 0
        for line in lines[1:]:
            several = re.search(r"\((\d+) of member", line)
            hidden = re.search(r"\+(\d+) not shown", line)
            counted += (int(several.group(1)) if several else 1) + (int(hidden.group(1)) if hidden else 0)
        reachable = (
            len(lineage) if shown.trials == Shown.of(lineage, "all").trials else _descendants(lineage, best.id)
        )
        assert counted == reachable


def _descendants(lineage: Lineage, leaf: int) -> int:
    root = lineage.ancestry(leaf)[0].id
    return len(Shown.of(lineage, str(root)).trials)


def test_around_a_trial_are_its_ancestors_and_descendants() -> None:
    lineage = Lineage([trial(1, 0, 0, None), trial(2, 1, 0, None), trial(3, 0, 1, 1), trial(4, 0, 2, 3)])
    assert Shown.of(lineage, "3").trials == {1, 3, 4}
