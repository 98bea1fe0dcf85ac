"""The drawing of the history: by Git's own pictures, and by following every line of random ones."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.cli.render.graph import Graph, close_gaps
from mvc.history.git import GitHistory
from support.cli import Shell
from support.stockgit import START_S, at, build_tangle, git, write_commit


def draw(history):
    """Return the picture of (commit, parents) pairs, the name behind each commit's row."""
    graph, lines = Graph(), []
    for commit, parents in history:
        rows = graph.step(commit, parents)
        lines.append(f"{rows.commit} {commit}")
        lines += rows.below
    return lines


def test_lanes_pass_behind_lanes_that_stand_still():
    assert draw([
        ("t1", ["b"]), ("t2", ["c"]), ("t3", ["d"]), ("t4", ["b"]), ("d", []), ("c", []), ("b", []),
    ]) == [
        "* t1",
        "| * t2",
        "| | * t3",
        "| | | * t4",
        "| | |/",
        "| |/|",
        "|/| |",
        "| | * d",
        "| * c",
        "* b",
    ]  # fmt: skip


def test_a_lane_that_ends_leaves_no_gap():
    assert draw([("a", ["z"]), ("r", []), ("b", ["z"]), ("z", [])]) == [
        "* a",
        "| * r",
        "| * b",
        "|/",
        "* z",
    ]
    assert draw([("a", []), ("x", ["y"])]) == ["* a", "* x"]


def test_a_merge_with_lanes_that_are_there():
    assert draw([("p", ["q"]), ("x", ["y", "q"]), ("q", ["y"]), ("y", [])]) == [
        "* p",
        "| * x",
        "|/|",
        "* | q",
        "|/",
        "* y",
    ]
    assert draw([("x", ["a"]), ("y", ["b"]), ("a", ["c", "b"]), ("b", []), ("c", [])])[2:4] == [
        "* | a",
        "|\\|",
    ]


def read_picture(lines):
    """Follow every line of a picture; return commit → parents that it leads to.

    A trace is (column, sign): where it was drawn last, and how. A line goes on straight wherever it
    can; a slash ends in the sign below its foot.
    """
    found, traces = {}, []
    for line in lines:
        picture, name = _split(line)
        assert set(picture) <= set(" *|/\\"), line
        moved = []
        for owner, column, sign in traces:
            for target in _next(picture, column, sign):
                if picture[target] == "*":
                    found[owner].add(name)
                else:
                    moved.append((owner, target, picture[target]))
        traces = moved
        if name is not None:
            found[name] = set()
            traces += [(name, picture.index("*"), "*")]
        traces = list(dict.fromkeys(traces))
    return found


def _split(line):
    match = re.fullmatch(r"([ *|/\\]*?)(?: (\w+))?", line)
    assert match, line
    return match[1], match[2]


def _at(picture, column, signs):
    return 0 <= column < len(picture) and picture[column] in signs


def _next(picture, column, sign):
    """Return the columns where a line goes on in the row below."""
    if sign == "/":
        straight = [column - 2] if _at(picture, column - 2, "/") else []
        # A slash that could go on straight passes behind what stands there.
        return straight or [column - 1] * _at(picture, column - 1, "|*")
    if sign == "\\":
        if _at(picture, column + 2, "\\") and not _at(picture, column + 1, "|*/"):
            return [column + 2]
        return [target for target in (column + 1,) if _at(picture, target, "|*")] or (
            [column] * _at(picture, column, "/")
        )
    down = [column] if _at(picture, column, "|*") else []
    left = [column - 1] if _at(picture, column - 1, "/") else []
    right = [column + 1] if _at(picture, column + 1, "\\") else []
    if sign == "*":
        return down + left + right
    return down or left or right


@st.composite
def linear_histories(draw):
    """Histories without merges: every line can be followed by eye, whatever crosses it."""
    count = draw(st.integers(2, 9))
    history = []
    for number in range(count):
        last = number == count - 1
        parent = [] if last else [f"c{draw(st.integers(number + 1, count - 1))}"]
        history.append((f"c{number}", parent))
    return history


@given(linear_histories())
def test_every_line_leads_to_the_parent(history):
    lines = draw(history)
    assert all(len(line) == len(line.rstrip()) for line in lines)
    assert read_picture(lines) == {commit: set(parents) for commit, parents in history}


@st.composite
def any_histories(draw):
    count = draw(st.integers(1, 10))
    history = []
    for number in range(count):
        later = [f"c{other}" for other in range(number + 1, count)]
        parents = draw(st.lists(st.sampled_from(later), max_size=3, unique=True)) if later else []
        history.append((f"c{number}", parents))
    return history


@given(any_histories())
def test_every_picture_is_well_formed(history):
    """Lanes stand in even columns, commits in order; what ends above goes on below."""
    lines = draw(history)
    assert [_split(line)[1] for line in lines if "*" in line] == [name for name, _ in history]
    for line in lines:
        picture, _ = _split(line)
        for column, sign in enumerate(picture):
            assert (sign in "|*") <= (column % 2 == 0)
            assert (sign in "/\\") <= (column % 2 == 1)


@given(any_histories(), st.data())
def test_the_lanes_are_those_that_are_waited_for(history, data):
    graph = Graph()
    waited: list[str] = []
    for commit, parents in history:
        rows = graph.step(commit, parents)
        waited = [one for one in waited if one != commit]
        waited += [one for one in dict.fromkeys(parents) if one not in waited]
        assert rows.padding.count("|") == len(waited)


def test_hidden_commits_stand_for_their_parents():
    history = [("d", ("c", "b")), ("c", ("a",)), ("b", ("a",)), ("a", ("r",)), ("r", ())]
    assert close_gaps(history, {"d", "r"}) == {"d": ("r",), "r": ()}
    assert close_gaps(history, {"d", "b", "a"}) == {"d": ("a", "b"), "b": ("a",), "a": ()}


def _pictures(folder, environment):
    """Return the picture that mvc and that Git draw, without names of refs."""
    ours = Shell(folder, environment).ok("log", "--graph", "--oneline", "--all").lines
    theirs = git(
        folder / ".mvc", "log", "--graph", "--oneline", "--all", "--date-order", "--no-decorate",
        "--abbrev=7",
    ).split("\n")  # fmt: skip
    ids = r"([0-9a-f]{7}).*"
    return ([re.sub(ids, r"\1", line).rstrip() for line in lines] for lines in (ours, theirs))


SIMPLE = {
    "line": [("a", []), ("b", ["a"]), ("c", ["b"])],
    "two tips": [("a", []), ("b", ["a"]), ("c", ["a"])],
    "three tips": [("a", []), ("b", ["a"]), ("c", ["a"]), ("d", ["a"])],
    "merge": [("a", []), ("b", ["a"]), ("c", ["a"]), ("d", ["c", "b"]), ("e", ["d"])],
    "merge of a longer branch": [
        ("a", []), ("b", ["a"]), ("c", ["a"]), ("d", ["b"]), ("e", ["c"]), ("f", ["e", "d"]),
    ],
    "two merges": [
        ("a", []), ("b", ["a"]), ("c", ["a"]), ("d", ["b", "c"]), ("e", ["d"]), ("f", ["d"]),
        ("g", ["e", "f"]),
    ],
    "a branch beside a merge": [
        ("a", []), ("x", ["a"]), ("b", ["a"]), ("c", ["a"]), ("d", ["b", "c"]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", SIMPLE)
def test_simple_histories_look_as_in_git(name, folder, environment):
    history = GitHistory.init(folder / ".mvc")
    ids, parents_of = {}, dict(SIMPLE[name])
    for number, (commit, parents) in enumerate(SIMPLE[name]):
        time_s = START_S + 60 * number
        ids[commit] = write_commit(history, [ids[one] for one in parents], commit, time_s=time_s)
    tips = set(parents_of) - {one for parents in parents_of.values() for one in parents}
    for tip in tips:
        history.update_ref(f"refs/heads/{tip}", ids[tip], expected=None, message="x", stamp=at())
    history.set_head_branch(max(tips), stamp=at())
    ours, theirs = _pictures(folder, environment)
    assert ours == theirs


def test_tangled_histories_have_the_commits_of_git_in_order(folder, environment):
    build_tangle(GitHistory.init(folder / ".mvc"), 0)
    ours, theirs = _pictures(folder, environment)
    assert [line.split()[-1] for line in ours if "*" in line] == [
        line.split()[-1] for line in theirs if "*" in line
    ]
