"""Transcripts of the command line: what is printed by the commands of a scenario.

As a program, it writes the files of `tests/transcripts`: all of them, or those that it is given by name.
"""

import atexit
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Self

import httpx

import forked
from phyla.settings import child_environment
from scenarios import SCENARIOS
from waiting import until

FOLDER = forked.TESTS / "transcripts"
FILES = FOLDER / "files"
"""What is in the directory of each scenario at the start."""
QUIET = " > /dev/null"
PREPARED = f"phyla run small.py --workers 0{QUIET}"
"""How half of the scenarios begin: all but the first with a copy of what it left."""
NO_COPY = re.compile(r"^phyla (?:delete|doctor|gc)\b", re.MULTILINE)
"""Commands that delete no files of a store that is a copy."""
PLACEHOLDERS = {
    rf"\b{re.escape(socket.gethostname())}\b": "HOST",
    r"\b(\d+\.\d+)\.c?[0-9a-f]{11,12}\b": r"\1.DIGEST",
    r"\b(?=\d*[a-f])[0-9a-f]{12,}\b": "DIGEST",
    r"(?<![\w-])[\w-]{43}(?![\w-])": "TOKEN",
    r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?)?": "DATE",
    r"\S+/phyla/cli/__main__\.py": "phyla",
    r"\b\d\d:\d\d UTC\b": "CLOCK UTC",
    r"http://[\w.]+:\d{5}": "http://HOST:PORT",
    r"\b(process |pid |HOST:\d+:)\d+": r"\1PID",
    r"\b\d[\d.]*(?:e-\d+)? (?:ms|s|min)\b": "TIME",
    r"\b\d[\d.]* [KMGT]iB": "SIZE",
    r"\b(time of \w+): .*": r"\1: SHARES",
    r"(?<=versions: ).*": "VERSIONS",
    r"(?<=GPUs: ).*": "GPUS",
    r"(?<=SQLite: ).*": "VERSION",
}
"""What differs from run to run, and what stands for it."""
PROGRESS = re.compile(r"^[\d,]+ of [\d,?]+ trials\b.*\n", re.MULTILINE)
"""A line that says how far a study is: how many of them there are depends on how busy the machine is."""
NEWS = re.compile(r"(?:^(?:warning: |  member ).*\n)+", re.MULTILINE)
"""Warnings and decisions of a run: how often it looks for them depends on that, too, and so their order."""


def transcript(scenario: str) -> str:
    """Play a scenario in a new directory; return its commands, what they printed, and exit statuses but 0."""
    home = _places() / "me"
    folder = home / "project"
    shutil.copytree(FILES, folder)
    try:
        with Terminal(folder, copies=not NO_COPY.search(scenario)) as terminal:
            return "\n".join(terminal.enter(line) for line in scenario.strip().splitlines())
    finally:
        shutil.rmtree(home)


@cache
def _places() -> Path:
    """Return a directory for all scenarios: what one of them prepares for others has paths."""
    made = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made).resolve()


class Terminal:
    """A directory in which a user enters commands.

    A command of phyla that ends with `&` runs beside those that follow, until `kill -INT %1`, which is Ctrl-C.
    """

    def __init__(self, folder: Path, *, copies: bool) -> None:
        self._folder, self._copies = folder, copies
        self._beside: forked.Forked | None = None
        unknown = {name: "" for name in os.environ if name.startswith("PHYLA_")}
        self._environment = child_environment(
            {**unknown, "HOME": str(folder.parent), "LOGNAME": "me", "TZ": "UTC"}
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._beside is not None:
            self._beside.kill()
            self._beside.wait()

    def enter(self, line: str) -> str:
        """Run a line; return it, and what is seen of it."""
        if line.startswith("#"):
            return f"{line}\n"
        status, printed = (
            self._prepare() if line == PREPARED and self._copies else self._run(line.removesuffix(QUIET))
        )
        shown = "" if line.endswith(QUIET) else normalized(printed, self._folder)
        return f"$ {line}\n{shown}" + (f"[exit status {status}]\n" if status else "")

    def _prepare(self) -> tuple[int, str]:
        """Leave what `PREPARED` does."""
        kept = _places() / "prepared"
        if kept.exists():
            shutil.copytree(kept, self._folder, dirs_exist_ok=True)
            return 0, ""
        status, printed = self._run(PREPARED.removesuffix(QUIET))
        if status == 0:
            shutil.copytree(self._folder, kept)
        return status, printed

    def _run(self, line: str) -> tuple[int, str]:
        match shlex.split(line):
            case ["kill", "-INT", "%1"]:
                return self._end()
            case ["phyla", *words, "&"]:
                return 0, self._begin(words)
            case ["phyla", *words]:
                return _ended(self._fork("-m", "phyla.cli", *words))
            case ["export", variable]:
                name, _, value = variable.partition("=")
                self._environment[name] = value
                return 0, ""
            case ["python", *words]:
                return _ended(self._fork(*words))
        done = subprocess.run(["sh", "-c", line], cwd=self._folder, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def _fork(self, *words: str) -> forked.Forked:
        workers = int(words[-2:] == ("--workers", "1"))
        return forked.Forked(words, cwd=self._folder, env=self._environment, merged=True, spares=workers)

    def _begin(self, words: list[str]) -> str:
        """Start a server; return what it has printed once it answers."""
        self._beside = self._fork("-m", "phyla.cli", *words)
        printed = self._beside.read_until("\n")
        url = printed.split()[-1]
        until(lambda: answers(url), "answer")
        return printed

    def _end(self) -> tuple[int, str]:
        """End the server; return its exit status, and what it printed since it began."""
        assert self._beside is not None
        before = self._beside.printed()
        self._beside.send_signal(signal.SIGINT)
        status, printed = _ended(self._beside)
        return status, printed.removeprefix(before)


def _ended(process: forked.Forked) -> tuple[int, str]:
    printed, _ = process.communicate(timeout=120.0)
    return process.wait(), printed


def answers(url: str) -> bool:
    """Return whether a server answers, be it that it refuses."""
    try:
        return httpx.get(url).status_code > 0
    except httpx.TransportError:
        return False


def normalized(printed: str, folder: Path) -> str:
    """Replace what differs from run to run."""
    shown = PROGRESS.findall(printed)[-1:]
    printed = PROGRESS.sub(lambda _: shown.pop() if shown else "", printed)
    printed = NEWS.sub(_warnings_first, printed)
    return "\n\n".join(_aligned(block, str(folder)) for block in printed.split("\n\n"))


def _warnings_first(news: re.Match[str]) -> str:
    return "".join(sorted(news.group().splitlines(keepends=True), key=lambda line: line.startswith("  ")))


def _aligned(block: str, folder: str) -> str:
    """Replace what differs in a paragraph; what it is padded with in a table, or in a frame, differs then, too."""
    replaced = block.replace(folder, "/home/me/project")
    for pattern, placeholder in PLACEHOLDERS.items():
        replaced = re.sub(pattern, placeholder, replaced)
    if replaced == block or "──" not in block:
        return replaced
    return re.sub(r"─+", "───", re.sub(r"(?<=\S)  +", "  ", replaced))


def main() -> None:
    """Write transcripts."""
    for name in sys.argv[1:] or SCENARIOS:
        (FOLDER / f"{name}.txt").write_text(transcript(SCENARIOS[name]))


if __name__ == "__main__":
    main()
