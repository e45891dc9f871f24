"""Room for eval tasks that ask for several GPUs: nothing is given twice, and nobody waits for ever."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from phyla.records import Waiting
from phyla.supervision.packing import Packing, wide_tasks

POOL = [str(gpu) for gpu in range(8)]


def test_idle_gpus_are_taken_before_those_of_workers() -> None:
    packing = Packing(POOL, [["0"], ["1"]])
    (key,) = [packing.reserve({2: 1}, protected=[])]
    assert key == 2
    assert packing.reserved[key].gpus == {"2", "3"}
    assert packing.in_the_way(key) == []
    assert packing.may_run(0)


def test_the_large_one_waits_for_all_and_nobody_overtakes_it() -> None:
    packing = Packing(POOL, [[gpu] for gpu in POOL])
    small = packing.reserve({2: 1}, protected=[])
    assert small is not None
    assert packing.in_the_way(small) == [0, 1]
    # Eight are not free, and what asks for two again comes after what asks for eight.
    assert packing.reserve({8: 1, 2: 5}, protected=[]) is None
    packing.release(small)
    assert packing.reserve({8: 1, 2: 5}, protected=[0, 1]) is None, (
        "those that just started are offered work first"
    )
    large = packing.reserve({8: 1, 2: 5}, protected=[])
    assert large is not None
    assert packing.reserved[large].gpus == set(POOL)
    assert not any(map(packing.may_run, range(8)))
    packing.release(large)
    pairs = [packing.reserve({2: 5}, protected=[]) for _ in range(5)]
    assert pairs == [8, 9, 10, 11, None], "four pairs fit"


def test_what_asks_for_more_than_there_is_gets_no_room() -> None:
    assert Packing(POOL[:4], [["0"]]).reserve({8: 1}, protected=[]) is None


class Machine:
    """A supervisor with its workers: each job takes some ticks."""

    def __init__(self, usual: list[list[str]]) -> None:
        self.packing = Packing(POOL, usual)
        self.usual = usual
        self.left: dict[int, int] = dict.fromkeys(range(len(usual)), 0)  # of usual workers that run
        self.turns: set[int] = set()
        self.closing: set[int] = set()
        self.wide: dict[int, list[int]] = {}  # ticks left, jobs done
        self.waiting: Counter[int] = Counter()
        self.served: Counter[int] = Counter()
        self.overtaken: Counter[int] = Counter()

    def tick(self, job_s: int) -> None:
        for worker in list(self.left):
            self.left[worker] -= 1
            if self.left[worker] < 0:
                if worker in self.closing:
                    assert worker in self.turns, "it was offered work before it had to give way again"
                    self.closing.remove(worker)
                    self.turns.discard(worker)
                    del self.left[worker]
                else:
                    self.left[worker] = job_s
                    self.turns.add(worker)
        for key, room in list(self.packing.reserved.items()):
            size = len(room.gpus)
            if key in self.wide:
                self.wide[key][0] -= 1
                if self.wide[key][0] >= 0:
                    continue
                self.wide[key][1] += 1
            elif any(worker in self.left for worker in self.packing.in_the_way(key)):
                continue
            done = self.wide.get(key, [0, 0])[1]
            if self.waiting[size] and done < room.jobs:
                self.waiting[size] -= 1
                self.served[size] += 1
                self.wide[key] = [job_s, done]
            else:
                self.packing.release(key)
                self.wide.pop(key, None)
        for worker in range(len(self.usual)):
            if worker not in self.left and self.packing.may_run(worker):
                self.left[worker] = 0
        waiting = {size: count for size, count in self.waiting.items() if count}
        while True:
            before = {len(room.gpus) for room in self.packing.reserved.values()}
            protected = [worker for worker in self.left if worker not in self.turns]
            made = self.packing.reserve(waiting, protected)
            if made is None:
                break
            size = len(self.packing.reserved[made].gpus)
            self.overtaken[size] = 0
            for other in waiting:
                if other not in before | {size}:
                    self.overtaken[other] += 1
            self.closing |= {worker for worker in self.packing.in_the_way(made) if worker in self.left}
        self.check()

    def check(self) -> None:
        held = [gpu for key in self.wide for gpu in self.packing.reserved[key].gpus]
        assert len(held) == len(set(held)), "two wide workers share a GPU"
        used = {gpu for worker in self.left for gpu in self.usual[worker]}
        assert not used & set(held), "a wide worker shares a GPU with a usual one"
        assert all(count < 3 for count in self.overtaken.values()), "every other size goes first once at most"


LAYOUTS = st.sampled_from(
    [
        [[gpu] for gpu in POOL],
        [POOL[0:2], POOL[2:4], POOL[4:6], POOL[6:8]],
        [[POOL[index // 2]] for index in range(16)],
        [[POOL[0]], [POOL[1]]],
    ]
)


@settings(max_examples=60, deadline=None)
@given(LAYOUTS, st.lists(st.tuples(st.sampled_from([0, 3, 4, 8]), st.integers(0, 4)), min_size=1, max_size=80))
def test_every_task_is_served_and_every_worker_has_its_turns(
    usual: list[list[str]], arrivals: list[tuple[int, int]]
) -> None:
    machine = Machine(usual)
    asked: Counter[int] = Counter()
    for size, job_s in arrivals:
        if size:
            machine.waiting[size] += 1
            asked[size] += 1
        machine.tick(job_s)
    # Each task takes 3 ticks, and each change of hands at most as long as a task and a turn of those it displaces.
    for _ in range(20 * (len(arrivals) + 2)):
        if machine.served == asked and len(machine.left) == len(usual) and not machine.packing.reserved:
            break
        machine.tick(2)
    assert machine.served == asked
    assert sorted(machine.left) == list(range(len(usual))), "the usual workers go on"


def test_what_keeps_coming_keeps_nobody_else_waiting() -> None:
    machine = Machine([[gpu] for gpu in POOL])
    turns = Counter[int]()
    for _ in range(2000):
        for size in (2, 4, 8):
            machine.waiting[size] = 3
        before = dict(machine.left)
        machine.tick(2)
        turns.update(worker for worker, left in machine.left.items() if left == 2 and before.get(worker) != 2)
    assert min(machine.served[size] for size in (2, 4, 8)) >= 100
    assert min(turns[worker] for worker in range(8)) >= 50


def test_room_is_made_for_what_the_workers_of_this_machine_may_run() -> None:
    waiting = [Waiting(gpus=gpus, label=label, count=3) for gpus in (0, 1, 2, 8) for label in ("", "a100", "h100")]
    assert wide_tasks(waiting, above=1, labels=()) == {2: 3, 8: 3}
    assert wide_tasks(waiting, above=1, labels=("nvlink", "a100")) == {2: 6, 8: 6}
    assert wide_tasks(waiting, above=8, labels=("a100",)) == {}
