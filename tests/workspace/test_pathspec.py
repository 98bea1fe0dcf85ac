"""Patterns and the paths they name."""

import fnmatch
from typing import ClassVar

import pytest

from mvc import NotFoundError
from mvc.workspace.pathspec import PathTable, filter_paths, select_paths


class TestPatterns:
    PATHS = ("a", "a.bin", "d/a", "d/e/a.bin", "da", "w1", "w[1]")

    @pytest.mark.parametrize(
        ("pattern", "matches"),
        [
            ("", PATHS),
            ("a", ("a",)),
            ("d", ("d/a", "d/e/a.bin")),
            ("d/e", ("d/e/a.bin",)),
            ("*.bin", ("a.bin", "d/e/a.bin")),
            ("d*", ("d/a", "d/e/a.bin", "da")),
            ("?", ("a",)),
            ("w[1]", ("w[1]",)),
            ("w[12]", ("w1",)),
            ("[", ()),
            ("nope", ()),
            ("A", ()),
        ],
    )
    def test_what_they_name(self, pattern, matches):
        assert PathTable(self.PATHS).find(pattern) == list(matches)

    def test_select(self):
        assert select_paths([], self.PATHS) == list(self.PATHS)
        assert select_paths(["d", "a", "a"], self.PATHS) == ["a", "d/a", "d/e/a.bin"]
        with pytest.raises(NotFoundError, match="'nope'"):
            select_paths(["a", "nope"], self.PATHS)
        assert select_paths([""], []) == []

    def test_filter_takes_names_and_wildcards_and_misses_nothing(self):
        assert filter_paths([], reversed(self.PATHS)) == list(self.PATHS)
        assert filter_paths(["d", "nope"], self.PATHS) == ["d/a", "d/e/a.bin"]
        assert filter_paths(["w[1]"], self.PATHS) == ["w1", "w[1]"]


class Counted(str):
    """A path that counts how often any is compared."""

    __slots__ = ()
    looks: ClassVar[int] = 0

    def __lt__(self, other):
        Counted.looks += 1
        return str.__lt__(self, other)

    def startswith(self, *args):
        Counted.looks += 1
        return str.startswith(self, *args)

    __hash__ = str.__hash__


@pytest.mark.parametrize("wildcard", ["", "*"])
def test_many_patterns_over_many_paths_are_not_a_product(wildcard):
    """Each pattern looks at what it finds, not at all paths: the product is 4 million."""
    count = 2000
    paths = [Counted(f"step-{number:05}/model.bin") for number in range(count)]
    patterns = [f"step-{number:05}{wildcard}" for number in range(count)]
    Counted.looks = 0
    assert len(select_paths(patterns, paths)) == count
    assert Counted.looks < 100 * count


@pytest.mark.parametrize("pattern", ["d*", "*a", "[dw]*", "d/?", "d/[ae]*", "w[[]1]", "d/*.bin"])
def test_a_wildcard_finds_what_fnmatch_finds(pattern):
    paths = [*TestPatterns.PATHS, "d", "d/\udcff", "d\U0010ffff", "é/a"]
    expected = sorted(path for path in paths if fnmatch.fnmatchcase(path, pattern))
    assert PathTable(paths).find_fitting(pattern) == expected
