"""A client of the black-box form as a program in any language would be: HTTP and JSON, and nothing of phyla's.

`CHAOS_STUDY` in the environment holds the options as JSON. `service.json` in its directory says where the service
is. A checkpoint is a file that the client names, in a folder that all clients share: a chain as in `chaos_study`.
It records what it asks and what it is answered in the words of the checker, and sends some requests twice.
"""

import json
import os
import random
import secrets
import sys
import threading
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

NAME = "black-box"
STEPS = 4
MEMBERS = 3
OPTIONS: dict[str, Any] = json.loads(os.environ.get("CHAOS_STUDY", "{}"))
STORE_FAILED = ("StoreError", "StoreBusy", "StoreUnavailable")
"""Errors after which nobody knows whether a request was carried out."""
Json = dict[str, Any]


class Refused(Exception):
    """The service answered that it will not do this."""


def table(seed: int, trials: int) -> Json:
    """Return the study, as a client creates it."""
    return {
        "name": NAME,
        "space": {"lr": {"low": 0.01, "high": 1.0, "log": True}},
        "objective": "maximize score",
        "seed": seed,
        "retries": {"attempts": 100_000, "broken": 100_000},
        "pbt": {
            "population_size": MEMBERS,
            "steps_per_trial": STEPS,
            "total_steps": STEPS * trials,
            "exploit": {"name": "truncation", "quantile": 0.4},
            "quorum": 0.8,
        },
    }


def send(url: str, token: str, path: str, body: Json, timeout_s: float) -> Any:
    """Send one request, and return its answer."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/v1/studies{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return json.load(answer)


class Client:
    """Trains what is suggested to it, until the study ends.

    Args:
        worker: its name.
        folder: of the checkpoints.
    """

    def __init__(self, worker: str, folder: Path) -> None:
        self.worker, self.folder = worker, folder
        self.random = random.Random(f"{OPTIONS['seed']} {worker}")
        self.history = os.open(OPTIONS["history"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def post(self, path: str, body: Json, do: str = "other", **asked: Any) -> Any:
        """Send a request until it is answered, perhaps twice; `asked` is what the checker is told of it."""
        if self.random.random() < OPTIONS["repeats"]:
            late_s = self.random.choice((0.0, 0.0, self.random.uniform(0.0, 2.0 * OPTIONS["lease_s"])))
            timer = threading.Timer(late_s, self._twice, (path, body, do, asked))
            timer.daemon = True
            timer.start()
        while True:
            try:
                return self._sent(self._service(), None, path, body, do, asked)
            except (OSError, HTTPException, ValueError):
                time.sleep(self.random.uniform(0.05, 0.5))

    def _service(self) -> tuple[str, str]:
        said = json.loads(Path("service.json").read_text())
        return said["url"], Path(said["token_file"]).read_text().strip()

    def _twice(self, path: str, body: Json, do: str, asked: Json) -> None:
        _, token = self._service()
        try:
            self._sent((self.random.choice(OPTIONS["replicas"]), token), "twice", path, body, do, asked)
        except (OSError, HTTPException, ValueError, Refused):
            """It is recorded."""

    def _sent(
        self, service: tuple[str, str], copy: str | None, path: str, body: Json, do: str, asked: Json
    ) -> Any:
        op = secrets.token_hex(8)
        self._write(op=op, type="invoke", do=do, copy=copy, asked={"done": [], **asked})
        try:
            answer = send(*service, path, body, 3.0 * OPTIONS["lease_s"])
        except urllib.error.HTTPError as error:
            told = error.read().decode()
            refused = error.code < 500 and not any(f'"{kind}"' in told for kind in STORE_FAILED)
            self._write(op=op, type="fail" if refused else "unknown", error=told)
            if refused:
                raise Refused(told) from error
            raise
        except BaseException as error:
            self._write(op=op, type="unknown", error=repr(error))
            raise
        self._write(op=op, type="ok", answer=in_words(path, answer))
        return answer

    def _write(self, **line: Any) -> None:
        line["at"] = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        os.write(self.history, json.dumps(line).encode() + b"\n")

    def run(self) -> None:
        """Work until the study ends; then delete what nobody needs."""
        self.post("", table(OPTIONS["seed"], OPTIONS["trials"]))
        while True:
            wanted = {"worker": self.worker, "held": [], "wait_s": OPTIONS["lease_s"] / 3}
            told = self.post(f"/{NAME}/suggestions", wanted, "complete", worker=self.worker)
            for one in told["suggestions"]:
                try:
                    self.train(one)
                except Refused as error:
                    print(f"trial {one['trial']}.{one['token']}: {error}", flush=True)
            if told["ended"] or self.random.random() < 0.2:
                self.collect()
            if told["ended"]:
                return

    def train(self, one: Json) -> None:
        """Load the weights, add a link, save, and hand in."""
        path, lease = f"/{NAME}/trials/{one['trial']}", {"token": one["token"]}
        known = {"job": one["trial"], "token": one["token"]}

        def goes_on(step: int) -> bool:
            body = {**lease, "step": step, "metrics": {"seen": float(step)}}
            return bool(self.post(f"{path}/report", body, "report", **known)["go_on"])

        try:
            source = one["checkpoint"] and self.folder / one["checkpoint"]
            chain = json.loads(source.read_text()) if source else []
        except FileNotFoundError:
            assert not goes_on(one["start_step"]), f"{one} starts from a checkpoint that was to be deleted"
            return
        lr, seed = one["params"]["lr"], one["seed"]
        if self.random.random() < 0.05:
            how = self.random.choice((("fail", {**lease, "error": "planned"}), ("release", lease)))
            self.post(f"{path}/{how[0]}", how[1], how[0], **known)
            return
        for step in range(one["start_step"] + 1, one["end_step"] + 1):
            time.sleep(float(Path(OPTIONS["pace"]).read_text()) / STEPS)
            if not goes_on(step):
                return
        name, score = f"{one['trial']}.{one['token']}.{secrets.token_hex(3)}", lr + (seed % 1000) / 500
        draft = self.folder / f".{name}"
        draft.write_text(json.dumps([*chain, [one["trial"], one["token"], seed, lr]]))
        draft.rename(self.folder / name)
        body = {**lease, "step": one["end_step"], "metrics": {"score": score}, "checkpoint": name}
        done = [{**known, "checkpoint": name, "score": score}]
        self.post(f"{path}/complete", body, "complete", worker=self.worker, done=done)

    def collect(self) -> None:
        """Delete what nobody needs any more, and say so."""
        names: list[str] = []
        while names := self.post(f"/{NAME}/collect", {"deleted": names})["checkpoints"]:
            for name in names:
                (self.folder / name).unlink(missing_ok=True)


def in_words(path: str, answer: Json) -> Json:
    """Return what matters of an answer, as the checker knows it of phyla's own workers."""
    if "suggestions" in answer:
        names = ("token", "member", "params", "parent", "seed")
        work = [
            {
                "job": one["trial"],
                "parent_checkpoint": one["checkpoint"],
                **{name: one[name] for name in names},
            }
            for one in answer["suggestions"]
        ]
        return {"answers": [], "work": work}
    if path.endswith("/complete"):
        kind = "accepted" if answer["counts"] else "stopped"
        return {"answers": [{"is": kind, "fitness": answer["fitness"]}], "work": []}
    return {"cancelled": not answer.get("go_on", True)}


if __name__ == "__main__":
    # One client comes back under its name, to the trials that it held; the other one under a new name.
    NUMBER = OPTIONS["number"]
    Client(f"client-{NUMBER}" if NUMBER % 2 else f"client-{NUMBER}-{os.getpid()}", Path(OPTIONS["folder"])).run()
    sys.stdout.flush()
