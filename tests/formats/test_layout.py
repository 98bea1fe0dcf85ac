import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc import FormatError
from mvc.formats.layout import (
    Segment,
    TensorView,
    check_layout,
    find_gaps,
    single_tensor,
    view_extent_bytes,
)
from support.cases import for_each


def plain(name, start, size_bytes):
    return single_tensor(name, "U8", (size_bytes,), start)


class TestSegments:
    def test_one_tensor(self):
        segment = single_tensor("w", "F32", [2, 3], 100)
        assert (segment.start, segment.size_bytes, segment.end) == (100, 24, 124)
        assert segment.tensors == (TensorView("w", "F32", (2, 3)),)
        assert segment.is_plain

    @pytest.mark.parametrize(
        "views",
        [
            (),
            (TensorView("a", "F32", (4,)), TensorView("b", "F32", (4,))),
            (TensorView("a", "F32", (4,), 4),),
            (TensorView("a", "F32", (3,)),),
            (TensorView("a", "F32", (2, 2), 0, (1, 2)),),
            (TensorView("a", "I32", (4,)),),
        ],
    )
    def test_what_is_not_plain(self, views):
        assert not Segment(0, 16, "F32", views).is_plain

    def test_impossible_tensors(self):
        for dtype, shape in (("F33", (1,)), ("F32", (-1,)), ("F4", (3,))):
            with pytest.raises(FormatError):
                single_tensor("w", dtype, shape, 0)


class TestGaps:
    def test_before_between_behind(self):
        segments = [plain("a", 10, 5), plain("b", 15, 5), plain("c", 30, 0), plain("d", 40, 10)]
        assert list(find_gaps(60, segments)) == [(0, 10), (20, 10), (30, 10), (50, 10)]

    def test_none_and_everything(self):
        assert list(find_gaps(0, [])) == []
        assert list(find_gaps(7, [])) == [(0, 7)]
        assert list(find_gaps(7, [plain("a", 0, 7)])) == []

    @given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=12))
    def test_segments_and_gaps_cover_a_file_once(self, steps):
        segments, position = [], 0
        for number, (gap, size_bytes) in enumerate(steps):
            segments.append(plain(str(number), position + gap, size_bytes))
            position += gap + size_bytes
        size_bytes = position + 3
        check_layout(size_bytes, segments)
        covered = [0] * size_bytes
        pieces = [(segment.start, segment.size_bytes) for segment in segments]
        pieces += list(find_gaps(size_bytes, segments))
        for start, length in pieces:
            assert length > 0 or (start, length) not in find_gaps(size_bytes, segments)
            for at in range(start, start + length):
                covered[at] += 1
        assert covered == [1] * size_bytes


class TestCheck:
    def test_what_may_be(self):
        view = TensorView("part", "F32", (2, 2), 4, (1, 2))
        whole = TensorView("whole", "F32", (4, 2))
        check_layout(
            100, [plain("a", 0, 0), plain("b", 0, 10), Segment(20, 32, "F32", (whole, view))]
        )
        check_layout(0, [])
        check_layout(0, [plain("empty", 0, 0)])

    @for_each(
        ("segments", "fact"),
        [
            ([plain("a", 0, 10), plain("b", 9, 10)], "overlaps"),
            ([plain("a", 10, 10), plain("b", 0, 10)], "overlaps"),
            ([plain("a", 95, 6)], "outside"),
            ([plain("a", -1, 6)], "outside"),
            ([Segment(0, -4, "U8", (TensorView("a", "U8", (0,)),))], "outside"),
            ([Segment(0, 4, "U8", ())], "carries no tensor"),
            ([Segment(0, 4, "U9", (TensorView("a", "U8", (4,)),))], "unknown dtype"),
            ([Segment(0, 4, "U8", (TensorView("a", "U9", (4,)),))], "unknown dtype"),
            ([Segment(0, 4, "U8", (TensorView("a", "U8", (5,)),))], "outside its storage"),
            ([Segment(0, 4, "U8", (TensorView("a", "U8", (4,), 1),))], "outside its storage"),
            ([Segment(0, 4, "U8", (TensorView("a", "U8", (4,), -1),))], "outside its storage"),
            ([Segment(0, 8, "U8", (TensorView("a", "U8", (2, 2), 0, (4, 4)),))], "outside its"),
            ([Segment(0, 8, "U8", (TensorView("a", "U8", (2,), 0, (-1,)),))], "strides"),
            ([Segment(0, 8, "U8", (TensorView("a", "U8", (2, 2), 0, (1,)),))], "strides"),
            ([Segment(0, 8, "F4", (TensorView("a", "F4", (2, 2), 0, (2, 1)),))], "packed"),
            ([plain("a", 0, 4), plain("a", 4, 4)], "named twice"),
        ],
    )
    def test_what_may_not(self, segments, fact):
        with pytest.raises(FormatError, match=fact):
            check_layout(100, segments)


class TestExtent:
    @pytest.mark.parametrize(
        ("view", "size_bytes"),
        [
            (TensorView("a", "F32", (2, 3)), 24),
            (TensorView("a", "F32", ()), 4),
            (TensorView("a", "F32", (), 0, ()), 4),
            (TensorView("a", "F32", (3, 2), 0, (1, 3)), 24),
            (TensorView("a", "F32", (2, 2), 0, (10, 1)), 48),
            (TensorView("a", "F32", (5,), 0, (0,)), 4),
            (TensorView("a", "F32", (0, 7), 0, (7, 1)), 0),
            (TensorView("a", "C128", (2,), 0, (3,)), 64),
        ],
    )
    def test_from_the_first_element_to_the_last(self, view, size_bytes):
        assert view_extent_bytes(view) == size_bytes

    def test_numbers_of_an_attacker(self):
        view = TensorView("a", "F32", (2,) * 40, 0, (2**62,) * 40)
        assert view_extent_bytes(view) > 2**62  # a number, no memory; check_layout refuses it
        with pytest.raises(FormatError):
            check_layout(2**62, [Segment(0, 2**62, "F32", (view,))])
