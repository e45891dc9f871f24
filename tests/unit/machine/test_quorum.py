"""Whom a member is compared with, and when it may decide."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts import check_facts
from phyla.machine import Claimed, Ended, Failure, TrainRules
from phyla.machine.published_states import publish_state
from phyla.machine.quorum import Comparisons, peers, quorum_size
from phyla.records import Maximize, Member, MemberState, Scored, StudyState, TrialRecord
from phyla.space import Float, Space
from phyla.strategies import PBT, Backtrack, Truncation, ranked, ranked_best
from simulation import Simulation

STEPS = 10
QUORUM = st.floats(0, 1) | st.sampled_from([0.0, 0.5, 0.8, 1.0])


def rules(quorum: float, *, size: int = 4, max_broken: int = 10, backtrack: bool = False) -> TrainRules:
    strategy = PBT(
        population_size=size,
        steps_per_trial=STEPS,
        total_steps=8 * STEPS,
        exploit=Backtrack() if backtrack else Truncation(0.25),
        quorum=quorum,
    )
    space = Space(lr=Float(0.1, 1.0))
    return TrainRules(
        space=space, objective=Maximize("Q"), strategy=strategy, max_attempts=1, max_broken=max_broken
    )


def state(member: int, progress: int, score: float | None = None, *, judged: bool = True) -> Scored:
    return Scored(
        trial=1000 * member + progress,
        member=member,
        checkpoint=f"{member}.{progress}",
        index=0,
        step=progress,
        params={},
        fitness=score,
        order=score,
        measurements=int(judged),
        age=progress,
        progress=progress,
    )


def member(index: int, *progress: int, done: bool = False) -> Member:
    """A member that published states at these numbers of steps, oldest first."""
    states = tuple(state(index, steps, float(steps)) for steps in reversed(progress))
    return Member(
        study=1,
        index=index,
        state=MemberState.DONE if done else MemberState.READY,
        progress=progress[-1] if progress else 0,
        generation=len(progress),
        head=states[0] if states else None,
        states=states,
    )


def seen(found: list[Member] | None) -> dict[int, int] | None:
    """Return how far those were that a member is compared with."""
    if found is None:
        return None
    for one in found:
        assert all(published.judged for published in one.states)
        assert [*one.states] == sorted(one.states, key=lambda published: -published.progress), "newest first"
    return {one.index: one.states[0].progress for one in found}


@given(quorum=QUORUM, members=st.integers(1, 200))
def test_how_many_are_needed(quorum: float, members: int) -> None:
    need = quorum_size(quorum, members)
    assert 0 <= need <= max(2, members)
    assert need >= quorum * members - 1e-6 or need == max(2, members - 1)
    if quorum < 1:
        assert need <= max(2, members - 1), "one straggler stops nobody"
    for lower in (0.0, quorum / 2, quorum - 0.01):
        assert quorum_size(max(0.0, lower), members) <= need


@pytest.mark.parametrize(
    ("quorum", "members", "need"),
    [
        *((0.8, 4, 3), (0.8, 5, 4), (0.8, 16, 13), (0.5, 8, 4), (1.0, 1, 1), (1.0, 9, 9), (0.99, 3, 2)),
        (0.8, 2, 2),
        (0.07, 100, 7),  # 0.07 * 100 is a little more than 7
    ],
)
def test_values_of_the_rule(quorum: float, members: int, need: int) -> None:
    assert quorum_size(quorum, members) == need


@given(lines=st.lists(st.integers(1, 6), min_size=1, max_size=12), quorum=QUORUM)
def test_the_least_advanced_may_always_decide_and_nobody_sees_states_ahead(
    lines: list[int], quorum: float
) -> None:
    population = [member(index, *(STEPS * line for line in range(1, at + 1))) for index, at in enumerate(lines)]
    for one, at in zip(population, lines, strict=True):
        found = seen(peers(one, population, rules(quorum, size=len(lines))))
        come = {index for index, other in enumerate(lines) if other >= at}
        if quorum == 0:
            assert found == {index: STEPS * other for index, other in enumerate(lines)}
        elif len(come) < quorum_size(quorum, len(lines)):
            assert found is None
            assert at > min(lines)
        else:
            assert found == dict.fromkeys(come, STEPS * at)


@given(
    lines=st.lists(st.integers(0, 4), min_size=1, max_size=8),
    quorum=QUORUM,
    changes=st.lists(st.tuples(st.integers(0, 7), st.sampled_from(("publish", "done", "run", "lose")))),
)
def test_decisions_of_one_transaction_compare_what_each_would_alone(
    lines: list[int], quorum: float, changes: list[tuple[int, str]]
) -> None:
    population = [member(index, *(STEPS * line for line in range(1, at + 1))) for index, at in enumerate(lines)]
    comparisons, settings = Comparisons(), rules(quorum, size=len(lines))
    for place, change in [(0, "run"), *changes]:
        chosen = population[place % len(lines)]
        population[chosen.index] = {
            "publish": member(chosen.index, *range(STEPS, chosen.progress + 2 * STEPS, STEPS)),
            "done": replace(chosen, state=MemberState.DONE),
            "run": replace(chosen, state=MemberState.RUNNING),
            "lose": replace(chosen, states=chosen.states[1:]),
        }[change]
        for one in population:
            found, alone = comparisons.peers(one, population, settings), peers(one, population, settings)
            assert [(peer.index, peer.states, peer.best) for peer in found or ()] == [
                (peer.index, peer.states, peer.best) for peer in alone or ()
            ]
            assert (found is None) == (alone is None)
            assert ranked(found or ()) == ranked(alone or ())


def test_where_the_state_of_that_line_is_no_longer_kept_the_oldest_is_seen() -> None:
    slow, fast = member(0, 10), member(1, 40, 50)
    assert seen(peers(slow, [slow, fast], rules(0.5))) == {0: 10, 1: 40}
    assert seen(peers(slow, [slow, member(1, 30, 40, 50)], rules(0.5))) == {0: 10, 1: 30}
    assert seen(peers(slow, [slow, member(1, 50)], rules(0.5))) == {0: 10, 1: 50}


def test_older_states_are_seen_too_newest_first() -> None:
    slow, fast = member(0, 10, 20), member(1, 10, 20, 30)
    found = peers(slow, [slow, fast], rules(0.5))
    assert found is not None
    assert [[one.progress for one in each.states] for each in found] == [[20, 10], [20, 10]]


def test_overshoot_is_no_lead() -> None:
    early, late = member(0, 10), member(1, 13)
    assert seen(peers(late, [early, late], rules(1.0))) == {0: 10, 1: 13}
    assert seen(peers(early, [early, late], rules(1.0))) == {0: 10, 1: 13}


def test_of_several_states_at_a_line_the_first_is_seen() -> None:
    mine, other = member(0, 10), member(1, 10, 13)
    assert seen(peers(mine, [mine, other], rules(1.0))) == {0: 10, 1: 10}
    assert seen(peers(other, [mine, other], rules(1.0))) == {0: 10, 1: 10}
    beyond = member(1, 10, 13, 20)
    assert seen(peers(mine, [mine, beyond], rules(1.0))) == {0: 10, 1: 10}


def test_states_between_two_lines_drop_out_first() -> None:
    going, by = member(0), rules(1.0)
    for progress, kept in ((10, [10]), (13, [13, 10]), (17, [17, 10]), (20, [20, 10]), (30, [30, 20])):
        going = publish_state(going, state(0, progress), by)
        assert [state.progress for state in going.states] == kept


def test_the_end_is_a_line_of_its_own() -> None:
    strategy = PBT(population_size=2, steps_per_trial=4, total_steps=18)
    assert [strategy.line(progress) for progress in (3, 4, 15, 16, 17, 18, 19)] == [0, 1, 3, 4, 4, 5, 5]
    even = PBT(population_size=2, steps_per_trial=4, total_steps=16)
    assert [even.line(progress) for progress in (15, 16, 17)] == [3, 4, 4]


def test_nobody_waits_for_members_that_were_given_up_but_for_those_that_have_published_nothing() -> None:
    ahead, given_up, new = member(0, 10, 20), member(1, 10, done=True), member(2)
    assert seen(peers(ahead, [ahead, given_up], rules(1.0))) == {0: 20}
    assert peers(ahead, [ahead, new], rules(1.0)) is None
    assert peers(new, [ahead, new], rules(1.0)) is not None, "who has published nothing waits for nobody"
    finished = member(3, 70, 80, done=True)
    assert seen(peers(ahead, [ahead, finished], rules(1.0))) == {0: 20}
    lost = replace(finished, states=())
    assert seen(peers(ahead, [ahead, lost], rules(1.0))) == {0: 20}


def test_a_state_that_waits_for_its_score_is_not_seen() -> None:
    one = member(0, 10, 20)
    unscored = state(1, 20, judged=False)
    behind = replace(member(1, 10), states=(unscored, state(1, 10, 1.0)))
    assert peers(one, [one, behind], rules(1.0)) is None
    assert seen(peers(behind, [one, behind], rules(1.0))) == {0: 10, 1: 10}
    # Evaluations overtook each other: its state at 10 steps still waits.
    overtaken = replace(behind, states=(state(1, 20, 5.0), state(1, 10, judged=False)))
    early = member(0, 10)
    assert peers(early, [early, overtaken], rules(1.0)) is None


@given(scores=st.lists(st.integers(0, 5), min_size=1, max_size=8), at=st.integers(1, 8))
def test_elites_are_those_of_that_time(scores: list[int], at: int) -> None:
    going_by = rules(1.0, backtrack=True)
    other = member(1)
    for number, score in enumerate(scores, 1):
        other = publish_state(other, state(1, STEPS * number, float(score)), going_by)
    line = max(1, len(scores) - 1 + at % 2)
    mine = member(0, STEPS * line)
    found = peers(mine, [mine, other], going_by)
    if found is None:
        assert line > len(scores)
        return
    by_then = scores[:line]
    best = next(elite for elite in ranked_best(found) if elite.member == 1)
    assert (best.fitness, best.progress) == (max(by_then), STEPS * (by_then.index(max(by_then)) + 1))


@pytest.mark.parametrize(("at", "elite"), [(10, (30, 30.0)), (20, (20, 99.0))])
def test_an_elite_that_is_ahead_is_not_seen_but_the_oldest_state_that_is_kept(
    at: int, elite: tuple[int, float]
) -> None:
    slow, fast = member(0, at), replace(member(1, 30, 40, 50), best=state(1, 20, 99.0))
    found = peers(slow, [slow, fast], rules(0.5, backtrack=True))
    assert found is not None
    assert next((best.progress, best.fitness) for best in ranked_best(found) if best.member == 1) == elite


def score(parent: object, trial: TrialRecord) -> tuple[object, float]:
    return None, float(trial.end_step + trial.member)


@pytest.mark.parametrize("quorum", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("max_broken", [4, 10])
def test_a_member_whose_trials_keep_breaking_is_given_up_and_holds_up_nobody(
    quorum: float, max_broken: int
) -> None:
    bad = {1}
    study = Simulation(rules(quorum, max_broken=max_broken), score)

    def run() -> Ended:
        while True:
            claimed, rest = study.controller.claim("w")
            if not claimed:
                assert isinstance(rest, Ended)
                return rest
            (work,) = claimed
            assert isinstance(work, Claimed)
            trial = work.trial
            study.clock.now += 1
            if trial.member in bad and trial.generation == 2:
                study.controller.fail(Failure(job=trial.id, token=trial.token, error="out of memory"))
            else:
                study.controller.complete([study.completion(trial)])

    ended = run()
    assert ended.state is StudyState.COMPLETED
    check_facts(ended.message, "member 1", "out of memory")
    assert "out of memory" in (ended.message or "")
    with study.store.reader(study.study.id) as reader:
        spent = [one.progress for one in reader.members()]
        assert spent[0] == spent[2] == spent[3] == 80 > spent[1]
        assert reader.counts()["failed"] == max_broken // 2
    bad.clear()
    study.store.set_state(study.study.id, StudyState.RUNNING)
    assert run().message is None
    with study.store.reader(study.study.id) as reader:
        assert [one.progress for one in reader.members()] == [80] * 4


@pytest.mark.parametrize("max_broken", [1, 2, 3, 4, 9, 10])
@pytest.mark.parametrize("begun", [0, 4])
def test_so_many_broken_trials_in_a_row_stop_a_study_exactly(begun: int, max_broken: int) -> None:
    study = Simulation(rules(0.8, max_broken=max_broken), score)
    for work in study.controller.claim("w", begun)[0] if begun else ():
        study.controller.complete([study.completion(work.trial)])
    while claims := study.controller.claim("w")[0]:
        study.clock.now += 1
        study.controller.fail(Failure(job=claims[0].trial.id, token=claims[0].trial.token, error="boom"))
    with study.store.reader(study.study.id) as reader:
        assert reader.counts()["failed"] == max_broken
        said = f"{max_broken} trials in a row failed" if max_broken > 1 else "trial "
        assert (reader.study().message or "").startswith(said)


def test_a_study_fails_when_all_its_members_are_given_up() -> None:
    study = Simulation(rules(0.8, size=2, max_broken=11), score)
    for work in study.controller.claim("w", 2)[0]:
        study.controller.complete([study.completion(work.trial)])
    while claims := study.controller.claim("w")[0]:
        trial = claims[0].trial
        study.clock.now += 1
        study.controller.fail(Failure(job=trial.id, token=trial.token, error="boom"))
    with study.store.reader(study.study.id) as reader:
        found = reader.study()
    assert found.state is StudyState.FAILED
    assert "every member was given up" in (found.message or "")
    assert "boom" in (found.message or "")
