"""A study that pools of workers train in tests, and how to wait for it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forked import Forked
from phyla.launchers import Pool
from phyla.records import StudyState
from phyla.settings import child_environment
from phyla.study import Places, Results
from phyla.study.results.load import open_any
from waiting import until

MEMBERS, STEPS, TOTAL = 2, 3, 9
TRIALS = MEMBERS * TOTAL // STEPS
STUDY = f"""
import json, time
from pathlib import Path
from typing import Any
import phyla

HERE = Path(__file__).parent

def train(trial):
    trained = json.loads((trial.source.path / "steps.json").read_text()) if trial.source else []
    for step in trial.steps():
        trained.append(step)
        if step == 4:
            # Both members wait in the midst of their second trial.
            (HERE / f"waits-{{trial.member}}-{{trial.id}}").touch()
            while not ((HERE / "go on").exists() or trial.should_save):
                time.sleep(0.005)
        if trial.should_save:
            (trial.checkpoint_dir / "steps.json").write_text(json.dumps(trained))
            trial.save_progress()
    (trial.checkpoint_dir / "steps.json").write_text(json.dumps(trained))
    trial.report(steps=len(trained))

study = phyla.Study(
    "NAME",
    phyla.Space(lr=phyla.Float(0.1, 1.0)),
    phyla.Maximize("steps"),
    phyla.RandomSearch(members={MEMBERS}, steps_per_trial={STEPS}, total_steps={TOTAL}),
    train,
)
"""


class Pooled:
    """A study in a folder, whose home is beside its file."""

    def __init__(self, folder: Path, name: str = "toy") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name, self.folder = name, folder
        self.file = folder / f"{name}.py"
        self.file.write_text(STUDY.replace("NAME", name))
        self.home = folder / "a home"

    def start(self, *words: object, merged: bool = True, spares: int = 0) -> Forked:
        """Start `phyla WORDS` with this home; for `spares` see `Forked`."""
        environment = child_environment({"PHYLA_HOME": str(self.home)})
        how: dict[str, Any] = {"merged": merged, "session": True, "spares": spares}
        return Forked(["-m", "phyla.cli", *words], cwd=self.folder, env=environment, **how)

    def run(self, *words: object, spares: int = 0) -> Forked:
        """Start `phyla run` for it."""
        return self.start("run", self.file, *words, spares=spares)

    def call(self, *words: object, code: int = 0) -> str:
        """Run `phyla WORDS` to its end and return what it printed."""
        process = self.start(*words)
        printed, _ = process.communicate(180)
        assert process.returncode == code, printed
        assert "Traceback" not in printed
        return printed

    @property
    def workers(self) -> list[dict[str, Any]]:
        """What `phyla workers --json` prints; Ray reports nodes that died among the errors, at any time."""
        process = self.start("workers", "--json", merged=False)
        printed, errors = process.communicate(180)
        assert process.returncode == 0, errors
        workers: list[dict[str, Any]] = json.loads(printed)
        return workers

    def until_waiting(self, count: int = MEMBERS) -> None:
        """Wait until trials wait, of each member or only of some."""
        until(lambda: len(list(self.folder.glob("waits-*"))) >= count, f"{count} trials wait")

    def go_on(self) -> None:
        """Let trials wait no longer."""
        (self.folder / "go on").touch()

    @property
    def results(self) -> Results:
        """What it found so far."""
        found = open_any(self.name, Places.of(self.home))
        assert isinstance(found, Results)
        return found

    @property
    def pool(self) -> Pool:
        """The pool of its name."""
        found = Pool.load(self.home / "pools" / self.name)
        assert found is not None
        return found

    def completed(self) -> bool:
        """Return whether it has ended well, with each trial completed once and every step trained in order."""
        results = self.results
        if results.state is not StudyState.COMPLETED:
            return False
        assert results.counts() == {"completed": TRIALS}
        best = results.best
        assert best is not None
        assert (best.checkpoint.path / "steps.json").read_text() == str([*range(TOTAL)])
        return True


def pids(pool: Pool) -> list[int]:
    """Return the processes of a pool of this machine."""
    from phyla.launchers.local import _processes

    return _processes(pool)


def until_gone(pid: int) -> None:
    """Wait until a process has ended."""
    until(lambda: not _there(pid), f"process {pid} is gone")


def _there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


Call = Callable[..., str]
