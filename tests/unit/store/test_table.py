"""Indexes of tables give what a look at every row gives, also after what is undone."""

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from phyla.store.table import Changes, Groups, Order, Table, follow_with

Row = tuple[int, int]
CHANGES = st.lists(
    st.tuples(st.integers(0, 6), st.none() | st.tuples(st.integers(0, 3), st.integers(0, 3))), max_size=40
)


@given(CHANGES)
def test_indexes_give_what_a_look_at_every_row_gives(changes: list[tuple[int, Row | None]]) -> None:
    groups, order = Groups[int](), Order[int]()
    table = Table[int, Row](follow_with(lambda row: (row[0] or None, row[1] or None), groups, order))
    for key, row in changes:
        if row is not None:
            table[key] = row
        elif key in table:
            table.pop(key)
        for value in range(1, 4):
            wanted = sorted(key for key, row in table.items() if row[0] == value)
            assert sorted(groups.of(value)) == wanted
            assert groups.count(value) == len(wanted)
        assert sorted(groups.of_any([1, 3])) == sorted(groups.of(1) + groups.of(3))
        assert set(groups.values()) == {row[0] for row in table.values()} - {0}
        listed = sorted((row[1], key) for key, row in table.items() if row[1])
        assert [order[place] for place in range(len(order))] == listed
        for value in range(5):
            assert order.before(value) == bisect_left(listed, (value,))
            assert [*order.since(value)] == [entry for entry in listed if entry[0] >= value]
            assert order.above(value, 3) == sum(entry > (value, 3) for entry in listed)
    assert groups.of(0) == groups.of(4) == []


@given(CHANGES, CHANGES)
def test_changes_are_taken_back(
    before: list[tuple[int, Row | None]], changes: list[tuple[int, Row | None]]
) -> None:
    groups, order = Groups[int](), Order[int]()
    table = Table[int, Row | None](follow_with(lambda row: (row and row[0], row and row[1]), groups, order))
    Changes().undo()
    made = Changes()
    for key, row in before:
        made.set(table, key, row)
    old = (dict(table), [order[place] for place in range(len(order))], [sorted(groups.of(n)) for n in range(4)])
    made = Changes()
    for key, row in changes:
        made.set(table, key, row)
    made.undo()
    made.undo()
    assert (dict(table), [*order.since(-1)], [sorted(groups.of(n)) for n in range(4)]) == old
