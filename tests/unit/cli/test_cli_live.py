"""The live table has room for the members that matter."""

import re
from dataclasses import replace

import pytest
from rich.console import Console

from phyla.cli.live import drawn, foremost, time_left_s
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
        front=(),
        aim=Aim.of(Maximize("score")),
        member_steps=100,
        planned_trials=10 * len(members),
        last_activity=1.0,
    )


def test_few_members_are_all_shown_in_order() -> None:
    members = [member(index, float(-index)) for index in range(20)]
    assert list(foremost(members, 30)) == members
    assert list(foremost(members, -1)) == []


def test_of_many_the_best_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    members = tuple(member(index, None if index % 10 == 9 else float(index)) for index in range(100))
    best = foremost(members, 11)
    assert [one.index for one in best] == [98, 97, 96, 95, 94, 93, 92, 91, 90, 88, 87]
    Console(width=120, height=30).print(drawn(progress(members), best, 7.0))
    shown = capsys.readouterr().out
    assert "100/1000 trials  7 s left" in shown
    assert "the best 11 of 100 members (100 ready)" in shown
    assert len(re.findall("ready", shown)) == 12


def test_time_left_follows_what_was_done_since_the_start() -> None:
    many = progress(tuple(member(index, 0.0) for index in range(10)))
    assert (many.spent_steps, many.total_steps) == (100, 1000)
    assert time_left_s(0.0, 0, many) is None
    assert time_left_s(10.0, 90, many) == pytest.approx(100.0)
    assert time_left_s(10.0, 90, replace(many, member_steps=10)) == 0.0
    assert time_left_s(10.0, 90, replace(many, member_steps=None)) is None
