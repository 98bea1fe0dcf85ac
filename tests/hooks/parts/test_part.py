"""Groups of parts: their states in a container, their members restored one by one."""

from __future__ import annotations

import pytest

from mvc_hooks.parts.part import DETAILS, Group, Part, flatten_parts, list_places
from mvc_hooks.parts.tree import ABSENT


class Held(Part):
    def __init__(self, value, lent=ABSENT):
        self.value, self.lent = value, lent

    def capture(self):
        return self.value

    def restore(self, stored):
        self.value = stored

    def targets(self, captured, stored):
        return self.lent


@pytest.mark.parametrize(
    ("kind", "members", "state"),
    [
        (dict, {"a": 1, "b": 2}, {"a": 1, "b": 2}), (list, {0: 1, 1: 2}, [1, 2]),
        (tuple, {0: 1}, (1,)), (dict, {}, {}), (list, {}, []),
    ],
)  # fmt: skip
def test_a_group_is_captured_as_its_container(kind, members, state):
    captured = Group(kind, {key: Held(value) for key, value in members.items()}).capture()
    assert captured == state
    assert type(captured) is kind


def test_one_member_more_or_less_is_a_difference():
    group = Group(dict, {"a": Held(1), "b": Held(2)})
    found = {
        one.path: (one.live, one.stored)
        for one in group.compare({"a": 1, "b": 2}, {"a": 1, "c": 3}, ("g",))
    }
    assert found == {("g", "c"): (None, "a part"), ("g", "b"): ("a part", None)}
    (one,) = group.compare({"a": 1, "b": 2}, 5, ("g",))
    assert (one.path, one.live, one.stored) == (("g",), "dict", "int")


def test_what_members_lend():
    members = {"a": Held(1, lent="x"), "b": Held(2)}
    assert Group(dict, members).targets({"a": 1, "b": 2}, {}) == {"a": "x"}
    assert Group(list, {0: members["b"], 1: members["a"]}).targets([2, 1], []) == [None, "x"]


def test_members_stand_in_for_groups_and_companions_follow():
    inner, outer = Held(1), Held(2)
    inner.companion = Held(3)
    parts = {"first": Group(list, {0: inner, 1: Held(4)}), "second": outer}
    paths = [entry.path for entry in flatten_parts(parts)]
    assert [path for path in paths if path[0] != DETAILS] == [
        ("first", 0),
        ("first", 1),
        ("second",),
    ]
    assert (DETAILS, "first", "0") in paths
    assert [entry.path[0] for entry in list_places(parts)] == ["first", "second", DETAILS]
