"""What the dashboard costs on a long study: when a browser shows it, server time of each page, memory, updates.

A suite has evaluated each checkpoint of the study but the last ones. Pages are asked for while
nothing else happens, and again while figures are drawn.

Run: python bench/dashboard.py [--trials 100000] [--members 1000] [--output bench/results/dashboard.json]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

from control_plane import STEPS, rules
from machine import facts
from phyla.configuration import to_config
from phyla.evaluation import EvalTask, Moments, Suite
from phyla.evaluation.recorder import encode
from phyla.machine import AddReports, Command, Insert, InsertCheckpoint, Update
from phyla.records import (
    Attempt,
    AttemptState,
    Checkpoint,
    CheckpointState,
    EvalJob,
    EvalResult,
    Group,
    GroupState,
    JobState,
    Maximize,
    Member,
    MemberState,
    Report,
    Scored,
    StudyRecord,
    StudyState,
    TrialRecord,
)
from phyla.store import Store, open_store
from phyla.study.results.pages.evaluations import EVALUATION_SECTIONS
from phyla.study.results.pages.study import STUDY_SECTIONS

NAME = "long"
LIMIT_MIB = 250


def nothing(_evaluation: object) -> None:
    """Stand in for evaluation code, which is not what is measured."""


SUITE = Suite("heldout", (EvalTask("all", nothing),), objective=Maximize("score_mean"))


def history(study: StudyRecord, generations: int, began: float) -> Iterator[tuple[int, list[Command]]]:
    """Yield the commands of each generation of a study whose bad fifth takes over the good fifth."""
    rng = np.random.default_rng(0)
    size, new = study.population_size, 0
    heads: list[Scored | None] = [None] * size
    params = [{"rate": float(10 ** rng.uniform(-5, 0)), "momentum": float(rng.uniform())} for _ in range(size)]
    skill = np.zeros(size)
    for generation in range(generations):
        commands: list[Command] = []
        evaluated: list[Command] = []
        order = [int(index) for index in np.argsort(-skill)]
        parents = list(range(size))
        changes: list[dict[str, Any]] = [{}] * size
        for place in range(size - size // 5, size) if generation else ():
            index, donor = order[place], order[int(rng.integers(size // 5))]
            factors = {name: float(rng.choice((0.8, 1.2))) for name in params[donor]}
            new_params = {name: value * factors[name] for name, value in params[donor].items()}
            changes[index] = {
                name: {"from": params[donor][name], "to": new_params[name], "by": f"x{factors[name]}"}
                for name in new_params
            }
            parents[index], params[index], skill[index] = donor, new_params, skill[donor]
        before = list(heads)
        for index in range(size):
            new += 1
            at = began + 60.0 * generation + 50.0 * index / size
            head, own = before[parents[index]], before[index]
            skill[index] += float(rng.normal(0.02 - 0.01 * abs(np.log10(params[index]["rate"]) + 2), 0.01))
            score, name, start = float(skill[index]), f"{new}.1-0123456789abcdef", STEPS * generation
            reason: dict[str, Any] = {
                "decision": "continue",
                "compared": {"rule": "truncation", "rank": 5, "of": size},
            }
            if parents[index] != index and head and own:
                sides = {
                    who: {"member": one.member, "trial": one.trial, "fitness": one.fitness, "step": one.step}
                    for who, one in (("own", own), ("donor", head))
                }
                compared = {"rule": "truncation", "rank": size - 1, "of": size, "share": size // 5, **sides}
                reason = {"decision": "exploit", "compared": compared, "changes": changes[index]}
            trial = TrialRecord(
                id=new,
                study=study.id,
                member=index,
                generation=generation,
                state=JobState.COMPLETED,
                parent=head and head.trial,
                parent_checkpoint=head and head.checkpoint,
                jump_from=own.trial if own and parents[index] != index else None,
                params_from=head and head.trial,
                params=params[index],
                start_step=start,
                end_step=start + STEPS,
                reached_step=start + STEPS,
                seed=int(rng.integers(2**31)),
                token=1,
                exploited=parents[index] != index,
                fitness=score,
                order=score,
                metrics={"score": score, "loss": 1 - score},
                checkpoint=name,
                reason=reason,
                worker=f"node:{index % 8}:{4000 + index % 8}:launch",
                created_at=at,
                started_at=at,
                ended_at=at + 8.0,
                age=start,
            )
            timings = {"control": 0.01, "waiting": 0.0, "loading": 0.5, "training": 7.0, "saving": 0.49}
            attempt = Attempt(
                job=new,
                token=1,
                study=study.id,
                worker=trial.worker or "",
                state=AttemptState.COMPLETED,
                claimed_at=at,
                expires_at=at + 60,
                ended_at=at + 8.0,
                outcome={"trial": new, "repeated": False},
                timings=timings,
            )
            checkpoint = Checkpoint(
                study=study.id,
                name=name,
                trial=new,
                step=start + STEPS,
                number=size * generation + index,
                identity=f"{new:064}",
                size_bytes=1_000_000,
                created_at=at + 8.0,
                written_at=at + 8.0,
                state=CheckpointState.LIVE if generation >= generations - 2 else CheckpointState.DELETED,
            )
            heads[index] = Scored(
                trial=new,
                member=index,
                checkpoint=name,
                index=0,
                step=start + STEPS,
                params=params[index],
                fitness=score,
                order=score,
                age=start + STEPS,
                progress=start + STEPS,
            )
            reports = [Report(start + step, {"score": score, "loss": 1 - score}) for step in (STEPS // 2, STEPS)]
            commands += [Insert(trial), Insert(attempt), AddReports(new, 1, reports)]
            evaluated += evaluation(checkpoint, score, queued=new > size * (2 * generations - 1) - size // 10)
        if generation == generations - 1:
            ready = Member(study=study.id, index=0, state=MemberState.READY, progress=STEPS * generations)
            ready = replace(ready, generation=generations)
            for index, head in enumerate(heads):
                assert head is not None
                earlier = replace(head, trial=before[index].trial) if before[index] else head  # type: ignore[union-attr]
                commands.append(Update(replace(ready, index=index, head=head, states=(head, earlier))))
        yield size * (generation + 1), commands + evaluated
        new += size  # ids of eval tasks


def evaluation(checkpoint: Checkpoint, score: float, *, queued: bool) -> list[Command]:
    """Return what leaves a checkpoint that was evaluated, or that waits."""
    at = checkpoint.created_at
    ended = None if queued else at + 3.0
    values: Any = {} if queued else {"score_mean": {"value": score, "stderr": 0.01}}
    state = GroupState.QUEUED if queued else GroupState.COMPLETE
    group = Group(
        study=checkpoint.study, suite=SUITE.name, state=state, values=values, created_at=at, ended_at=ended
    )
    (task,) = SUITE.tasks
    job = EvalJob(
        study=checkpoint.study,
        task=task.name,
        identity=task.identity,
        state=JobState.PENDING if queued else JobState.COMPLETED,
        token=0 if queued else 1,
        worker=None if queued else "node:8:4008:launch",
        created_at=at,
        started_at=None if queued else at + 1.0,
        ended_at=ended,
    )
    result = EvalResult(
        identity=checkpoint.identity,
        task_identity=task.identity,
        study=checkpoint.study,
        statistics={"score": encode(Moments.of([score - 0.1, score + 0.1]), str)},
        duration_s=2.0,
        worker="node:8:4008:launch",
        created_at=at + 3.0,
    )
    return [InsertCheckpoint(checkpoint, [(group, [job])]), *([] if queued else [Insert(result)])]


def fill(store: Store, trials: int, members: int) -> StudyRecord:
    config = to_config(replace(rules(members), suites=(SUITE,)), 0)
    study = store.create_study(NAME, config, 0, members)
    began = time.time() - 60.0 * trials / members
    for done, commands in history(study, trials // members, began):
        with store.transaction(study.id, exclusive=True) as tx:
            tx.apply(commands)
        print(f"\r{done:,} trials", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return study


PAGES = (
    "/",
    f"/studies/{NAME}",
    f"/studies/{NAME}?from=900",
    f"/studies/{NAME}/trials",
    f"/studies/{NAME}/trials?after=50000",
    f"/studies/{NAME}/trials/100",
    f"/studies/{NAME}/members/7",
    f"/studies/{NAME}/evaluations",
    "/workers",
    "/compare",
)
TIMES = 7


def memory_mib(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 2**20


def touch(store: Store, study: StudyRecord) -> None:
    """Commit something, so that pages are made anew."""
    store.set_state(study.id, StudyState.RUNNING)


def page_times(http: httpx.Client, path: str, commit: Callable[[], None]) -> list[float]:
    """Return how long a page took after commits that it had to look at."""
    taken = []
    for _ in range(TIMES):
        commit()
        time.sleep(0.1)  # until the dashboard has heard of it
        began = time.perf_counter()
        http.get(path).raise_for_status()
        taken.append(time.perf_counter() - began)
    return taken


def delays(http: httpx.Client, commit: Callable[[], None]) -> list[float]:
    """Return how long after a commit an open page is told to look again."""
    taken = []
    with http.stream("GET", "/events", params={"page": "/compare"}) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data:"))
        for _ in range(TIMES):
            # A page is told once a second at most.
            time.sleep(2.0)
            began = time.perf_counter()
            commit()
            next(lines)
            taken.append(time.perf_counter() - began)
    return taken


def watched(process: psutil.Process, ended: threading.Event, peak: list[float]) -> None:
    """Note the highest resident set of a process and its children together."""
    while not ended.wait(0.05):
        with suppress(psutil.NoSuchProcess):
            peak[0] = max(peak[0], sum(map(memory_mib, [process, *process.children()])))


def told(what: str, found: dict[str, float]) -> None:
    print(f"{what:<40}", "  ".join(f"{name} {value:.0f}" for name, value in found.items()), flush=True)


def pages_of(http: httpx.Client, commit: Callable[[], None]) -> dict[str, dict[str, float]]:
    """Return the milliseconds that each page took."""
    found = {}
    for path in PAGES:
        taken = page_times(http, path, commit)
        found[path] = {"median": 1e3 * statistics.median(taken), "worst": 1e3 * max(taken)}
        told(f"{path}, ms", found[path])
    return found


def pages_beside(http: httpx.Client, drawing: threading.Thread) -> dict[str, float]:
    """Return the longest time that each page took while figures were drawn, in milliseconds."""
    found = dict.fromkeys(PAGES, 0.0)
    drawing.start()
    while drawing.is_alive():
        for path in PAGES:
            began = time.perf_counter()
            http.get(path).raise_for_status()
            if drawing.is_alive():
                found[path] = max(found[path], 1e3 * (time.perf_counter() - began))
    return found


def first_figures(url: str) -> dict[str, float]:
    """Return when a browser shows the first picture of a page, and the first figure of Plotly."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(url)
        page.wait_for_selector(".picture .plot", timeout=600_000)
        page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
        painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        page.wait_for_selector(".main-svg", timeout=600_000, state="attached")
        figures = page.evaluate("performance.now()")
        browser.close()
    return {"picture": painted, "plotly": figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--members", type=int, default=1_000)
    parser.add_argument("--home", type=Path, help="keep the study there, and use it if it is there already")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with ExitStack() as stack:
        home = options.home or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dashboard")))
        home.mkdir(parents=True, exist_ok=True)
        store = open_store(f"sqlite:///{home / 'phyla.db'}")
        study = store.find_study(NAME) or fill(store, options.trials, options.members)
        command = [sys.executable, "-m", "phyla.cli", "dashboard", "--home", str(home), "--port", "0"]
        server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(server.terminate)
        assert server.stdout is not None
        http = stack.enter_context(httpx.Client(base_url=server.stdout.readline().split()[-1], timeout=600))
        process, commit = psutil.Process(server.pid), partial(touch, store, study)
        ended, peak = threading.Event(), [0.0]
        watch = threading.Thread(target=watched, args=(process, ended, peak))
        watch.start()
        stack.callback(ended.set)
        found: dict[str, Any] = {"trials": options.trials, "members": options.members}
        found["first_ms"] = first_figures(f"{http.base_url}/studies/{NAME}")
        told("first picture and first figure of Plotly in a browser, ms", found["first_ms"])
        found["pages_ms"] = pages_of(http, commit)
        late = delays(http, commit)
        found["update_ms"] = {"median": 1e3 * statistics.median(late), "worst": 1e3 * max(late)}
        told("update, ms", found["update_ms"])
        before = peak[0]
        names = [name for name in (*STUDY_SECTIONS, *EVALUATION_SECTIONS) if not name.startswith("front")]
        sizes: dict[str, float] = {}
        took = [0.0]

        def draw() -> None:
            began = time.perf_counter()
            with httpx.Client(base_url=http.base_url, timeout=600) as other:
                sizes.update({name: len(other.get(f"/studies/{NAME}/figures/{name}").content) for name in names})
            took[0] = time.perf_counter() - began

        found["pages_while_it_draws_ms"] = pages_beside(http, threading.Thread(target=draw))
        told("pages while it draws, longest ms", found["pages_while_it_draws_ms"])
        found["figures"] = {"took_s": took[0], "bytes": sizes}
        told(f"figures, in {took[0]:.1f} s, bytes", sizes)
        found["memory_mib"] = {"pages": before, "figures": peak[0], "limit": LIMIT_MIB}
        told("memory, resident set, MiB", found["memory_mib"])
        ended.set()
        watch.join()
    if options.output:
        options.output.write_text(json.dumps({"machine": facts(), "found": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
