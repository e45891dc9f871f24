"""What is shown while a study runs, on terminals of any width and without one."""

import codecs
import errno
import math
import os
import pty
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import phyla
from facts import check_facts
from phyla import settings, terminal
from phyla.formatting import format_estimate
from phyla.records import (
    Aim,
    Checkpoint,
    CheckpointKind,
    Cohort,
    Group,
    GroupState,
    JobState,
    Maximize,
    Member,
    MemberState,
    Scored,
    StudyRecord,
    StudyState,
    TrialRecord,
    json_number,
)
from phyla.study import Progress
from phyla.study.results.watched_runs import Change
from phyla.study.running import display as live
from phyla.study.running.display import StudyDisplay, choose_members, draw_study, spark
from phyla.study.watching.display import ChangeDisplay


def member(index: int, fitness: float | None) -> Member:
    head = None
    if fitness is not None:
        head = Scored(
            trial=index + 1,
            member=index,
            checkpoint=f"{index + 1}.1",
            index=0,
            step=10,
            params={},
            fitness=fitness,
            order=fitness,
        )
    return Member(study=1, index=index, state=MemberState.READY, progress=10, generation=1, head=head)


def cohort(alike: tuple[MemberState, int], size: int) -> Cohort:
    state, steps = alike
    return Cohort(
        size=size,
        state=state,
        progress=steps,
        generation=1,
        retired=False,
        given_up=False,
        joined_steps=0,
        joined_generation=0,
    )


def progress(members: tuple[Member, ...]) -> Progress:
    return Progress(
        study=StudyRecord(
            id=1,
            name="many",
            state=StudyState.RUNNING,
            config={"aim": Aim.of(Maximize("score")).to_json()},
            seed=0,
            population_size=len(members),
            created_at=0.0,
        ),
        now=1.0,
        members=members,
        trials={},
        cohorts=tuple(cohort(*alike) for alike in Counter((one.state, one.progress) for one in members).items()),
        held=(),
        counts={"completed": len(members)},
        front=(),
        member_steps=100,
        planned_trials=10 * len(members),
        last_activity=1.0,
    )


def test_few_members_are_all_shown_in_order() -> None:
    members = tuple(member(index, float(index)) for index in range(20))
    few = progress(members[::-1])
    assert tuple(choose_members(few, 30)) == members
    assert list(choose_members(few, -1)) == []


def test_of_many_the_best_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    members = tuple(member(index, float(index)) for index in range(100))
    many = replace(progress(members), members=members[::-1], step_s=0.001)
    best = choose_members(many, 11)
    assert [one.index for one in best] == [*range(99, 88, -1)]
    Console(width=120, height=30).print(draw_study(many, best))
    shown = capsys.readouterr().out
    assert "100 of 1,000 trials  9 s left" in shown
    assert "the best 11 of 100 members (100 ready)" in shown
    assert len(re.findall("ready", shown)) == 12


def test_members_are_counted_where_there_is_no_room_for_any(capsys: pytest.CaptureFixture[str]) -> None:
    few = progress(tuple(member(index, float(index)) for index in range(3)))
    Console(width=120, height=30).print(draw_study(few, []))
    assert capsys.readouterr().out.splitlines()[-1].strip() == "3 members (3 ready)"


@pytest.mark.parametrize("width", [20, 40, 80, 119, 120, 200])
def test_a_bar_shows_how_far_a_study_is_on_any_terminal(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    half = replace(progress((member(0, 1.0),)), cohorts=(cohort((MemberState.READY, 50), 1),))
    for study, share in (
        (replace(half, member_steps=None), 0.0),
        (half, 0.5),
        (replace(half, member_steps=50), 1.0),
    ):
        Console(width=width, color_system=None).print(draw_study(study, (), (), width))
        bar = re.findall("[━╸]+", capsys.readouterr().out)
        assert len("".join(bar)) == pytest.approx(share * min(30, width - len("many ")), abs=1)


def test_the_best_fitness_stands_beside_the_member_that_had_it(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = member(0, -0.2425), member(1, -0.1327)
    found = TrialRecord(
        id=9,
        study=1,
        member=0,
        generation=1,
        state=JobState.COMPLETED,
        params={},
        start_step=0,
        end_step=10,
        seed=0,
        fitness=-0.0154,
        created_at=0.0,
    )
    Console(width=120).print(live.members_rows(replace(progress((one, other)), front=(found,)), (one, other)))
    headings, _, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert headings[3:5] == ["fitness", "best"]
    assert rows[0][3:5] == ["-0.2425", "-0.0154"]
    assert "-0.1327" in rows[1]
    assert "-0.0154" not in rows[1]


def test_on_a_narrow_terminal_the_numbers_of_members_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    one = member(0, -9.82619)
    Console(width=40).print(live.members_rows(progress((one,)), (one,), 40))
    assert "-9.82619" in (shown := capsys.readouterr().out)
    assert "…" not in shown


def test_time_left_follows_the_pace() -> None:
    many = progress(tuple(member(index, 0.0) for index in range(10)))
    assert (many.spent_steps, many.total_steps) == (100, 1000)
    assert many.left_s is None
    many = replace(many, step_s=1 / 9)
    assert many.left_s == pytest.approx(100.0)
    assert replace(many, member_steps=10).left_s == 0.0
    assert replace(many, member_steps=None).left_s is None
    assert replace(many, silent_s=60.0).left_s is None
    for state, left_s in ((StudyState.STOPPED, None), (StudyState.COMPLETED, 0.0)):
        assert replace(many, study=replace(many.study, state=state)).left_s == left_s


# On terminals and without


@phyla.eval_task
def look(evaluation: phyla.Evaluation) -> None:
    evaluation.record(score=1.0)


@pytest.fixture
def study(tmp_path: Path) -> phyla.Study:
    """Of twelve members, with scores by index, of which the last two are the worst."""
    return phyla.Study(
        "shown",
        {"lr": phyla.Float(0.1, 1.0), "momentum": phyla.Float(0.1, 1.0)},
        phyla.Maximize("score"),
        phyla.PBT(population_size=12, steps_per_trial=5, total_steps=20),
        home=tmp_path,
        storage="memory://",
        suites=[phyla.Suite("held", (look,))],
    )


def train_round(study: phyla.Study) -> None:
    """Train each member once more."""
    for trial in study.ask(12):
        (trial.checkpoint_dir / "weights").write_text("w")
        study.tell(trial, metrics={"score": trial.end_step - 0.1 * trial.member})


class Screen:
    """A real terminal of some size, and what stands on it; lines that are longer than it is wide stay whole."""

    def __init__(self, width: int, height: int, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("LINES", str(height))
        monkeypatch.setenv("TERM", "xterm")
        self._terminal, inside = pty.openpty()
        self._file = os.fdopen(inside, "w", encoding=encoding, errors="backslashreplace")
        monkeypatch.setattr(sys, "stdout", self._file)
        self.written = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")()  # a character may come in two chunks
        while chunk := self._chunk():
            self.written += decoder.decode(chunk)

    def _chunk(self) -> bytes:
        try:
            return os.read(self._terminal, 65536)
        except OSError:
            return b""

    def lines(self) -> list[str]:
        """Close the terminal and return what it shows in the end."""
        self._file.close()
        self._reader.join()
        os.close(self._terminal)
        lines, row = [""], 0
        for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|\r\n|\r)", self.written):
            if part == "\r\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif moved := re.fullmatch(r"\x1b\[(\d+)A", part):
                row -= int(moved[1])
            elif part == "\x1b[2K":
                lines[row] = ""
            elif part != "\r" and not part.startswith("\x1b"):
                lines[row] += part
        return lines


@pytest.mark.parametrize(("width", "height"), [(40, 24), (80, 24), (200, 50)])
def test_one_screen_shows_how_it_goes(
    study: phyla.Study, width: int, height: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen(width, height, "utf-8", monkeypatch)
    with StudyDisplay("shown") as display:
        display.progressed(study.results())
        for _ in range(3):
            train_round(study)
        held = study.ask(1)
        display.progressed(study.results())
    lines = screen.lines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= height
    shown = " ".join(" ".join(lines).split())
    assert "36 of 48 trials best score 15 (member 0, step 15)" in shown
    assert "best ▁▅█ 5.000 to 15.00" in shown
    assert re.search("worst quarter ▁[▄▅]█ 4.200 to 14.20", shown)
    assert "workers: 1 training, the longest for" in shown
    check_facts(shown, "36 checkpoints")
    check_facts(shown, "member 11", "12th", "12")
    assert ("hyperparameters" in shown) == (width >= 80)
    assert ("last decision" in shown) == (width >= 120)
    assert len(held) == 1


@pytest.mark.parametrize("width", [40, 80])
def test_what_is_drawn_stays_within_the_terminal_when_a_longer_line_is_printed_above(
    study: phyla.Study, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen, words = Screen(width, 40, "utf-8", monkeypatch), " ".join(["word"] * 100)
    with StudyDisplay("shown") as display:
        for _ in range(3):
            train_round(study)
        display.progressed(study.results())
        assert display.live is not None
        display.live.refresh()
        display.print(words)
    lines = screen.lines()
    assert words in lines, "as it was written, for the terminal to fold"
    written = re.split(r"(?:\x1b\[[0-9;?]*[A-Za-z]|\r|\n)+", screen.written)
    assert "took over" in " ".join(" ".join(written).split())
    assert [line for line in written if len(line) > width] == [words]


def test_no_colour_and_no_block_characters(study: phyla.Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen(100, 40, "ascii", monkeypatch)
    with StudyDisplay("shown") as display:
        for _ in range(2):
            train_round(study)
        display.progressed(study.results())
    assert "best          _# 5.000 to 10.00" in screen.lines()
    assert screen.written.isascii()
    assert "\\u" not in screen.written
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", screen.written), "no colours"


def test_values_are_bars_from_low_to_high() -> None:
    assert spark([0.0, 1.0, 2.0, 4.0], "_-#") == "__-#"
    assert spark([3.0, 3.0], "_-#") == "__"
    assert spark([-1.7e308, 1.7e308], "_-#") == "_#"


def test_without_a_terminal_lines_keep_coming(
    study: phyla.Study, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live, "QUIET_S", 0.02)
    monkeypatch.setattr(live, "LINES_EVERY_S", 0.0)
    printed = ""

    def read_until(wanted: Callable[[], bool]) -> None:
        nonlocal printed
        while not wanted():
            printed += capsys.readouterr().out

    with StudyDisplay("shown", starting="starting shown: 12 members") as display:
        read_until(lambda: "still starting, for" in printed)
        display.progressed(study.results())
        read_until(lambda: "\nstarting shown: 12 members\n" in printed)
        held = study.ask(1)
        read_until(lambda: "0 of 48 trials  workers: 1 training, the longest for" in printed)
        (trial,) = held
        (trial.checkpoint_dir / "weights").write_text("w")
        study.tell(trial, metrics={"score": 5.0})
        for _ in range(3):
            train_round(study)
        display.progressed(study.results())
    printed += capsys.readouterr().out
    lines = printed.splitlines()
    assert any(re.match(r"\d+ of 48 trials  best score 15 \(member 0", line) for line in lines), printed
    assert [line for line in lines if line.startswith("  member 11, 12th of 12, took over member")]
    assert any(re.match("  evaluation of held: [0-9]+ checkpoints behind, the oldest for", line) for line in lines)
    assert "started fresh" not in printed


def test_lines_without_a_terminal_say_that_the_run_is_stopping(
    study: phyla.Study, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live, "QUIET_S", 0.02)
    with StudyDisplay("shown") as display:
        held = study.ask(2)
        display.progressed(study.results())
        display.interrupted()
        printed = ""
        wanted = r"stopping: waiting for what is running \(Ctrl-C stops at once\)  0 of 48 .*2 training"
        while not re.search(wanted, printed):
            printed += capsys.readouterr().out
    assert len(held) == 2


def test_a_run_stops_even_if_nobody_can_be_told(study: phyla.Study, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(descriptor: int, text: bytes) -> int:
        raise OSError(errno.EIO, f"{descriptor} is a terminal that was closed: {text!r}")

    with StudyDisplay("shown") as display:
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", write)
            display.interrupted()
        assert display._message == terminal.STOPPING


def test_no_file_in_the_place_of_a_closed_standard_error_is_written(
    study: phyla.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    monkeypatch.setattr(sys, "__stderr__", None)
    with StudyDisplay("shown") as display, monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, text: written.append(descriptor))
        display.interrupted()
    assert 2 not in written


# What draws may find out before anything is printed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_run_goes_on_when_its_terminal_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    main, terminal = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with open(terminal, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        with StudyDisplay("shown") as display:
            assert display.live is not None
            os.close(main)
            for _ in range(2):
                display.print("trial 1 failed")
        print("what a command says at the end", flush=True)


def test_a_long_failure_is_printed_in_full_once(capsys: pytest.CaptureFixture[str]) -> None:
    display = ChangeDisplay({})
    for step, why in ((1, "no data"), (2, "no data"), (3, "no memory"), (4, "no data")):
        seen = Checkpoint(
            study=1, kind=CheckpointKind.SEEN, name=f"step-{step}", step=step, identity=f"{step}", created_at=0.0
        )
        group = Group(study=1, suite="held", state=GroupState.PARTIAL, why=why, created_at=0.0)
        display.show(Change(run="run", kind="partial", seen=seen, group=group))
    reasons = [line.partition(" partial: ")[2] for line in capsys.readouterr().out.splitlines()]
    assert reasons == ["no data", "failed as above", "no memory", "failed as above"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.5])
@pytest.mark.parametrize("stderr", [None, math.nan, math.inf, 0.1])
def test_values_that_strict_json_writes_as_text_are_shown(
    value: float, stderr: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = Checkpoint(study=1, kind=CheckpointKind.SEEN, name="step-1", step=1, identity="1", created_at=0.0)
    stored = {"value": json_number(value), "stderr": json_number(stderr)}
    group = Group(study=1, suite="held", state=GroupState.COMPLETE, values={"loss_mean": stored}, created_at=0.0)
    ChangeDisplay({}).show(Change(run="run", kind="complete", seen=seen, group=group))
    assert f"loss_mean {format_estimate(value, stderr)}" in capsys.readouterr().out


def test_failures_are_told_although_the_clock_of_the_store_is_behind(
    study: phyla.Study, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = settings.system_clock
    monkeypatch.setattr(settings, "system_clock", lambda: clock() + 600)
    with StudyDisplay("shown", hint="this study is new") as display:
        (trial,) = study.ask(1)
        study.tell(trial, error="broken")
        display.progressed(study.results())
    assert f"trial {trial.id}, attempt 1 failed: broken" in capsys.readouterr().out
