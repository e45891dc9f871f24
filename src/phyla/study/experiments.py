"""Experiments on a training function: studies of one member, each in a home and a process of its own.

`phyla.study.check` compares what they leave. Nothing of the user's study is touched.
"""

import contextlib
import functools
import gc
import json
import logging
import os
import random  # noqa: TID251  # training may draw from it
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from phyla import plugins, settings
from phyla.checkpoints import LocalCheckpoints
from phyla.checkpoints.content import MANIFEST_NAME
from phyla.controller import from_config
from phyla.errors import CheckpointError, StudyFailed
from phyla.launchers.process import die_with_parent
from phyla.records import JobKind, JobState, JsonObject, Member, Minimize, Phase, StartFrom, said_by
from phyla.strategies import Context, Decision, Measure, Population, Start, Stop, Strategy
from phyla.study import facts
from phyla.study.checked import Retention, Retries
from phyla.study.findings import Finding
from phyla.study.study import Study
from phyla.worker import Trial, session_of

PIN = 20_240_601
NOTHING = Minimize("phyla/nothing")
"""The objective where a suite gives the fitness, which no experiment evaluates."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Strategy):
    """One member trains the given trials, mappings with `steps`, `seed` and `params`; then it is measured."""

    trials: Sequence[Mapping[str, Any]]
    measures: int
    population_size = 1
    pareto = True

    def finished(self, member: Member) -> bool:
        """Return whether there is nothing to measure either."""
        return member.generation >= len(self.trials) and not self.measures

    def decide(self, member: Member, population: Population, context: Context) -> Decision:
        """Return the next trial."""
        if member.broken_trial is not None or context.state is not None:
            return Stop(reason={"why": "there is nothing more to do"})
        if member.generation >= len(self.trials):
            return Measure(times=self.measures, reason={"decision": "measure"}, state="measured")
        wanted = self.trials[member.generation]
        return Start(
            weights=member.head,
            params=context.space.validate(wanted["params"]),
            params_from=None,
            steps=wanted["steps"],
            reason={"decision": "check"},
            seed=wanted["seed"],
        )


@final
class Pins:
    """Sets the random generators of Python, NumPy and PyTorch to one state, at each step again.

    So a trial that goes on from a checkpoint draws the same numbers as one that came there in one go, also where
    it makes its generators from `trial.seed`. `release` gives each the state back that it had.
    """

    def __init__(self) -> None:
        self._states: dict[int, Callable[[], object]] = {}
        self._found: list[Any] | None = None

    def set(self, number: int, *, found: bool = True) -> None:
        """Set the global generators, and with `found` those of NumPy that existed at the first such call."""
        self._keep(random, random.setstate, random.getstate)
        random.seed(number)
        self._keep(np.random, np.random.set_state, np.random.get_state)
        np.random.seed(number)  # noqa: NPY002, TID251  # training may draw from it
        torch: Any = sys.modules.get("torch")
        if hasattr(torch, "manual_seed"):
            self._keep(torch, torch.set_rng_state, torch.get_rng_state)
            torch.manual_seed(number)
        if found and self._found is None:
            self._found = [one.bit_generator for one in gc.get_objects() if type(one) is np.random.Generator]
        for bits in self._found or ():
            self._keep(bits, functools.partial(setattr, bits, "state"), functools.partial(getattr, bits, "state"))
            bits.state = type(bits)(number).state

    def drawn(self) -> int:
        """Return a number that tells how much was drawn since the generators were set."""
        torch: Any = sys.modules.get("torch")
        numpys: Any = np.random.get_state()  # noqa: NPY002  # see above
        states = (random.getstate(), str(numpys[1:3]), *(str(bits.state) for bits in self._found or ()))
        return hash((states, torch.get_rng_state().numpy().tobytes() if hasattr(torch, "manual_seed") else b""))

    def _keep(self, owner: object, put: Callable[[Any], object], get: Callable[[], object]) -> None:
        if id(owner) not in self._states:
            self._states[id(owner)] = functools.partial(put, get())

    def release(self) -> None:
        """Give all generators their states back."""
        for restore in self._states.values():
            restore()


def _controlled(
    study: Study, pinned: int | None, notes: dict[int, str], uneven: set[int]
) -> Callable[[Trial], object]:
    """Return a training function whose random numbers are pinned from a step on.

    It notes what it did not report, and trials that draw more, or less, in the first step than in the next.
    """
    train: Any = study.train

    @functools.wraps(train)
    def controlled(trial: Trial) -> None:
        session, pins = session_of(trial), Pins()
        steps, drawn = session.steps, list[int]()

        def pinned_steps() -> Iterator[int]:
            for count, step in enumerate(steps()):
                with session.watch.within(Phase.CONTROL):  # which is no time of training's
                    if pinned is not None and count >= pinned:
                        pins.set(PIN)
                yield step
                with session.watch.within(Phase.CONTROL):
                    drawn.append(pins.drawn() if count < 2 else 0)

        if pinned is not None:
            pins.set(trial.seed, found=False)
            session.steps = pinned_steps  # type: ignore[method-assign]
        try:
            train(trial)
        finally:
            pins.release()
        if len(drawn) < 2 or drawn[0] != drawn[1]:
            uneven.add(trial.id)
        if session.unreported:
            if study.rules.reported_metrics:
                notes[trial.id] = session.missing("train() returned without reporting", "before it returns")
            # The rest can be checked nevertheless.
            session.report(dict.fromkeys(session.unreported, float("nan")), None)

    return controlled


def conduct(study: Study, plan: Plan, home: Path, start: StartFrom | None, pinned: int | None) -> JsonObject:
    """Run a study of these trials in a home of its own, in this process; return what there is to say of it."""
    notes, uneven = dict[int, str](), set[int]()
    made = Study(
        study.name,
        study.rules.space,
        study.rules.objective if study.rules.reported_metrics else NOTHING,
        plan,
        _controlled(study, pinned, notes, uneven),
        setup=study.setup,
        seed=study.seed,
        home=home,
        start_from=() if start is None else (start,),
        retention=Retention(every_steps=1),  # so that all are kept
        retries=Retries(attempts=1, broken=1),
    )
    failed = damage = None
    try:
        made.run(on_progress=lambda results: None)
    except StudyFailed as error:
        failed = str(error)
    results = made.results()
    attempts = {attempt.job: attempt for attempt in results.attempts()}
    rows = {row.name: row for row in results.checkpoints()}
    trials = []
    for trial in results.trials():
        attempt, row = attempts.get(trial.id), rows.get(trial.checkpoint or "")
        cause = attempt.cause if attempt else None
        if trial.state is not JobState.COMPLETED:
            failed = said_by(trial.error) if cause is None else replace(cause, log=None).words()
        elif attempt is not None and trial.kind is not JobKind.IMPORT:
            trials.append(
                {
                    "measuring": trial.kind is JobKind.MEASURE,
                    "end_step": trial.end_step,
                    "reached_step": trial.reached_step,
                    "metrics": trial.metrics,
                    "unreported": notes.get(trial.id),
                    "uneven": trial.id in uneven,
                    "timings": attempt.timings,
                    "checkpoint": row and row.name,
                    "size_bytes": row and row.size_bytes,
                }
            )
    repository = LocalCheckpoints(made.places.checkpoints(made.name))
    for name in rows:
        try:
            repository.verify(name)
        except CheckpointError as error:
            damage = str(error)
    findings = [asdict(finding) for finding in results.findings()]
    results._store.close()
    return {"failed": failed, "damage": damage, "findings": findings, "trials": trials}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one experiment left."""

    trials: Sequence[Mapping[str, Any]]  # those that completed
    facts: facts.Facts  # of the last checkpoint
    failed: str | None  # what was raised, and where
    damage: str | None  # how a committed checkpoint was changed
    findings: Sequence[Finding]
    kept: Path | None  # a copy of the last checkpoint, if it was asked for

    @property
    def trained(self) -> Mapping[str, Any]:
        """The last trial that trained."""
        return [trial for trial in self.trials if not trial["measuring"]][-1]

    @property
    def measured(self) -> Sequence[Mapping[str, Any]]:
        """The measurements of its checkpoint."""
        return [trial for trial in self.trials if trial["measuring"]]


@final
@dataclass(kw_only=True)
class Experiments:
    """Runs experiments one after the other; with `apart`, each in a fresh process.

    What is compared is read at once, and the experiment's home is deleted: what goes on from its checkpoint has a
    copy of that, and nothing else.
    """

    study: Study
    root: Path
    apart: bool
    count: int = field(default=0, init=False)

    def run(
        self,
        trials: Sequence[Mapping[str, Any]],
        *,
        start: StartFrom | None,
        pinned: int | None = 0,
        measures: int = 0,
        keep: bool = False,
    ) -> Outcome:
        """Run the trials one after the other, from a checkpoint or from nothing.

        Their random numbers are `pinned` from that step of each trial on; None leaves them as they are.
        """
        self.count += 1
        home, plan = self.root / str(self.count), Plan(trials=trials, measures=measures)
        home.mkdir()
        with _silent():
            conducted = self._apart if self.apart else functools.partial(conduct, self.study)
            told: Any = conducted(plan, home, start, pinned)
        known: facts.Facts = {}
        kept = None
        for trial in [one for one in told["trials"] if one["checkpoint"]][-1:]:
            path = home / "checkpoints" / self.study.name / trial["checkpoint"]
            metrics = {
                f"{facts.OBJECTIVE}{one}": trial["metrics"][one] for one in self.study.rules.reported_metrics
            }
            known = {**facts.read(path), **{name: float(value) for name, value in metrics.items()}}
            if keep:
                kept = self.root / f"kept-{self.count}"
                # Without its manifest it is imported as a copy, not as links to the same bytes.
                shutil.copytree(path, kept, ignore=shutil.ignore_patterns(MANIFEST_NAME))
        shutil.rmtree(home, ignore_errors=True)
        told["findings"] = [Finding(**finding) for finding in told["findings"]]
        return Outcome(**told, facts=known, kept=kept)

    def _apart(self, plan: Plan, home: Path, start: StartFrom | None, pinned: int | None) -> JsonObject:
        answer, log = home / "answer.json", home / "output.log"
        spec = {
            "name": self.study.name,
            "config": self.study.config(portable=True),
            "python_path": [entry or str(Path.cwd()) for entry in sys.path],
            "plan": asdict(plan),
            "start": None if start is None else start.to_json(),
            "pinned": pinned,
            "home": str(home),
            "answer": str(answer),
        }
        with (
            log.open("wb") as output,
            subprocess.Popen(
                [sys.executable, "-c", "from phyla.study.experiments import main; main()"],
                stdin=subprocess.PIPE,  # the process ends with this one: it stays open
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=settings.child_environment({"PHYLA_WORKER": f"check-{os.getpid()}:{self.count}:"}),
                text=True,
            ) as process,
        ):
            try:
                assert process.stdin is not None
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(f"{json.dumps(spec)}\n")
                    process.stdin.flush()
                process.wait()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if answer.exists():
            told: JsonObject = json.loads(answer.read_text())
            return told
        status = process.returncode
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        last = ([""] + [line for line in log.read_text(errors="replace").splitlines() if line.strip()])[-1]
        failed = f"its process ended with {how}" + (f": {last}" if last else "")
        return {"failed": failed, "damage": None, "findings": [], "trials": []}


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep what a study says in passing to itself."""
    log = logging.getLogger("phyla")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def main() -> None:
    """Conduct the experiment that standard input describes, and write the answer."""
    spec = json.loads(sys.stdin.readline())
    die_with_parent()
    sys.path[:] = spec["python_path"]
    config = spec["config"]
    rules = from_config(config, plugins.resolve)
    train, setup = map(_function, (config["train"], config["setup"]))
    study = Study(
        *(spec["name"], rules.space, rules.objective, rules.strategy, train),
        setup=setup,
        seed=config["seed"],
        suites=rules.suites,
    )
    start = None if spec["start"] is None else StartFrom(**spec["start"])
    told = conduct(study, Plan(**spec["plan"]), Path(spec["home"]), start, spec["pinned"])
    Path(spec["answer"]).write_text(json.dumps(told))


def _function(stored: Any) -> Any:
    """Return a function by its reference, or what is called in its place, such as a command."""
    return plugins.resolve(stored) if isinstance(stored, str) else plugins.decode(stored, plugins.resolve)
