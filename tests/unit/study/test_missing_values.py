"""What is said of eval tasks that have no value."""

import pytest

from evaluating import found
from phyla.evaluation.matrix import Cell, CellStatus
from phyla.study.results.pages.evaluations import AGAIN, causes_table


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
    ("steps", "count", "where"),
    [
        ([3], "1", "step 3"),
        ([1, 2, 3, 4, 5], "5", "step 2, 3, 4, 5"),
        ([-1] * 6, "6", "c2, c3, c4, c5"),
        ([3, -1], "2", "c0, c1"),
    ],
)
def test_the_newest_are_named(steps: list[int], count: str, where: str) -> None:
    table = causes_table(cells(steps))
    assert table.texts == [["failed", "heldout", "accuracy", count, where, "ValueError: no"]]
    assert table.note == AGAIN
