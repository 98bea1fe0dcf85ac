"""Curves of braille dots: what is drawn where."""

import io
import math

from hypothesis import given
from hypothesis import strategies as st

from mvc.cli.output import Output
from mvc.cli.render.plot import Curve, CurvePoint, draw

FLOATS = st.floats(-1e300, 1e300)


def output(encoding="utf-8", *, width=60):
    return Output(io.TextIOWrapper(io.BytesIO(), encoding=encoding), colour=False, width=width)


def chart(out, *series, height=8, log_scale=False):
    lines = list(draw(out, "loss", "step", series, height, log_scale=log_scale))
    return lines, [line[line.index("│") + 1 :] if "│" in line else line for line in lines]


def dots(line):
    """Return the columns of a row that have a dot."""
    start = min((at for at in (line.find("│"), line.find("┤")) if at >= 0), default=-1) + 1
    return [at for at, sign in enumerate(line[start:]) if ord(sign) > 0x2800]


@given(st.lists(st.tuples(st.floats(-1e15, 1e15), FLOATS), min_size=1, max_size=20))
def test_whatever_the_numbers_are_the_ends_are_where_they_belong(pairs):
    points = [CurvePoint(x, y) for x, y in sorted(pairs)]
    lines, _ = chart(output(), Curve("main", points))
    assert len(lines) == 11
    assert max(map(len, lines[1:])) <= 60
    values = [point.y for point in points]
    if max(values) - min(values) > abs(max(values)) * 1e-9:
        assert dots(lines[1])
        assert dots(lines[8])
    drawn = {column for line in lines[1:9] for column in dots(line)}
    assert drawn
    if points[-1].x - points[0].x > abs(points[-1].x) * 1e-9:
        assert min(drawn) == 0
        assert max(drawn) == len(lines[9]) - lines[9].index("└") - 2


def test_a_straight_line_is_straight():
    lines, _ = chart(output(), Curve("main", [CurvePoint(0, 0), CurvePoint(1, 1)]), height=8)
    columns = [dots(line) for line in lines[1:9]]
    assert all(columns)
    assert [row[0] for row in columns] == sorted((row[0] for row in columns), reverse=True)


def test_a_logarithmic_scale_makes_ratios_straight():
    points = [CurvePoint(x, 10.0**x) for x in range(5)]
    curved, _ = chart(output(), Curve("main", points))
    straight, _ = chart(output(), Curve("main", points), log_scale=True)
    assert len(dots(curved[8])) > 30
    assert len(dots(straight[8])) < 10
    assert [line.split()[0] for line in straight if "┤" in line] == [
        "10,000",
        "1,000",
        "100",
        "10",
        "1",
    ]


def test_what_is_not_a_number_is_a_gap_with_a_mark():
    points = [
        CurvePoint(0, 1),
        CurvePoint(1, 1),
        CurvePoint(2, math.nan),
        CurvePoint(3, 1),
        CurvePoint(4, 1),
    ]
    lines, _ = chart(output(), Curve("main", points))
    (row,) = [line for line in lines[1:9] if dots(line)]
    holes = set(range(len(lines[9]) - lines[9].index("└") - 1)) - set(dots(row))
    assert len(holes) > 20
    assert lines[8].count("!") == 1


def test_a_commit_that_was_abandoned_is_marked():
    points = [CurvePoint(0, 1), CurvePoint(1, 5, diverged=True)]
    lines, _ = chart(output(), Curve("main", points))
    assert lines[1].endswith("x")


def test_plain_signs_where_there_are_no_others():
    for encoding in ["ascii", "latin-1"]:
        points = [CurvePoint(x, math.sin(x)) for x in range(20)]
        other = [CurvePoint(x, math.cos(x)) for x in range(20)]
        lines = list(
            draw(
                output(encoding),
                "loss",
                "step",
                [Curve("a", points), Curve("b", other)],
                8,
                log_scale=False,
            )
        )
        text = "\n".join(lines)
        assert text.isascii()
        assert "*" in text
        assert "b" in text


def test_labels_never_overlap():
    for width in range(24, 140):
        lines, _ = chart(
            output(width=width), Curve("main", [CurvePoint(0, 0), CurvePoint(123_456_789, 1)])
        )
        assert max(map(len, lines[1:])) <= max(width, 40)
        assert lines[-1].split()[1] == "0"
