import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import ConflictError, CorruptionError, FormatError, NotFoundError, UsageError
from mvc.history.check import check
from mvc.history.git import GitHistory
from mvc.history.reachability import find_roots
from mvc.history.values import Head
from support.stockgit import START_S, at, commit_on_head, git, git_or_none, write_commit

MAIN = "refs/heads/main"


def move(history, name, new, expected, message="moved", **options):
    history.update_ref(name, new, expected=expected, message=message, stamp=at(), **options)


def commits(history, count):
    return [write_commit(history, [], f"c{n}", time_s=START_S + n) for n in range(count)]


def test_a_new_repository_has_an_unborn_branch(tmp_path):
    history = GitHistory.init(tmp_path / ".mvc", branch="trunk")
    assert history.head() == Head("trunk", None)
    assert history.list_refs() == {}
    assert git(history.git_dir, "symbolic-ref", "HEAD") == "refs/heads/trunk"
    with pytest.raises(NotFoundError, match="no commit yet"):
        history.resolve("HEAD")


def test_moves_compare_and_swap(history):
    one, two = commits(history, 2)
    move(history, MAIN, one, None)
    with pytest.raises(ConflictError, match=f"expected nothing, found {one}"):
        move(history, MAIN, two, None)
    with pytest.raises(ConflictError, match=f"expected {two}, found {one}"):
        move(history, MAIN, two, two)
    move(history, MAIN, two, one)
    assert history.find_ref(MAIN) == two == history.head().commit
    with pytest.raises(ConflictError, match=f"expected {one}, found nothing"):
        move(history, "refs/heads/new", two, one)
    assert history.list_refs() == {MAIN: two}
    assert len(history.read_reflog(MAIN)) == 2


def test_a_ref_never_moves_to_what_is_missing_or_no_commit(history):
    blob = history.write_blob(b"x")
    with pytest.raises(NotFoundError, match="does not exist"):
        move(history, MAIN, "ab" * 20, None)
    with pytest.raises(NotFoundError, match="is a blob, not a commit"):
        move(history, MAIN, blob, None)
    with pytest.raises(NotFoundError):
        move(history, "refs/tags/t", "ab" * 20, None)
    assert history.list_refs() == {}


def test_files_and_folders_of_refs_do_not_clash(history):
    (one,) = commits(history, 1)
    move(history, "refs/heads/a", one, None)
    with pytest.raises(ConflictError, match="together with refs/heads/a"):
        move(history, "refs/heads/a/b", one, None)
    history.delete_ref("refs/heads/a", expected=one, stamp=at())
    move(history, "refs/heads/a/b/c", one, None)
    with pytest.raises(ConflictError, match="together with refs/heads/a/b/c"):
        move(history, "refs/heads/a", one, None)
    with pytest.raises(ConflictError, match="together with refs/heads/a/b/c"):
        move(history, "refs/heads/a/b", one, None)
    history.delete_ref("refs/heads/a/b/c", expected=one, stamp=at())
    (history.git_dir / "refs/heads/a/empty/folder").mkdir(parents=True)
    (history.git_dir / "logs/refs/heads/a/empty").mkdir(parents=True)
    move(history, "refs/heads/a", one, None)
    assert git(history.git_dir, "rev-parse", "a") == one


def test_logs_that_a_crash_left_of_deleted_refs_are_in_nobodys_way(history):
    (one,) = commits(history, 1)
    for name in ("a", "b/c/d"):
        move(history, f"refs/heads/{name}", one, None)
        log = history.git_dir / "logs/refs/heads" / name
        kept = log.read_bytes()
        history.delete_ref(f"refs/heads/{name}", expected=one, stamp=at())
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(kept)
    move(history, "refs/heads/a/x", one, None)
    move(history, "refs/heads/b", one, None)
    assert len(history.read_reflog("refs/heads/a/x")) == 1
    assert len(history.read_reflog("refs/heads/b")) == 1


def test_packed_refs_are_seen_moved_and_deleted(history):
    one, two, three = commits(history, 3)
    for name, value in (("a", one), ("b/c", two), ("keep", three)):
        move(history, f"refs/heads/{name}", value, None)
    history.create_tag("v1", one, message="annotated", stamp=at())
    git(history.git_dir, "pack-refs", "--all")
    assert not (history.git_dir / "refs/heads/a").exists()
    assert history.find_ref("refs/heads/b/c") == two
    assert set(history.list_refs()) == {
        "refs/heads/a", "refs/heads/b/c", "refs/heads/keep", "refs/tags/v1"
    }  # fmt: skip
    with pytest.raises(ConflictError):
        move(history, "refs/heads/a", three, None)
    with pytest.raises(ConflictError, match="together with refs/heads/b/c"):
        move(history, "refs/heads/b", three, None)
    with pytest.raises(ConflictError, match="together with refs/heads/a"):
        move(history, "refs/heads/a/x", three, None)
    move(history, "refs/heads/a", three, one)
    assert history.find_ref("refs/heads/a") == three
    history.delete_ref("refs/heads/a", expected=three, stamp=at())
    history.delete_ref("refs/heads/b/c", expected=two, stamp=at())
    assert history.find_ref("refs/heads/a") is None
    assert git_or_none(history.git_dir, "rev-parse", "--verify", "-q", "a") is None
    assert set(history.list_refs()) == {"refs/heads/keep", "refs/tags/v1"}
    assert git(history.git_dir, "rev-parse", "v1^{}") == one
    assert history.resolve("v1") == one
    packed = (history.git_dir / "packed-refs").read_text()
    assert f"^{one}" in packed
    git(history.git_dir, "fsck", "--strict")


def test_deleting_compares_too(history):
    one, two = commits(history, 2)
    move(history, "refs/heads/x", one, None)
    with pytest.raises(ConflictError):
        history.delete_ref("refs/heads/x", expected=two, stamp=at())
    assert history.find_ref("refs/heads/x") == one
    history.delete_ref("refs/heads/x", expected=one, stamp=at())
    with pytest.raises(ConflictError):
        history.delete_ref("refs/heads/x", expected=one, stamp=at())
    assert history.read_reflog("refs/heads/x") == []
    assert not list((history.git_dir / "refs").rglob("*.lock"))


def test_head_moves_its_branch_or_itself(history):
    one, two = commits(history, 2)
    history.update_head(one, expected=None, message="commit (initial): c0", stamp=at())
    assert history.find_ref(MAIN) == one
    history.detach_head(one, stamp=at())
    assert history.head() == Head(None, one)
    history.update_head(two, expected=one, message="commit: c1", stamp=at())
    assert history.head() == Head(None, two)
    assert history.find_ref(MAIN) == one
    with pytest.raises(ConflictError):
        history.update_head(two, expected=one, message="", stamp=at())
    history.set_head_branch("main", stamp=at())
    assert history.head() == Head("main", one)
    with pytest.raises(NotFoundError):
        history.detach_head("ab" * 20, stamp=at())
    history.set_head_branch("unborn/branch", stamp=at())
    assert history.head() == Head("unborn/branch", None)
    assert git(history.git_dir, "symbolic-ref", "HEAD") == "refs/heads/unborn/branch"


def test_renaming_takes_the_log_and_head_along(history):
    commit_on_head(history, "one")
    head = commit_on_head(history, "two", time_s=START_S + 1)
    history.rename_branch("main", "topic/renamed", stamp=at())
    assert history.head() == Head("topic/renamed", head)
    assert history.find_ref(MAIN) is None
    assert history.read_reflog(MAIN) == []
    messages = [entry.message for entry in history.read_reflog("refs/heads/topic/renamed")]
    assert messages[1:] == ["commit: two", "commit: one"]
    assert "renamed refs/heads/main to refs/heads/topic/renamed" in messages[0]
    assert history.resolve("@{1}") == head
    git(history.git_dir, "fsck", "--strict")
    move(history, "refs/heads/other", head, None)
    with pytest.raises(ConflictError, match="already exists"):
        history.rename_branch("other", "topic/renamed", stamp=at())
    with pytest.raises(NotFoundError):
        history.rename_branch("nothing", "else", stamp=at())
    history.rename_branch("other", "second", stamp=at())
    assert history.head().branch == "topic/renamed"


def test_an_unborn_branch_can_be_renamed(history):
    history.rename_branch("main", "trunk", stamp=at())
    assert history.head() == Head("trunk", None)


def test_tags(history):
    one, two = commits(history, 2)
    assert history.create_tag("light", one, message=None, stamp=at()) == one
    tag = history.create_tag("v1.0", one, message="Release", stamp=at(START_S, 60))
    assert git(history.git_dir, "cat-file", "tag", tag) == (
        f"object {one}\ntype commit\ntag v1.0\n"
        f"tagger Ann Example <ann@example.org> {START_S} +0001\n\nRelease"
    )
    with pytest.raises(ConflictError, match="already exists"):
        history.create_tag("light", two, message=None, stamp=at())
    history.create_tag("light", two, message=None, stamp=at(), expected=one)
    assert history.resolve("light") == two
    with pytest.raises(NotFoundError):
        history.create_tag("x", "ab" * 20, message=None, stamp=at())
    with pytest.raises(NotFoundError, match="is a blob"):
        history.create_tag("x", history.write_blob(b""), message="m", stamp=at())
    assert history.read_reflog("refs/tags/light") == []
    git(history.git_dir, "fsck", "--strict")


def test_symbolic_refs_are_followed(history):
    one, two = commits(history, 2)
    move(history, "refs/remotes/origin/main", one, None)
    git(history.git_dir, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    assert history.resolve("origin") == one
    assert history.list_refs("refs/remotes/")["refs/remotes/origin/HEAD"] == one
    move(history, "refs/remotes/origin/HEAD", two, one)
    assert history.find_ref("refs/remotes/origin/main") == two
    for name, target in (("x", "y"), ("y", "x")):
        path = history.git_dir / "refs/heads" / name
        path.write_text(f"ref: refs/heads/{target}\n")
    with pytest.raises(CorruptionError, match="circle"):
        history.find_ref("refs/heads/x")


@pytest.mark.parametrize("name", ["main", "refs/heads/../../x", "/etc/x", "HEAD", "refs/x..y"])
def test_only_full_valid_names_are_moved(history, name):
    (one,) = commits(history, 1)
    with pytest.raises(UsageError):
        move(history, name, one, None)
    with pytest.raises(UsageError):
        history.delete_ref(name, expected=one, stamp=at())


JUNK = [b"", b"\n", b"garbage", b"ab" * 19, b"AB" * 20, b"ref: ", b"ref: ../../x", b"ref: HEAD",
        b"\xff" * 40, b"ref: refs/heads/a b", b"\0" * 41, b"ref:refs/heads/.x"]  # fmt: skip


@pytest.mark.parametrize("junk", JUNK)
def test_a_damaged_ref_is_named_and_nothing_else_breaks(history, junk):
    head = commit_on_head(history, "one")
    move(history, "refs/heads/bad", head, None)
    (history.git_dir / "refs/heads/bad").write_bytes(junk)
    with pytest.raises(CorruptionError, match="refs/heads/bad"):
        history.find_ref("refs/heads/bad")
    with pytest.raises(CorruptionError, match="bad"):
        history.list_refs()
    assert [p.kind for p in check(history)] == ["ref-broken"]
    assert history.resolve("main") == head
    commit_on_head(history, "two")
    assert list(history.list_refs("refs/heads/m")) == [MAIN]


@pytest.mark.parametrize("junk", [*JUNK, b"ref: refs/tags/v1\n"])
def test_a_damaged_head_is_a_format_error_at_once(history, junk):
    commit_on_head(history, "one")
    (history.git_dir / "HEAD").write_bytes(junk)
    with pytest.raises(CorruptionError, match="HEAD"):
        GitHistory.open(history.git_dir)
    with pytest.raises(CorruptionError, match="HEAD"):
        history.head()
    assert "head-broken" in [problem.kind for problem in check(history)]


@given(junk=st.binary(max_size=120), peeled=st.booleans())
def test_garbage_in_packed_refs_is_a_format_error_and_nothing_else(tmp_path_factory, junk, peeled):
    root = tmp_path_factory.mktemp("packed")
    history = GitHistory.init(root / ".mvc")
    header = b"# pack-refs with: peeled fully-peeled sorted \n" if peeled else b""
    (history.git_dir / "packed-refs").write_bytes(header + junk)
    for look in (history.list_refs, lambda: history.find_ref(MAIN), lambda: list(check(history))):
        with contextlib.suppress(FormatError):
            look()


def test_folders_in_place_of_files_are_no_crash(history):
    commit_on_head(history, "one")
    (history.git_dir / "packed-refs").mkdir()
    with pytest.raises(CorruptionError):
        history.list_refs()
    (history.git_dir / "packed-refs").rmdir()
    (history.git_dir / "HEAD").unlink()
    (history.git_dir / "HEAD").mkdir()
    with pytest.raises(CorruptionError):
        history.head()


def test_what_git_fetched_last_is_a_ref_with_a_text(history):
    """Git notes there where a commit is from; gc and fsck look at it too."""
    commit = commit_on_head(history, "one")
    other = GitHistory.init(history.git_dir.parent / "other/.mvc")
    git(other.git_dir, "fetch", "-q", str(history.git_dir), "main")
    assert b"\t" in (other.git_dir / "FETCH_HEAD").read_bytes()
    assert other.find_ref("FETCH_HEAD") == other.resolve("FETCH_HEAD") == commit
    assert find_roots(other) == [commit]
    assert list(check(other)) == []
