"""Settings that change while a study is at work: processes with the old ones hand in their work, and end."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from facts import check_facts, raises
from phyla import plugins
from phyla.configuration import differences, to_config
from phyla.controller import Controller, StudyChanges
from phyla.errors import StudyChanged
from phyla.machine import Claimed, Completion, Ended, Outdated, SetConfig, TrainRules
from phyla.plugins import reference_here
from phyla.records import (
    Checkpoint,
    JobState,
    JsonObject,
    Maximize,
    MemberState,
    Report,
    TrialRecord,
)
from phyla.space import Float, Params, Space
from phyla.store import Store, open_store
from phyla.strategies import (
    PBT,
    Backtrack,
    Divergence,
    ExploreWith,
    MeanOfLast,
    StoppingRule,
    Truncation,
)
from simulation import VirtualClock

STEPS = 5


def double(params: Params, rng: np.random.Generator) -> Any:
    return {"lr": min(1.0, 2 * params["lr"])}


def pbt(**given: Any) -> PBT:
    sizes = {"population_size": 4, "steps_per_trial": STEPS, "total_steps": 4 * STEPS, "exploit": Truncation(0.5)}
    return PBT(**{**sizes, **given})


def rules(
    strategy: Any = None, *, space: Space | None = None, stopping: Sequence[StoppingRule] = ()
) -> TrainRules:
    return TrainRules(
        space=space or Space(lr=Float(0.1, 1.0)),
        objective=Maximize("Q"),
        strategy=strategy or pbt(),
        stopping=tuple(stopping),
    )


def config_of(given: TrainRules) -> JsonObject:
    return to_config(given, 0, name_of=reference_here)


@dataclass
class Work:
    """A study in memory, and processes that work for it."""

    store: Store
    study: int

    def process(self, made: TrainRules) -> Controller:
        return Controller(self.store, self.study, made, config_of(made))

    def change(self, new: TrainRules, config: JsonObject | None = None) -> None:
        with self.store.reader(self.study) as reader:
            before = reader.study().config
        config = config or config_of(new)
        StudyChanges(self.store, self.study, new).change(config, differences(before, config), before=before)

    def trials(self) -> list[TrialRecord]:
        with self.store.reader(self.study) as reader:
            return list(reader.trials())

    def states(self) -> list[MemberState]:
        with self.store.reader(self.study) as reader:
            return [member.state for member in reader.members()]


def work(given: TrainRules) -> Work:
    store = open_store("memory://", clock=VirtualClock())
    study = store.create_study("s", config_of(given), 0, given.strategy.population_size)
    return Work(store, study.id)


def finished(claimed: Claimed, value: float | None = None, values: Sequence[float] = ()) -> Completion:
    trial = claimed.trial
    score = float(trial.member) if value is None else value
    return Completion(
        trial=trial.id,
        token=trial.token,
        reached_step=trial.end_step,
        values={"Q": values or [score]},
        metrics={"Q": score},
        reports=[Report(trial.end_step, {"Q": score})],
        checkpoint=Checkpoint(
            name=f"{trial.id}.{trial.token}",
            study=trial.study,
            trial=trial.id,
            step=trial.end_step,
            identity="d",
            size_bytes=1,
            created_at=0.0,
        ),
    )


def claim(controller: Controller, worker: str = "w") -> Claimed:
    claimed, rest = controller.claim(worker)
    assert claimed, rest
    return claimed[0]


def train_all(controller: Controller, worker: str = "w") -> Ended:
    done: list[Completion] = []
    while True:
        _, claimed, rest = controller.complete(done, worker, 1)
        if not claimed:
            assert isinstance(rest, Ended), rest
            return rest
        (given,) = claimed
        assert isinstance(given, Claimed)
        done = [finished(given)]


def test_a_process_with_the_old_settings_hands_in_its_work_and_decides_nothing() -> None:
    old, new = rules(), rules(pbt(steps_per_trial=10))
    at = work(old)
    first, second = at.process(old), at.process(old)
    running = claim(first)
    assert claim(second, "v").trial.end_step == STEPS
    at.change(new)
    _, claimed, rest = first.complete([finished(running)], "w", 1)
    assert claimed == []
    assert isinstance(rest, Outdated)
    check_facts(rest.why, "strategy.steps_per_trial")
    assert isinstance(second.claim("v")[1], Outdated)
    assert at.trials()[0].state is JobState.COMPLETED
    following = claim(at.process(new)).trial
    assert following.end_step - following.start_step == 10
    assert at.trials()[0].end_step == STEPS, "what runs goes on as it was decided"


@pytest.mark.parametrize(
    "new",
    [
        rules(space=Space(lr=Float(0.1, 1.0), decay=Float(0.0, 1.0, default=0.5))),
        rules(stopping=[Divergence(above=10.0)]),
        rules(pbt(fitness=MeanOfLast(2))),
        rules(pbt(population_size=6)),
    ],
    ids=["space", "stopping", "fitness", "size"],
)
def test_each_change_of_what_decides_is_noticed(new: TrainRules) -> None:
    old = rules()
    at = work(old)
    process = at.process(old)
    running = claim(process)
    at.change(new)
    standing = process.report(running.trial.id, 1, [Report(1, {"Q": 11.0})])
    assert standing.stop_reason is None, "a running trial is not stopped by rules that it was not started under"
    assert isinstance(process.claim("w")[1], Outdated)
    assert claim(at.process(new), "v").trial.id


def test_what_operates_may_differ_from_process_to_process() -> None:
    old = replace(rules(), lease_s=7.0, keep_best=3)
    at = work(old)
    process = at.process(old)
    other = replace(rules(), lease_s=90.0)
    with at.store.transaction(at.study, exclusive=True, alone=True) as tx:
        tx.apply([SetConfig(config_of(other))])
    assert claim(process).trial.id


def test_functions_are_compared_by_name() -> None:
    def scale(params: Params, rng: np.random.Generator) -> Any:
        return {"lr": 0.125}

    space = Space({"lr": Float(0.1, 1.0)}, constraints=[lambda params: params["lr"] < 2])
    old = rules(pbt(explore=ExploreWith(scale)), space=space)
    at = work(old)
    process = at.process(old)
    at.change(rules(pbt(explore=ExploreWith(scale)), space=space))
    assert claim(process).trial.id


def renamed(config: Any, old: str, new: str) -> Any:
    """Return a configuration in which a function has another name, as one of a file that was changed has."""
    if isinstance(config, dict):
        return {key: renamed(item, old, new) for key, item in config.items()}
    if isinstance(config, list):
        return [renamed(item, old, new) for item in config]
    return config.replace(old, new) if isinstance(config, str) else config


def unknown(strategy: PBT) -> tuple[TrainRules, JsonObject]:
    new = rules(replace(strategy, explore=ExploreWith(double)))
    return new, renamed(config_of(new), ":double", ":triple")


def test_what_cannot_be_found_here_ends_the_work_of_this_process_alone() -> None:
    old = rules(stopping=[Divergence(above=10.0)])
    at = work(old)
    process, other = at.process(old), at.process(old)
    running = claim(process)
    new, config = unknown(pbt())
    config = {**config, "stopping": None}
    at.change(new, config)
    # By the old rules it would be stopped.
    answers, claimed, rest = process.complete([finished(running, 11.0)], "w", 1)
    assert claimed == []
    assert isinstance(rest, Outdated)
    assert "strategy.explore.plugin, strategy.explore." in rest.why
    assert "restart it with the changed study file" in rest.why
    (row,) = at.trials()
    assert (row.state, row.fitness) == (JobState.COMPLETED, 11.0), answers
    assert isinstance(other.claim("v")[1], Outdated)
    # Another process, which has the function, goes on.
    assert train_all(Controller(at.store, at.study, new, config)).state == "completed"
    assert len(at.trials()) == 16


@pytest.mark.parametrize("quorum", [0.0, 1.0])
def test_who_does_not_know_the_settings_does_not_say_that_a_member_is_done(quorum: float) -> None:
    old = rules(pbt(total_steps=STEPS, quorum=quorum))
    at = work(old)
    process = at.process(old)
    running = [claim(process, f"w{index}") for index in range(4)]
    process.complete([finished(running[0])])
    assert at.states()[0] is MemberState.DONE
    new, config = unknown(pbt(quorum=quorum))
    at.change(new, config)
    for given in running[1:]:
        process.complete([finished(given)])
    assert set(at.states()) == {MemberState.READY}
    assert train_all(Controller(at.store, at.study, new, config)).state == "completed"
    assert len(at.trials()) == 16
    assert {row.state for row in at.trials()} == {JobState.COMPLETED}


def test_settings_that_come_back_are_known_again() -> None:
    old = rules()
    at = work(old)
    process = at.process(old)
    at.change(*unknown(pbt()))
    assert isinstance(process.claim("w")[1], Outdated)
    at.change(old)
    assert claim(process).trial.end_step == STEPS


def test_who_does_not_know_the_settings_collects_nothing() -> None:
    old = rules()
    at = work(old)
    process = at.process(old)
    for _ in range(12):
        process.complete([finished(claim(process))])
    assert process.retention().collectable
    new, config = unknown(pbt(exploit=Backtrack()))
    at.change(new, config)
    assert process.retention().collectable == ()
    assert Controller(at.store, at.study, new, config).retention().collectable


def test_functions_that_only_the_database_names_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    old = rules()
    at = work(old)
    process = at.process(old)
    at.change(*unknown(pbt()))
    looked: list[str] = []
    monkeypatch.setattr(plugins, "resolve", looked.append)
    assert isinstance(process.claim("w")[1], Outdated)
    assert looked == []


def test_two_changes_at_the_same_time() -> None:
    old = rules()
    at = work(old)
    new = rules(pbt(burn_in=5))
    with at.store.reader(at.study) as reader:
        before = reader.study().config
    at.change(rules(pbt(min_scores=2)))
    changes = StudyChanges(at.store, at.study, new)
    with raises(StudyChanged, "strategy.min_scores"):
        changes.change(config_of(new), differences(before, config_of(new)), before=before)
    assert at.process(rules(pbt(min_scores=2))).claim("w")[0]
    with at.store.reader(at.study) as reader:
        assert not differences(config_of(rules(pbt(min_scores=2))), reader.study().config)


@pytest.mark.parametrize("done", [1, 3, 4])
def test_members_that_were_done_wait_for_their_generation(done: int) -> None:
    """Raising the steps of a synchronous study in its last generation decides as if there had been more before."""

    def history(at: Work, process: Controller) -> list[Any]:
        train_all(process)
        rows = sorted(at.trials(), key=lambda row: (row.generation, row.member))
        ids = {row.id: (row.member, row.generation) for row in rows}
        return [(row.member, row.generation, ids.get(row.parent or 0), dict(row.params)) for row in rows]

    new = rules(pbt(quorum=1.0))
    longer = work(new)
    old = rules(pbt(total_steps=2 * STEPS, quorum=1.0))
    at = work(old)
    process = at.process(old)
    for _ in range(2):
        running = [claim(process, f"w{index}") for index in range(4)]
        for given in running[: 4 if running[0].trial.generation == 0 else done]:
            process.complete([finished(given)])
    at.change(new)
    process = at.process(new)
    claimed, rest = process.claim("w0")
    assert bool(claimed) == (done == 4), rest
    for given in running[done:]:
        process.complete([finished(given)])
    for given in claimed:
        process.complete([finished(given)])
    assert history(at, process) == history(longer, longer.process(new))


def test_more_members_and_more_steps_for_each() -> None:
    old = rules(pbt(total_steps=2 * STEPS))
    at = work(old)
    process = at.process(old)
    claim(process, "v")
    new = rules(pbt(population_size=6))
    at.change(new)
    process = at.process(new)
    with at.store.reader(at.study) as reader:
        (running,) = reader.running()
    process.lose_worker(running.worker, "it died", counts=False)
    assert train_all(process).state == "completed"
    with at.store.reader(at.study) as reader:
        assert [member.progress for member in reader.members()] == [4 * STEPS] * 6
