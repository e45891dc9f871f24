"""What a controller answers, which transactions it makes for it, and what it keeps of a study."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from evaluating import found, population_rules, result, suites, trained, watching
from facts import check_facts, raises
from phyla import machine
from phyla.checkpoints import attempt_name
from phyla.configuration import differences, to_config
from phyla.controller import EVALUATE_ONLY, TRAIN_ONLY, Controller, Sightings, StudyChanges, StudyRecords
from phyla.controller.sightings import BACKFILLED_AT_ONCE
from phyla.errors import ConfigurationError, LeaseLost, StateError, StoreBusy, StoreError, StudyChanged
from phyla.evaluation import Policy
from phyla.machine import (
    Accepted,
    Claimed,
    ClaimedEvaluation,
    Completion,
    Ended,
    Evaluated,
    Idle,
    NoTime,
    Outdated,
    Room,
    TrainRules,
)
from phyla.records import (
    AttemptState,
    CheckpointKind,
    CheckpointState,
    JobState,
    Json,
    Maximize,
    Member,
    MemberState,
    Report,
    RunStart,
    StudyKind,
    StudyState,
)
from phyla.space import Float, Space
from phyla.store import Store, open_store
from phyla.store.retry import RETRIES
from phyla.strategies import ASHA, PBT, Context, Decision, Divergence, Population, RandomSearch, Strategy
from simulation import Simulation, VirtualClock

LEASE_S = 10.0


def pbt(size: int = 2, **given: Any) -> PBT:
    return PBT(**{"population_size": size, "steps_per_trial": 5, "total_steps": 10, "quorum": 0.0, **given})


def rules(strategy: Any = None, **given: Any) -> TrainRules:
    return TrainRules(
        space=Space(lr=Float(0.1, 1.0)),
        objective=Maximize("Q"),
        strategy=strategy or pbt(),
        lease_s=LEASE_S,
        **given,
    )


def simulation(of: TrainRules | None = None) -> Simulation:
    return Simulation(of or rules(), lambda parent, trial: (None, float(trial.member)))


class Crowded:
    """A store that is busy the first times that a transaction is to be committed."""

    def __init__(self, store: Store, times: int) -> None:
        self._store = store
        self.times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def transaction(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        with self._store.transaction(*args, **kwargs) as tx:
            yield tx
            if self.times:
                self.times -= 1
                raise StoreBusy("a crowd")


class Noting:
    """A store that notes how its transactions are opened: exclusive, alone, and on which study's checkpoints."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.opened: list[tuple[bool, bool, int | None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transaction(self, study: int, **given: Any) -> Any:
        self.opened.append((given.get("exclusive", False), given.get("alone", False), given.get("source")))
        return self._store.transaction(study, **given)


@pytest.mark.parametrize(
    ("of", "decides_alone"), [(rules(), False), (rules(ASHA(3, 10, 5)), True)], ids=["PBT", "ASHA"]
)
def test_which_transactions_may_not_overlap(of: TrainRules, decides_alone: bool) -> None:
    made = simulation(of)
    noting: Any = Noting(made.store)
    controller = Controller(noting, made.study.id, of, source=None)
    records = StudyRecords(noting, made.study.id)

    def opened() -> list[tuple[bool, bool, int | None]]:
        noting.opened, found = [], noting.opened
        return list(found)

    (work,), _ = controller.claim("w")
    controller.renew("w")
    controller.complete([made.completion(work.trial)])
    assert opened() == [(decides_alone, False, None)] * 3
    name = f"{work.trial.id}.1"
    assert not records.import_checkpoints([])
    records.set_unusable(name, None)
    with made.store.reader(made.study.id) as reader:
        row = reader.checkpoint(name)
    assert row is not None
    records.mark_deleting([row])
    records.set_checkpoints([name], CheckpointState.LOST)
    assert opened() == [(True, False, None)] * 4
    records.note_start(RunStart(study=made.study.id, at=0.0, facts={}))
    assert opened() == [(False, False, None)]
    records.set_checkpoints([], CheckpointState.LOST)
    records.mark_deleting([])
    assert opened() == []
    StudyChanges(noting, made.study.id, of).change({}, {})
    records.store_config({}, {})
    assert opened() == [(True, True, None)] * 2
    watching = Controller(noting, made.study.id, of, source=made.study.id)
    watching.renew("w")
    assert opened() == [(decides_alone, False, made.study.id)]
    records.begin_deleting()
    assert opened() == [(True, True, None)]


def test_checkpoints_are_taken_in_by_one_at_a_time_and_backfilled_in_pages() -> None:
    store = open_store("memory://", clock=VirtualClock())
    source = store.create_study("s", {}, 1, 2).id
    study = store.create_study("r", {}, kind=StudyKind.STUDY, source=source)
    noting: Any = Noting(store)
    Sightings(noting, study, ()).observe([found(f"c{index}") for index in range(BACKFILLED_AT_ONCE + 1)])
    sightings = Sightings(noting, study, watching(suites()).suites)
    assert [seen.name for seen in sightings.seen(after=BACKFILLED_AT_ONCE)] == [f"c{BACKFILLED_AT_ONCE}"]
    assert sightings.backfill() > BACKFILLED_AT_ONCE
    assert len(noting.opened) == 1 + 3
    assert sightings.backfill() == 0
    sightings.note("note", "a person should know", seen=1)
    assert sightings.gone({}) == frozenset()
    assert sightings.gone({1: "deleted"}) == {1}
    with pytest.raises(StateError):
        sightings.evaluate_again(2, "s")
    sightings.drain("the end")
    assert noting.opened == [(True, False, source)] * (1 + 3 + 3 + 4)


def act_claim(store: Store, study: int) -> object:
    return Controller(store, study, rules()).claim("w")[0]


def act_change(store: Store, study: int) -> object:
    return StudyChanges(store, study, rules(pbt(3))).change(to_config(rules(pbt(3)), 0), {})


@pytest.mark.parametrize("act", [act_claim, act_change])
def test_a_request_is_made_again_while_the_store_is_busy_but_not_for_ever(
    act: Callable[[Store, int], object],
) -> None:
    assert RETRIES == 3
    for times in (RETRIES, RETRIES + 1):
        made = simulation()
        crowded: Any = Crowded(made.store, times)
        if times == RETRIES:
            assert act(crowded, made.study.id)
        else:
            with pytest.raises(StoreBusy):
                act(crowded, made.study.id)
        assert crowded.times == 0
        with made.store.reader(made.study.id) as reader:
            assert (len(reader.trials()) + reader.study().population_size > 2) == (times == RETRIES)


def test_a_worker_gets_as_many_trials_as_it_asks_for_and_is_told_why_there_are_fewer() -> None:
    controller = simulation(rules(RandomSearch(3, 5))).controller
    assert controller.complete((), "w", 0) == ([], [], None)
    assert controller.complete((), None, 2) == ([], [], None)
    claimed, rest = controller.claim("w")
    assert (len(claimed), rest) == (1, None)
    claimed, rest = controller.claim("v", 9)
    assert len(claimed) == 2
    assert isinstance(rest, Idle)
    assert [work.trial.worker for work in claimed] == ["v", "v"]


def test_a_worker_gets_work_of_the_kinds_that_it_takes_and_evaluates_first() -> None:
    store = open_store("memory://", clock=VirtualClock())
    number = store.create_study("s", {}, 1, 2).id
    controller = Controller(store, number, population_rules(2))
    works, _ = controller.claim("w", 2)
    controller.complete([trained(work) for work in works])

    def kinds(count: int, **given: Any) -> tuple[list[type], Any]:
        _, claimed, rest = controller.complete((), "w", count, **given)
        for work in claimed:
            job = work.job.id if isinstance(work, ClaimedEvaluation) else work.trial.id
            controller.release(job, 1 if isinstance(work, ClaimedEvaluation) else work.trial.token)
        return [type(work) for work in claimed], rest

    got, rest = kinds(9)
    assert (set(got), type(rest)) == ({Claimed}, Idle)
    assert (kinds(1, kinds=EVALUATE_ONLY), kinds(1, kinds=TRAIN_ONLY)) == (
        ([ClaimedEvaluation], None),
        ([Claimed], None),
    )
    _, claimed, rest = controller.complete((), "w", 9, kinds=EVALUATE_ONLY | TRAIN_ONLY)
    evaluations = [isinstance(work, ClaimedEvaluation) for work in claimed]
    assert evaluations == sorted(evaluations, reverse=True)
    assert 0 < sum(evaluations) < len(evaluations)
    _, claimed, rest = controller.complete((), "w", 1, kinds=EVALUATE_ONLY)
    assert (claimed, rest) == ([], Idle(seconds=None, why="no checkpoint waits for evaluation"))


def test_a_strategy_that_never_starts_anything_ends_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    made = simulation()
    asked: list[str] = []

    def never(tx: object, of: object, worker: str, *_: object, **__: object) -> tuple[None, list[Any]]:
        asked.append(worker)
        return None, []

    monkeypatch.setattr(machine, "claim", never)
    claimed, rest = made.controller.claim("w")
    assert claimed == []
    assert isinstance(rest, Ended)
    assert rest.state is StudyState.FAILED
    assert "no progress after repeated calls; this is a bug in the strategy" in (rest.message or "")
    with made.store.reader(made.study.id) as reader:
        assert (reader.study().state, reader.study().message) == (StudyState.FAILED, rest.message)
    assert len(asked) > 2 * 2


@dataclass(frozen=True)
class Raises(Strategy):
    """Starts the first trial of each member, and then cannot decide."""

    population_size: int = 2
    total_steps: int = 10

    def finished(self, member: Member) -> bool:
        return False

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        if member.generation:
            raise ZeroDivisionError("by lr")
        return RandomSearch(2, 5).decide(member, population, context)


def test_what_was_trained_counts_although_nothing_can_be_decided() -> None:
    made = simulation(rules(Raises()))
    works, _ = made.controller.claim("w", 2)
    done = made.completion(works[0].trial)
    answers, claimed, rest = made.controller.complete([done], "w", 1)
    assert answers == [Accepted(job=works[0].trial.id, fitness=float(works[0].trial.member))]
    assert claimed == []
    assert isinstance(rest, Ended)
    assert rest.state is StudyState.FAILED
    told = rest.message or ""
    check_facts(told, "ZeroDivisionError")
    assert f"{__file__}, line" in told
    with made.store.reader(made.study.id) as reader:
        assert (reader.study().state, reader.study().message) == (StudyState.FAILED, told)
        assert [row.state for row in reader.trials()].count(JobState.COMPLETED) == 1
    assert made.controller.complete([made.completion(works[1].trial)])[0]


def test_only_what_the_strategy_raises_ends_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    made = simulation(rules(Raises()))
    works, _ = made.controller.claim("w", 2)
    broken = replace(made.completion(works[0].trial), checkpoint=None)
    with pytest.raises(ValueError, match="names no checkpoint"):
        made.controller.complete([broken], "w", 1)

    def crowded(*args: object) -> Decision:
        raise StoreError("the database is gone")

    failing: Any = simulation(rules(Raises()))
    with monkeypatch.context() as patch:
        patch.setattr(Raises, "decide", crowded)
        with pytest.raises(StoreError, match="the database is gone"):
            failing.controller.claim("w")
    for one in (made, failing):
        with one.store.reader(one.study.id) as reader:
            assert reader.study().state is StudyState.RUNNING
            assert not [row for row in reader.trials() if row.state is JobState.COMPLETED]


def attempts(made: Simulation) -> dict[str, tuple[AttemptState, float]]:
    with made.store.reader(made.study.id) as reader:
        rows = [attempt for trial in reader.trials() for attempt in reader.attempts(trial.id)]
    return {row.worker: (row.state, row.expires_at - made.clock.now) for row in rows}


def test_leases_are_looked_at_by_whoever_claims_and_not_at_every_claim() -> None:
    made = simulation(rules(RandomSearch(9, 5)))
    controller = made.controller
    controller.claim("a")
    controller.claim("b")
    assert attempts(made) == {"a": (AttemptState.RUNNING, LEASE_S), "b": (AttemptState.RUNNING, LEASE_S)}
    made.clock.now += 4.0
    controller.renew("b")
    assert attempts(made)["b"] == (AttemptState.RUNNING, LEASE_S)
    made.clock.now += LEASE_S - 4.25
    controller.claim("c")
    made.clock.now += 0.5
    controller.claim("d")
    assert attempts(made)["a"][0] is AttemptState.RUNNING, "leases were looked at half a second ago"
    made.clock.now += 0.5
    controller.claim("e")
    assert attempts(made)["a"][0] is AttemptState.LOST
    assert attempts(made)["b"][0] is AttemptState.RUNNING
    with made.store.reader(made.study.id) as reader:
        attempt = next(one for one in reader.attempts(1))
        check_facts(attempt.error, "worker a", "10 s")
        assert reader.trial(1).failures == 0


def test_a_clock_that_is_set_back_is_looked_at_at_once() -> None:
    made = simulation(rules(RandomSearch(9, 5)))
    made.clock.now += 1000.0
    made.controller.claim("a")
    made.clock.now -= 999.0
    made.controller.claim("b")
    assert attempts(made)["a"] == (AttemptState.RUNNING, LEASE_S)
    made.clock.now += LEASE_S + 1.0
    made.controller.claim("c")
    assert attempts(made)["a"][0] is AttemptState.LOST


def test_a_clock_that_is_set_back_by_less_than_a_second_shortens_no_lease() -> None:
    made = simulation(rules(RandomSearch(9, 5)))
    made.controller.claim("a")
    made.clock.now -= 0.5
    made.controller.claim("b")
    assert attempts(made)["a"] == (AttemptState.RUNNING, LEASE_S + 0.5)


@pytest.mark.parametrize("counts", [True, False])
def test_everything_that_a_dead_worker_held_is_taken_back(counts: bool) -> None:
    made = simulation(rules(RandomSearch(3, 5)))
    made.controller.claim("a", 2)
    made.controller.claim("b")
    assert made.controller.lose_worker("a", "it died", counts=counts) == 2
    assert made.controller.lose_worker("a", "it died", counts=counts) == 0
    with made.store.reader(made.study.id) as reader:
        rows = [(row.worker, row.state, row.failures) for row in reader.trials()]
        assert rows == [(None, JobState.PENDING, int(counts))] * 2 + [("b", JobState.RUNNING, 0)]
        assert {one.error for one in reader.attempts(1)} == {"it died"}


def test_reports_are_kept_and_judged() -> None:
    made = simulation(rules(stopping=(Divergence(above=5.0),)))
    (work,), _ = made.controller.claim("w")
    standing = made.controller.report(work.trial.id, 1, [Report(1, {"Q": 4.0})])
    assert standing.stop_reason is None
    standing = made.controller.report(work.trial.id, 1, [Report(2, {"Q": 6.0})])
    assert standing.stop_reason is not None
    with made.store.reader(made.study.id) as reader:
        assert [report.step for report in reader.reports(work.trial.id, 1)] == [1, 2]


def study(of: TrainRules) -> tuple[Store, int, Controller]:
    store = open_store("memory://", clock=VirtualClock())
    made = store.create_study("s", to_config(of, 0), 0, of.strategy.population_size)
    return store, made.id, Controller(store, made.id, of, to_config(of, 0))


def test_changes_are_written_down_with_their_time_and_the_population_follows() -> None:
    store, number, controller = study(rules())
    for size in (4, 1):
        new = rules(pbt(size))
        with store.reader(number) as reader:
            before = reader.study().config
        config = to_config(new, 0)
        changes = StudyChanges(store, number, new)
        changed = changes.change(config, differences(before, config), before=before)
        with store.reader(number) as reader:
            assert sum(not member.retired for member in reader.members()) == size
            assert reader.study() == changed
            assert differences(reader.study().config, config) == {}
    with store.reader(number) as reader:
        entries: Any = reader.study().config["changes"]
    told: list[Json] = [{"strategy.population_size": [2, 4]}, {"strategy.population_size": [4, 1]}]
    assert [entry["changes"] for entry in entries] == told
    assert {entry["at"] for entry in entries} == {1_000_000.0}
    rest = controller.claim("w")[1]
    assert isinstance(rest, Outdated)
    assert "(strategy.population_size)" in rest.why


def test_a_change_that_another_one_overtook_is_not_made() -> None:
    store, number, _ = study(rules())
    with store.reader(number) as reader:
        before = reader.study().config
    changes = StudyChanges(store, number, rules())
    changes.change(to_config(rules(pbt(burn_in=5)), 0), {}, before=before)
    with raises(StudyChanged, "burn_in"):
        changes.change(to_config(rules(), 0), {}, before=before)
    with store.reader(number) as reader:
        assert set(differences(before, reader.study().config)) == {"strategy.burn_in"}


@pytest.mark.parametrize("given", [{}, {"fresh": False}, {"fresh": True}])
def test_members_that_join_start_from_the_best_unless_they_are_to_start_fresh(given: dict[str, Any]) -> None:
    made = simulation(rules(RandomSearch(2, 5)))
    works, _ = made.controller.claim("w", 2)
    made.controller.complete([made.completion(work.trial) for work in works])
    grown = rules(pbt(3))
    StudyChanges(made.store, made.study.id, grown).change(to_config(grown, 0), {}, **given)
    with made.store.reader(made.study.id) as reader:
        best, added = reader.member(1), reader.member(2)
    assert added.head == (None if given.get("fresh") else best.head)
    assert (added.progress, added.joined_steps, added.joined_generation) == (5, 5, 1)


def test_a_study_that_ended_runs_on_once_there_is_something_to_train() -> None:
    store, number, controller = study(rules())
    made = simulation()
    made.store, made.controller = store, controller
    assert made.run_serially().state is StudyState.COMPLETED
    for new, state in (
        (rules(pbt(burn_in=1)), StudyState.COMPLETED),
        (rules(pbt(total_steps=15)), StudyState.RUNNING),
    ):
        config = to_config(new, 0)
        assert StudyChanges(store, number, new).change(config, {}).state is state
    grown = rules(pbt(4, total_steps=10))
    with raises(ConfigurationError, "4 members", "2", "10 steps"):
        StudyChanges(store, number, grown).change(to_config(grown, 0), {})


def test_members_that_have_finished_stay_so_when_other_settings_are_stored() -> None:
    store, number, controller = study(rules())
    made = simulation()
    made.store, made.controller = store, controller
    assert made.run_serially().state is StudyState.COMPLETED
    with store.reader(number) as reader:
        before = reader.study().config
    StudyRecords(store, number).store_config(to_config(rules(max_attempts=7), 0), before)
    with store.reader(number) as reader:
        assert reader.study().config != before
        assert [member.state for member in reader.members()] == [MemberState.DONE] * 2


def test_nothing_is_collected_by_who_does_not_know_the_settings() -> None:
    store, number, controller = study(rules(pbt(1, total_steps=50)))
    made = simulation()
    made.store, made.controller = store, controller
    made.run_serially()
    before = controller.retention()
    assert before.collectable
    new = rules(pbt(1, total_steps=55))
    config = to_config(new, 0)
    StudyChanges(store, number, new).change(config, {})
    after = controller.retention()
    assert after.collectable == ()
    assert after.bound == before.bound
    assert [row for row, _ in after.kept] == [*(row for row, _ in before.kept), *before.collectable]


def test_checkpoints_are_marked_for_deletion_unless_a_trial_took_them_since() -> None:
    made = simulation()
    works, _ = made.controller.claim("w", 2)
    made.controller.complete([made.completion(work.trial) for work in works])
    with made.store.reader(made.study.id) as reader:
        rows = list(reader.checkpoints(CheckpointState.LIVE))
    assert StudyRecords(made.store, made.study.id).mark_deleting([]) == []
    (work,), _ = made.controller.claim("w")
    taken = work.trial.parent_checkpoint
    free = [row.name for row in rows if row.name != taken]
    assert StudyRecords(made.store, made.study.id).mark_deleting(rows) == free
    StudyRecords(made.store, made.study.id).set_checkpoints(free, CheckpointState.DELETED)
    StudyRecords(made.store, made.study.id).set_checkpoints([], CheckpointState.LOST)
    with made.store.reader(made.study.id) as reader:
        found = {row.name: reader.checkpoint(row.name) for row in rows}
    states = {name: row.state for name, row in found.items() if row is not None}
    assert states == {taken: CheckpointState.LIVE, free[0]: CheckpointState.DELETED}


def test_a_worker_that_evaluates_is_told_how_long_to_wait_and_when_the_study_has_ended() -> None:
    store = open_store("memory://", clock=VirtualClock())
    study = store.create_study("r", {}, kind=StudyKind.DIRECTORY, location="/checkpoints")
    slow = watching(suites(Policy(start_delay_s=5.0)))
    Sightings(store, study, slow.suites).observe([found("c0", written_at=1_000_000.0)])
    controller = Controller(store, study.id, slow)
    _, claimed, rest = controller.complete((), "w", 1, kinds=EVALUATE_ONLY)
    assert (claimed, rest) == ([], Idle(seconds=5.0, why="no checkpoint waits for evaluation"))
    with store.transaction(study.id, exclusive=True) as tx:
        tx.apply([machine.SetStudyState(StudyState.STOPPED, "a person said so")])
    _, claimed, rest = controller.complete((), "w", 1, kinds=EVALUATE_ONLY)
    assert (claimed, rest) == ([], Ended(state=StudyState.STOPPED, message="a person said so"))


def test_a_worker_gets_no_trial_that_would_not_end_in_its_time() -> None:
    made = simulation(rules(RandomSearch(2, 10, 5)))
    (work,), _ = made.controller.claim("w")
    made.clock.now += 45.0
    made.controller.renew("w")
    made.clock.now += 5.0
    made.controller.complete([made.completion(work.trial)])

    def asked(left_s: float) -> tuple[list[int], Any]:
        _, claimed, rest = made.controller.complete((), "w", 1, room=Room(left_s=left_s, run_s=1000.0))
        return [work.trial.member for work in claimed if isinstance(work, Claimed)], rest

    assert asked(20.0) == ([], NoTime(why="a trial takes about 50 s, and 20 s are left"))
    assert asked(50.0) == ([1], None)


def test_a_worker_gets_no_eval_task_that_would_not_end_in_its_time() -> None:
    store = open_store("memory://", clock=VirtualClock())
    study = store.create_study("r", {}, kind=StudyKind.DIRECTORY, location="/checkpoints")
    of = watching(suites()[:1])
    Sightings(store, study, of.suites).observe([found("c0")])
    controller = Controller(store, study.id, of)

    def asked(room: Room) -> tuple[list[ClaimedEvaluation], Any]:
        _, claimed, rest = controller.complete((), "w", 1, kinds=EVALUATE_ONLY, room=room)
        return [work for work in claimed if isinstance(work, ClaimedEvaluation)], rest

    (work,), _ = asked(Room(left_s=1.0, run_s=1000.0))
    done = Evaluated(job=work.job.id, group=work.group.id, token=1, result=result(work, duration_s=50.0))
    controller.complete([done])
    none, rest = asked(Room(left_s=20.0, run_s=1000.0))
    assert (none, rest) == ([], NoTime(why=f"eval task {work.job.task!r} takes about 50 s, and 20 s are left"))
    assert [next_one.job.task for next_one in asked(Room(left_s=50.0, run_s=1000.0))[0]] == [work.job.task]


def test_a_checkpoint_that_is_gone_when_its_evaluation_begins_holds_up_no_other() -> None:
    store = open_store("memory://", clock=VirtualClock())
    number = store.create_study("s", {}, 1, 2).id
    controller = Controller(store, number, population_rules(2))
    works, _ = controller.claim("w", 2)
    controller.complete([trained(work) for work in works])
    StudyRecords(store, number).set_checkpoints([f"{works[0].trial.id}.1"], CheckpointState.DELETED)
    _, claimed, _ = controller.complete((), "w", 99, kinds=EVALUATE_ONLY)
    assert {work.seen.name for work in claimed if isinstance(work, ClaimedEvaluation)} == {
        f"{works[1].trial.id}.1"
    }


def test_a_trial_claimed_before_the_store_was_restored_does_not_count_as_the_one_that_has_its_number_now() -> None:
    def claimed(worker: str) -> tuple[Controller, Claimed, Completion]:
        store = open_store("memory://", clock=VirtualClock())
        controller = Controller(store, store.create_study("s", {}, 1, 2).id, population_rules(2))
        (work,), _ = controller.claim(worker)
        trial, done = work.trial, trained(work)
        assert done.checkpoint is not None
        name = attempt_name("0a1b2c", trial.id, trial.token, trial.worker, trial.started_at)
        return controller, work, replace(done, checkpoint=replace(done.checkpoint, name=name))

    (_, lost, old), (controller, work, new) = claimed("old"), claimed("new")
    assert (lost.trial.id, lost.trial.token) == (work.trial.id, work.trial.token)
    assert old.checkpoint is not None
    (answer,), _, _ = controller.complete([old])
    assert isinstance(answer, LeaseLost)
    progress = replace(old.checkpoint, name=f"{old.checkpoint.name}.p1", kind=CheckpointKind.PROGRESS, step=1)
    with pytest.raises(LeaseLost):
        controller.save_progress(work.trial.id, work.trial.token, progress)
    (answer,), _, _ = controller.complete([new])
    assert isinstance(answer, Accepted)


def test_a_result_of_an_eval_job_claimed_before_the_store_was_restored_does_not_count_for_another_checkpoint() -> (
    None
):
    def claimed(checkpoint: str) -> tuple[Controller, ClaimedEvaluation]:
        store = open_store("memory://", clock=VirtualClock())
        study = store.create_study("r", {}, kind=StudyKind.DIRECTORY, location="/checkpoints")
        of = watching(suites()[:1])
        Sightings(store, study, of.suites).observe([found(checkpoint)])
        controller = Controller(store, study.id, of)
        _, (work,), _ = controller.complete((), "w", 1, kinds=EVALUATE_ONLY)
        assert isinstance(work, ClaimedEvaluation)
        return controller, work

    (_, lost), (controller, work) = claimed("c0"), claimed("c1")
    job, group = work.job, work.group.id
    assert (lost.job.id, lost.job.token, lost.group.id) == (job.id, job.token, group)
    done = [Evaluated(job=job.id, group=group, token=job.token, result=result(of)) for of in (lost, work)]
    (old,), _, _ = controller.complete(done[:1])
    (new,), _, _ = controller.complete(done[1:])
    assert (type(old), type(new)) == (LeaseLost, Accepted)


@pytest.mark.parametrize("key", ["identity", "task_identity", "replicate", "shard", "shards", None])
def test_no_other_result_ends_an_eval_job(key: str | None) -> None:
    store = open_store("memory://", clock=VirtualClock())
    study = store.create_study("r", {}, kind=StudyKind.DIRECTORY, location="/checkpoints")
    of = watching(suites()[:1])
    Sightings(store, study, of.suites).observe([found("c0")])
    controller = Controller(store, study.id, of)
    _, (work,), _ = controller.complete((), "w", 1, kinds=EVALUATE_ONLY)
    assert isinstance(work, ClaimedEvaluation)
    own = result(work)
    changes: Any = {} if key is None else {key: "other" if isinstance(getattr(own, key), str) else 7}
    other = None if key is None else replace(own, **changes)
    done = [
        Evaluated(job=work.job.id, group=work.group.id, token=work.job.token, result=one) for one in (other, own)
    ]
    (refused,), _, _ = controller.complete(done[:1])
    (accepted,), _, _ = controller.complete(done[1:])
    assert (type(refused), type(accepted)) == (LeaseLost, Accepted)


def test_trials_that_are_to_start_together_are_given_out_all_or_none() -> None:
    made = simulation(rules(pbt(3, quorum=1.0)))

    def asked(worker: str, count: int) -> Any:
        _, claimed, rest = made.controller.complete((), worker, count, whole=True)
        return claimed, rest

    with pytest.raises(StateError) as refused:
        asked("w", 4)
    check_facts(str(refused.value), "4 trials", "3 of 3 members", "0")
    assert len(made.controller.claim("v")[0]) == 1, "the claim of three was taken back"
    claimed, rest = asked("w", 3)
    assert (claimed, isinstance(rest, Idle)) == ([], True)
    claimed, rest = asked("w", 2)
    assert (len(claimed), rest) == (2, None)


def test_work_whose_answer_was_lost_is_given_out_again() -> None:
    store = open_store("memory://", clock=VirtualClock())
    number = store.create_study("s", {}, 1, 2).id
    controller = Controller(store, number, population_rules(2))
    both = EVALUATE_ONLY | TRAIN_ONLY

    def asked(count: int, held: set[int] | None) -> list[Any]:
        return controller.complete((), "w", count, kinds=both, held=held)[1]

    def jobs(works: list[Any]) -> list[int]:
        return [work.job.id if isinstance(work, ClaimedEvaluation) else work.trial.id for work in works]

    first = asked(2, None)
    assert asked(2, set()) == first
    assert asked(1, {first[0].trial.id}) == first[1:]
    controller.complete([trained(work) for work in first])
    evaluations = asked(2, set())
    assert {type(work) for work in evaluations} == {ClaimedEvaluation}
    assert sorted(jobs(asked(2, set()))) == sorted(jobs(evaluations))
    again = {work.job.id: work for work in asked(2, set())}
    for work in evaluations:
        same = again[work.job.id]
        assert (same.job.token, same.group.id, same.seen.name) == (1, work.group.id, work.seen.name)
    other = asked(1, set(jobs(evaluations)))
    assert not {*jobs(other)} & {*jobs(evaluations)}


def test_a_study_is_deleted_once_nobody_works_on_it() -> None:
    made = simulation(rules(RandomSearch(3, 5)))
    for worker, holders in (("a", "(a)"), ("b", "(a, b)")):
        made.clock.now += 4.0
        made.controller.claim(worker)
        with raises(StateError, made.study.name, holders, "10 s"):
            StudyRecords(made.store, made.study.id).begin_deleting()
    made.clock.now += LEASE_S
    StudyRecords(made.store, made.study.id).begin_deleting()
    with made.store.reader(made.study.id) as reader:
        assert reader.study().state is StudyState.DELETING
