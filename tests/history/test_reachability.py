import pytest

from mvc.errors import ConflictError, CorruptionError
from mvc.history.check import check
from mvc.history.git import GitHistory
from mvc.history.reachability import (
    DAY_S,
    ReflogExpiry,
    expire_reflogs,
    find_roots,
    reachable_objects,
)
from mvc.history.values import NO_ID
from support.machine import kill_at_replace
from support.stockgit import (
    START_S,
    at,
    build_tangle,
    commit_on_head,
    create_ref,
    git,
    loose_path,
    write_commit,
)

MAIN = "refs/heads/main"


def log_lines(history, name):
    path = history.git_dir / "logs" / name
    return path.read_bytes().split(b"\n")[:-1]


def all_logs(history):
    return {name: log_lines(history, name) for name in history.refs.logs.names()}


@pytest.mark.parametrize("seed", range(4))
def test_stock_git_takes_out_the_same(history, seed, tmp_path):
    build_tangle(history, seed)
    commit_on_head(history, "last", time_s=START_S + 9000)
    old, unreachable = START_S + 600, START_S + 1500
    before = all_logs(history)
    expiry = ReflogExpiry(10_000 - 600, 10_000 - 1500, now_s=START_S + 10_000)
    planned = expire_reflogs(history, expiry, dry_run=True)
    assert all_logs(history) == before
    # Git keeps no newest entry for its own sake: that is ours, so it is put back before comparing.
    git(
        history.git_dir, "reflog", "expire", "--all", f"--expire={old}",
        f"--expire-unreachable={unreachable}",
    )  # fmt: skip
    expected = {
        name: lines[:-1] + before[name][-1:] if lines[-1:] == before[name][-1:]
        else lines + before[name][-1:]
        for name, lines in all_logs(history).items()
    }  # fmt: skip
    for name, lines in before.items():
        (history.git_dir / "logs" / name).write_bytes(b"".join(line + b"\n" for line in lines))
    assert expire_reflogs(history, expiry) == planned
    assert all_logs(history) == expected
    assert planned == {
        name: len(before[name]) - len(expected[name])
        for name in before
        if len(before[name]) > len(expected[name])
    }
    assert sum(planned.values()) > 3
    assert list(check(history)) == []


@pytest.fixture
def amended(history):
    """main: base, dropped (reset away), kept; a day apart."""
    base = commit_on_head(history, "base")
    dropped = commit_on_head(history, "dropped", time_s=START_S + DAY_S)
    history.update_head(base, expected=dropped, message="reset", stamp=at(START_S + 2 * DAY_S, 0))
    kept = commit_on_head(history, "kept", time_s=START_S + 3 * DAY_S)
    return base, dropped, kept


def expire_at(history, days, **options):
    return expire_reflogs(history, ReflogExpiry(now_s=START_S + days * DAY_S), **options)


def test_what_was_left_behind_goes_after_a_month_the_rest_after_three(history, amended):
    base, dropped, kept = amended
    assert expire_at(history, 30) == {}
    assert [entry.new for entry in history.read_reflog("HEAD")] == [kept, base, dropped, base]
    assert expire_at(history, 33) == {"HEAD": 2, MAIN: 2}
    assert [entry.new for entry in history.read_reflog("HEAD")] == [kept, base]
    assert history.resolve("HEAD@{1}") == base
    assert git(history.git_dir, "rev-parse", "HEAD@{1}") == base
    assert expire_at(history, 91) == {"HEAD": 1, MAIN: 1}
    assert [entry.new for entry in history.read_reflog(MAIN)] == [kept]
    assert history.resolve("HEAD@{1}") == base  # the oldest entry knows what was before


def test_the_newest_entry_stays_however_old(history, amended):
    assert expire_at(history, 9999) == {"HEAD": 3, MAIN: 3}
    assert [entry.new for entry in history.read_reflog(MAIN)] == [amended[-1]]
    assert expire_at(history, 9999) == {}


def test_the_stash_stays(history, amended):
    create_ref(history, "refs/stash", amended[0])
    path = history.git_dir / "logs/refs/stash"
    line = f"{NO_ID} {amended[0]} A <a@b> 1 +0000\tstash\n"
    path.write_text(line * 3)
    assert "refs/stash" not in expire_at(history, 9999)
    assert path.read_text() == line * 3


def test_a_damaged_line_stays_for_fsck(history, amended):
    path = history.git_dir / "logs/HEAD"
    path.write_bytes(b"damage\n" + path.read_bytes() + b"torn")
    assert expire_at(history, 9999)["HEAD"] == 3
    assert path.read_bytes().startswith(b"damage\n")
    assert len(log_lines(history, "HEAD")) == 2
    assert path.read_bytes().endswith(b"\n")


def test_the_log_of_a_ref_that_is_gone(history, amended):
    path = history.git_dir / "logs/refs/heads/gone/away"
    path.parent.mkdir(parents=True)
    path.write_bytes((history.git_dir / "logs/HEAD").read_bytes())
    assert expire_at(history, 9999)["refs/heads/gone/away"] == 3


def test_a_commit_that_is_missing_stops_it(history, amended):
    base = amended[0]
    loose_path(history, base).unlink()
    before = all_logs(history)
    with pytest.raises(CorruptionError, match=base):
        expire_at(GitHistory.open(history.git_dir), 33)
    assert all_logs(history) == before


def test_a_stock_git_at_work_is_not_disturbed(history, amended):
    lock = history.git_dir / "HEAD.lock"
    lock.touch()
    with pytest.raises(ConflictError, match="HEAD"):
        expire_at(history, 33)
    lock.unlink()
    assert expire_at(history, 33)["HEAD"] == 2


def test_a_tag_object_at_the_tip_leads_to_nothing_else(history, amended):
    tag = history.create_tag("v1", amended[0], message="m", stamp=at())
    history.update_ref("refs/remotes/x", tag, expected=None, message="m", stamp=at(START_S))
    other = write_commit(history, [], "other", time_s=START_S)
    history.update_ref("refs/remotes/x", other, expected=tag, message="m", stamp=at(START_S))
    assert expire_at(history, 33)["refs/remotes/x"] == 1


def test_roots_without_what_expired(history, amended):
    base, dropped, kept = amended
    assert set(find_roots(history)) == {base, dropped, kept}
    expiry = ReflogExpiry(now_s=START_S + 33 * DAY_S)
    assert set(find_roots(history, expiry=expiry)) == {base, kept}
    assert dropped in reachable_objects(history)
    assert dropped not in reachable_objects(history, expiry=expiry)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_killed_in_between_leaves_whole_logs(history, amended, when):
    before = history.read_reflog(MAIN), history.read_reflog("HEAD")
    kill_at_replace(lambda: expire_reflogs(GitHistory.open(history.git_dir)), when)
    left = history.read_reflog(MAIN), history.read_reflog("HEAD")
    assert left[0] == before[0]
    assert left[1] == (before[1] if when == "before" else before[1][:1])
    assert list(check(history)) == []
    assert history.refs.logs.names() == ["HEAD", MAIN]
    expire_reflogs(history)
    assert [len(history.read_reflog(name)) for name in (MAIN, "HEAD")] == [1, 1]
    assert history.refs.logs.names() == ["HEAD", MAIN]
    commit_on_head(history, "next")


@pytest.mark.parametrize("seed", range(3))
def test_stock_git_finds_the_same_reachable(history, seed):
    build_tangle(history, seed)
    lost = write_commit(history, [], "lost", time_s=START_S)
    expected = git(history.git_dir, "rev-list", "--all", "--reflog", "--objects").split("\n")
    tags = git(history.git_dir, "for-each-ref", "--format=%(objectname)").split("\n")
    reachable = reachable_objects(history)
    assert reachable == {line.split(" ")[0] for line in expected} | set(tags)
    assert lost not in reachable


def test_each_logged_commit_is_looked_for_once(history, monkeypatch):
    """Two logs name each as new and as old; a gc of a long history asked for each four times."""
    commits = [commit_on_head(history, f"{number}") for number in range(8)]
    asked = []
    has = history.objects.has
    monkeypatch.setattr(history.objects, "has", lambda one: asked.append(one) or has(one))
    assert find_roots(history) == [commits[-1], *commits[:-1]]
    assert sorted(asked) == sorted(commits[:-1])
