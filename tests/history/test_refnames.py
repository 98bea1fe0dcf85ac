"""Names of refs: those that Git allows, and what a short one stands for."""

import pytest

from mvc.errors import NotFoundError, UsageError
from mvc.history.names import branch_ref, expand_name, is_ref_name, tag_ref
from support.stockgit import git_or_none

NAMES = [
    "main", "a/b", "a.b", "-a", "a..b", ".a", "a/.b", "a.lock", "a/b.lock/c", "a b", "a~b", "a^b",
    "a:b", "a?b", "a*b", "a[b", "a\\b", "a@{b", "@", "a@b", "/a", "a/", "a//b", "a.", "HEAD", "",
    "é", "a\tb", "a\x7fb", "head", "refs/heads/x", "..", "a/..", "12", "{a}",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_are_those_git_allows(history, name):
    git_says = git_or_none(history.git_dir, "check-ref-format", "--branch", name) is not None
    try:
        branch_ref(name)
    except UsageError:
        assert not git_says
    else:
        assert git_says
    full = git_or_none(history.git_dir, "check-ref-format", f"refs/tags/{name}") is not None
    assert is_ref_name(f"refs/tags/{name}") == full


def test_names_that_no_file_can_have_are_refused(history):
    for name in ("x" * 251, "a\ud800", "/".join(["long"] * 300)):
        with pytest.raises(UsageError):
            tag_ref(name)
        assert history.find_ref(f"refs/heads/{name}") is None
        with pytest.raises(NotFoundError):
            history.resolve(name)


def test_what_a_short_name_stands_for_in_gits_order():
    assert expand_name("main") == [
        "refs/main",
        "refs/tags/main",
        "refs/heads/main",
        "refs/remotes/main",
        "refs/remotes/main/HEAD",
    ]
    assert expand_name("HEAD")[0] == "HEAD"
    assert expand_name("refs/tags/v1")[0] == "refs/tags/v1"
    assert expand_name("a..b") == expand_name("") == []
