"""The live table has room for the members that matter."""

import re

import pytest
from rich.console import Console

from phyla.cli import watch_display
from phyla.records import Aim, Maximize, Member, MemberState, Scored, StudyRecord, StudyState
from phyla.study import Progress


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


def progress(members: tuple[Member, ...]) -> Progress:
    return Progress(
        study=StudyRecord(
            id=1,
            name="many",
            state=StudyState.RUNNING,
            config={},
            seed=0,
            population_size=len(members),
            created_at=0.0,
        ),
        now=1.0,
        members=members,
        trials={},
        running=(),
        counts={"completed": len(members)},
        best=None,
        front=(),
        aim=Aim.of(Maximize("score")),
        member_steps=100,
        planned_trials=10 * len(members),
        last_activity=1.0,
    )


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch) -> watch_display.LiveDisplay:
    monkeypatch.setattr(watch_display, "console", lambda: Console(width=120, height=30, force_terminal=False))
    return watch_display.LiveDisplay("many")


def test_few_members_are_all_shown_in_order(display: watch_display.LiveDisplay) -> None:
    members = [member(index, float(-index)) for index in range(20)]
    assert list(display.choose(members)) == members
    display.close()


def test_of_many_the_best_and_the_worst_are_shown(
    display: watch_display.LiveDisplay, capsys: pytest.CaptureFixture[str]
) -> None:
    members = tuple(member(index, None if index % 10 == 9 else float(index)) for index in range(100))
    chosen = [one.index for one in display.choose(members)]
    assert chosen == [98, 97, 96, 95, 94, 93, 92, 91, 90, 88, 79, 89, 99]
    display.show(progress(members), 7.0)
    display.interrupted("stopping")
    display.close()
    shown = capsys.readouterr().out
    assert "100/1000 trials  0:07 left" in shown
    assert "the best and the worst 13 of 100 members (100 ready)" in shown
    assert shown.rstrip().endswith("stopping")
    assert len(re.findall("ready", shown)) == 14
