"""Options that several commands have, and combinations that make no sense."""

import pytest

from mvc.cli.options import (
    CommandUsageError,
    check_alone,
    check_limit,
    choose_one,
    name_and_start,
    read_age,
)
from mvc.errors import UsageError


def test_ages():
    assert read_age("now") == read_age("0") == 0
    assert read_age("12h") == 12 * 3600
    with pytest.raises(UsageError):
        read_age("soon")


def test_two_that_exclude_each_other():
    check_alone([])
    check_alone([("--soft", False), ("--hard", True), ("PATH", [])])
    with pytest.raises(CommandUsageError, match="--hard and PATH cannot be used together"):
        check_alone([("--soft", False), ("--hard", True), ("PATH", ["a"])])


def test_one_of_several():
    assert choose_one({"soft": False, "hard": True}, "mixed") == "hard"
    assert choose_one({"soft": False, "hard": False}, "mixed") == "mixed"
    with pytest.raises(CommandUsageError, match="--soft and --hard"):
        choose_one({"soft": True, "hard": True}, "mixed")


def test_limits():
    check_limit(None)
    check_limit(0)
    with pytest.raises(CommandUsageError, match="-1 is negative"):
        check_limit(-1)


def test_a_new_name_and_where_it_starts():
    assert name_and_start(["new"]) == ("new", "HEAD")
    assert name_and_start(["new", "v1"]) == ("new", "v1")
    with pytest.raises(CommandUsageError, match="unexpected argument 'more'"):
        name_and_start(["new", "v1", "more"])


def stats(folder):
    """Return what shows that something was made, changed or removed, a lock that is gone included."""
    found = [(path, path.stat()) for path in (folder, *folder.rglob("*"))]
    return {
        path: (one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for path, one in found
    }


def test_a_dry_run_makes_nothing_not_even_a_lock(shell):
    shell.ok("switch", "side")
    shell.ok("reset", "--hard", "main")
    (shell.folder / "new").write_text("new")
    for path in (shell.folder / ".mvc").iterdir():
        if path.name.startswith(("mvc.lock", "sweep.")):
            path.unlink()
    before = stats(shell.folder)
    for line in (
        "add .",
        "undo",
        "rollback HEAD~1",
        "prune --keep-last 1",
        "gc --grace now",
        "repack",
    ):
        answer = shell.ok(*line.split(), "--dry-run")
        assert answer.err == ""
        for verb in ("written", "rewritten", "removed", "released", "freed"):
            assert f" be {verb}" in answer.out or f" {verb}" not in answer.out, line
    assert stats(shell.folder) == before
