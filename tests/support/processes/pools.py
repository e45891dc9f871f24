"""Pools of small programs that tests of launchers start."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phyla.launchers import Pool
from waiting import until

PROGRAM = """
import json, os, pathlib, signal, sys, time
folder, ending = pathlib.Path(sys.argv[1]), sys.argv[2]
me = folder / str(os.getpid())

def end(number, frame):
    me.with_suffix(".saved").write_text(signal.Signals(number).name)
    if ending != "stubborn":
        os._exit(75)

signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGUSR1, end)
print("worker", os.getpid(), flush=True)
told = {"pid": os.getpid(), "arguments": sys.argv[3:], "directory": os.getcwd(), "value": os.environ.get("VALUE")}
me.with_suffix(".draft").write_text(json.dumps(told))
me.with_suffix(".draft").rename(me.with_suffix(".up"))
while not (folder / "end").exists():
    time.sleep(0.01)
"""
"""Says that it is up; ends when it is told to, when a file says so, or, if it is `stubborn`, only with SIGKILL."""


class Signs:
    """What the programs of a pool left in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.program = folder / "program.py"
        self.program.write_text(PROGRAM)

    def pool(self, launcher: str, folder: Path, *arguments: str, workers: int = 2, **more: Any) -> Pool:
        """Return a pool of such programs, with its file written."""
        ending = more.pop("ending", "soon")
        pool = Pool(
            name=folder.name,
            launcher=launcher,
            command=[sys.executable, "-I", str(self.program), str(self.folder), ending, *arguments],
            workers=workers,
            folder=folder,
            **more,
        )
        pool.save()
        return pool

    def up(self) -> list[Mapping[str, Any]]:
        """Return what each program said when it was up."""
        return [json.loads(file.read_text()) for file in self.folder.glob("*.up")]

    def until_up(self, count: int) -> list[Mapping[str, Any]]:
        """Wait until as many programs as that were started, ever."""
        found: list[Mapping[str, Any]] = until(
            lambda: len(told := self.up()) >= count and told, f"{count} programs are up"
        )
        assert len(found) == count
        return found

    def saved(self) -> list[str]:
        """Return the signals that programs were told to end with."""
        return [file.read_text() for file in self.folder.glob("*.saved")]

    def end(self) -> None:
        """Let all programs end by themselves."""
        (self.folder / "end").touch()
