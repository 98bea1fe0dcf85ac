"""What is recorded at a path: names that clash, entries without a stat."""

import pytest

from mvc.workspace.recorded import drop_clashing, make_entry
from mvc.workspace.worktree import find_file_stat
from support.opened_repo import write


class TestEntries:
    def entry(self, path):
        return make_entry(path, 0o100644, "0" * 40, None)

    @pytest.mark.parametrize(
        ("before", "placed", "after"),
        [
            (["a", "b"], ["a"], ["a", "b"]),
            (["a/x", "a/y", "b"], ["a"], ["a", "b"]),
            (["a", "b"], ["a/x/y"], ["a/x/y", "b"]),
            (["a/x"], ["a/x/y"], ["a/x/y"]),
            (["ab", "a.b"], ["a"], ["a", "a.b", "ab"]),
            (["a/b/c", "a/d"], ["a/b"], ["a/b", "a/d"]),
            (["a", "c/d"], ["a/b", "c"], ["a/b", "c"]),
        ],
    )
    def test_files_and_folders_of_one_name(self, before, placed, after):
        entries = {path: self.entry(path) for path in (*before, *placed)}
        drop_clashing(entries, placed)
        assert sorted(entries) == after

    def test_without_a_stat_an_entry_matches_no_file(self, root, repo):
        write(root, "a")
        assert not self.entry("a").matches(find_file_stat(root, "a"))
