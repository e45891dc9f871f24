"""A final on a store: when it begins, what it measures, when it ends, and who wins."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from effort import times
from facts import check_facts
from finals import HeldStudy, Rates, change_final, measures, rules
from phyla.controller import Controller, StudyChanges
from phyla.machine import Claimed, ClaimedEvaluation, Ended, Failure
from phyla.records import (
    CheckpointState,
    Constrained,
    JobKind,
    JobState,
    JsonObject,
    Maximize,
    Member,
    StudyState,
    TrialRecord,
)
from phyla.store import open_store
from phyla.strategies import Context, Decision, Final, FromSuite, Population, Start, Stop, Strategy
from phyla.strategies.fitness import FitnessRule

SUITES = pytest.mark.parametrize("suite", [False, True], ids=["reported", "suite"])


def held(seed: int = 0, *, workers: int = 3, rates: Rates | None = None, **settings: Any) -> HeldStudy:
    return HeldStudy(open_store("memory://"), rules(**settings), seed, workers=workers, rates=rates or Rates())


def measuring(study: HeldStudy) -> bool:
    return any(map(measures, study.held.values()))


@SUITES
@pytest.mark.parametrize("seed", range(times(1, 9)))
def test_the_winner_is_the_same_with_any_number_of_workers_and_whatever_is_retried(seed: int, suite: bool) -> None:
    alone = held(seed, workers=1, suite=suite)
    alone.run()
    assert len(alone.measurements()) == 16
    assert alone.named()[3] == Final(candidates=4, measurements=16).rounds(4)[-1][1]
    crews = (4, Rates(fails=0.1, releases=0.1, dies=0.1)), (7, Rates())
    for workers, rates in crews[: times(1, 2)]:
        other = held(seed, workers=workers, rates=rates, suite=suite, max_attempts=99)
        other.run()
        assert other.named() == alone.named()
        assert len(other.measurements()) == 16


@SUITES
@pytest.mark.parametrize("seed", range(times(1, 99)))
def test_a_final_ends_whatever_happens_to_its_measurements(seed: int, suite: bool) -> None:
    rates = Rates(fails=0.1, breaks=0.02, releases=0.05, dies=0.05, damages=0.05, diverges=0.05)
    study = held(seed, workers=4, rates=rates, suite=suite)
    ended = study.run()
    assert ended is not None
    if ended.state is StudyState.COMPLETED:
        winner = study.winner()
        lost = [trial.parent for trial in study.measurements() if trial.state is JobState.FAILED]
        assert winner is None or winner.measurements == 0 or winner.trial.id not in lost


def test_until_it_has_ended_the_best_is_that_by_estimate() -> None:
    study = held(workers=1)
    named = []

    def half_way(study: HeldStudy) -> bool:
        if study.measurements():
            winner = study.winner()
            assert winner is not None
            named.append((winner.trial.id, winner.measurements, winner.expected))
        return False

    study.run(half_way)
    winner = study.winner()
    assert winner is not None
    assert winner.measurements > 0
    assert set(named[:-1]) == {named[0]}
    assert named[0][1] == 0


def test_the_expected_score_comes_from_the_last_round_alone() -> None:
    study = held()
    study.run()
    winner = study.winner()
    assert winner is not None
    own = [trial for trial in study.measurements() if trial.parent == winner.trial.id]
    last = [trial.fitness for trial in own[-winner.measurements :] if trial.fitness is not None]
    assert winner.expected is not None
    assert winner.expected.value == pytest.approx(sum(last) / len(last))
    assert winner.measurements < len(own)


@SUITES
def test_a_candidate_whose_checkpoint_vanishes_meanwhile_is_out(suite: bool) -> None:
    study = held(suite=suite, workers=1)
    study.run(measuring)
    work = study.held.popitem()[1]
    job = work.job if isinstance(work, ClaimedEvaluation) else work.trial
    gone = work.seen.name if isinstance(work, ClaimedEvaluation) else work.trial.parent_checkpoint
    study.controller.fail(Failure(job=job.id, token=job.token, error="it is not there", gone=gone))
    ended = study.run()
    assert ended is not None
    assert ended.state is StudyState.COMPLETED, ended.message
    with study.store.reader(study.id) as reader:
        row = reader.checkpoint(gone or "")
    assert row is not None
    assert row.state is CheckpointState.LOST
    winner = study.winner()
    assert winner is not None
    assert winner.trial.checkpoint != gone


@SUITES
def test_a_final_without_a_measurement_fails_and_is_held_when_the_study_is_resumed(suite: bool) -> None:
    study = held(suite=suite, max_attempts=2)
    study.run(measuring)
    study.rates = Rates(breaks=1.0)
    ended = study.run()
    assert ended is not None
    assert ended.state is StudyState.FAILED
    check_facts(ended.message, "boom", f"trial {study.measurements()[-1].id}")
    assert {trial.state for trial in study.measurements()} == {JobState.FAILED}
    assert len({trial.parent for trial in study.measurements()}) == 4
    winner = study.winner()
    assert winner is not None
    assert winner.measurements == 0
    study.rates = Rates()
    study.planned += 16
    study.store.set_state(study.id, StudyState.RUNNING)
    study.run()
    winner = study.winner()
    assert winner is not None
    assert winner.measurements == Final(candidates=4, measurements=16).rounds(4)[-1][1]


@SUITES
def test_a_final_whose_measurements_are_nan_fails_and_is_held_when_the_study_is_resumed(suite: bool) -> None:
    study = held(suite=suite, rates=Rates(spoils=True))
    for _ in range(2):
        before = len(study.measurements())
        ended = study.run()
        assert ended is not None
        assert ended.state is StudyState.FAILED
        last = study.measurements()[-1]
        check_facts(ended.message, f"trial {last.id}", "x=nan", "4 of its", "suite 's'" if suite else "load")
        measured = study.measurements()[before:]
        assert {trial.state for trial in measured} == {JobState.COMPLETED}
        assert len({trial.parent for trial in measured}) == len(measured) == 4
        winner = study.winner()
        assert winner is not None
        assert winner.measurements == 0
        study.store.set_state(study.id, StudyState.RUNNING)
    study.rates = Rates()
    study.planned += 16
    study.run()
    winner = study.winner()
    assert winner is not None
    assert winner.measurements == Final(candidates=4, measurements=16).rounds(4)[-1][1]


@SUITES
def test_one_candidate_with_scores_is_enough(suite: bool) -> None:
    study = held(suite=suite, workers=1)
    study.run(lambda study: bool(study.measurements()))
    kept = study.measurements()[0].parent
    study.rates = Rates(spoils=True, spared=kept)
    ended = study.run()
    assert ended is not None
    assert ended.state is StudyState.COMPLETED
    winner = study.winner()
    assert winner is not None
    assert winner.trial.id == kept
    assert winner.measurements > 0


def test_a_second_final_without_a_score_fails_whatever_the_first_one_measured() -> None:
    study = held(trials=3)
    study.run()
    longer = rules(trials=5)
    with study.store.reader(study.id) as reader:
        config = reader.study().config
    StudyChanges(study.store, study.id, longer).change(config, {"strategy.total_steps": (3, 5)}, before=config)
    study.controller = Controller(study.store, study.id, longer)
    study.rates = Rates(spoils=True)
    study.planned += 16
    ended = study.run()
    assert ended is not None
    assert ended.state is StudyState.FAILED
    check_facts(ended.message, "x=nan")


def test_infeasible_measurements_are_scores_and_leave_the_best_to_the_estimate() -> None:
    def infeasible(trial: TrialRecord, weights: float) -> float:
        return -1.0 if trial.measures else weights

    objective = Constrained(Maximize("x"), subject_to=["x >= 0"])
    study = HeldStudy(open_store("memory://"), replace(rules(), objective=objective), 0, score=infeasible)
    ended = study.run()
    assert ended is not None
    assert ended.state is StudyState.COMPLETED
    winner = study.winner()
    assert winner is not None
    assert winner.measurements == 0


def test_a_larger_final_later_continues_the_first_one() -> None:
    study = held()
    study.run()
    first = len(study.measurements())
    change_final(study, Final(candidates=4, measurements=32))
    study.run()
    winner = study.winner()
    assert winner is not None
    assert winner.measurements == Final(candidates=4, measurements=32).rounds(4)[-1][1]
    fresh = held(final=Final(candidates=4, measurements=32))
    fresh.run()
    assert study.named() == fresh.named()
    assert 32 <= len(study.measurements()) < 32 + first
    # The same settings again hold no other final.
    change_final(study, Final(candidates=4, measurements=32))
    with study.store.reader(study.id) as reader:
        assert reader.study().state is StudyState.COMPLETED


@pytest.mark.parametrize("count", [3, 4, 7])
def test_a_final_gives_whole_batches(count: int) -> None:
    study = held()
    study.run(measuring)
    for worker, work in study.held.items():
        study.end(worker, work)
    for _ in range(99):
        _, claimed, rest = study.controller.complete((), "batch", count, whole=True)
        if isinstance(rest, Ended):
            break
        assert len(claimed) == count
        study.controller.complete([study.completion(work.trial) for work in claimed if isinstance(work, Claimed)])
    winner = study.winner()
    assert winner is not None
    assert winner.measurements >= Final(candidates=4, measurements=16).rounds(4)[-1][1]
    assert 16 <= len(study.measurements()) < 16 + 3 * count


def test_workers_that_began_without_the_final_hold_it() -> None:
    """A final that a study gets while it runs is that of its stored settings."""
    study = held()
    study.controller = Controller(study.store, study.id, replace(study.rules, final=None))
    study.run()
    assert len(study.measurements()) == 16


def test_more_steps_after_a_final_train_on_and_a_second_final_follows() -> None:
    study = held(trials=3)
    study.run()
    first = study.measurements()
    longer = rules(trials=5)
    with study.store.reader(study.id) as reader:
        config = reader.study().config
    StudyChanges(study.store, study.id, longer).change(config, {"strategy.total_steps": (3, 5)}, before=config)
    study.controller = Controller(study.store, study.id, longer)
    study.run(lambda study: any(member.generation > 3 for member in study.members()))
    winner = study.winner()
    assert winner is not None
    assert winner.measurements == 0, "the final was of other checkpoints"
    study.planned += 16
    study.run()
    assert len(study.measurements()) > len(first)
    assert all(member.generation == 5 for member in study.members())
    winner = study.winner()
    assert winner is not None
    assert winner.measurements > 0


def test_a_final_of_a_smaller_population_is_between_those_that_stayed() -> None:
    study = held(size=4)
    study.run(lambda study: any(member.generation == 2 for member in study.members()))
    smaller = rules(size=2, final=Final(candidates=4, measurements=16))
    with study.store.reader(study.id) as reader:
        config = reader.study().config
    changed = {"strategy.population_size": (4, 2)}
    StudyChanges(study.store, study.id, smaller).change(config, changed, before=config)
    study.controller = Controller(study.store, study.id, smaller)
    for worker in study.held:
        study.controller.lose_worker(worker, "it is gone", counts=False)
    study.held.clear()
    study.run()
    heads = {member.head.trial for member in study.members() if member.head and not member.retired}
    assert len(heads) == 2
    assert heads <= {trial.parent for trial in study.measurements()}
    assert len(study.measurements()) == 16


def test_a_study_that_reaches_its_goal_measures_first_and_trains_no_more() -> None:
    study = HeldStudy(open_store("memory://"), replace(rules(trials=50), objective=Maximize("x", stop_at=3.0)), 0)
    ended = study.run()
    assert ended is not None
    assert "stop_at=3" in str(ended.message)
    first = study.measurements()[0].id
    assert len(study.measurements()) == 16
    assert all(trial.kind is JobKind.FINAL for trial in study.trials() if trial.id >= first)


@dataclass(frozen=True, kw_only=True)
class Ends(Strategy):
    """Ends the study when a member has trained two steps."""

    population_size: int = 4
    scores: FitnessRule | FromSuite

    @property
    def fitness(self) -> FitnessRule | FromSuite:
        return self.scores

    def finished(self, member: Member) -> bool:
        return member.progress >= 6

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        if member.progress == 2 and member.index == 1:
            return Stop(reason={"why": "it is enough"}, study=True)
        head = member.head
        start: JsonObject = {"decision": "start"}
        return Start(weights=head, params={"h": 0.5}, params_from=head and head.trial, steps=1, reason=start)


@SUITES
@pytest.mark.parametrize("workers", [1, 3])
def test_a_strategy_that_ends_the_study_ends_training_before_the_final(workers: int, suite: bool) -> None:
    plain = rules(trials=6, suite=suite)
    strategy = Ends(scores=plain.strategy.fitness)
    study = HeldStudy(open_store("memory://"), replace(plain, strategy=strategy), 0, workers=workers)
    ended = study.run()
    assert ended is not None
    assert ended.state is StudyState.COMPLETED
    assert ended.message == "it is enough"
    first = study.measurements()[0].id
    assert len(study.measurements()) == 16
    assert all(trial.kind is JobKind.FINAL for trial in study.trials() if trial.id >= first)
