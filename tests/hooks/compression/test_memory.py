"""BucketMemory by name comes out of any buckets as it went in."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from mvc_lab.compression.hook import BucketMemory, BucketPiece

_PIECES = [
    BucketPiece(f"p{at}", shape)
    for at, shape in enumerate([(2, 3), (4,), (), (1, 2, 2), (0, 3), (5,)])
]


@st.composite
def buckets(draw):
    """All pieces in some order, in some buckets."""
    order = draw(st.permutations(_PIECES))
    cuts = sorted(draw(st.lists(st.integers(0, len(order)), max_size=4)))
    ends = zip([0, *cuts], [*cuts, len(order)], strict=True)
    return [tuple(order[begin:end]) for begin, end in ends]


def _zeros(piece):
    return torch.zeros(piece.shape)


def _count_up(memory, layouts):
    """What a hook does: for every bucket have it fit, and replace its flat tensor."""
    for bucket, layout in enumerate(layouts):
        memory.fit(bucket, layout, _zeros)
        flat = memory.flats[bucket]
        memory.flats[bucket] = flat + torch.arange(len(flat))
    return memory


@given(st.lists(buckets(), min_size=1, max_size=4), buckets())
def test_what_is_remembered_does_not_depend_on_buckets(history, last):
    memory = BucketMemory()
    for bucket, layout in enumerate(history[0]):
        memory.fit(bucket, layout, lambda one: torch.full(one.shape, float(hash(one.name) % 97)))
    first = {name: one.clone() for name, one in memory.by_name().items()}
    for layouts in [*history[1:], last]:
        for bucket, layout in enumerate(layouts):
            memory.fit(bucket, layout, _zeros)
        again = memory.by_name()
        assert again.keys() == first.keys() == {one.name for one in _PIECES}
        assert all(torch.equal(again[name], one) for name, one in first.items())
    other = BucketMemory()
    other.put(again)
    for bucket, layout in enumerate(last):
        other.fit(bucket, layout, _zeros)
        assert torch.equal(other.flats[bucket], memory.flats[bucket])


@given(buckets())
def test_buckets_that_stay_are_left_alone(layouts):
    memory = _count_up(BucketMemory(), layouts)
    kept = dict(memory.flats)
    assert all(memory.fit(bucket, layout, _zeros) for bucket, layout in enumerate(layouts))
    assert all(memory.flats[bucket] is flat for bucket, flat in kept.items())


def test_a_parameter_that_is_new_is_made_and_the_others_stay():
    memory = BucketMemory()
    memory.put({"p1": torch.ones(4)})
    assert not memory.fit(0, (_PIECES[0], _PIECES[1]), _zeros)
    assert memory.flats[0].tolist() == [0.0] * 6 + [1.0] * 4
    assert memory.fit(0, (_PIECES[0], _PIECES[1]), _zeros)
