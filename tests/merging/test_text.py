"""Texts are merged as by Git; what only one side changed is never lost, and nothing is made up."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.merging.text import is_text, merge_text

LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d\n", b"e\r\n"]), max_size=8)
TEXTS = LINES.map(b"".join)


def merged(base, ours, theirs, **options):
    result = merge_text(base, ours, theirs, **options)
    assert result is not None
    return result


@given(TEXTS, TEXTS)
def test_with_an_unchanged_side_it_is_the_other_side(base, side):
    for ours, theirs in ((base, side), (side, base), (side, side)):
        result = merged(base, ours, theirs)
        assert (result.data, result.conflicts) == (side, 0)


@given(TEXTS, TEXTS, TEXTS)
def test_the_sides_may_be_swapped(base, ours, theirs):
    one, other = merged(base, ours, theirs), merged(base, theirs, ours)
    assert one.conflicts == other.conflicts
    if not one.conflicts:
        assert one.data == other.data
    favoured = merged(base, ours, theirs, favour="ours")
    assert favoured == merged(base, theirs, ours, favour="theirs")
    assert favoured.conflicts == 0


@given(TEXTS, TEXTS, TEXTS)
def test_markers_hold_both_versions(base, ours, theirs):
    """Taking one half of every conflict gives what favouring that side gives."""
    result = merged(base, ours, theirs)
    for side, keep in (("ours", 0), ("theirs", 1)):
        taken, half = [], None
        for line in result.data.splitlines(keepends=True):
            if line.startswith(b"<<<<<<< "):
                half = 0
            elif line.startswith(b"======="):
                half = 1
            elif line.startswith(b">>>>>>> "):
                half = None
            elif half in (None, keep):
                taken.append(line)
        assert b"".join(taken) == merged(base, ours, theirs, favour=side).data


CASES = [
    (b"a\nb\nc\nd\ne\nf\n", b"A\nb\nc\nd\ne\nf\n", b"a\nb\nc\nd\ne\nF\n"),
    (b"a\nb\nc\n", b"a\nX\nc\n", b"a\nY\nc\n"),
    (b"a\nb\nc\n", b"a\nsame\nX\nend\nc\n", b"a\nsame\nY\nend\nc\n"),
    (b"", b"x\n", b"y\n"),
    (b"a\n", b"a\nb", b"a\nc"),
    (b"a\r\nb\r\n", b"a\r\nX\r\n", b"a\r\nY\r\n"),
    (b"a\nb\n", b"b\n", b"a\nB\n"),
]


@pytest.mark.parametrize(("base", "ours", "theirs"), CASES)
def test_as_git_merge_file(tmp_path, base, ours, theirs):
    for name, data in (("HEAD", ours), ("base", base), ("side", theirs)):
        (tmp_path / name).write_bytes(data)
    found = subprocess.run(
        ["git", "merge-file", "-p", "HEAD", "base", "side"],
        check=False,
        cwd=tmp_path,
        capture_output=True,
    )
    result = merged(base, ours, theirs, labels=("HEAD", "side"))
    assert (result.data, result.conflicts) == (found.stdout, found.returncode)


def test_what_is_no_text_is_not_merged():
    assert not is_text(b"a\0b")
    assert merge_text(b"a\n", b"a\0", b"b\n") is None
    assert merge_text(b"", b"x" * 2**20 + b"y", b"") is None


def test_many_equal_lines_are_refused_before_they_take_minutes():
    lines = b"0,\n" * 10_000
    assert merge_text(lines, lines + b"1\n", b"2\n" + lines) is None
