"""A study of trials on two nodes, what runs for one of them, and how to kill a part of it."""

import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from forked import Forked
from phyla.records import StudyState
from phyla.settings import child_environment
from phyla.study import Places, Results
from phyla.study.results.load import open_any
from waiting import until

RANK = """
# Trains one rank: both have to be there, each saves its part, and files may hold them at a phase.
set -e
# The first trial is never held, since a study that never completes one stops itself.
rank=$1 nodes=$2 save_to=$3 metrics=$4 trial=$5 lr=$6 source=$7
hold() {
    [ -e "hold-$1" ] && [ "$trial" != 1 ] || return 0
    setsid sleep 1000 &
    : > "at-$1-$rank-$$"
    while [ -e "hold-$1" ]; do sleep 0.1; done
    kill $!
}
trap 'echo "$rank" >> stopped; exit 0' TERM
hold training
meet=meet-$trial-$MASTER_PORT
mkdir -p "$meet"
: > "$meet/$rank"
while [ "$(ls "$meet" | wc -l)" -lt "$nodes" ]; do sleep 0.1; done
[ "$rank" = 0 ] || hold saving
echo "$MASTER_ADDR" > "master-$rank"
echo "$CUDA_VISIBLE_DEVICES" > "gpus-$rank"
cat ${source:+"$source/part-$rank"} > "$save_to/part-$rank"
echo "$lr" >> "$save_to/part-$rank"
[ "$rank" != 0 ] || echo "{\\"lines\\": $(wc -l < "$save_to/part-0")}" >> "$metrics"
if [ "$rank" = 0 ]; then hold saving; else hold end; fi
"""
STUDY = """
name = "gangs"
command = ["sh", "rank.sh", "{node_rank}", "{nodes}", "{save_to}", "{metrics}", "{trial}", "{lr}", ["{source}"]]
objective = "maximize lines"
[resources]
nodes = NODES
gpus = GPUS
[retries]
attempts = 100
[space]
lr = { low = 0.1, high = 1.0 }
[random-search]
members = 1
steps_per_trial = 1
total_steps = 2
"""
TRIALS = 2


class Gangs:
    """A study of gangs in a folder that both nodes see."""

    def __init__(self, folder: Path, nodes: int = 2, gpus: int = 0) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.home = folder, folder / "home"
        (folder / "rank.sh").write_text(RANK)
        (folder / "study.toml").write_text(STUDY.replace("NODES", str(nodes)).replace("GPUS", str(gpus)))

    def start(self, *words: object, environment: Mapping[str, str] | None = None) -> Forked:
        """Start `phyla WORDS` with its home."""
        env = child_environment({"PHYLA_HOME": str(self.home), **(environment or {})})
        return Forked(("-m", "phyla.cli", *words), cwd=self.folder, env=env, merged=True, session=True)

    def run(self, *words: object, environment: Mapping[str, str] | None = None) -> Forked:
        """Start `phyla run` for it."""
        self.process = self.start("run", "study.toml", *words, environment=environment)
        return self.process

    def end(self, run: Forked, code: int = 0) -> str:
        """Wait for the end of a run; return what it printed."""
        printed, _ = run.communicate(180)
        assert run.returncode == code, printed
        return printed

    def hold(self, phase: str) -> None:
        """Hold ranks at a phase: at `saving`, rank 0 has saved and rank 1 has not; at `end`, rank 0 has ended."""
        (self.folder / f"hold-{phase}").touch()

    def go_on(self, phase: str) -> None:
        """Hold them there no longer."""
        (self.folder / f"hold-{phase}").unlink()

    def until_held(self, phase: str) -> None:
        """Wait until the ranks of a further attempt are held at a phase."""
        count = 1 if phase == "end" else 2
        found = partial(self.folder.glob, f"at-{phase}-*")
        held = until(lambda: signs if len(signs := [*found()]) == count else None, phase, process=self.process)
        for sign in held:
            sign.unlink()

    def until_told(self, wait: str) -> None:
        """Wait until the log of a worker of this machine tells what it waits for."""
        log = self.home / "logs" / "gangs" / "worker-0.log"
        until(lambda: log.is_file() and wait in log.read_text(), f"{wait}, and tells it", process=self.process)

    def stop(self) -> None:
        """Stop a run with Ctrl-C, and wait until nothing is left of its gang."""
        family = family_of(self.folder)
        self.process.send_signal(signal.SIGINT)
        self.end(self.process, 130)
        family.until_gone()

    def stop_and_finish(self, *words: object, saves: bool = True) -> None:
        """Stop a run while both ranks train, then run it to its end; `saves` says whether they have saved."""
        self.hold("training")
        self.run(*words)
        self.until_held("training")
        self.stop()
        if saves:
            assert sorted((self.folder / "stopped").read_text().split()) == ["0", "1"]
        self.go_on("training")
        self.finish(self.run(*words))

    def kill_in_phases(self, victims: Mapping[str, Sequence[str]], kill: "Callable[[Family, str], None]") -> None:
        """Kill parts of the gang, one after another, at each phase, the first of which holds ranks already."""
        phases = [*victims]
        for phase, following in zip(phases, [*phases[1:], None], strict=True):
            for victim in victims[phase]:
                self.until_held(phase)
                if following is not None:
                    self.hold(following)
                kill(family_of(self.folder), victim)
            self.go_on(phase)

    def finish(self, run: Forked) -> None:
        """Wait until a run has completed all trials, and found what one machine does, in the parts of two."""
        assert f"{TRIALS} trials completed" in (printed := self.end(run))
        assert ", 0 failed" in printed
        alone = Gangs(self.folder.parent / "alone", nodes=1)
        alone.end(alone.run("--workers", 0))
        expected = alone.outcome
        assert (alone.folder / "master-0").read_text() == "127.0.0.1\n"
        assert self.outcome == {**expected, "parts": expected["parts"] * 2}

    @property
    def results(self) -> Results:
        found = open_any("gangs", Places.of(self.home))
        assert isinstance(found, Results)
        return found

    @property
    def outcome(self) -> dict[str, Any]:
        """What a study that has ended well has found."""
        results = self.results
        assert results.state is StudyState.COMPLETED
        assert results.counts() == {"completed": TRIALS}
        best = results.best
        assert best is not None
        parts = [(best.checkpoint.path / f"part-{rank}") for rank in (0, 1)]
        return {"lr": best.params["lr"], "parts": [part.read_text() for part in parts if part.exists()]}


class Family:
    """The processes of the gang that runs, by their part in it."""

    def __init__(self, folder: Path) -> None:
        self.gang = programs("gang.py", folder)
        self.keeper = parents(self.gang)
        self.worker = parents(self.keeper)
        self.engine = [child for process in self.gang for child in process.children(recursive=True)]
        # Its child, the keeper, was forked from it.
        ranks = programs("rank.py", folder)
        self.guard = [process for process in ranks if process.parent() not in ranks]
        self.rank_keeper = [child for process in self.guard for child in process.children()]
        self.command = [child for process in self.rank_keeper for child in process.children()]
        below = [child for process in self.guard for child in process.children(recursive=True)]
        self.all = {*self.gang, *self.keeper, *self.engine, *self.guard, *below}

    def until_gone(self) -> None:
        """Wait until nothing of it is left, on any node."""
        until(lambda: not any(map(runs, self.all)), "the gang has ended")


def family_of(folder: Path) -> Family:
    """Return the processes of the gang that runs; the ranks start others, which end at any time."""
    while True:
        with contextlib.suppress(psutil.NoSuchProcess):
            return Family(folder)


def parents(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return the parents of processes."""
    return [parent for process in processes if (parent := process.parent())]


def programs(name: str, folder: Path) -> list[psutil.Process]:
    """Return the processes that run a program of gangs for a study."""
    running = psutil.process_iter(["cmdline"])
    lines = {process: process.info["cmdline"] or () for process in running}
    return [
        process
        for process, words in lines.items()
        if any(word.endswith(f"/{name}") for word in words[3:4]) and str(folder) in " ".join(words)
    ]


def runs(process: psutil.Process) -> bool:
    """Return whether a process has not ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(family: Family, victim: str) -> None:
    """Kill a part of a gang, and wait until nothing of it is left."""
    for process in getattr(family, victim)[: None if victim == "engine" else 1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    family.until_gone()
