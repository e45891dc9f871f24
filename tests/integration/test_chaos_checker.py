"""The checker of `bench/chaos.py` finds nothing in a sound study, and whatever is planted into one."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import chaos_blackbox
import chaos_study
import forked
from chaos_checker import Evidence, Row, check, collect, collect_black_box, tree
from chaos_study import NAME, STEPS
from phyla.store import open_store
from serving import Service

TRIALS = 5


@dataclass
class Sound:
    """A study that ran over HTTP to its end, and one of black-box clients, with requests that were sent twice."""

    folder: Path

    def of_clients(self) -> Evidence:
        """Read that of the black-box clients."""
        store = open_store(f"sqlite:///{self.folder}/home/phyla.db")
        places = self.folder / "black-box.jsonl", self.folder / "black-box"
        found = collect_black_box(store, chaos_blackbox.NAME, *places, TRIALS * STEPS)
        store.close()
        return found

    def evidence(self) -> Evidence:
        """Read it."""
        store = open_store(f"sqlite:///{self.folder}/home/phyla.db")
        found = collect(store, NAME, self.folder / "history", self.folder / "checkpoints" / NAME, TRIALS * STEPS)
        store.close()
        return found


pytestmark = pytest.mark.xdist_group("chaos checker")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    folder = tmp_path_factory.mktemp("sound")
    (folder / "pace").write_text("0")
    with Service("--home", str(folder / "home")) as service:
        options = {
            "members": 4,
            "trials": TRIALS,
            "quorum": 0.8,
            "seed": 1,
            "lease_s": 0.5,
            "repeats": 0.3,
            "replicas": [service.url],
            "workers": 0,
            "history": str(folder / "history"),
            "pace": str(folder / "pace"),
            "checkpoints": str(folder / "checkpoints"),
        }
        clients = [_black_box(folder, options, number) for number in (1, 2)]
        environment = {
            **os.environ,
            "PYTHONPATH": forked.HELPERS,
            "PHYLA_HOME": str(folder / "client"),
            "PHYLA_STORAGE": service.url,
            "CHAOS_STUDY": json.dumps(options),
        }
        done = forked.run([chaos_study.__file__], env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        assert [client.wait(60) for client in clients] == [0, 0]
    return Sound(folder)


def _black_box(folder: Path, options: Row, number: int) -> "subprocess.Popen[bytes]":
    """Start a black-box client."""
    (folder / "black-box").mkdir(exist_ok=True)
    (folder / "secret").write_text("")
    (folder / "service.json").write_text(
        json.dumps({"url": options["replicas"][0], "token_file": str(folder / "secret")})
    )
    told = {"history": str(folder / "black-box.jsonl"), "folder": str(folder / "black-box"), "number": number}
    environment = {**os.environ, "CHAOS_STUDY": json.dumps({**options, **told})}
    return subprocess.Popen([sys.executable, chaos_blackbox.__file__], cwd=folder, env=environment)


@pytest.fixture(scope="module")
def kept(sound: Sound) -> Evidence:
    return sound.evidence()


@pytest.fixture(scope="module")
def kept_of_clients(sound: Sound) -> Evidence:
    return sound.of_clients()


@pytest.fixture
def of_clients(kept_of_clients: Evidence) -> Evidence:
    return deepcopy(kept_of_clients)


@pytest.fixture
def evidence(kept: Evidence) -> Evidence:
    return deepcopy(kept)


def test_nothing_is_wrong_with_a_sound_study(evidence: Evidence) -> None:
    assert check(evidence) == []
    assert len(evidence.trials) == len(tree(evidence.trials)) == 4 * TRIALS
    assert any(row["jump_from"] for row in evidence.trials)
    assert {"lost", "late"} & {line.get("copy") for line in evidence.history}


def test_nothing_is_wrong_with_a_sound_study_of_black_box_clients(of_clients: Evidence) -> None:
    assert check(of_clients) == []
    # A member that takes over older weights has less to train.
    assert chaos_blackbox.MEMBERS * (TRIALS - 1) <= len(of_clients.trials) <= chaos_blackbox.MEMBERS * TRIALS
    assert any(line.get("copy") for line in of_clients.history)
    holders = {line["asked"].get("worker", "") for line in of_clients.history if line["type"] == "invoke"}
    assert len(holders - {""}) == 2


# --- planting


def answered(evidence: Evidence, found: Callable[[Row], Any]) -> tuple[Row, Row]:
    """Return the first request to complete that was answered so, and its answer."""
    asked = {line["op"]: line for line in evidence.history if line["type"] == "invoke"}
    return next(
        (asked[line["op"]], line)
        for line in evidence.history
        if line["type"] == "ok" and asked[line["op"]]["do"] == "complete" and found(line["answer"])
    )


def granting(evidence: Evidence, job: int) -> tuple[Row, Row]:
    """Return the request that a trial was given out to, and its answer."""
    return answered(evidence, lambda answer: any(work["job"] == job for work in answer["work"]))


def counting(evidence: Evidence, job: int) -> tuple[Row, Row]:
    """Return the request that handed a trial in, and its answer."""
    asked = {line["op"]: line for line in evidence.history if line["type"] == "invoke"}
    for line in evidence.history:
        if line["type"] == "ok" and any(done["job"] == job for done in asked[line["op"]]["asked"]["done"]):
            return asked[line["op"]], line
    raise AssertionError(job)


def again(evidence: Evidence, pair: tuple[Row, Row], op: str, by_s: float = 0.0, **asked: Any) -> tuple[Row, Row]:
    """Add a request and its answer once more, at another time."""
    copied = deepcopy(pair)
    for line in copied:
        line["op"] = op
        line["at"] += by_s * 1e9
    copied[0]["asked"] |= asked
    evidence.history += copied
    return copied


def tried_once(evidence: Evidence) -> list[Row]:
    """Return the trials that were given out once; leases are short, so others may have been given out again."""
    return [row for row in evidence.trials if given_out(evidence)[row["id"]] == 1]


def given_out(evidence: Evidence) -> Counter[int]:
    """Return how many times each job was given out."""
    return Counter(row["job"] for row in evidence.attempts)


def newest(evidence: Evidence) -> Row:
    """Return one of the newest generation, or of the one before."""
    return max(tried_once(evidence), key=lambda row: (row["generation"], row["id"]))


def two_holders(evidence: Evidence) -> None:
    again(evidence, granting(evidence, newest(evidence)["id"]), "x", worker="thief")


def overtaken(evidence: Evidence) -> int:
    """Another worker had the returned trial anew before the first one handed it in, and that counted."""
    job = newest(evidence)["id"]
    _, answer = again(evidence, granting(evidence, job), "x", worker="other")
    (work,) = [work for work in answer["answer"]["work"] if work["job"] == job]
    work["token"] += 1
    answer["answer"] |= {"work": [work], "answers": []}
    evidence.history[-2]["asked"]["done"] = []
    attempt = next(row for row in evidence.attempts if row["job"] == job)
    evidence.attempts.append({**attempt, "token": work["token"], "worker": "other", "state": "lost"})
    return int(job)


def older_lease(evidence: Evidence) -> None:
    """A worker got an old lease after somebody had a newer one."""
    job = overtaken(evidence)
    _, answer = again(evidence, granting(evidence, job), "y", by_s=10.0)
    answer["answer"]["answers"], evidence.history[-2]["asked"]["done"] = [], []


def still_reports(evidence: Evidence) -> None:
    job = overtaken(evidence)
    asked, answer = again(evidence, granting(evidence, job), "z", by_s=10.0)
    asked |= {"do": "save_progress", "asked": {"job": job, "token": 1}}
    answer["answer"] = {}


def forgotten(evidence: Evidence) -> None:
    job = newest(evidence)["id"]
    evidence.trials[:] = [row for row in evidence.trials if row["id"] != job]


def taken_back(evidence: Evidence) -> None:
    newest(evidence)["state"] = "pending"


def counted_twice(evidence: Evidence, job: int | None = None) -> None:
    job = job or tried_once(evidence)[1]["id"]
    _, answer = again(evidence, counting(evidence, job), "x", by_s=1.0)
    for one in answer["answer"]["answers"]:
        one["repeated"] = False


def evaluation_counted_twice(evidence: Evidence) -> None:
    counted_twice(evidence, next(job for job in evidence.eval_jobs if given_out(evidence)[job] == 1))


def evaluation_lost(evidence: Evidence) -> None:
    evidence.groups.pop()


def evaluation_of_other_weights(evidence: Evidence) -> None:
    evidence.groups[0]["values"] = evidence.groups[1]["values"]


def made_up(evidence: Evidence) -> None:
    """Nobody handed in what the store has."""
    job = evidence.trials[1]["id"]
    for line in evidence.history:
        if line["type"] == "invoke":
            line["asked"]["done"] = [done for done in line["asked"]["done"] if done["job"] != job]
        else:
            line.get("answer", {}).pop("answers", None)
    for line in evidence.history:
        if line["type"] == "ok" and "work" in line.get("answer", {}):
            asked = next(one for one in evidence.history if one["op"] == line["op"])
            line["answer"]["answers"] = [{"is": "stopped"} for _ in asked["asked"]["done"]]


def generation_twice(evidence: Evidence) -> None:
    one, other = [row for row in evidence.trials if row["member"] == 0 and row["generation"]][-2:]
    other["generation"] = one["generation"]


def other_hyperparameters(evidence: Evidence) -> None:
    one, other = evidence.trials[:2]
    one["params"], other["params"] = other["params"], one["params"]


def other_weights(evidence: Evidence) -> None:
    """Under the name of one checkpoint are the files of another, as sound as they were."""
    one = newest(evidence)["checkpoint"]
    other = next(name for name in evidence.disk if name != one)
    evidence.disk[one]["chain"] = evidence.disk[other]["chain"]


def other_parent(evidence: Evidence) -> None:
    trial = next(row for row in evidence.trials if row["jump_from"] is not None)
    trial["parent_checkpoint"] = evidence.trials[0]["checkpoint"]


def secret_jump(evidence: Evidence) -> None:
    next(row for row in evidence.trials if row["jump_from"] is not None)["jump_from"] = None


def before_its_parent(evidence: Evidence) -> None:
    trial = newest(evidence)
    _, answer = granting(evidence, trial["id"])
    answer["at"] = 0


def unfinished(evidence: Evidence) -> None:
    evidence.members[1]["progress"] -= STEPS


def collected_too_early(evidence: Evidence) -> None:
    del evidence.disk[newest(evidence)["checkpoint"]]


def left_over(evidence: Evidence) -> None:
    evidence.disk["99.1.abcdef"] = {"chain": [], "digest": "0"}


def other_bytes(evidence: Evidence) -> None:
    evidence.disk[newest(evidence)["checkpoint"]]["digest"] = "0"


def half_written(evidence: Evidence) -> None:
    evidence.unfinished.append("99.1.abcdef")


PLANTED: dict[Callable[[Evidence], object], str] = {
    two_holders: r"leases: lease \d+\.1 was given to 2 workers",
    overtaken: r"leases: a completion of \d+\.1 was accepted, and lease \d+\.2 was given out",
    older_lease: r"leases: lease \d+\.1 was given to .* after lease \d+\.2 was known",
    still_reports: r"leases: save_progress of \d+\.1 was taken after lease \d+\.2 was known",
    forgotten: r"completions: trial \d+ was acknowledged and is not there",
    taken_back: r"completions: trial \d+ was acknowledged and is pending",
    counted_twice: r"completions: the completion of trial \d+ was counted 2 times",
    evaluation_counted_twice: r"completions: the completion of eval job \d+ was counted several times",
    evaluation_lost: r"evaluations: the evaluations of trial \d+, which is completed, are \[\]",
    evaluation_of_other_weights: r"evaluations: the evaluation of trial \d+ found .*; its fitness is",
    made_up: r"completions: trial \d+ is completed .*: several, or nobody handed it in",
    generation_twice: r"completions: generation 3 of member 0 is there 2 times",
    other_hyperparameters: r"facts: trial \d+ has fitness .*, and its hyperparameters give",
    other_weights: r"facts: the weights of trial \d+ were made by",
    other_parent: r"parents: trial \d+ started from .*; that of its parent is",
    secret_jump: r"parents: trial \d+ took over trial \d+ of another member",
    before_its_parent: r"parents: trial \d+ was given out before its parent \d+ was handed in",
    unfinished: r"ends: member 1 trained 16 of 20 steps",
    collected_too_early: r"disk: live checkpoint .* is not on disk",
    left_over: r"disk: 99\.1\.abcdef is on disk, and is not known",
    other_bytes: r"disk: live checkpoint .* has other bytes than were committed",
    half_written: r"disk: 99\.1\.abcdef is still being written or deleted",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_what_is_planted_is_found(evidence: Evidence, plant: Callable[[Evidence], object]) -> None:
    plant(evidence)
    found = check(evidence)
    assert any(re.match(PLANTED[plant], one) for one in found), found


def counted_under_two_leases(evidence: Evidence) -> None:
    """Two clients were told that their completion of a trial counts."""
    asked, _ = again(evidence, counting(evidence, newest(evidence)["id"]), "x", by_s=1.0)
    asked["asked"]["done"][0]["token"] += 1


def another_name(evidence: Evidence) -> None:
    """A client was told that a checkpoint counts, and the trial has another one."""
    asked, _ = again(evidence, counting(evidence, newest(evidence)["id"]), "x", by_s=1.0)
    asked["asked"]["done"][0]["checkpoint"] += "-again"


def another_score(evidence: Evidence) -> None:
    asked, _ = counting(evidence, newest(evidence)["id"])
    asked["asked"]["done"][0]["score"] += 1.0


def taken_from_another(evidence: Evidence) -> None:
    """A client that is said to have lost its lease was told to go on."""
    job = overtaken(evidence)
    asked, answer = again(evidence, granting(evidence, job), "z", by_s=10.0)
    asked |= {"do": "report", "asked": {"job": job, "token": 1, "done": []}}
    answer["answer"] = {"cancelled": False}


def named_too_early(evidence: Evidence) -> None:
    """A client was told to delete a checkpoint that is needed."""
    del evidence.disk[newest(evidence)["checkpoint"]]


PLANTED_IN_CLIENTS: dict[Callable[[Evidence], object], str] = {
    **{plant: PLANTED[plant] for plant in (overtaken, older_lease, forgotten, taken_back, made_up, other_weights)},
    **{
        plant: PLANTED[plant] for plant in (other_hyperparameters, before_its_parent, generation_twice, unfinished)
    },
    two_holders: PLANTED[two_holders],
    counted_under_two_leases: r"completions: the completion of trial \d+ was counted .*, under tokens \[(1, )+2\]",
    another_name: r"completions: trial \d+ has checkpoint .*; .*-again was handed in",
    another_score: r"completions: trial \d+ has fitness .*: handed in .*, answered",
    taken_from_another: r"leases: report of \d+\.1 was taken after lease \d+\.2 was known",
    named_too_early: PLANTED[collected_too_early],
}


@pytest.mark.parametrize("plant", PLANTED_IN_CLIENTS, ids=lambda plant: plant.__name__)
def test_what_is_planted_into_black_box_clients_is_found(
    of_clients: Evidence, plant: Callable[[Evidence], object]
) -> None:
    plant(of_clients)
    found = check(of_clients)
    assert any(re.match(PLANTED_IN_CLIENTS[plant], one) for one in found), found


def test_bytes_that_changed_on_disk_are_found(sound: Sound) -> None:
    folder = sound.folder / "checkpoints" / NAME / newest(sound.evidence())["checkpoint"]
    (folder / "weights.bin").write_bytes(b"other")
    assert any("cannot be read: ValueError" in one for one in check(sound.evidence()))
