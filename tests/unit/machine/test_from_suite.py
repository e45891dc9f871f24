"""Fitness from a suite: lag, exploits, repeated measurements, barriers, partial groups."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from effort import covering, rarely
from evaluating import skip_group
from evaluation_simulation import EvaluatedStudy, failed, nothing
from facts import check_facts, raises
from phyla.controller import Controller, Sightings, StudyRecords
from phyla.errors import ConfigurationError
from phyla.evaluation import EvalTask, Policy, Suite
from phyla.integrations.optuna_search import Optuna
from phyla.machine import Accepted, Claimed, ClaimedEvaluation, Ended, TrainRules, bound, gone, retention
from phyla.machine.evaluating.groups import replicate
from phyla.records import (
    GroupState,
    Maximize,
    Member,
    MemberState,
    Minimize,
    Scored,
    StudyState,
    TrialRecord,
    WorkKind,
)
from phyla.records.objective import _OneMetric
from phyla.space import Float, Space
from phyla.strategies import (
    ASHA,
    PBT,
    Backtrack,
    Context,
    Decision,
    Exploit,
    FromSuite,
    Measure,
    Perturb,
    Strategy,
    Truncation,
)

BOTH = frozenset({WorkKind.TRAIN, WorkKind.EVALUATE})
TRAIN = frozenset({WorkKind.TRAIN})
EVALUATE = frozenset({WorkKind.EVALUATE})
SUITE = Suite("s", (EvalTask("a", nothing),))


def rules(
    fitness: FromSuite | None = None,
    *,
    size: int = 4,
    trials: int = 6,
    quorum: float = 1.0,
    suite: Suite = SUITE,
    exploit: Exploit | None = None,
    objective: Maximize | Minimize | None = None,
) -> TrainRules:
    strategy = PBT(
        population_size=size,
        steps_per_trial=1,
        total_steps=trials,
        exploit=exploit or Truncation(0.25),
        explore=Perturb(),
        fitness=fitness or FromSuite("s", "x_mean"),
        quorum=quorum,
    )
    return TrainRules(
        space=Space(h=Float(0.1, 1.0)),
        objective=objective or Maximize("x"),
        strategy=strategy,
        suites=(suite,),
    )


def grow(weights: float, trial: TrialRecord) -> float:
    return weights + float(trial.params["h"])  # type: ignore[arg-type]


def true(weights: float, _work: ClaimedEvaluation) -> float:
    return weights


def study(wanted: TrainRules, measure: Callable[[float, ClaimedEvaluation], float] = true) -> EvaluatedStudy:
    return EvaluatedStudy(wanted, grow, measure)


@pytest.mark.parametrize(
    ("quorum", "max_lag", "kinds"),
    covering(
        product(
            [0.0, 0.8, 1.0],
            [0, 2],
            [[BOTH], [BOTH] * 3, [TRAIN, EVALUATE], [TRAIN] * 3 + [EVALUATE], [BOTH] * 6 + [EVALUATE] * 2],
        )
    ),
)
def test_every_budget_is_spent_and_every_trial_is_scored(
    quorum: float, kinds: list[frozenset[WorkKind]], max_lag: int
) -> None:
    one = study(rules(FromSuite("s", "x_mean", max_lag=max_lag), quorum=quorum))
    ended = one.run_at_random(len(kinds), np.random.default_rng(len(kinds)), kinds)
    assert ended.state is StudyState.COMPLETED
    trials = one.trials()
    assert len(trials) == 4 * 6 or (quorum < 1 and len(trials) < 4 * 6)
    assert max(trial.age for trial in trials) <= 5
    assert all(trial.fitness == one.weights[str(trial.checkpoint)] for trial in trials)
    assert {group.state for group in one.groups()} == {GroupState.COMPLETE}


@dataclass(frozen=True)
class Judges(_OneMetric):
    """Judges only when it is told to."""

    maximize = True
    broken: bool = True

    def judge(self, values: Any) -> Any:
        if self.broken:
            raise RuntimeError("no judgement")
        return Maximize(self.metric).judge(values)


def test_an_objective_that_raises_fails_the_study_and_its_evaluation_counts_once_it_is_mended() -> None:
    wanted = replace(rules(FromSuite("s"), size=1, trials=2), objective=Judges("x_mean"))
    one = study(wanted)
    ended = one.run_at_random(1, np.random.default_rng(0), [BOTH])
    assert ended.state is StudyState.FAILED
    check_facts(str(ended.message), "trial 1", "RuntimeError", "no judgement", __file__)
    assert {group.state for group in one.groups()} == {GroupState.QUEUED}
    one.store.set_state(one.study.id, StudyState.RUNNING)
    one.controller = Controller(one.store, one.study.id, replace(wanted, objective=Judges("x_mean", broken=False)))
    assert one.run_at_random(1, np.random.default_rng(0), [BOTH]).state is StudyState.COMPLETED
    assert all(trial.fitness == one.weights[str(trial.checkpoint)] for trial in one.trials())


@pytest.mark.parametrize("kinds", [[BOTH], [TRAIN, EVALUATE], [BOTH] * 5 + [EVALUATE]], ids=len)
@pytest.mark.parametrize(
    ("strategy", "trials"),
    [
        (ASHA(9, 9, 1, fitness=FromSuite("s", "x_mean"), quorum=1.0), 9 + 3 + 1),
        (Optuna(6, 4, steps_per_trial=2, fitness=FromSuite("s", "x_mean", max_lag=0)), 12),
        (Optuna(9, 1, "cma-es", fitness=FromSuite("s", "x_mean")), 9),
    ],
    ids=["asha", "optuna, in pieces", "optuna, cma-es"],
)
def test_strategies_that_search_with_fitness_from_a_suite(
    strategy: Strategy, trials: int, kinds: list[frozenset[WorkKind]]
) -> None:
    one = study(replace(rules(), strategy=strategy))
    ended = one.run_at_random(len(kinds), np.random.default_rng(1), kinds)
    assert ended.state is StudyState.COMPLETED, ended.message
    assert len(one.trials()) == trials
    assert all(trial.fitness == one.weights[str(trial.checkpoint)] for trial in one.trials())


def test_a_fitness_belongs_to_the_checkpoint_it_was_measured_on_and_so_does_what_an_exploit_takes() -> None:
    one = study(rules(FromSuite("s", "x_mean", max_lag=1), size=6, trials=12))
    kinds = [TRAIN, TRAIN, TRAIN, EVALUATE]
    one.run_at_random(4, np.random.default_rng(0), kinds)
    trials = {trial.id: trial for trial in one.trials()}
    exploits = [trial for trial in trials.values() if trial.jump_from is not None]
    assert exploits
    for trial in exploits:
        donor = trials[trial.parent or 0]
        facts = trial.reason["compared"]["donor"]  # type: ignore[index,call-overload]
        assert facts["trial"] == donor.id  # type: ignore[index,call-overload]
        assert facts["fitness"] == one.weights[str(donor.checkpoint)]  # type: ignore[index,call-overload]
        assert trial.parent_checkpoint == donor.checkpoint
        assert trial.params_from == donor.id


def test_members_train_on_while_evaluation_lags_and_wait_at_the_limit() -> None:
    one = study(rules(FromSuite("s", "x_mean", max_lag=2), size=1, trials=10))
    for _ in range(3):
        work = one.claim(WorkKind.TRAIN)
        assert isinstance(work, Claimed)
        one.do(work)
    assert one.claim(WorkKind.TRAIN) is None
    with one.store.reader(one.study.id) as reader:
        member = reader.member(0)
    assert member.state is MemberState.READY
    assert [state.judged for state in member.states] == [False] * 3
    for _ in range(2):
        scored = one.claim(WorkKind.EVALUATE)
        assert isinstance(scored, ClaimedEvaluation)
        one.do(scored)
    assert isinstance(one.claim(WorkKind.TRAIN), Claimed)


def test_evaluation_is_given_out_before_training() -> None:
    one = study(rules(size=2))
    work = one.claim()
    assert isinstance(work, Claimed)
    one.do(work)
    assert isinstance(one.claim(), ClaimedEvaluation)


@pytest.mark.parametrize("quorum", [0.0, 1.0])
def test_who_took_over_is_judged_again_only_by_what_it_trained_since(quorum: float) -> None:
    one = study(rules(FromSuite("s", "x_mean", max_lag=2), size=6, trials=10, quorum=quorum))
    one.run_at_random(4, np.random.default_rng(0), [TRAIN, TRAIN, TRAIN, EVALUATE])
    moved: dict[int, int] = {}
    for trial in sorted(one.trials(), key=lambda row: (row.member, row.generation)):
        if trial.exploited:
            compared: Any = trial.reason["compared"]
            assert compared["own"]["trial"] >= moved.get(trial.member, 0)
            moved[trial.member] = trial.id
    assert len(moved) > 1


def test_a_state_whose_evaluation_was_skipped_or_is_gone_holds_up_nobody() -> None:
    one = study(rules(FromSuite("s", "x_mean", max_lag=0), size=3, trials=4))
    for number in range(3):
        work = one.claim(WorkKind.TRAIN)
        assert isinstance(work, Claimed)
        one.do(work)
        with one.store.transaction(one.study.id, exclusive=True) as tx:
            if number == 0:
                skip_group(tx, tx.groups()[-1].id, "a person said so")
            elif number == 1:
                tx.apply(gone(tx, tx.all_seen()[-1], "it vanished"))
    with one.store.reader(one.study.id) as reader:
        assert [[state.judged for state in member.states] for member in reader.members()] == [
            [True],
            [True],
            [False],
        ]
    assert one.run_serially().state is StudyState.COMPLETED
    unscored = [trial for trial in one.trials() if trial.fitness is None]
    assert unscored == one.trials()[:2]


def test_a_partial_group_is_never_a_fitness() -> None:
    one = study(rules(FromSuite("s", "x_mean", max_partial=100), size=2, trials=4))
    one.fails = lambda work: work.group.trial in {trial.id for trial in one.trials()[:2]}
    assert one.run_serially().state is StudyState.COMPLETED
    fitness = {trial.id: trial.fitness for trial in one.trials()}
    assert len(fitness) == 8
    assert [value is None for value in fitness.values()] == [True] * 2 + [False] * 6
    assert [group.state for group in one.groups()][:2] == [GroupState.PARTIAL] * 2


def test_many_partial_groups_in_a_row_stop_the_study_and_resuming_goes_on() -> None:
    one = study(rules(FromSuite("s", "x_mean", max_partial=3)))
    one.fails = lambda work: True
    ended = one.run_serially()
    assert ended.state is StudyState.FAILED
    assert "3 groups of suite 's' in a row ended partial" in (ended.message or "")
    assert "boom" in (ended.message or "")
    one.fails = lambda work: False
    one.store.set_state(one.study.id, StudyState.RUNNING)
    assert one.run_serially().state is StudyState.COMPLETED
    assert len(one.trials()) == 24


@pytest.mark.parametrize("quorum", [0.0, 1.0])
def test_a_donor_is_measured_again_before_it_is_copied(quorum: float) -> None:
    def measure(weights: float, work: ClaimedEvaluation) -> float:
        return weights + (0.3 if work.job.replicate % 2 else -0.3)

    wanted = rules(FromSuite("s", "x_mean", remeasure=1), size=6, trials=12, quorum=quorum)
    one = study(wanted, measure)
    assert one.run_serially().state is StudyState.COMPLETED
    trials = {trial.id: trial for trial in one.trials()}
    assert len(trials) == 72 or (quorum == 0 and len(trials) < 72)
    donors = {trial.parent for trial in trials.values() if trial.jump_from is not None}
    assert donors
    for donor in donors:
        scored = trials[donor or 0]
        assert scored.metrics["s/x_mean/measurements"] == 2
        assert scored.fitness == pytest.approx(one.weights[str(scored.checkpoint)], abs=1e-9)
        assert scored.metrics["s/x_mean/stderr"] == pytest.approx(0.1 / 2**0.5)
    again = [group for group in one.groups() if group.replicate]
    assert {group.trial for group in again} >= donors
    assert max(group.replicate for group in again) == 1


def test_an_evaluation_that_gains_an_eval_task_is_still_one_measurement() -> None:
    one = study(rules(size=2, trials=2))
    work = one.claim()
    while not any(trial.fitness for trial in one.trials()):
        assert isinstance(work, Claimed | ClaimedEvaluation)
        one.do(work)
        work = one.claim()
    assert isinstance(work, Claimed | ClaimedEvaluation)
    grown = Suite("s", (EvalTask("a", nothing), EvalTask("b", nothing)))
    one.controller = Controller(one.store, one.study.id, rules(size=2, trials=2, suite=grown))
    Sightings(one.store, one.study, (grown,)).backfill()
    one.measure = lambda weights, work: weights + 1.0
    one.do(work)
    assert one.run_serially().state is StudyState.COMPLETED
    for trial in one.trials():
        assert trial.metrics["s/x_mean/measurements"] == 1
        assert trial.metrics["s/x_mean/stderr"] == 0.1
        assert trial.fitness == one.weights[str(trial.checkpoint)] + 1.0


def test_queued_repetitions_count_towards_those_that_are_asked_for() -> None:
    wanted = rules(size=1, trials=2)
    one = study(wanted)
    work = one.claim()
    assert isinstance(work, Claimed)
    one.do(work)
    queued = []
    for times in (2, 3, 3):
        with one.store.transaction(one.study.id, exclusive=True) as tx:
            head = tx.member(0).head
            assert head is not None
            commands = replicate(tx, wanted, head, times)
            tx.apply(commands)
        queued.append(len(commands))
    assert queued == [2, 1, 0]
    assert sorted(group.replicate for group in one.groups()) == [0, 1, 2, 3]


def test_a_repeated_completion_has_no_fitness_while_its_suite_is_to_run() -> None:
    one = study(rules(size=1, trials=2))
    work = one.claim()
    assert isinstance(work, Claimed)
    done = one.trained(work.trial)
    answers = [one.controller.complete([done])[0][0] for _ in range(2)]
    assert answers == [Accepted(job=work.trial.id), Accepted(job=work.trial.id, repeated=True)]


def test_a_donor_that_cannot_be_confirmed_is_taken_by_nobody() -> None:
    one = study(rules(FromSuite("s", "x_mean", remeasure=1, max_partial=1000), size=4, trials=8))
    one.fails = lambda work: work.job.replicate > 0
    assert one.run_serially().state is StudyState.COMPLETED
    assert len(one.trials()) == 32
    assert not [trial for trial in one.trials() if trial.jump_from is not None]


def test_a_strategy_that_decides_without_end_and_starts_nothing_ends_its_study() -> None:
    class MeasuresTheUnknown(Strategy):
        population_size = 2
        exclusive = True
        fitness = FromSuite("s", "x_mean")

        def finished(self, member: Member) -> bool:
            return False

        def decide(self, member: Member, population: Any, context: Context) -> Decision:
            count = context.state if isinstance(context.state, int) else 0
            unknown = Scored(
                trial=99,
                member=member.index,
                checkpoint="99.1",
                index=0,
                step=1,
                params={},
                fitness=None,
                order=None,
                measurements=0,
            )
            return Measure(times=1, reason={"why": "curious"}, subject=unknown, state=count + 1)

    wanted = TrainRules(
        space=Space(h=Float(0.1, 1.0)),
        objective=Maximize("x"),
        strategy=MeasuresTheUnknown(),
        suites=(SUITE,),
    )
    one = study(wanted)
    claimed, ended = one.controller.claim("w")
    assert claimed == []
    assert isinstance(ended, Ended)
    assert ended.state is StudyState.FAILED
    assert "no progress after repeated calls; this is a bug in the strategy" in (ended.message or "")
    with one.store.reader(one.study.id) as reader:
        found = reader.study()
    assert (found.state, found.message) == (ended.state, ended.message)
    # Enough rounds for every member to be asked, and an end to them.
    assert found.strategy_state == 2 * 2 + 11


def test_an_aggregate_that_does_not_exist_stops_the_study_and_names_those_that_do() -> None:
    one = study(rules(FromSuite("s", "y_mean")))
    ended = one.run_serially()
    assert ended.state is StudyState.FAILED
    assert "no aggregate 'y_mean'" in (ended.message or "")
    assert "x_mean" in (ended.message or "")


def test_a_suite_that_is_not_there_is_refused_when_the_rules_are_made() -> None:
    with raises(ConfigurationError, "suite 't'", "s"):
        rules(FromSuite("t", "x_mean"))


def test_minimising_takes_the_lowest() -> None:
    one = study(rules(size=6, trials=10, objective=Minimize("x")))
    one.run_serially()
    with one.store.reader(one.study.id) as reader:
        best = reader.best_trials(1)[0]
    assert best.fitness == min(trial.fitness or 0.0 for trial in one.trials())


def test_serial_studies_repeat() -> None:
    def story() -> list[tuple[object, ...]]:
        one = study(rules(FromSuite("s", "x_mean", remeasure=1), size=4, trials=6))
        one.run_serially()
        return [(trial.id, trial.parent, trial.params["h"], trial.fitness) for trial in one.trials()]

    assert story() == story()


def test_checkpoints_that_wait_for_their_evaluation_are_kept() -> None:
    wanted = rules(FromSuite("s", "x_mean", max_lag=2), size=1, trials=10)
    one = study(wanted)
    for _ in range(3):
        work = one.claim(WorkKind.TRAIN)
        assert isinstance(work, Claimed)
        one.do(work)
    with one.store.reader(one.study.id) as reader:
        looked = retention(reader, wanted.keeping)
    assert not looked.collectable
    assert one.run_serially().state is StudyState.COMPLETED
    with one.store.reader(one.study.id) as reader:
        looked = retention(reader, wanted.keeping)
    assert [row.name for row in looked.collectable] == [f"{trial.id}.1" for trial in one.trials()[:5]]


def test_the_number_of_checkpoints_stays_within_its_bound() -> None:
    wanted = rules(FromSuite("s", "x_mean", max_lag=2), size=4, trials=12)
    one = study(wanted)
    rng = np.random.default_rng(0)
    kinds = [TRAIN, TRAIN, TRAIN, EVALUATE]
    held: dict[int, Claimed | ClaimedEvaluation] = {}
    while True:
        for worker in range(4):
            if worker not in held:
                work = one.claim(*kinds[worker], worker=f"h:{worker}:1:1")
                if isinstance(work, Ended):
                    return
                if work is not None:
                    held[worker] = work
        looked = one.controller.retention()
        assert len(looked.kept) <= bound(wanted.keeping)
        StudyRecords(one.store, one.study.id).mark_deleting(looked.collectable)
        one.do(held.pop(int(rng.choice(list(held)))))


def test_other_suites_are_run_to_their_end_too_and_are_no_fitness() -> None:
    other = Suite("other", (EvalTask("b", nothing),), policy=Policy(every=2))
    wanted = replace(rules(size=2, trials=4), suites=(SUITE, other))
    one = study(wanted)
    assert one.run_serially().state is StudyState.COMPLETED
    groups = [group for group in one.groups() if group.suite == "other"]
    assert [group.state for group in groups] == [GroupState.COMPLETE, GroupState.SKIPPED] * 4
    assert all(trial.fitness == one.weights[str(trial.checkpoint)] for trial in one.trials())


def test_a_checkpoint_that_was_collected_before_its_turn_is_gone_and_the_study_goes_on() -> None:
    other = Suite("other", (EvalTask("b", nothing),))
    wanted = replace(rules(size=1, trials=6), suites=(SUITE, other))
    one = study(wanted)
    for _ in range(4):
        # Train and score; the other suite falls behind.
        work = one.claim(WorkKind.TRAIN)
        assert isinstance(work, Claimed)
        one.do(work)
        for _ in range(2):
            scored = one.claim(WorkKind.EVALUATE)
            assert isinstance(scored, ClaimedEvaluation)
            one.do(scored)
    looked = one.controller.retention()
    StudyRecords(one.store, one.study.id).mark_deleting(looked.collectable)
    assert one.run_serially().state is StudyState.COMPLETED
    statuses = [group.state for group in one.groups() if group.suite == "other"]
    assert GroupState.GONE in statuses or not looked.collectable
    assert set(statuses) <= {GroupState.GONE, GroupState.COMPLETE}


def test_a_failed_attempt_is_tried_again() -> None:
    one = study(rules(size=1, trials=1))
    work = one.claim()
    assert isinstance(work, Claimed)
    one.do(work)
    for _ in range(2):
        tried = one.claim()
        assert isinstance(tried, ClaimedEvaluation)
        one.controller.fail(failed(tried))
    assert one.run_serially().state is StudyState.COMPLETED
    assert one.trials()[0].fitness is not None


@pytest.mark.parametrize(("quorum", "remeasure"), [(0.0, 2), (1.0, 0), rarely(0.0, 0), rarely(1.0, 2)])
def test_members_go_back_to_elites_that_a_suite_has_scored(quorum: float, remeasure: int) -> None:
    fitness = FromSuite("s", "x_mean", max_lag=2, remeasure=remeasure)
    exploit = Backtrack(quantile=0.4, pool=0.5)
    wanted = rules(fitness, size=5, trials=14, exploit=exploit, quorum=quorum)
    noise = np.random.default_rng(0)
    one = study(wanted, lambda weights, work: weights + float(noise.normal()))
    rng = np.random.default_rng(1)
    held: dict[int, Claimed | ClaimedEvaluation] = {}
    while not isinstance(work := one.claim(*BOTH, worker="h:0:1:1"), Ended):
        if work is not None:
            held[len(held)] = work
        looked = one.controller.retention()
        assert len(looked.kept) <= bound(wanted.keeping)
        StudyRecords(one.store, one.study.id).mark_deleting(looked.collectable)
        if held and (work is None or len(held) > 2):
            one.do(held.pop(int(rng.choice(list(held)))))
            held = dict(enumerate(held.values()))
    trials = {trial.id: trial for trial in one.trials()}
    assert len(trials) == 5 * 14 or (quorum == 0 and len(trials) < 5 * 14)
    back = [trial for trial in trials.values() if trial.jump_from is not None]
    assert back
    assert not [trial for trial in trials.values() if "gone" in str(trial.reason)]
    for trial in back:
        donor = trial.reason["compared"]["donor"]  # type: ignore[index,call-overload]
        assert donor["trial"] == trial.parent  # type: ignore[index,call-overload]
        measured = trials[trial.parent or 0].metrics.get("s/x_mean/measurements", 1)
        assert int(measured) >= remeasure + 1  # type: ignore[arg-type]
