"""Every row of the three-way table, and what must hold of any merge."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from mvc.merging.table import TABLE, Decision, Outcome, SideChange, decide, find_change, merge_names
from support.cases import for_each

ROWS = [
    # base, ours, theirs, outcome, side
    (None, None, None, Outcome.KEEP, 0),
    (None, "a", None, Outcome.OURS, 0),
    (None, None, "a", Outcome.THEIRS, 1),
    (None, "a", "a", Outcome.BOTH, 0),
    (None, "a", "b", Outcome.ADD_ADD, None),
    ("o", "o", "o", Outcome.KEEP, 0),
    ("o", "a", "o", Outcome.OURS, 0),
    ("o", "o", "a", Outcome.THEIRS, 1),
    ("o", "a", "a", Outcome.BOTH, 0),
    ("o", "a", "b", Outcome.MODIFY_MODIFY, None),
    ("o", None, "o", Outcome.REMOVE, 0),
    ("o", "o", None, Outcome.REMOVE, 1),
    ("o", None, None, Outcome.REMOVE, 0),
    ("o", "a", None, Outcome.MODIFY_REMOVE, None),
    ("o", None, "a", Outcome.MODIFY_REMOVE, None),
]
VERSIONS = st.sampled_from([None, "o", "a", "b"])


@for_each(("base", "ours", "theirs", "outcome", "side"), ROWS)
def test_row(base, ours, theirs, outcome, side):
    assert decide(base, [ours, theirs]) == Decision(outcome, side)


def test_the_rows_above_are_all_there_are():
    possible = {
        (find_change(base, ours), find_change(base, theirs))
        for base, ours, theirs in itertools.product([None, "o"], [None, "o", "a"], [None, "o", "b"])
        if not (base is None and "o" in (ours, theirs))
    }
    assert possible == set(TABLE)
    assert {(find_change(b, o), find_change(b, t)) for b, o, t, _, _ in ROWS} == set(TABLE)
    assert SideChange.ABSENT not in {find_change("o", version) for version in (None, "o", "a")}


@given(VERSIONS, st.lists(VERSIONS, min_size=1, max_size=4), st.randoms())
def test_the_order_of_the_sides_does_not_matter(base, sides, random):
    shuffled = random.sample(sides, len(sides))
    one, other = decide(base, sides), decide(base, shuffled)
    assert (one.side is None) == (other.side is None)
    if one.side is not None and other.side is not None:
        assert sides[one.side] == shuffled[other.side]


@given(VERSIONS, st.lists(VERSIONS, min_size=1, max_size=4))
def test_a_conflict_is_two_different_changes(base, sides):
    changes = {side for side in sides if side != base}
    decision = decide(base, sides)
    assert (decision.side is None) == (len(changes) > 1) == decision.outcome.is_conflict
    if len(changes) == 1:
        assert {sides[decision.side]} == changes


NAMES = st.dictionaries(st.sampled_from("pqrs"), st.sampled_from("xyz"))


@given(NAMES, NAMES)
def test_every_name_is_in_one_row(base, side):
    rows = merge_names(base, [base, side], str)
    names = [row.name for row in rows if row.result is not None]
    assert {row.name: row.result for row in rows if row.result is not None} == side
    assert len(set(names)) == len(names)


def _merged(base, *sides):
    rows = merge_names(base, sides, str)
    assert not any(row.outcome.is_conflict for row in rows)
    return {row.name: row.result for row in rows if row.result is not None}


def test_a_renamed_thing_takes_the_change_of_the_other_side():
    base = {"old": "x", "other": "y"}
    assert _merged(base, {"new": "x", "other": "y"}, {"old": "z", "other": "y"}) == {
        "new": "z", "other": "y",
    }  # fmt: skip
    assert _merged(base, {"old": "z", "other": "y"}, {"new": "x", "other": "y"}) == {
        "new": "z", "other": "y",
    }  # fmt: skip


def test_two_names_for_one_thing_are_a_conflict():
    (row,) = merge_names({"old": "x"}, [{"one": "x"}, {"two": "x"}], str)
    assert (row.outcome, row.renamed_from) == (Outcome.RENAME_RENAME, "old")


def test_twins_are_not_taken_for_renamed():
    base = {"a": "zeros", "b": "zeros"}
    ours = {"head": "zeros"}
    theirs = {"a": "trained", "b": "zeros"}
    found = {row.name: row.outcome for row in merge_names(base, [ours, theirs], str)}
    assert found == {
        "head": Outcome.OURS, "a": Outcome.MODIFY_REMOVE, "b": Outcome.REMOVE,
    }  # fmt: skip


def test_a_name_that_another_side_gave_to_something_else_is_no_rename():
    rows = merge_names({"old": "x"}, [{"new": "x"}, {"old": "x", "new": "y"}], str)
    found = {row.name: row.outcome for row in rows}
    assert found == {"new": Outcome.ADD_ADD, "old": Outcome.REMOVE}


def test_rows_are_in_the_order_of_ours():
    base = {"b": "1", "a": "1"}
    rows = merge_names(base, [base, {"c": "2", **base}], str)
    assert [row.name for row in rows] == ["b", "a", "c"]
