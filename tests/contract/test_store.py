"""What every store must do. One suite for memory, SQLite and PostgreSQL."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from effort import times
from facts import raises
from naive_store import NaiveStore
from phyla import machine
from phyla.controller import Controller, StudyChanges, StudyRecords
from phyla.errors import LeaseLost, StateError, StudyNotFound
from phyla.machine import Accepted, Claimed, Ended, Failure, Insert, Stopped
from phyla.records import (
    Cause,
    CheckpointState,
    JobKind,
    JobState,
    JsonObject,
    Mark,
    MemberState,
    Report,
    Role,
    RunStart,
    Scored,
    StudyKind,
    StudyState,
    Tally,
    Token,
    TrialRecord,
)
from phyla.store import Store, open_store
from phyla.store.sql.postgres import PostgresBackend
from phyla.store.sql.sqlite import SqliteBackend
from phyla.store.sql.store import SqlStore
from phyla.strategies import MedianStopping
from storing import (
    LEASE_S,
    STOPPING,
    Alike,
    Capricious,
    VirtualClock,
    completion,
    everything,
    pages,
    pbt,
    plain,
    rules,
)

KINDS = ("memory", "sqlite", "postgres")
WAIT_S = 120.0


@dataclass(frozen=True)
class Subject:
    """A store under test.

    Attributes:
        store: the store.
        clock: its clock.
        again: opens the same database once more; gives the same store in memory.
    """

    store: Store
    clock: VirtualClock
    again: Callable[[], Store]

    def controller(self, size: int = 3, name: str = "s", *, quorum: float = 0.0) -> Controller:
        study = self.store.create_study(name, {}, 1, size)
        return Controller(self.store, study.id, rules(pbt(size, quorum=quorum)))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def subject(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Iterator[Subject]:
    clock = VirtualClock()
    opened: list[Store] = []

    def again() -> Store:
        if kind == "memory":
            return opened[0] if opened else open_store("memory://", clock=clock)
        if kind == "sqlite":
            return SqlStore(SqliteBackend(f"sqlite:///{tmp_path}/store.db", clock))
        return SqlStore(PostgresBackend(request.getfixturevalue("postgres_url"), clock))

    def keep() -> Store:
        opened.append(again())
        return opened[-1]

    yield Subject(keep(), clock, keep)
    for store in opened:
        store.close()


@pytest.mark.timeout(900)  # thousands of flushes, which a busy disk makes slow
def test_it_answers_as_the_naive_store_does(subject: Subject, kind: str) -> None:
    run_state_machine_as_test(
        # Anything that makes a state machine will do.
        cast("type[Alike]", partial(Alike, subject.store, NaiveStore(subject.clock), subject.clock)),
        settings=settings(
            max_examples=times(*{"memory": (2, 5), "sqlite": (6, 40), "postgres": (3, 25)}[kind]),
            stateful_step_count=30,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_tokens_are_known_by_name(subject: Subject) -> None:
    for store in (subject.store, NaiveStore(subject.clock)):
        made = [Token(name=name, role=Role.WORKER, digest=f"of {name}", created_at=1.0) for name in "ba"]
        for token in made:
            store.add_token(token)
        assert store.tokens() == made[::-1]
        with raises(StateError, "token 'a'"):
            store.add_token(replace(made[1], role=Role.OPERATOR))
        store.revoke_token("b")
        assert store.tokens() == made[1:]
        with raises(StateError, "token 'b'"):
            store.revoke_token("b")


def test_a_study_is_created_once(subject: Subject) -> None:
    first = subject.store.create_study("a", {"b": 1, "a": [1, 2]}, 5, 2)
    assert subject.store.create_study("a", {"other": 1}, 6, 3) == first
    assert (first.name, first.seed, first.population_size) == ("a", 5, 2)
    assert first.created_at == subject.clock.now
    assert list(first.config) == ["b", "a"]
    other = subject.store.create_study("b", {}, 0, 1)
    assert subject.store.studies() == [first, other]
    assert subject.store.find_study("b") == other
    assert subject.store.find_study("c") is None


def test_a_study_that_does_not_exist_is_not_found(subject: Subject) -> None:
    with raises(StudyNotFound, "id 7"), subject.store.transaction(7, exclusive=False):
        pass
    with pytest.raises(StudyNotFound), subject.store.reader(7):
        pass


def test_a_deleted_study_leaves_nothing_and_others_as_they_were(subject: Subject) -> None:
    kept, doomed = subject.controller(name="kept"), subject.controller(name="doomed", quorum=1.0)
    for controller in (kept, doomed):
        for _ in range(2):
            claims, _ = controller.claim("w", 3)
            controller.complete([completion(work, reports=2) for work in claims if isinstance(work, Claimed)])
    first, second = subject.store.studies()
    before = everything(subject.store, first.id)
    old = {trial.id for trial in _trials(subject.store, second.id)}
    subject.store.delete_study(second.id)
    again = subject.again()
    assert again.find_study("doomed") is None
    assert again.studies() == [first]
    assert everything(again, first.id) == before
    with pytest.raises(StudyNotFound):
        again.delete_study(second.id)
    # Whoever still works on it finds it gone, and takes nothing of the one that has its name now for its own.
    renewed = subject.controller(name="doomed")
    with pytest.raises(StudyNotFound):
        doomed.claim("w")
    with pytest.raises(StudyNotFound):
        doomed.complete([completion(work) for work in claims if isinstance(work, Claimed)])
    found = again.find_study("doomed")
    assert found is not None
    assert found.id not in (first.id, second.id)
    (work,), _ = renewed.claim("w")
    assert isinstance(work, Claimed)
    assert work.trial.id > max(old)
    assert {trial.id for trial in _trials(again, found.id)} == {work.trial.id}


def _trials(store: Store, study: int) -> Sequence[TrialRecord]:
    with store.reader(study) as reader:
        return reader.trials()


def test_a_study_that_others_train_is_not_deleted(subject: Subject) -> None:
    controller = subject.controller()
    (study,) = subject.store.studies()
    controller.claim("other:0:1:1")
    records = StudyRecords(subject.store, study.id)
    before = everything(subject.store, study.id)
    with raises(StateError, "s", "other:0:1:1", "10 s"):
        records.begin_deleting()
    assert everything(subject.store, study.id) == before


def test_a_lease_that_ran_out_does_not_keep_a_study(subject: Subject) -> None:
    controller = subject.controller()
    controller.claim("dead")
    (study,) = subject.store.studies()
    subject.clock.now += LEASE_S
    StudyRecords(subject.store, study.id).begin_deleting()
    assert isinstance(controller.claim("late")[1], Ended)
    subject.store.delete_study(study.id)
    assert subject.store.studies() == []


def test_state_and_configuration_can_be_set(subject: Subject) -> None:
    study = subject.store.create_study("a", {}, 0, 2)
    with subject.store.transaction(study.id, exclusive=True) as tx:
        done = replace(tx.locked_member(1), state=MemberState.DONE)
        tx.apply([machine.Update(done)])
    subject.store.set_state(study.id, StudyState.FAILED, "why \u2603")
    with subject.store.transaction(study.id, exclusive=True, alone=True) as tx:
        tx.apply([machine.SetConfig({"more": math.inf})])
    changed = subject.store.find_study("a")
    assert changed is not None
    assert (changed.state, changed.message) == (StudyState.FAILED, "why \u2603")
    assert changed.config == {"more": math.inf}
    with subject.store.reader(study.id) as reader:
        assert [member.state for member in reader.members()] == [MemberState.READY, MemberState.READY]


@pytest.mark.parametrize(("stops", "replacements"), [(0, 0), (1, 3)])
def test_new_settings_give_all_attempts_to_members_that_kept_breaking_but_not_to_stopped_ones(
    subject: Subject, stops: int, replacements: int
) -> None:
    (claimed,), _ = subject.controller(2).claim("w")
    broken = claimed.trial
    with subject.store.transaction(broken.study, exclusive=True) as tx:
        given_up = replace(tx.locked_member(broken.member), state=MemberState.DONE, current_trial=None)
        tx.apply([machine.Update(replace(given_up, broken_trial=broken.id, stops=stops, replacements=3))])
    with subject.store.transaction(broken.study, exclusive=True, alone=True) as tx:
        tx.apply([machine.SetConfig({"more": 1})])
    with subject.again().reader(broken.study) as reader:
        changed = reader.member(broken.member)
    assert (changed.state, changed.replacements) == (MemberState.READY, replacements)


def test_the_configuration_is_one_object_until_it_changes(subject: Subject) -> None:
    study = subject.store.create_study("a", {"n": 1}, 0, 2)

    def seen() -> JsonObject:
        with subject.store.transaction(study.id, exclusive=False) as tx:
            return tx.study().config

    first = seen()
    with subject.store.transaction(study.id, exclusive=True) as tx:
        tx.apply([machine.SetStrategyState({"decisions": 1})])
    subject.store.set_state(study.id, StudyState.STOPPED, "why")
    assert seen() is first
    with subject.store.transaction(study.id, exclusive=True, alone=True) as tx:
        tx.apply([machine.SetConfig({"n": 2})])
    assert seen() == {"n": 2}


@pytest.mark.parametrize("exclusive", [False, True])
def test_who_begins_while_another_is_alone_sees_what_it_wrote(subject: Subject, exclusive: bool) -> None:
    study = subject.store.create_study("a", {"n": 1}, 0, 2)
    started = threading.Event()

    def seen() -> JsonObject:
        started.set()
        with subject.store.transaction(study.id, exclusive=exclusive) as tx:
            return tx.study().config

    with ThreadPoolExecutor(1) as pool:
        with subject.store.transaction(study.id, exclusive=True, alone=True) as tx:
            found = pool.submit(seen)
            assert started.wait(180)
            tx.apply([machine.SetConfig({"n": 2})])
        assert found.result(180) == {"n": 2}


@pytest.mark.parametrize("exclusive", [False, True])
def test_who_is_to_be_alone_sees_what_was_written_before(subject: Subject, exclusive: bool) -> None:
    study = subject.store.create_study("a", {}, 0, 2)
    started = threading.Event()

    def seen() -> str | None:
        started.set()
        with subject.store.transaction(study.id, exclusive=True, alone=True) as tx:
            return tx.member(0).slot

    with ThreadPoolExecutor(1) as pool:
        with subject.store.transaction(study.id, exclusive=exclusive) as tx:
            found = pool.submit(seen)
            assert started.wait(180)
            tx.apply([machine.Update(replace(tx.locked_member(0), slot="here"))])
        assert found.result(180) == "here"


def test_a_study_has_one_directory_of_checkpoints(subject: Subject) -> None:
    study = subject.store.create_study("a", {}, 0, 2).id
    records = [StudyRecords(subject.again(), study) for _ in range(4)]
    together = threading.Barrier(len(records))

    def claim(number: int) -> str:
        together.wait(180)
        return records[number].set_directory(f"/data\udcff/{number}", "")

    with ThreadPoolExecutor(len(records)) as pool:
        (first,) = set(pool.map(claim, range(len(records))))
    assert first in {f"/data\udcff/{number}" for number in range(len(records))}
    assert records[1].set_directory("/other", "/data") == first
    assert records[1].set_directory("/other", first) == "/other"
    assert records[2].set_directory("/another", first) == "/other"
    # A request that is repeated because its answer was lost.
    assert records[1].set_directory("/other", first) == "/other"
    for store in (subject.store, subject.again()):
        record = store.find_study("a")
        assert record is not None
        assert (record.location, record.config) == ("/other", {})


def test_the_place_that_is_watched_stays(subject: Subject) -> None:
    watched = subject.store.create_study("r", {}, kind=StudyKind.DIRECTORY, location="/data")
    assert StudyRecords(subject.store, watched.id).set_directory("/other", "/data") == "/data"


def test_a_transaction_that_raises_leaves_nothing(subject: Subject) -> None:
    controller = subject.controller()
    before = everything(subject.store, 1)

    def work() -> None:
        with subject.store.transaction(1, exclusive=True) as tx:
            _, commands = machine.claim(tx, controller.population, "w")
            tx.apply(commands)
            tx.apply([machine.SetStudyState(StudyState.FAILED, "x"), machine.SetStrategyState({"n": 1})])
            assert tx.study().state is StudyState.FAILED
            assert tx.unfinished()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert everything(subject.store, 1) == before


def test_a_transaction_sees_its_own_writes(subject: Subject) -> None:
    controller = subject.controller()
    with subject.store.transaction(1, exclusive=True) as tx:
        answer, commands = machine.claim(tx, controller.population, "w")
        tx.apply(commands)
        assert isinstance(answer, machine.Claimed)
        assert tx.trial(answer.trial.id) == answer.trial
        assert [attempt.job for attempt in tx.running("w")] == [answer.trial.id]
        tx.apply([machine.SetStrategyState({"n": 1}), machine.SetStrategyState({"n": 2})])
        assert tx.study().strategy_state == {"n": 2}
    with subject.store.reader(1) as reader:
        assert reader.study().strategy_state == {"n": 2}


def test_a_transaction_tells_one_time(subject: Subject) -> None:
    subject.controller()
    with subject.store.transaction(1, exclusive=True) as tx:
        begin = tx.now()
        subject.clock.now += 100
        assert tx.now() == begin


def test_ids_are_never_given_twice(subject: Subject) -> None:
    subject.controller(name="a")
    subject.controller(name="b")
    given = []
    for study in (1, 2, 1):
        with subject.store.transaction(study, exclusive=True) as tx:
            given.append(tx.new_job_id())
    assert len(set(given)) == len(given)
    assert min(given) == 1


def test_numbers_come_back_as_they_were(subject: Subject) -> None:
    values = (math.nan, math.inf, -math.inf, 5e-324, 0.1)
    controller = subject.controller(len(values))
    claims = controller.claim("w", len(values))[0]
    stored = [
        {"score": value, "$float": [{"$float": value}], "deep": {"x": [value, "nan", None, True, 1]}}
        for value in values
    ]
    for claimed, value, metrics in zip(claims, values, stored, strict=True):
        controller.complete([completion(claimed, value, metrics=metrics, reports=2)])
    with subject.again().reader(1) as reader:
        for claimed, value, metrics in zip(claims, values, stored, strict=True):
            trial = reader.trial(claimed.trial.id)
            member = reader.member(claimed.trial.member)
            assert plain(trial.fitness) == plain(value)
            assert trial.order == (value if math.isfinite(value) else -math.inf)
            assert plain(trial.metrics) == plain(metrics)
            assert member.head is not None
            assert plain([member.head.fitness, member.head.order]) == plain([value, trial.order])
            assert plain(member.states) == plain([member.head])
            assert plain(reader.reports(trial.id)) == plain([Report(n, {"score": value}) for n in (0, 1)])


def test_the_time_of_an_attempt_comes_back(subject: Subject) -> None:
    controller = subject.controller()
    first, second = controller.claim("w", 2)[0]
    timings = {"loading": 0.25, "training": 3.0}
    controller.complete([replace(completion(first), timings=timings)])
    failure = Failure(job=second.trial.id, token=1, error="e", timings={"loading": 0.5, "later": 9.0})
    controller.fail(failure)
    controller.complete([replace(completion(controller.claim("w")[0][0]), timings=None)])
    with subject.again().reader(1) as reader:
        known = [attempt.timings for attempt in reader.trial_attempts()]
        assert reader.attempts(first.trial.id)[0].timings == timings
        spent = reader.time_spent()
    assert known == [timings, {"loading": 0.5, "later": 9.0}, None]
    assert {phase: seconds for phase, seconds in spent.seconds.items() if seconds} == {
        "training": 3.0,
        "loading": 0.75,
    }
    assert (spent.timed, spent.ended) == (2, 3)


def test_any_error_text_can_be_stored(subject: Subject) -> None:
    controller = subject.controller()
    errors = ("nul \0 inside", "half a character \udcff", "caf\u00e9 \u2603 \U0001f600")
    claims = controller.claim("w", len(errors))[0]
    for claimed, error in zip(claims, errors, strict=True):
        controller.fail(Failure(job=claimed.trial.id, token=1, error=error))
    with subject.again().reader(1) as reader:
        for claimed, error in zip(claims, errors, strict=True):
            stored = reader.trial(claimed.trial.id).error
            assert stored is not None
            assert error.split()[0] in stored


def test_the_same_error_twice_stops_a_study_in_which_nothing_ever_completed(subject: Subject) -> None:
    controller = subject.controller(3)
    claims: list[Claimed] = []

    def failed(cause: Cause | None) -> StudyState:
        """Let the next trial fail, another member's each time."""
        subject.clock.now += 1
        claims.extend(controller.claim("w", 3)[0])
        trial = claims.pop(0).trial
        failure = Failure(job=trial.id, token=trial.token, error="e", cause=cause)
        Controller(subject.again(), 1, controller.rules).fail(failure)
        with subject.again().reader(1) as reader:
            assert reader.attempts(trial.id)[-1].cause == cause
            return reader.study().state

    def cause(line: int, error: str, kind: str = "KeyError") -> Cause:
        return Cause(kind=kind, error=error, file="/study \u2603.py", line=line, log="/log")

    def resumed() -> None:
        subject.clock.now += 1
        subject.store.set_state(1, StudyState.RUNNING)

    assert failed(cause(1, "KeyError: 1")) is StudyState.RUNNING
    assert failed(cause(1, "OtherError: 1", "OtherError")) is StudyState.RUNNING, "another type"
    assert failed(cause(2, "KeyError: 2")) is StudyState.RUNNING, "another line"
    assert failed(None) is StudyState.RUNNING
    assert failed(None) is StudyState.RUNNING, "nothing is known of the cause"
    assert failed(cause(1, "KeyError: 3")) is StudyState.FAILED, "the same type and line, by another member"
    found = subject.again().find_study("s")
    assert found is not None
    assert "KeyError: 3 (/study \u2603.py, line 1); the full traceback is in /log" in (found.message or "")
    resumed()
    assert failed(cause(1, "KeyError: 1")) is StudyState.RUNNING, "counted afresh"
    assert failed(cause(9, "KeyError: 1")) is StudyState.FAILED, "the same message"
    resumed()
    claims.extend(controller.claim("w", 3)[0])
    controller.complete([completion(claims.pop(0))])
    assert [failed(cause(1, "KeyError: 1")) for _ in range(2)] == [StudyState.RUNNING] * 2, "something works"


def test_broken_trials_are_counted_afresh_once_a_study_is_resumed(subject: Subject) -> None:
    controller = subject.controller(3)
    claims = controller.claim("w", 3)[0]

    def break_one(claimed: Claimed) -> StudyState:
        subject.clock.now += 1
        controller.fail(Failure(job=claimed.trial.id, token=1, error="e", retryable=False))
        with subject.again().reader(1) as reader:
            return reader.study().state

    def in_a_row() -> int:
        with subject.again().reader(1) as reader:
            return reader.broken_in_a_row()

    assert [break_one(claimed) for claimed in claims] == [StudyState.RUNNING] * 3
    late = controller.claim("w", 3)[0]
    assert break_one(late[0]) is StudyState.FAILED
    # Whoever is still at work when the study stops itself is counted with those before.
    assert (break_one(late[1]), in_a_row()) == (StudyState.FAILED, 5)
    subject.clock.now += 1
    subject.store.set_state(1, StudyState.RUNNING)
    found = subject.again().find_study("s")
    assert found is not None
    assert (found.resumed_at, found.message) == (subject.clock.now, None)
    assert in_a_row() == 0
    subject.store.set_state(1, StudyState.STOPPED, "why")
    with subject.again().reader(1) as reader:
        assert reader.study().resumed_at == subject.clock.now
    subject.store.set_state(1, StudyState.RUNNING)
    again = [late[2], *controller.claim("w", 2)[0]]
    assert [break_one(claimed) for claimed in again] == [StudyState.RUNNING] * 3
    assert in_a_row() == 3
    (last, good) = controller.claim("w", 2)[0]
    subject.clock.now += 1
    controller.complete([completion(good)])
    assert in_a_row() == 0, "what completes counts as before"
    assert break_one(last) is StudyState.RUNNING
    assert in_a_row() == 1
    following = next(work for work in controller.claim("w", 3)[0] if work.trial.generation == 1)
    assert break_one(following) is StudyState.RUNNING
    assert in_a_row() == 2


def test_an_answer_is_repeated_and_superseded_work_refused(subject: Subject) -> None:
    controller = subject.controller()
    claimed = controller.claim("w")[0][0]
    subject.clock.now += 2 * LEASE_S
    again = Controller(subject.again(), 1, controller.rules).claim("x")[0][0]
    assert (again.trial.id, again.trial.token) == (claimed.trial.id, 2)
    (late,), _, _ = controller.complete([completion(claimed)])
    assert isinstance(late, LeaseLost)
    for _ in range(2):
        (answer,), _, _ = controller.complete([completion(again, 0.75)])
        assert answer == Accepted(job=again.trial.id, fitness=0.75)
    with subject.store.reader(1) as reader:
        assert [attempt.state for attempt in reader.attempts(again.trial.id)] == ["lost", "completed"]
        assert reader.counts() == {"completed": 1}


def test_a_parent_that_is_not_live_cannot_be_taken(subject: Subject) -> None:
    controller = subject.controller()
    claimed = controller.claim("w")[0][0]
    controller.complete([completion(claimed)])
    name = f"{claimed.trial.id}.1"
    with subject.store.transaction(1, exclusive=True) as tx:
        tx.apply([machine.TakeCheckpoint(name)])
        row = tx.checkpoint(name)
        assert row is not None
        assert row.taken == 1
        assert tx.apply([machine.MarkDeleting(name, 0)]) == []
        assert tx.apply([machine.MarkDeleting(name, 1), machine.MarkDeleting(name, 1)]) == [name]
    for gone in (name, "unknown"):
        with pytest.raises(machine.ParentGone), subject.store.transaction(1, exclusive=True) as tx:
            tx.apply([machine.TakeCheckpoint(gone)])


def test_what_is_wrong_with_a_checkpoint_is_remembered_until_it_is_sound(subject: Subject) -> None:
    controller = subject.controller()
    claimed = controller.claim("w")[0][0]
    controller.complete([completion(claimed)])
    name = f"{claimed.trial.id}.1"
    for state, error in ((CheckpointState.DAMAGED, "a byte of \u2603"), (CheckpointState.LIVE, None)):
        with subject.store.transaction(1, exclusive=True) as tx:
            tx.apply([machine.SetCheckpointState(name, state, error)])
        with subject.again().reader(1) as reader:
            row = reader.checkpoint(name)
        assert row is not None
        assert (row.state, row.error) == (state, error)


def test_what_a_member_publishes_comes_back_and_is_held(subject: Subject) -> None:
    subject.controller(size=2)

    def scored(trial: int, order: float | None, **more: Any) -> Scored:
        return Scored(
            trial=trial,
            member=1,
            checkpoint=f"{trial}.1",
            index=0,
            step=7 * trial,
            params={"rate": 0.5},
            fitness=order,
            order=order,
            age=5 * trial,
            progress=6 * trial,
            **more,
        )

    states = (scored(4, None, measurements=0), scored(3, -math.inf), scored(2, 1 / 3, stderr=0.25))
    with subject.store.transaction(1, exclusive=True) as tx:
        member = replace(tx.locked_member(1), head=states[0], states=states, best=scored(1, 9.0))
        tx.apply([machine.Update(member)])
    with subject.again().reader(1) as reader:
        assert plain(reader.member(1)) == plain(member)
        assert reader.member(1).published == states[1]
        assert reader.held_checkpoints() == {"1.1", "2.1", "3.1", "4.1"}
        assert reader.member(0).states == ()


def test_a_transaction_reads_the_members_as_it_has_changed_them(subject: Subject) -> None:
    subject.controller(size=2)
    with subject.store.transaction(1, exclusive=True) as tx:
        first, second = tx.members()
        done = replace(second, state=MemberState.DONE, progress=7)
        third = replace(first, index=2, progress=3)
        tx.apply([machine.Update(done), Insert(third)])
        assert [plain(member) for member in tx.members()] == [plain(first), plain(done), plain(third)]
        tx.apply([machine.SetConfig({"schema": 1})])
        changed = tx.members()
        assert changed[1].state is MemberState.READY, "a changed study asks again whether members are done"
    with subject.again().reader(1) as reader:
        assert [plain(member) for member in reader.members()] == [plain(member) for member in changed]


def test_a_member_goes_on_when_its_parent_is_gone(subject: Subject) -> None:
    controller = subject.controller(size=1)
    claimed = controller.claim("w")[0][0]
    controller.complete([completion(claimed)])
    StudyRecords(subject.store, 1).set_checkpoints([f"{claimed.trial.id}.1"], CheckpointState.LOST)
    answer = controller.claim("w")[0][0]
    assert answer.trial.parent is None
    assert answer.trial.reason["decision"] == "recover"


def test_reports_belong_to_their_attempt(subject: Subject) -> None:
    controller = subject.controller()
    trial = controller.claim("w")[0][0].trial
    controller.report(trial.id, 1, [Report(1, {"a": 1.0}), Report(2, {"a": 2.0})])
    controller.report(trial.id, 1, [Report(3, {"a": 3.0})])
    controller.release(trial.id, 1)
    controller.claim("w")
    with subject.store.reader(1) as reader:
        assert [report.step for report in reader.reports(trial.id)] == [1, 2, 3]
    controller.report(trial.id, 2, [Report(1, {"a": 9.0})])
    with subject.store.reader(1) as reader:
        assert [report.metrics for report in reader.reports(trial.id)] == [{"a": 9.0}]
        assert [report.step for report in reader.reports(trial.id, 1)] == [1, 2, 3]
        assert reader.reports(trial.id, 3) == []


def test_reports_that_come_again_count_once(subject: Subject) -> None:
    size = 2
    study = subject.store.create_study("s", {}, 1, size)
    agreed = rules(pbt(size), stopping=(MedianStopping(min_steps=4),))
    controller = Controller(subject.store, study.id, agreed)
    claims, _ = controller.claim("w", size)
    numbered = [Report(1, {"score": float(number)}, number) for number in (1, 2, 3, 4)]
    # Each time the answer was lost, so that they come again with what was reported since.
    for count in (1, 3, 3, 2):
        controller.report(claims[0].trial.id, 1, numbered[:count])
    done = completion(claims[0], 4.0)
    for _ in range(2):
        controller.complete([replace(done, reports=numbered[1:])])
    # Who does not count sends one after the other; what was said before at another place is another report.
    said = [Report(1, {"score": 1.0}), Report(2, {"score": math.nan}), Report(1, {"score": 1.0})]
    for each in said:
        for _ in range(2):
            controller.report(claims[1].trial.id, 1, [each])
    with subject.again().reader(study.id) as reader:
        assert [one.metrics["score"] for one in reader.reports(claims[0].trial.id)] == [1.0, 2.0, 3.0, 4.0]
        assert plain(reader.reports(claims[1].trial.id)) == plain(said)
        tallies = [reader.attempt(claimed.trial.id, 1) for claimed in claims]
        assert [each and each.tally and each.tally.count for each in tallies] == [4, 3]


def test_starts_come_back_and_are_deleted_with_their_study(subject: Subject) -> None:
    subject.controller(name="first"), subject.controller(name="second")
    first, second = subject.store.studies()
    made = []
    for number, study in enumerate((first, second, first)):
        start = RunStart(study=study.id, at=100.5 + number, facts={"n": number}, diff=None if number else "+a\n")
        with subject.store.transaction(study.id, exclusive=False) as tx:
            tx.apply([Insert(start)])
        made.append(start)
    with subject.store.reader(first.id) as reader:
        found = reader.starts()
    assert [replace(one, id=0) for one in found] == [made[0], made[2]]
    assert found[0].id < found[1].id
    subject.store.delete_study(first.id)
    with subject.store.reader(second.id) as reader:
        assert [replace(one, id=0) for one in reader.starts()] == [made[1]]


def test_studies_do_not_see_each_other(subject: Subject) -> None:
    first, second = subject.controller(name="a"), subject.controller(name="b")
    mine = first.claim("w")[0][0]
    first.complete([completion(mine)])
    before = everything(subject.store, 1)
    theirs = second.claim("w")[0][0]
    assert theirs.trial.id != mine.trial.id
    with subject.store.transaction(2, exclusive=True) as reader:
        assert [trial.id for trial in pages(reader, 1000)] == [theirs.trial.id]
        assert reader.locked_trial(mine.trial.id) is None
        assert reader.checkpoint(f"{mine.trial.id}.1") is None
        assert reader.attempts(mine.trial.id) == []
        with pytest.raises(KeyError):
            reader.trial(mine.trial.id)
        with pytest.raises(KeyError):
            reader.member(3)
    (answer,), _, _ = second.complete([completion(mine)])
    assert isinstance(answer, LeaseLost)
    assert second.lose_worker("w", "gone", counts=False) == 1
    second.renew("w")
    assert everything(subject.store, 1) == before


def test_trials_come_in_pages(subject: Subject) -> None:
    controller = subject.controller(size=2)
    for _ in range(6):
        controller.complete([completion(controller.claim("w")[0][0])])
    with subject.store.reader(1) as reader:
        assert [trial.id for trial in pages(reader, 4)] == [1, 2, 3, 4, 5, 6]
        mine = [trial.id for trial in reader.trials() if trial.member == 1]
        assert [trial.id for trial in reader.trials(member=1)] == mine
        assert [trial.id for trial in reader.trials(member=1, after=mine[0], limit=1)] == mine[1:2]


def test_every_kind_of_decision_survives_a_restart(subject: Subject) -> None:
    size = 3
    study = subject.store.create_study("s", {}, 1, size)
    for _ in range(40):
        # Nothing but the store is carried over from one step to the next.
        controller = Controller(subject.store, study.id, rules(Capricious(population_size=size)))
        claimed, rest = controller.claim("w")
        if claimed:
            controller.complete([completion(claimed[0])])
        elif isinstance(rest, machine.Ended):
            break
        subject.clock.now += 1.0
    with subject.store.reader(study.id) as reader:
        kinds = {trial.kind for trial in reader.trials() if trial.state is JobState.COMPLETED}
        assert kinds == {"train", "measure"}
        state: Any = reader.study().strategy_state
        assert state["decisions"] > size


def test_marks_are_read_newest_trial_first_and_belong_to_their_study(subject: Subject) -> None:
    controllers = [subject.controller(name=name) for name in ("a", "b")]
    claimed = [claim.trial for claim in controllers[0].claim("w", 3)[0]]
    other = controllers[1].claim("w")[0][0].trial
    tally = Tally(count=2, mean=math.nan, best=-0.5, step=11)
    part = Report(12, {"score": math.nan, "cost": 1.0})
    with subject.store.transaction(1, exclusive=False) as tx:
        for trial, average in zip(claimed, (1.5, math.nan, -math.inf), strict=True):
            marks = [Mark(every=5, step=step, at=step, average=average, best=0.0) for step in (5, 10)]
            tx.apply([machine.SetTally(trial.id, 1, tally, marks)])
    with subject.store.transaction(2, exclusive=False) as tx:
        mark = Mark(every=5, step=5, at=5, average=7.0, best=7.0)
        tx.apply([machine.SetTally(other.id, 1, replace(tally, part=part), [mark])])
    with subject.again().reader(1) as reader:
        assert plain(reader.averages(5, 5, besides=0, limit=9)) == plain([-math.inf, math.nan, 1.5])
        assert reader.averages(5, 10, besides=claimed[1].id, limit=9) == [-math.inf, 1.5]
        assert reader.averages(5, 10, besides=claimed[2].id, limit=9)[1:] == [1.5]
        assert len(reader.averages(5, 5, besides=claimed[0].id, limit=1)) == 1
        assert reader.averages(4, 5, besides=0, limit=9) == reader.averages(5, 15, besides=0, limit=9) == []
        assert plain(reader.attempts(claimed[0].id)[0].tally) == plain(tally)
    with subject.again().reader(2) as reader:
        assert plain(reader.attempts(other.id)[0].tally) == plain(replace(tally, part=part))
    with subject.store.transaction(1, exclusive=False) as tx:
        again = Mark(every=5, step=5, at=6, average=2.5, best=0.0)
        tx.apply([machine.SetTally(claimed[0].id, 1, tally, [again])])
    with subject.store.reader(1) as reader:
        assert reader.averages(5, 5, besides=claimed[1].id, limit=9) == [-math.inf, 2.5]


def test_the_last_reports_come_from_as_many_batches_as_it_takes(subject: Subject) -> None:
    controller = subject.controller()
    trial = controller.claim("w")[0][0].trial
    for first, count in ((0, 3), (3, 1), (4, 2)):
        controller.report(trial.id, 1, [Report(first + n, {"a": math.nan}) for n in range(count)])
    with subject.again().reader(1) as reader:
        for count in range(8):
            found = [report.step for report in reader.last_reports(trial.id, 1, count)]
            assert found == list(range(6))[max(0, 6 - count) :]
        assert reader.last_reports(trial.id, 2, 5) == []


def test_why_a_trial_was_stopped_is_remembered(subject: Subject) -> None:
    size = 2
    study = subject.store.create_study("s", {}, 1, size)
    agreed = rules(pbt(size), stopping=STOPPING)
    trial = Controller(subject.store, study.id, agreed).claim("w")[0][0].trial
    standing = Controller(subject.again(), study.id, agreed).report(trial.id, 1, [Report(1, {"score": math.nan})])
    assert standing.stop_reason is not None
    with subject.again().reader(study.id) as reader:
        stored = reader.trial(trial.id)
        assert plain(stored.stop_reason) == plain(standing.stop_reason)
        assert (stored.state, reader.counts()) == (JobState.CANCELLED, {"cancelled": 1})
        member = reader.member(trial.member)
        assert (member.state, member.stops, member.broken_trial) == (MemberState.READY, 1, trial.id)
        assert reader.broken_in_a_row() == 0
    again = Controller(subject.again(), study.id, agreed).claim("w")[0][0].trial
    assert again.replaces == trial.id
    (answer,), _, _ = Controller(subject.again(), study.id, agreed).complete(
        [completion(Claimed(trial=trial, expires_at=0.0))]
    )
    assert answer == Stopped(trial=trial.id, reason=standing.stop_reason)


def test_what_is_imported_and_who_joins_or_retires_is_remembered(subject: Subject) -> None:
    subject.controller(2)
    records = StudyRecords(subject.store, 1)
    imported = machine.Imported(
        name="start-0", origin="/from/\u2603", step=7, params={"rate": 0.5}, index=1, digest="d", size_bytes=3
    )
    assert records.import_checkpoints([imported])
    assert not records.import_checkpoints([imported]), "only once"
    larger = StudyChanges(subject.store, 1, rules(pbt(3)))
    assert larger.change({"schema": 1}, {"a": (1, 2)}, fresh=True).population_size == 3
    smaller = StudyChanges(subject.store, 1, rules(pbt(2)))
    smaller.change({"schema": 1}, {"b": (None, [1])})
    for store in (subject.store, subject.again()):
        study = store.find_study("s")
        assert study is not None
        assert study.population_size == 3
        told = [{"at": subject.clock.now, "changes": change} for change in ({"a": [1, 2]}, {"b": [None, [1]]})]
        assert plain(study.config["changes"]) == plain(told)
        with store.reader(study.id) as reader:
            rows = reader.trials()
            assert [(row.kind, row.origin, row.params, row.seed, row.token) for row in rows] == [
                (JobKind.IMPORT, "/from/\u2603", {"rate": 0.5}, 0, 0)
            ] * 2
            assert reader.counts() == {}, "an import is no training"
            assert reader.best_trials(3) == []
            assert [row.name for row in reader.checkpoints(CheckpointState.LIVE)] == ["start-0"]
            assert [member.retired for member in reader.members()] == [False, False, True]
            assert reader.held_checkpoints() == {"start-0"}
    with subject.store.transaction(1, exclusive=True, alone=True) as tx:
        tx.apply([machine.SetConfig({"schema": 1})])
    with subject.store.reader(1) as reader:
        assert reader.member(2).state is MemberState.DONE, "who is retired is not asked again"


def test_a_store_keeps_its_identity_until_it_gets_another(subject: Subject) -> None:
    identity = subject.store.identity()
    assert identity.copied_from is None
    assert subject.again().identity() == identity
    renewed = subject.again().renew_identity()
    assert renewed.id != identity.id
    assert renewed.copied_from == identity.id
    assert subject.store.identity() == renewed


DAY_S = 86400.0


def test_a_lease_given_while_the_clock_was_ahead_ends_when_one_given_now_would(subject: Subject) -> None:
    controller = subject.controller(1)
    subject.clock.now += DAY_S
    ((dead,), _) = controller.claim("host:0:1:1")
    subject.clock.now -= DAY_S
    later = Controller(subject.again(), 1, controller.rules)
    assert later.claim("host:0:2:1")[0] == []
    subject.clock.now += LEASE_S + 1
    ((again,), _) = later.claim("host:0:2:1")
    assert (again.trial.id, again.trial.token) == (dead.trial.id, 2)


def test_a_worker_that_is_alive_keeps_its_lease_when_the_clock_is_set_back(subject: Subject) -> None:
    controller = subject.controller(1)
    subject.clock.now += DAY_S
    ((held,), _) = controller.claim("host:0:1:1")
    subject.clock.now -= DAY_S
    for _ in range(6):
        controller.renew("host:0:1:1")
        assert controller.claim("host:0:2:1")[0] == []
        subject.clock.now += LEASE_S / 3
    (answer,), _, _ = controller.complete([completion(held)])
    assert isinstance(answer, Accepted)


def test_who_waits_is_woken_by_a_commit_and_by_nothing_else(subject: Subject) -> None:
    study = subject.store.create_study("s", {}, 1, 3).id
    changes = subject.store.changes()
    changes.wait(WAIT_S)
    woken = threading.Event()

    def wait() -> None:
        changes.wait(WAIT_S)
        woken.set()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        with subject.store.transaction(study, exclusive=True) as tx:
            tx.apply([machine.SetStudyState(StudyState.STOPPED)])
            with subject.store.reader(study) as reader:
                assert len(reader.members()) == 3
            assert not woken.is_set(), "a look is no commit"
        waiting.result(WAIT_S / 2)
    assert woken.is_set()
    changes.wait(0.0)
    changes.close()
