import hashlib
from functools import partial

import pytest

from mvc.errors import CorruptionError, NotFoundError, UsageError
from mvc.history.check import check
from mvc.history.git import GitHistory
from mvc.history.notes import NoteFinder, find_notes, read_notes, write_notes
from mvc.history.reachability import reachable_blobs
from mvc.history.values import MODE_FILE, Stamp, TreeEntry
from support.machine import fork_each
from support.stockgit import (
    START_S,
    WHO,
    at,
    commit_on_head,
    create_ref,
    git,
    git_or_none,
    loose_path,
)

REF = "refs/notes/released"


def some_ids(count):
    return [hashlib.sha1(str(number).encode()).hexdigest() for number in range(count)]


def texts(history):
    return {commit: history.read_blob(blob) for commit, blob in read_notes(history, REF).items()}


def write(history, changes, message="released 1 version"):
    write_notes(history, REF, changes, message=message, stamp=at())


def test_stock_git_shows_them(history):
    one, two = commit_on_head(history, "one"), commit_on_head(history, "two", time_s=START_S + 1)
    write(history, {one: b"Released: now\n", two: b"Released: later\n"})
    write(history, {two: b"Released: again\n"})
    assert git(history.git_dir, "notes", "--ref=released", "show", one) == "Released: now"
    assert git(history.git_dir, "notes", "--ref=released", "show", two) == "Released: again"
    assert "Released: now" in git(history.git_dir, "log", "--notes=released")
    assert git(history.git_dir, "log", "--format=%s", REF).split("\n") == ["released 1 version"] * 2
    assert git_or_none(history.git_dir, "fsck", "--strict") is not None
    assert [entry.message for entry in history.read_reflog(REF)] == ["released 1 version"] * 2


@pytest.mark.parametrize("count", [3, 300])
def test_stock_git_reads_any_number_and_reads_what_it_wrote(history, count):
    ids = some_ids(count)
    write(history, {one: one.encode() for one in ids})
    listed = git(history.git_dir, "notes", "--ref=released", "list").split("\n")
    assert {line.split(" ")[1]: line.split(" ")[0] for line in listed} == read_notes(history, REF)
    assert texts(history) == {one: one.encode() for one in ids}


@pytest.mark.parametrize("count", [5, 300])
def test_notes_of_stock_git_are_read_and_kept(history, count):
    head = "committer A <a@b> 1700000000 +0000\ndata 1\nx\n"
    stream = "blob\nmark :999\ndata 5\ntext\n\n"
    stream += "".join(f"commit refs/heads/main\nmark :{n + 1}\n{head}" for n in range(count))
    stream += f"commit {REF}\n{head}" + "".join(f"N :999 :{n + 1}\n" for n in range(count))
    git(history.git_dir, "fast-import", "--quiet", data=stream.encode())
    commits = git(history.git_dir, "rev-list", "main").split("\n")
    assert texts(history) == dict.fromkeys(commits, b"text\n")
    assert any("/" in path for path in history.read_tree(history.find_ref(REF))) == (count > 100)
    git(history.git_dir, "notes", "--ref=released", "add", "-f", "-m", "by hand", commits[1])
    write(history, {commits[0]: b"mine\n"})
    assert texts(history) == {
        one: {commits[0]: b"mine\n", commits[1]: b"by hand\n"}.get(one, b"text\n")
        for one in commits
    }
    git(history.git_dir, "notes", "--ref=released", "append", "-m", "more", commits[0])
    assert texts(history)[commits[0]] == b"mine\n\nmore\n"
    assert len(texts(history)) == count


def test_any_cut_into_pairs_is_read(history):
    ids = some_ids(3)
    entry = TreeEntry(0o100644, history.write_blob(b"text"))
    paths = [ids[0], f"{ids[1][:2]}/{ids[1][2:]}", f"{ids[2][:2]}/{ids[2][2:4]}/{ids[2][4:]}"]
    others = [f"{ids[0][:3]}/{ids[0][3:]}", "readme", f"{ids[0]}0", ids[0].upper()]
    files = dict.fromkeys([*paths, *others], entry)
    new = history.write_commit(
        tree=history.write_tree(files), parents=[], message="m", author=Stamp(WHO, START_S, 0)
    )
    create_ref(history, REF, new)
    assert set(read_notes(history, REF)) == set(ids)
    write(history, {ids[0]: None})
    left = history.read_tree(history.find_ref(REF))
    assert set(left) == {*others, ids[1], ids[2]}


def test_a_change_of_nothing_is_no_commit(history):
    write(history, {some_ids(1)[0]: None})
    assert history.find_ref(REF) is None
    write(history, {some_ids(1)[0]: b"text"})
    before = history.find_ref(REF)
    write(history, {some_ids(1)[0]: b"text", some_ids(2)[1]: None})
    assert history.find_ref(REF) == before


@pytest.mark.parametrize("ref", ["refs/heads/main", "released", "refs/notes/", "refs/notes/a b"])
def test_only_names_of_notes(history, ref):
    with pytest.raises(UsageError):
        read_notes(history, ref)
    with pytest.raises(UsageError):
        write_notes(history, ref, {}, message="m", stamp=at())


def test_only_ids_are_noted(history):
    with pytest.raises(UsageError, match="'HEAD'"):
        write(history, {"HEAD": b"x"})


def test_damaged_notes_are_not_written_over(history):
    write(history, {some_ids(1)[0]: b"text"})
    tip = history.find_ref(REF)
    tree = history.read_commit(tip).tree
    loose_path(history, tree).unlink()
    with pytest.raises(CorruptionError, match=tree):
        write(GitHistory.open(history.git_dir), {some_ids(2)[1]: b"text"})
    assert history.find_ref(REF) == tip


def test_they_are_no_refs_of_the_users(history):
    commit = commit_on_head(history, "one")
    write(history, {commit: b'{"mvc-manifest":'})
    assert list(history.list_refs()) == ["refs/heads/main"]
    assert list(history.list_refs("refs/notes/")) == [REF]
    assert {path for _, path, _ in reachable_blobs(history)} == {"file.txt"}
    assert list(check(history)) == []
    with pytest.raises(NotFoundError) as caught:
        history.resolve("releasd")
    assert caught.value.hint is None


def test_check_finds_what_is_missing_of_them(history):
    commit = commit_on_head(history, "one")
    write(history, {commit: b"text"})
    blob = read_notes(history, REF)[commit]
    loose_path(history, blob).unlink()
    assert {problem.what for problem in check(GitHistory.open(history.git_dir))} == {blob}


def _write_some(git_dir, first):
    with GitHistory.open(git_dir) as history:
        for one in some_ids(40)[first::2]:
            write(history, {one: one.encode()})


@pytest.mark.parametrize("count", [0, 1, 40, 700])
def test_single_notes_are_found_without_reading_the_others(history, monkeypatch, count):
    assert find_notes(history, REF) is None
    noted = some_ids(count + 5)
    write(history, {one: one.encode() for one in noted[:count]} or {noted[-1]: b"x"})
    finder = find_notes(history, REF)
    everything = read_notes(history, REF)
    read = []
    read_kind = history.objects.read_kind
    monkeypatch.setattr(
        history.objects, "read_kind", lambda i, kind: read.append(i) or read_kind(i, kind)
    )
    for one in noted[:3] + noted[-3:] + noted[:3]:
        assert finder.find(one) == everything.get(one)
    assert len(read) <= 7


def test_a_note_costs_the_same_among_many(history, monkeypatch):
    """Of hundreds in folders only the folder of this one is read and written."""
    noted = some_ids(700)
    write(history, {one: one.encode() for one in noted[:-2]})
    calls = []
    for name in ("read", "write"):
        real = getattr(history.objects, name)
        monkeypatch.setattr(
            history.objects, name, lambda *args, _real=real: calls.append(args) or _real(*args)
        )
    write(history, {noted[-1]: b"new", noted[0]: None, noted[1]: b"other"})
    assert len(calls) < 24
    wanted = {one: one.encode() for one in noted[2:-2]} | {noted[1]: b"other", noted[-1]: b"new"}
    assert texts(history) == wanted
    tip = history.find_ref(REF)
    write(history, {noted[0]: None, noted[1]: b"other"})
    assert history.find_ref(REF) == tip
    write(history, dict.fromkeys(noted))
    assert texts(history) == {}


def test_single_notes_in_folders_of_any_depth(history):
    noted = some_ids(3)
    blob = history.write_blob(b"text")
    places = (f"{noted[0][:2]}/{noted[0][2:4]}/{noted[0][4:]}", f"{noted[1][:2]}/{noted[1][2:]}")
    tree = history.write_tree({place: TreeEntry(MODE_FILE, blob) for place in (*places, "readme")})
    finder = NoteFinder(tree, history.objects.read_tree_items)
    assert [finder.find(one) for one in noted] == [blob, blob, None]


def test_two_processes_at_once_lose_none(history):
    fork_each(*(partial(_write_some, history.git_dir, first) for first in (0, 1)))
    assert texts(history) == {one: one.encode() for one in some_ids(40)}
