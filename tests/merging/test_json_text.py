"""JSON objects that are merged key by key."""

import json

from hypothesis import given
from hypothesis import strategies as st

from mvc.merging.text import merge_json

KEYS = st.sampled_from("abcdef")
VALUES = st.one_of(
    st.sampled_from([0, 1, True, 1.0, None, "é", 1e-05, [1, {"x": 2}]]),
    st.dictionaries(KEYS, st.integers(0, 2), max_size=3),
)
OBJECTS = st.dictionaries(KEYS, VALUES)
STYLES = st.fixed_dictionaries(
    {"indent": st.sampled_from([None, 1, 2, 4, "\t"]), "ensure_ascii": st.booleans()}
)


def spelled(value, **style):
    return (json.dumps(value, **(style or {"indent": 2})) + "\n").encode()


def exactly(value):
    return json.dumps(value, sort_keys=True)


def expected(base, ours, theirs):
    """What a person would make of them; LookupError where both changed a value."""
    found = {}
    for key in base | ours | theirs:
        was, here, there = (one.get(key, LookupError) for one in (base, ours, theirs))
        old, left, right = (
            None if one is LookupError else exactly(one) for one in (was, here, there)
        )
        if old in (left, right) or left == right:
            value = there if old == left else here
        elif all(isinstance(one, dict) or one is LookupError is was for one in (was, here, there)):
            value = expected(was if isinstance(was, dict) else {}, here, there)
        else:
            raise LookupError
        found |= {} if value is LookupError else {key: value}
    return found


@given(OBJECTS, OBJECTS, OBJECTS, STYLES)
def test_each_key_is_as_on_the_side_that_changed_it(base, ours, theirs, style):
    merged = merge_json(spelled(base), spelled(ours, **style), spelled(theirs))
    try:
        wanted = expected(base, ours, theirs)
    except LookupError:
        assert merged is None
        return
    assert exactly(json.loads(merged)) == exactly(wanted)
    if ours:
        escapes = [style | {"ensure_ascii": one} for one in (True, False)]
        assert merged in [spelled(json.loads(merged), **one) for one in escapes]


def test_neighbours_nested_keys_and_new_ones():
    base = {"a": 1, "b": 2, "rope": {"type": "x", "theta": 1.0}, "z": 0}
    ours = {**base, "a": 7, "new": 1, "rope": {"type": "y", "theta": 1.0}}
    theirs = {"b": 3, "rope": {"type": "x", "theta": 2.0}, "z": 0, "more": [1], "a": 1}
    merged = merge_json(*map(spelled, (base, ours, theirs)))
    wanted = {"a": 7, "b": 3, "rope": {"type": "y", "theta": 2.0}, "z": 0, "new": 1, "more": [1]}
    assert merged == spelled(wanted)


def test_sorted_keys_stay_sorted():
    merged = merge_json(spelled({"b": 1}), spelled({"b": 1, "c": 1}), spelled({"a": 1, "b": 1}))
    assert merged == spelled({"a": 1, "b": 1, "c": 1})


DEEP = b'{"a":' * 50_000 + b"1" + b"}" * 50_000


def test_what_cannot_be_merged():
    for base, ours, theirs in [
        (b'{"a": 1}', b'{"a": 2}', b'{"a": 3}'),
        (b'{"a": 1}', b'{"a": true}', b'{"a": 1.0}'),
        (b'{"a": 1}', b"{}", b'{"a": 3}'),
        (b"[1]", b"[1, 2]", b"[0, 1]"),
        (b"{}", b'{"a": 1, "a": 1}', b'{"b": 1}'),
        (b"{}", b'{"a":   1}', b'{"b": 1}'),  # a style of its own
        (b"{}", b'{"a": 1.0E-5}', b'{"b": 1}'),
        (b"{}", b'{"a": 1', b'{"b": 1}'),
        (b"{}", b"\xff\xfe", b'{"b": 1}'),
        (b"{}", b'{"a": ' + b"9" * 5000 + b"}", b'{"b": 1}'),
        (b"{}", DEEP, b'{"b": 1}'),
    ]:
        assert merge_json(base, ours, theirs) is None
