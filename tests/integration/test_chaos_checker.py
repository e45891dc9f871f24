"""The checker of `bench/chaos.py` finds nothing in a sound study, and whatever is planted into one."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
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


def _black_box(folder: Path, options: Row, number: int) -> forked.Forked:
    """Start a black-box client."""
    (folder / "black-box").mkdir(exist_ok=True)
    (folder / "secret").write_text("")
    (folder / "service.json").write_text(
        json.dumps({"url": options["replicas"][0], "token_file": str(folder / "secret")})
    )
    told = {"history": str(folder / "black-box.jsonl"), "folder": str(folder / "black-box"), "number": number}
    environment = {**os.environ, "CHAOS_STUDY": json.dumps({**options, **told})}
    return forked.Forked([chaos_blackbox.__file__], cwd=folder, env=environment)


@pytest.fixture(scope="module")
def kept(sound: Sound) -> tuple[Evidence, Evidence]:
    return sound.evidence(), sound.of_clients()


@pytest.fixture
def evidence(kept: tuple[Evidence, Evidence]) -> Evidence:
    return deepcopy(kept[0])


@pytest.fixture
def of_clients(kept: tuple[Evidence, Evidence]) -> Evidence:
    return deepcopy(kept[1])


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


def requests(evidence: Evidence) -> dict[str, Row]:
    """Return what was asked, by operation."""
    return {line["op"]: line for line in evidence.history if line["type"] == "invoke"}


def answered(evidence: Evidence, fits: Callable[[Row, Row], bool]) -> tuple[Row, Row]:
    """Return the first request to complete that fits, and its answer."""
    asked = requests(evidence)
    pairs = [(asked[line["op"]], line) for line in evidence.history if line["type"] == "ok"]
    completing = [pair for pair in pairs if pair[0]["do"] == "complete"]
    return next(pair for pair in completing if fits(pair[0]["asked"], pair[1]["answer"]))


def granting(evidence: Evidence, job: int) -> tuple[Row, Row]:
    """Return the request that a trial was given out to, and its answer."""
    return answered(evidence, lambda asked, answer: any(work["job"] == job for work in answer["work"]))


def counting(evidence: Evidence, job: int) -> tuple[Row, Row]:
    """Return the request that handed a trial in, and its answer."""
    return answered(evidence, lambda asked, answer: any(done["job"] == job for done in asked["done"]))


def again(evidence: Evidence, pair: tuple[Row, Row], op: str, by_s: float = 0.0, **asked: Any) -> tuple[Row, Row]:
    """Add a request and its answer once more, at another time."""
    copied = deepcopy(pair)
    for line in copied:
        line["op"] = op
        line["at"] += by_s * 1e9
    copied[0]["asked"] |= asked
    evidence.history += copied
    return copied


def given_out(evidence: Evidence) -> Counter[int]:
    """Return how many times each job was given out."""
    return Counter(row["job"] for row in evidence.attempts)


def tried_once(evidence: Evidence) -> list[Row]:
    """Return the trials that were given out once; leases are short, so others may have been given out again."""
    return [row for row in evidence.trials if given_out(evidence)[row["id"]] == 1]


def newest(evidence: Evidence) -> Row:
    """Return one of the newest generation, or of the one before."""
    return max(tried_once(evidence), key=lambda row: (row["generation"], row["id"]))


def jumped(evidence: Evidence) -> Row:
    """Return a trial that took over weights of another member."""
    return next(row for row in evidence.trials if row["jump_from"] is not None)


def overtaken(evidence: Evidence) -> int:
    """Another worker had the returned trial anew before the first one handed it in, and that counted."""
    job = newest(evidence)["id"]
    _, answer = again(evidence, granting(evidence, job), "x", worker="other", done=[])
    (work,) = [work for work in answer["answer"]["work"] if work["job"] == job]
    work["token"] += 1
    answer["answer"] |= {"work": [work], "answers": []}
    attempt = next(row for row in evidence.attempts if row["job"] == job)
    evidence.attempts.append({**attempt, "token": work["token"], "worker": "other", "state": "lost"})
    return int(job)


def older_lease(evidence: Evidence) -> None:
    """A worker got an old lease after another one had a newer one."""
    _, answer = again(evidence, granting(evidence, overtaken(evidence)), "y", by_s=10.0, done=[])
    answer["answer"]["answers"] = []


def still_active(evidence: Evidence, do: str, **answer: Any) -> None:
    """A worker that lost its lease went on."""
    job = overtaken(evidence)
    asked, line = again(evidence, granting(evidence, job), "z", by_s=10.0)
    asked |= {"do": do, "asked": {"job": job, "token": 1, "done": []}}
    line["answer"] = answer


def counted_twice(evidence: Evidence, job: int) -> None:
    _, answer = again(evidence, counting(evidence, job), "x", by_s=1.0)
    for done in answer["answer"]["answers"]:
        done["repeated"] = False


def made_up(evidence: Evidence) -> None:
    """No worker handed in what the store has."""
    job, asked = evidence.trials[1]["id"], requests(evidence)
    for line in evidence.history:
        if line["type"] == "invoke":
            line["asked"]["done"] = [done for done in line["asked"]["done"] if done["job"] != job]
    for line in evidence.history:
        if line["type"] == "ok" and "answers" in line.get("answer", {}):
            line["answer"]["answers"] = [{"is": "stopped"} for _ in asked[line["op"]]["asked"]["done"]]


def generation_twice(evidence: Evidence) -> None:
    *_, first, second = [row for row in evidence.trials if row["member"] == 0 and row["generation"]]
    second["generation"] = first["generation"]


def other_hyperparameters(evidence: Evidence) -> None:
    first, second = evidence.trials[:2]
    first["params"], second["params"] = second["params"], first["params"]


def other_weights(evidence: Evidence) -> None:
    """Under the name of one checkpoint are the files of another, as sound as they were."""
    mine = newest(evidence)["checkpoint"]
    evidence.disk[mine]["chain"] = next(disk["chain"] for name, disk in evidence.disk.items() if name != mine)


def handed_in_again(evidence: Evidence, **change: Callable[[Any], Any]) -> None:
    """A client was told that its completion counts, which was another one."""
    asked, _ = again(evidence, counting(evidence, newest(evidence)["id"]), "x", by_s=1.0)
    for name, other in change.items():
        asked["asked"]["done"][0][name] = other(asked["asked"]["done"][0][name])


def another_score(evidence: Evidence) -> None:
    asked, _ = counting(evidence, newest(evidence)["id"])
    asked["asked"]["done"][0]["score"] += 1.0


def evaluated(evidence: Evidence) -> int:
    """Return an eval job that was given out once."""
    return next(job for job in evidence.eval_jobs if given_out(evidence)[job] == 1)


Plants = Mapping[str, Callable[[Evidence], object]]
BOTH: Plants = {
    r"leases: lease \d+\.1 was given to 2 workers": lambda evidence: again(
        evidence, granting(evidence, newest(evidence)["id"]), "x", worker="thief"
    ),
    r"leases: a completion of \d+\.1 was accepted, and lease \d+\.2 was given out": overtaken,
    r"leases: lease \d+\.1 was given to .* after lease \d+\.2 was known": older_lease,
    r"completions: trial \d+ was acknowledged and is not there": lambda evidence: evidence.trials.remove(
        newest(evidence)
    ),
    r"completions: trial \d+ was acknowledged and is pending": lambda evidence: newest(evidence).update(
        state="pending"
    ),
    r"completions: trial \d+ is completed .*: several, or nobody handed it in": made_up,
    r"completions: generation 3 of member 0 is there 2 times": generation_twice,
    r"facts: trial \d+ has fitness .*, and its hyperparameters give": other_hyperparameters,
    r"facts: the weights of trial \d+ were made by": other_weights,
    r"parents: trial \d+ was given out before its parent \d+ was handed in": lambda evidence: granting(
        evidence, newest(evidence)["id"]
    )[1].update(at=0),
    r"ends: member 1 trained 16 of 20 steps": lambda evidence: evidence.members[1].update(
        progress=evidence.members[1]["progress"] - STEPS
    ),
    r"disk: live checkpoint .* is not on disk": lambda evidence: evidence.disk.pop(newest(evidence)["checkpoint"]),
}
WORKERS: Plants = {
    **BOTH,
    r"leases: save_progress of \d+\.1 was taken after lease \d+\.2 was known": lambda evidence: still_active(
        evidence, "save_progress"
    ),
    r"completions: the completion of trial \d+ was counted 2 times": lambda evidence: counted_twice(
        evidence, tried_once(evidence)[1]["id"]
    ),
    r"completions: the completion of eval job \d+ was counted several times": lambda evidence: counted_twice(
        evidence, evaluated(evidence)
    ),
    r"evaluations: the evaluations of trial \d+, which is completed, are \[\]": lambda evidence: (
        evidence.groups.pop()
    ),
    r"evaluations: the evaluation of trial \d+ found .*; its fitness is": lambda evidence: evidence.groups[
        0
    ].update(values=evidence.groups[1]["values"]),
    r"parents: trial \d+ started from .*; that of its parent is": lambda evidence: jumped(evidence).update(
        parent_checkpoint=evidence.trials[0]["checkpoint"]
    ),
    r"parents: trial \d+ took over trial \d+ of another member": lambda evidence: jumped(evidence).update(
        jump_from=None
    ),
    r"disk: 99\.1\.abcdef is on disk, and is not known": lambda evidence: evidence.disk.update(
        {"99.1.abcdef": {"chain": [], "digest": "0"}}
    ),
    r"disk: live checkpoint .* has other bytes than were committed": lambda evidence: evidence.disk[
        newest(evidence)["checkpoint"]
    ].update(digest="0"),
    r"disk: 99\.1\.abcdef is still being written or deleted": lambda evidence: evidence.unfinished.append(
        "99.1.abcdef"
    ),
}
CLIENTS: Plants = {
    **BOTH,
    r"completions: the completion of trial \d+ was counted .*, under tokens \[(1, )+2\]": lambda evidence: (
        handed_in_again(evidence, token=lambda token: token + 1)
    ),
    r"completions: trial \d+ has checkpoint .*; .*-again was handed in": lambda evidence: handed_in_again(
        evidence, checkpoint=lambda name: f"{name}-again"
    ),
    r"completions: trial \d+ has fitness .*: handed in .*, answered": another_score,
    r"leases: report of \d+\.1 was taken after lease \d+\.2 was known": lambda evidence: still_active(
        evidence, "report", cancelled=False
    ),
}


@pytest.mark.parametrize("violation", WORKERS)
def test_what_is_planted_is_found(evidence: Evidence, violation: str) -> None:
    WORKERS[violation](evidence)
    assert re.search(rf"(?m)^{violation}", "\n".join(check(evidence)))


@pytest.mark.parametrize("violation", CLIENTS)
def test_what_is_planted_into_black_box_clients_is_found(of_clients: Evidence, violation: str) -> None:
    CLIENTS[violation](of_clients)
    assert re.search(rf"(?m)^{violation}", "\n".join(check(of_clients)))


def test_bytes_that_changed_on_disk_are_found(sound: Sound) -> None:
    folder = sound.folder / "checkpoints" / NAME / newest(sound.evidence())["checkpoint"]
    (folder / "weights.bin").write_bytes(b"other")
    assert any("cannot be read: ValueError" in one for one in check(sound.evidence()))
