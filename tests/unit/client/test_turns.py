"""One pool of workers for several watched studies."""

from dataclasses import replace

from evaluation_simulation import evaluated, failed, suite_of
from facts import raises
from phyla.client import Client
from phyla.controller import EVALUATE_ONLY, Sightings
from phyla.errors import LeaseLost
from phyla.machine import Accepted, ClaimedEvaluation, Ended, Idle, WatchRules
from phyla.records import Checkpoint, CheckpointKind, JobState, StudyKind
from phyla.store import open_store
from simulation import VirtualClock

SUITE = suite_of("a", "b")


class Bench:
    """Two directories that are watched, and a client of both."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = open_store("memory://", clock=self.clock)
        self.studies = [
            self.store.create_study(name, {}, kind=StudyKind.DIRECTORY, location=f"/{name}") for name in ("x", "y")
        ]
        self.sightings = [Sightings(self.store, study, [SUITE]) for study in self.studies]
        self.client = self.new_client()

    def new_client(self) -> Client:
        rules = WatchRules(suites=(SUITE,))
        first, second = self.studies
        return Client(self.store, first, rules, watched=[(second, rules)], clock=self.clock)

    def sees(self, which: int, step: int) -> None:
        self.sightings[which].observe(
            [
                Checkpoint(
                    study=self.studies[which].id,
                    kind=CheckpointKind.SEEN,
                    name=f"step-{step}",
                    step=step,
                    identity=f"{which}-{step}",
                    fingerprint=f"{which}-{step}",
                    path=f"/{which}/step-{step}",
                    written_at=self.clock.now,
                )
            ]
        )

    def claim(self, holding: int | None = None) -> ClaimedEvaluation:
        _, (work,), _ = self.client.exchange((), "w", 1, kinds=EVALUATE_ONLY, holding=holding)
        assert isinstance(work, ClaimedEvaluation)
        return work


def test_studies_that_are_equally_urgent_take_turns() -> None:
    bench = Bench()
    for which in (0, 1):
        bench.sees(which, 100)
    order = [bench.claim().job.study for _ in range(4)]
    assert order == [bench.studies[0].id, bench.studies[1].id] * 2


def test_the_checkpoint_that_is_loaded_comes_before_the_turn_of_another_study() -> None:
    bench = Bench()
    for which in (0, 1):
        bench.sees(which, 100)
    first = bench.claim()
    second = bench.claim(holding=first.seen.id)
    assert (second.job.study, second.seen.id) == (first.job.study, first.seen.id)


def test_what_is_handed_in_goes_to_its_study_whichever_process_claimed_it() -> None:
    bench = Bench()
    for which in (0, 1):
        bench.sees(which, 100)
    work = [bench.claim() for _ in range(3)]
    other = bench.new_client()
    answers, _, _ = other.exchange([evaluated(each) for each in work[:2]], "w", 0)
    assert all(isinstance(answer, Accepted) for answer in answers)
    other.release(work[2].job.id, work[2].job.token)
    found = other.group_results(work[1].group.id, study=work[1].job.study)
    assert [job.state for job in found.jobs].count(JobState.COMPLETED) == 1
    with bench.store.reader(work[2].job.study) as reader:
        assert {job.state for job in reader.eval_jobs() if job.id == work[2].job.id} == {JobState.PENDING}


def test_work_of_a_study_that_was_deleted_counts_no_more() -> None:
    bench = Bench()
    bench.sees(1, 100)
    work = bench.claim()
    lost = replace(work, job=replace(work.job, id=work.job.id + 1000))
    (answer,), _, _ = bench.client.exchange([evaluated(lost)], "w", 0)
    assert isinstance(answer, LeaseLost)
    with raises(LeaseLost, f"job {lost.job.id}"):
        bench.client.fail(failed(lost))


def test_the_work_ends_with_the_last_study() -> None:
    bench = Bench()
    bench.sightings[0].drain("over")
    assert isinstance(bench.client.exchange((), "w", 1, kinds=EVALUATE_ONLY)[2], Idle)
    assert bench.client.is_active()
    bench.sightings[1].drain("over, too")
    bench.clock.now += 2
    ended = bench.client.exchange((), "w", 1, kinds=EVALUATE_ONLY)[2]
    assert isinstance(ended, Ended)
    assert ended.message == "over; over, too"
    assert not bench.client.is_active()
