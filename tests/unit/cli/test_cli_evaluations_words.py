"""What is said of eval tasks that have no value."""

import pytest

from evaluating import found
from phyla.cli.evaluations import AGAIN, print_whys
from phyla.evaluation.matrix import Cell, CellStatus


def cells(steps: list[int]) -> list[Cell]:
    return [
        Cell(
            seen=found(f"c{number}", step, id=number),
            suite="heldout",
            task="accuracy",
            group=None,
            status=CellStatus.FAILED,
            why="ValueError: no",
        )
        for number, step in enumerate(steps)
    ]


@pytest.mark.parametrize(
    ("steps", "where"),
    [
        ([3], "at step 3"),
        ([1, 2, 3, 4, 5], "at step 2, 3, 4, 5 and 1 more"),
        ([-1] * 6, "on c2, c3, c4, c5 and 2 more"),
        ([3, -1], "on c0, c1"),
    ],
)
def test_the_newest_are_named(steps: list[int], where: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_whys(cells(steps))
    assert capsys.readouterr().out == f"failed  heldout/accuracy {where}: ValueError: no\n{AGAIN}\n"
