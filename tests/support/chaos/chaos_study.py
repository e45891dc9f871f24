"""A study whose processes record what they ask the service and what it answers; see `chaos.py`.

`CHAOS_STUDY` in the environment holds the options as JSON. The weights are a chain with one link for each trial
that made them (trial, token, seed, hyperparameter), and bytes that follow from the chain. Some requests are sent
twice: again at once as if the answer had been lost, to another replica at the same time, or much later.
Run as a program, it creates the study with short leases, and works on it until it ends.
"""

import inspect
import itertools
import json
import os
import random
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import phyla
from phyla import errors, settings
from phyla.machine import Accepted, Claimed, ClaimedEvaluation, Completion, Evaluated, ReportAnswer, Stopped
from phyla.store import remote
from phyla.store.remote import Connection
from toy_study import load, save, score

STEPS = 4
NAME = "chaos"
HOLD = "hold"
"""As the pace, lets training wait."""
OPTIONS: dict[str, Any] = json.loads(os.environ.get("CHAOS_STUDY", "{}"))
RECORDED = frozenset({"complete", "fail", "release", "renew", "report", "save_progress", "lose_worker"})


def train(trial: phyla.Trial) -> None:
    """Load and check the weights, take as long as the file `pace` says (in seconds), add a link, save."""
    chain = load(trial.source.path) if trial.source is not None else []
    chain = [link for link in chain if link[0] != trial.id]
    link = [trial.id, trial.token, trial.seed, trial.params["lr"]]
    for step in trial.steps():
        while (pace := Path(OPTIONS["pace"]).read_text()) == HOLD:
            time.sleep(0.02)
        time.sleep(float(pace) / STEPS)
        if step == trial.start_step + 2 and trial.seed % 3 == 0:
            save([*chain, link], trial.checkpoint_dir)
            trial.save_progress()
        trial.report(seen=float(step))
    save([*chain, link], trial.checkpoint_dir)
    trial.report(score=score(trial.seed, trial.params["lr"]))


# What is done to the workers is no fault of the evaluation either.
@phyla.eval_task(max_attempts=100_000)
def read(evaluation: phyla.Evaluation) -> None:
    """Compute the score again from the weights."""
    *_, (_, _, seed, lr) = load(evaluation.checkpoint.path)
    evaluation.record(score=score(seed, lr))


SUITE = phyla.Suite("read", (read,))


# --- recording


def now() -> int:
    """Return nanoseconds on a clock that all processes of this machine share and that nobody sets."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


class Recorder:
    """Writes a line before each request that matters, and a line after it.

    Args:
        file: to which all processes append.
        call: what sends a request.
    """

    def __init__(self, file: str, call: Any) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._call = call
        self._numbers = itertools.count()
        self._random = random.Random(f"{OPTIONS.get('seed')} {os.getpid()} {now()}")
        self._others: dict[str, Connection] = {}

    def call(self, connection: Connection, function: Any, *rest: Any, **named: Any) -> Any:
        """Send a request, perhaps twice."""
        if function.__name__ not in RECORDED:
            return self._call(connection, function, *rest, **named)
        drawn = self._random.random() / max(OPTIONS.get("repeats", 0.0), 1e-9)
        if drawn < 0.25:
            self._beside(connection, "lost", function, *rest, **named)
        elif drawn < 0.5:
            other = self._other()
            if other is not None:
                self._in_thread(0.0, other, "other", function, *rest, **named)
        elif drawn < 1.0:
            delay_s = self._random.uniform(0.0, 2.0 * OPTIONS["lease_s"])
            self._in_thread(delay_s, connection, "late", function, *rest, **named)
        return self._recorded(connection, None, function, *rest, **named)

    def _other(self) -> Connection | None:
        url = self._random.choice(OPTIONS["replicas"])
        if url not in self._others:
            self._others[url] = Connection(url)
        return self._others[url]

    def _in_thread(self, delay_s: float, *what: Any, **named: Any) -> None:
        def send() -> None:
            time.sleep(delay_s)
            self._beside(*what, **named)

        threading.Thread(target=send, daemon=True).start()

    def _beside(self, *what: Any, **named: Any) -> None:
        """Send a request whose answer nobody gets."""
        try:
            self._recorded(*what, **named)
        except (errors.PhylaError, RuntimeError):
            """It is recorded; at the end of its process no client can be made."""

    def _recorded(
        self,
        connection: Connection,
        copy: str | None,
        function: Any,
        path: str,
        wait_s: float,
        /,
        *rest: Any,
        **named: Any,
    ) -> Any:
        op = f"{os.getpid()}.{next(self._numbers)}.{now()}"
        digest = named.pop("settings_digest", None)
        asked = inspect.signature(function).bind(None, *rest, **named).arguments
        name = function.__name__
        self._write(op=op, at=now(), type="invoke", do=name, copy=copy, asked=told_of_request(asked))
        try:
            answer = self._call(connection, function, path, wait_s, *rest, settings_digest=digest, **named)
        except errors.PhylaError as error:
            known = not isinstance(error, errors.StoreError) or isinstance(error, errors.LeaseLost)
            self._write(
                op=op, at=now(), type="fail" if known else "unknown", error=f"{type(error).__name__}: {error}"
            )
            raise
        except BaseException as error:
            self._write(op=op, at=now(), type="unknown", error=repr(error))
            raise
        self._write(op=op, at=now(), type="ok", answer=told_of_answer(name, answer))
        return answer

    def _write(self, **line: Any) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


def told_of_request(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what matters of a request."""
    told = {name: asked[name] for name in ("worker", "count", "trial", "job", "token") if name in asked}
    if "failure" in asked:
        told |= {"job": asked["failure"].job, "token": asked["failure"].token, "error": asked["failure"].error}
    if "trial" in told:
        told["job"] = told.pop("trial")
    told["done"] = [
        {
            "job": one.trial if isinstance(one, Completion) else one.job,
            "token": one.token,
            "checkpoint": one.checkpoint.name if isinstance(one, Completion) and one.checkpoint else None,
            "score": one.metrics.get("score") if isinstance(one, Completion) else None,
        }
        for one in asked.get("completions", ())
        if isinstance(one, (Completion, Evaluated))
    ]
    return told


def told_of_answer(name: str, answer: Any) -> dict[str, Any]:
    """Return what matters of an answer."""
    if isinstance(answer, ReportAnswer):
        return {"cancelled": answer.cancelled}
    if name != "complete":
        return {}
    answers, work, rest = answer
    told: list[dict[str, Any]] = []
    for one in answers:
        if isinstance(one, Accepted):
            told.append({"is": "accepted", "fitness": one.fitness, "repeated": one.repeated})
        else:
            told.append({"is": "stopped" if isinstance(one, Stopped) else "gone"})
    return {"answers": told, "work": [told_of_work(one) for one in work], "rest": type(rest).__name__}


def told_of_work(work: Claimed | ClaimedEvaluation) -> dict[str, Any]:
    """Return what matters of work that was given out."""
    if isinstance(work, ClaimedEvaluation):
        return {"job": work.job.id, "token": work.job.token}
    names = ("token", "member", "generation", "params", "parent", "parent_checkpoint", "seed")
    return {"job": work.trial.id, **{name: getattr(work.trial, name) for name in names}}


def install(file: str) -> None:
    """Record from now on what this process asks services."""
    send = Connection.call
    if getattr(send, "records", False):
        return
    recorders: dict[int, Recorder] = {}

    def call(connection: Connection, *what: Any, **named: Any) -> Any:
        # A forked process has numbers of its own.
        if os.getpid() not in recorders:
            recorders[os.getpid()] = Recorder(file, send)
        return recorders[os.getpid()].call(connection, *what, **named)

    call.records = True  # type: ignore[attr-defined]
    Connection.call = call  # type: ignore[assignment,method-assign]


# --- the study


def study(options: Mapping[str, Any]) -> phyla.Study:
    """Return the study that options describe."""
    return phyla.Study(
        NAME,
        {"lr": phyla.Float(0.01, 1.0, log=True)},
        phyla.Maximize("score"),
        phyla.PBT(
            population_size=options["members"],
            steps_per_trial=STEPS,
            total_steps=STEPS * options["trials"],
            exploit=phyla.Truncation(0.3),
            quorum=options["quorum"],
        ),
        train,
        seed=options["seed"],
        suites=(SUITE,),
        # What is done to the workers is no fault of the trials.
        retries=phyla.Retries(attempts=100_000, broken=100_000),
        home=options["home"],
        storage=options["storage"],
        checkpoints=options["checkpoints"],
    )


if OPTIONS:
    # How long to wait for an answer, which goes with leases of a minute, is shorter as these are.
    remote.ANSWER_S, remote.PROMPT_ANSWER_S = 3.0 * OPTIONS["lease_s"], OPTIONS["lease_s"]
    install(OPTIONS["history"])
    STUDY = study({**OPTIONS, "home": settings.home(), "storage": settings.storage()})

if __name__ == "__main__":
    try:
        STUDY.run(workers=OPTIONS["workers"], lease_s=OPTIONS["lease_s"])
    except errors.PhylaError as error:
        print(f"error: {error}")
        sys.exit(1)
    except KeyboardInterrupt as error:
        print(error)
        sys.exit(75)
