"""The supervisor of the worker processes of this machine."""

import contextlib
import logging
import math
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import final

from phyla.checkpoints import full
from phyla.client import Client
from phyla.errors import Preempted, StoreBusy, StoreError, StoreUnavailable, StudyChanged, StudyFailed, advice_on
from phyla.records import LOG_FOLLOWS, WorkKind
from phyla.settings import awake_clock, system_clock, thread_environment
from phyla.supervision.gpus import VISIBLE, seen_gpus
from phyla.supervision.packing import Packing, wide_tasks
from phyla.supervision.term import PERSON, Term
from phyla.supervision.worker_process import WorkerProcess, inherited, wait_for_end
from phyla.worker import Closing, Launch
from phyla.worker.commands.outputs import drop_middle, tail
from phyla.worker.containment import keeper
from phyla.worker.containment.processes import describe_end
from phyla.worker.spec import Exit, WorkerSpec

POLL_S = 0.2
"""Interval of checks for progress and for what to display; the end of a worker is noticed at once."""
LOOK_S = 1.0
"""Seconds between checks for eval tasks that need more GPUs than a usual worker has."""
COLLECT_S = 1.0
"""Seconds between garbage collections while trials complete."""
COLLECTED_S = 5.0
"""Seconds that a run waits at its end for the last of them, which the next run would finish."""
TRIM_S = 1.0
"""Seconds between checks of log sizes."""

CRASHES_IN_A_ROW = 10
"""Deaths of workers, without a completed trial in between, after which the run gives up."""

SPOILED_IN_A_ROW = 2
"""The same for workers in which phyla fails because user code has modified the process."""

OUTDATED_S = (1.0, 60.0)
"""Seconds until a worker with outdated settings restarts: first, and at most; doubled each time."""

BROKEN_S = 600.0
"""Seconds that a run waits for the repair of the user's files if they were broken and no worker can start."""

LOG = logging.getLogger("phyla")
LOG_TAIL = 2000


@final
@dataclass(eq=False)
class Supervisor:
    """Starts worker processes on this machine and restarts them until the study ends.

    It renews the leases of live processes, even while training code blocks the interpreter. It takes back the jobs
    of a dead process at once and starts another, kills processes that stall, and collects checkpoints.

    Args:
        launch: names the workers; they inherit its lock.
        environments: extra environment variables, one mapping per worker.
        gpus: the GPUs that eval tasks with several GPUs may use.
        stall_timeout_s: seconds without a step, a report or a finished trial before a worker is killed, counted
            from its first request; None never kills.
        on_interrupt: called for each interrupt inside the signal handler, so it must be brief.
    """

    client: Client
    specs: Sequence[WorkerSpec]
    _: KW_ONLY
    launch: Launch
    environments: Sequence[Mapping[str, str]]
    logs: Path
    renew_s: float
    stall_timeout_s: float | None
    gpus: Sequence[str] = ()
    term: Term = field(default_factory=Term)
    on_tick: Callable[[], None] = lambda: None
    on_interrupt: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._clock = awake_clock()
        self._started = 0
        self._processes: dict[int, WorkerProcess] = {}
        self._later: list[tuple[float, WorkerSpec]] = []
        # How often in a row each worker had outdated settings.
        self._outdated: dict[int, int] = {}
        # The workers that could start before, and since when they cannot start again.
        self._able: set[int] = set()
        self._unable: dict[int, float] = {}
        # Usual workers that wait for their GPUs while a wide worker uses them.
        self._parked: dict[int, WorkerSpec] = {}
        self._looked_at = float("-inf")
        self._packing = Packing(
            self.gpus, [seen_gpus(environment, self.gpus) for environment in self.environments]
        )
        self._cannot_go_on: StudyFailed | StudyChanged | None = None
        self._crashes = 0
        self._spoiled = 0
        self._uncollected = False
        self._cannot_collect: Exception | None = None
        self._stopped_by = ""
        self._said_left = False
        self._kills_at = math.inf
        self._out_of_time = False

    def run(self) -> bool:
        """Work until the study ends; return False if a user interrupted it.

        On the first signal every worker saves and returns its trial to the queue; a second Ctrl-C kills them.

        Raises:
            Preempted: a signal or the time limit stopped the run before the study ended.
            StudyFailed: workers cannot start, or keep dying.
            CheckpointsAbsent: the directory of the checkpoints is gone.
            StudyChanged: settings or suites were changed, and workers cannot adopt them.
            StoreError: the database failed.
        """
        try:
            self._run()
        except OSError as error:
            message = f"cannot run workers: {error}; {advice_on(error)}. Then run the study again"
            self.client.give_up(message)
            raise StudyFailed(message) from error
        why = self._stopped_by or (self.term.end_message(over=False) if self._out_of_time else PERSON)
        if why != PERSON and self.client.is_active():
            raise Preempted(why)
        return self._stopped_by != PERSON

    def _run(self) -> None:
        self.logs.mkdir(parents=True, exist_ok=True)
        ended = threading.Event()
        with contextlib.ExitStack() as stack:
            for number in self.term.signals:
                with contextlib.suppress(ValueError):  # not the main thread: the signals belong to its owner
                    before = signal.signal(number, lambda number, frame: self.interrupt(number))
                    stack.callback(signal.signal, number, before)
            if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
                with contextlib.suppress(ValueError):
                    signal.signal(signal.SIGTSTP, lambda number, frame: self._pause())
                    stack.callback(signal.signal, signal.SIGTSTP, signal.SIG_DFL)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="phyla-")))
            helper = None
            if sys.platform == "linux":
                helper = subprocess.Popen(
                    [sys.executable, "-I", "-S", keeper.__file__, f"{self.launch.id}:"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=inherited(self.launch),
                )
                # It runs until its standard input closes, however this process ends.
                stack.enter_context(helper)
            collector = threading.Thread(target=self._collect, args=(ended,), name="phyla-collect", daemon=True)
            stack.callback(collector.join, COLLECTED_S)
            stack.callback(self._end_all)
            stack.callback(ended.set)
            threading.Thread(target=self._renew, args=(ended,), name="phyla-leases", daemon=True).start()
            collector.start()
            for spec in self.specs:
                log, beats = self.logs / f"worker-{spec.index}.log", folder / f"{spec.index}.beat"
                self._start(replace(spec, log=str(log), beat_file=str(beats)))
            if helper is not None:
                helper.wait()  # it has gone into the background
            trimmed_at = time.monotonic()
            while self._processes or self._later or self._parked:
                self._start_due()
                self._watch_time()
                self._make_room(folder)
                for process in list(self._processes.values()):
                    self._look_at(process)
                if time.monotonic() - trimmed_at >= TRIM_S:
                    trimmed_at = time.monotonic()
                    for process in self._processes.values():
                        with contextlib.suppress(OSError), open(process.spec.log, "r+b") as file:
                            drop_middle(file.fileno())
                if self._cannot_collect is not None:
                    raise self._cannot_collect
                self.on_tick()
                wait_for_end(self._processes.values(), POLL_S)
        if self._cannot_go_on is not None:
            raise self._cannot_go_on

    def interrupt(self, number: int) -> None:
        """Stop gracefully; at once if a user repeats the interrupt.

        Other signals may arrive twice: at the process, and at its group.
        """
        by_person = number == signal.SIGINT
        again = self._interrupted()
        if by_person or not again:
            self.on_interrupt()
            self._kills_at = min(self._kills_at, self._clock() + self.term.grace_s)
            self._stop(PERSON if by_person else f"stopped by {signal.Signals(number).name}", at_once=again)

    def _pause(self) -> None:
        """Pause together with the workers and their processes, because their leases would not be renewed."""
        keeper.signal_marked(f"{self.launch.id}:", signal.SIGSTOP)
        ours = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)  # until `fg` or `bg`; ignored without a shell
        signal.signal(signal.SIGTSTP, ours)
        keeper.signal_marked(f"{self.launch.id}:", signal.SIGCONT)

    def _stop(self, why: str, *, at_once: bool) -> None:
        self._stopped_by = self._stopped_by or why
        # The workers wait for their store. This process need not, or no signal would end it meanwhile.
        self.client.store.hold_on(0.0)
        for process in self._processes.values():
            if process.popen.poll() is None:
                process.popen.send_signal(signal.SIGKILL if at_once else signal.SIGTERM)

    def _interrupted(self) -> bool:
        """Return whether the run was interrupted, which may happen between any two statements."""
        return bool(self._stopped_by)

    def _watch_time(self) -> None:
        now = system_clock()
        if now >= self.term.stops_at and not self._interrupted():
            self.on_interrupt()
            self._stop(self.term.end_message(over=True), at_once=False)
        elif self._clock() >= self._kills_at:
            self._kills_at = math.inf
            for index in self._processes:
                LOG.warning("worker %d %s", index, self.term.overrun_message)
            self._stop(self._stopped_by, at_once=True)
        elif now >= self.term.ends_at:
            self._stop(self.term.end_message(over=True), at_once=True)
        if self._out_of_time and not any(
            WorkKind.TRAIN in process.spec.kinds for process in self._processes.values()
        ):
            # No trial will add evaluations.
            for process in self._processes.values():
                process.close_soon(Closing.WHEN_IDLE)

    def _make_room(self, folder: Path) -> None:
        """Let wide workers take turns with the usual ones; see `Packing`."""
        packing, processes = self._packing, self._processes
        if self._ending():
            return
        for key, room in list(packing.reserved.items()):
            if key in processes:
                if processes[key].trials >= room.jobs:
                    processes[key].close_soon(Closing.NOW)
            elif not any(worker in processes for worker in packing.in_the_way(key)):
                usual = next(spec for spec in self.specs if WorkKind.EVALUATE in spec.kinds)
                log, beats = self.logs / f"worker-{key}.log", folder / f"{key}.beat"
                wide = replace(usual, index=key, kinds=("evaluate",), gpus=(len(room.gpus),) * 2)
                self._launch(replace(wide, log=str(log), beat_file=str(beats)))
                if key in processes:
                    processes[key].close_soon(Closing.WHEN_IDLE)
        for spec in [spec for worker, spec in self._parked.items() if packing.may_run(worker)]:
            self._start(self._parked.pop(spec.index))
        evaluating = [spec.gpus[1] for spec in self.specs if WorkKind.EVALUATE in spec.kinds]
        now = time.monotonic()
        if not evaluating or max(evaluating) >= len(self.gpus) or now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        if self._parked and not self.client.is_active():
            self._parked.clear()
        with contextlib.suppress(StoreBusy, StoreUnavailable):
            asked = wide_tasks(self.client.waiting(), above=max(evaluating), labels=self.specs[0].labels)
            protected = [
                worker for worker, process in processes.items() if worker < len(self.specs) and process.beats < 1
            ]
            while (reserved := packing.reserve(asked, protected)) is not None:
                for worker in packing.in_the_way(reserved):
                    if worker in processes:
                        processes[worker].close_soon(Closing.NOW)

    def _ending(self) -> bool:
        return self._interrupted() or self._out_of_time

    def _start(self, spec: WorkerSpec) -> None:
        """Start a usual worker, or park it until its GPUs are free; wide workers start with new reservations."""
        if self._ending() or spec.index >= len(self.specs):
            return
        if self._packing.may_run(spec.index):
            self._launch(spec)
        else:
            self._parked[spec.index] = spec

    def _launch(self, spec: WorkerSpec) -> None:
        if self._interrupted():
            return
        room = self._packing.reserved.get(spec.index)
        gpus = self.environments[spec.index] if room is None else {VISIBLE: ",".join(sorted(room.gpus))}
        self._started += 1
        mark = f"{self.launch.id}:{self._started}:"
        environment = {keeper.VARIABLE: mark, **thread_environment(len(self.specs)), **gpus}
        process = WorkerProcess.start(spec, self.launch, mark, environment, self._clock())
        self._processes[spec.index] = process
        if self._interrupted():
            # The interrupt came before this process was registered.
            process.popen.terminate()

    def _collect(self, ended: threading.Event) -> None:
        """Collect checkpoints in a thread, because deleting large ones, or waiting for the store, takes long."""
        while not ended.wait(COLLECT_S):
            if self._uncollected:
                self._uncollected = False
                try:
                    with contextlib.suppress(StoreBusy, StoreUnavailable):
                        # The next collection deletes the rest.
                        self.client.collect()
                except Exception as error:  # noqa: BLE001  # raised in the main thread
                    self._cannot_collect = error
                    return

    def _renew(self, ended: threading.Event) -> None:
        """Renew leases in their own thread, because the main one may wait for the store."""
        while not ended.wait(self.renew_s):
            for process in list(self._processes.values()):
                with contextlib.suppress(StoreError):
                    # A lease lasts for three renewals; the next may succeed.
                    self.client.renew(process.spec.name)

    def _look_at(self, process: WorkerProcess) -> None:
        status = process.popen.poll()
        if status is None:
            self._check_progress(process)
            return
        self._close(process)
        user_left, status = status == Exit.LEFT, 0 if status == Exit.LEFT else status
        spec, how = process.spec, f"worker process {process.popen.pid} {describe_end(status)}"
        try:
            end = tail(Path(spec.log), LOG_TAIL)
        except OSError as error:
            end = f"({spec.log} cannot be read: {error.strerror})"
        if user_left and not self._said_left:
            LOG.warning("worker %d: %s", spec.index, (end.splitlines() or [""])[-1])
            self._said_left = True
        within = f"{how} within the trial{LOG_FOLLOWS}{spec.log}"
        held = self.client.lose_worker(spec.name, within, counts=True) if status == 0 else 0
        if status == 0 and not held:
            if process.closing:
                self._start(spec)
            elif not self._interrupted() and self.client.is_active():
                # A user stopped only this worker.
                self._start_again(spec, f"{how} while the study was running")
        elif status == Exit.OUTDATED:
            self.client.lose_worker(spec.name, within, counts=False)
            why = (end.splitlines() or [how])[-1]
            if spec.watched:
                self._cannot_go_on = StudyChanged(f"worker {spec.index} ended: {why}")
            else:
                self._start_later(spec, why)
        elif status == Exit.NO_TIME:
            self._out_of_time = True
        elif status == Exit.SPOILED:
            trials, why = process.last_words()
            self._spoiled = self._spoiled + 1 if trials == process.trials else 1
            self._crashed(spec, why)
        elif status == Exit.CANNOT_START:
            failed = StudyFailed(f"worker {spec.index} cannot start (its log is {spec.log}):\n{end}")
            if spec.index in self._outdated:
                # Running workers may finish their work.
                self._cannot_go_on = failed
            elif not self._was_able(spec):
                raise failed
            elif not self._interrupted():
                self._start_once_able(spec, failed)
        elif self._interrupted():
            self.client.lose_worker(spec.name, "its worker was killed while the run stopped", counts=False)
        else:
            no_room = full([Path(spec.log).parent])
            how = f"{how}; {no_room}" if no_room else how
            blameless = no_room or status in (Exit.STORE_FAILED, Exit.CHECKPOINTS_ABSENT)
            why = "\n".join([f"{how}{LOG_FOLLOWS}{spec.log}", *([end] if end else [])])
            self._crashed(spec, why, counts=not blameless, held=held)

    def _check_progress(self, process: WorkerProcess) -> None:
        trials = process.look(self._clock())
        if trials:
            self._crashes = self._spoiled = 0
            if process.spec.index in self._outdated:
                self._outdated[process.spec.index] = 0
            self._uncollected = True
        why = process.overdue(self.stall_timeout_s)
        if why is not None:
            process.popen.kill()
            self._close(process)
            self._crashed(process.spec, why)

    def _crashed(self, spec: WorkerSpec, why: str, *, counts: bool = True, held: int = 0) -> None:
        held += self.client.lose_worker(spec.name, why, counts=counts)
        self.client.recover()
        if held and counts and (WorkKind.TRAIN not in spec.kinds or self.client.has_completed()):
            # A member or an eval task that kills its worker is given up after some attempts; the study continues.
            self._crashes = 0
        self._start_again(spec, why)

    def _start_again(self, spec: WorkerSpec, why: str) -> None:
        self._crashes += 1
        if self._crashes >= CRASHES_IN_A_ROW or self._spoiled >= SPOILED_IN_A_ROW:
            count = max(self._crashes, self._spoiled)
            message = f"{count} workers in a row ended without progress, the last: {why}"
            self.client.give_up(message)
            raise StudyFailed(message)
        self._start(spec)

    def _start_later(self, spec: WorkerSpec, why: str) -> None:
        """Restart a worker with outdated settings after a delay; this does not count as a crash."""
        if not any(self._outdated.values()):
            LOG.warning(
                "worker %d ended: %s. Until then, workers restart periodically to check the settings",
                spec.index,
                why,
            )
        first_s, most_s = OUTDATED_S
        times = self._outdated.get(spec.index, 0)
        self._outdated[spec.index] = times + 1
        self._later.append((time.monotonic() + min(most_s, first_s * 2**times), spec))

    def _was_able(self, spec: WorkerSpec) -> bool:
        """Return whether a worker could start before, with the same files; a wide worker is new each time."""
        return spec.index in self._able or (spec.index >= len(self.specs) and bool(self._able))

    def _start_once_able(self, spec: WorkerSpec, failed: StudyFailed) -> None:
        """Restart a worker until its files, which a user may be editing, are repaired.

        Raises:
            StudyFailed: no other worker runs, and this one has failed to start for too long.
        """
        now = time.monotonic()
        since = self._unable.setdefault(spec.index, now)
        if now - since >= BROKEN_S and not self._processes:
            raise failed
        if now == since:
            why = str(failed).splitlines()[-1]
            LOG.warning(
                "worker %d cannot start again: %s (its log is %s). Repair the file: the worker starts once it can",
                spec.index,
                why,
                spec.log,
            )
        first_s, most_s = OUTDATED_S
        self._later.append((now + min(most_s, max(first_s, now - since)), spec))

    def _start_due(self) -> None:
        now = time.monotonic()
        due = [spec for at, spec in self._later if at <= now]
        if self._ending() or (due and not self.client.is_active()):
            self._later.clear()
            self._parked.clear()
            return
        self._later = [(at, spec) for at, spec in self._later if at > now]
        for spec in due:
            self._start(spec)

    def _end_all(self) -> None:
        for process in self._processes.values():
            if process.popen.poll() is None:
                process.popen.kill()
        for process in list(self._processes.values()):
            self._close(process)
            self.client.lose_worker(process.spec.name, "its run ended", counts=False)

    def _close(self, process: WorkerProcess) -> None:
        process.popen.wait()
        if process.has_worked():
            self._able.add(process.spec.index)
            self._unable.pop(process.spec.index, None)
        del self._processes[process.spec.index]
        self._packing.release(process.spec.index)
        process.clean_up()
