import random
import shutil

import pytest

from mvc.errors import CorruptionError, MvcError
from mvc.history.check import check
from mvc.history.git import GitHistory
from mvc.history.reachability import reachable_blobs
from mvc.history.values import Index, IndexEntry, Stamp
from support.stockgit import (
    START_S,
    WHO,
    at,
    build_tangle,
    collect_garbage,
    commit_on_head,
    create_ref,
    git,
    loose_path,
    spoil,
    stage,
    write_commit,
)


def kinds(history):
    return sorted((problem.kind, problem.what) for problem in check(history))


def remove(history, object_id):
    loose_path(history, object_id).unlink()


def test_a_sound_history_has_no_problem(history):
    assert kinds(history) == []
    build_tangle(history, seed=1)
    assert kinds(history) == []


@pytest.mark.parametrize("kind", ["commit", "parent", "tree", "subtree", "blob", "tag"])
def test_what_is_missing_is_named_with_who_needs_it(history, kind):
    parent = commit_on_head(history, "one", files={"folder/f": "1"})
    commit = commit_on_head(history, "two", time_s=START_S + 1, files={"folder/f": "2"})
    tag = history.create_tag("v1", commit, message="m", stamp=at())
    tree = history.read_commit(commit).tree
    ((_, _, subtree),) = history.objects.read_tree_items(tree)
    blob = history.read_tree(commit)["folder/f"].blob
    lost = {"commit": commit, "parent": parent, "tree": tree, "subtree": subtree, "blob": blob,
            "tag": tag}[kind]  # fmt: skip
    remove(history, lost)
    (problem,) = check(history)
    assert (problem.kind, problem.what) == ("object-missing", lost)
    source = {"commit": "HEAD", "parent": commit, "tree": commit, "subtree": tree, "blob": "'f'",
              "tag": "refs/tags/v1"}[kind]  # fmt: skip
    assert source in problem.detail


@pytest.mark.parametrize("reached", [True, False])
def test_a_damaged_object_is_reported_once(history, reached):
    hurt = commit_on_head(history, "one") if reached else history.write_blob(b"alone")
    spoil(loose_path(history, hurt), b"junk")
    assert kinds(history) == [("object-damaged", hurt)]


def test_objects_of_the_wrong_kind_and_hostile_trees_are_reported(history):
    blob = history.write_blob(b"x")
    raw = bytes.fromhex(blob)
    wrong = history.objects.write("tree", b"40000 folder\0" + raw)
    evil = history.objects.write("tree", b"100644 ..\0" + raw)
    for tree, text in ((wrong, "expects object"), (evil, "which has an empty")):
        commit = history.write_commit(tree=tree, parents=[], message="m", author=Stamp(WHO, 1, 0))
        create_ref(history, "refs/heads/x", commit)
        (problem,) = check(history)
        assert problem.kind == "object-damaged"
        assert text in problem.detail
        history.delete_ref("refs/heads/x", expected=commit, stamp=at())


def test_a_branch_on_something_else_than_a_commit_is_reported(history):
    blob = history.write_blob(b"x")
    (history.git_dir / "refs/heads/bad").write_text(blob + "\n")
    assert [problem.what for problem in check(history)] == [blob]


def test_what_only_the_index_or_a_log_knows_is_checked(history):
    one = commit_on_head(history, "one")
    two = write_commit(history, [], "two", time_s=2)
    history.update_head(two, expected=one, message="away", stamp=at())
    staged = history.write_blob(b"staged")
    stage(history, IndexEntry("s", staged, 0o100644))
    remove(history, one)
    remove(history, staged)
    details = {problem.what: problem.detail for problem in check(history)}
    assert set(details) == {one, staged}
    assert "the log of" in details[one]
    assert "the index at 's'" in details[staged]


def test_every_blob_is_listed_once_with_a_path_that_has_it(history):
    build_tangle(history, seed=4)
    found = list(reachable_blobs(history))
    assert len({blob for _, _, blob in found}) == len(found)
    shown = git(history.git_dir, "rev-list", "--objects", "--all", "--reflog").split("\n")
    types = git(
        history.git_dir,
        "cat-file",
        "--batch-check=%(objectname) %(objecttype)",
        data="".join(line[:40] + "\n" for line in shown).encode(),
    ).split("\n")
    wanted = {line[:40] for line in types if line.endswith(" blob")}
    assert {blob for _, _, blob in found} == wanted
    for commit, path, blob in found:
        assert history.read_tree(commit)[path].blob == blob


def test_blobs_below_given_starts_only(history):
    one = commit_on_head(history, "one", files={"a": "1", "d/b": "2"})
    two = write_commit(history, [], "two", time_s=1, files={"a": "1", "c": "3"})
    tag = history.create_tag("v", two, message="m", stamp=at())
    assert {path for _, path, _ in reachable_blobs(history, [one])} == {"a", "d/b"}
    assert [path for _, path, _ in reachable_blobs(history, [one, tag])][-1] == "c"
    assert len(list(reachable_blobs(history, [one, tag]))) == 3
    remove(history, history.read_commit(one).tree)
    with pytest.raises(CorruptionError):
        list(reachable_blobs(history))


def read_all(history):
    """Read whatever there is through every door; return what came out."""
    head = history.head()
    starts = [head.commit, *history.list_refs().values()]
    commits = list(history.walk([start for start in starts if start is not None]))
    files = {one.id: history.read_tree(one.id) for one in commits}
    blobs = {e.blob: history.read_blob(e.blob) for tree in files.values() for e in tree.values()}
    return head, history.list_refs(), commits, files, blobs, history.read_index().entries


@pytest.mark.parametrize("packed", [False, True])
def test_whatever_is_damaged_nothing_wrong_is_read_and_only_our_errors_come_out(tmp_path, packed):
    start = tmp_path / "start"
    history = GitHistory.init(start / ".mvc")
    for number in range(3):
        files = {"a": str(number), "d/b": "same" * 40}
        commit_on_head(history, f"c{number}", time_s=START_S + number, files=files)
    with history.lock():
        entry = IndexEntry("a", history.write_blob(b"2"), 0o100644)
        history.write_index(Index({"a": entry}))
    if packed:
        collect_garbage(history)
    with GitHistory.open(start / ".mvc") as opened:
        expected = read_all(opened)
    chooser = random.Random(1)
    names = [path.relative_to(start) for path in sorted(start.rglob("*")) if path.is_file()]
    for name in names:
        for damage in chooser.sample(["flip", "cut", "empty", "grow", "gone"], 2):
            work = tmp_path / "work"
            shutil.copytree(start, work)
            target = work / name
            target.chmod(0o644)
            data = bytearray(target.read_bytes())
            if damage == "flip" and data:
                data[chooser.randrange(len(data))] ^= 1 << chooser.randrange(8)
            elif damage in ("cut", "empty"):
                del data[len(data) // 2 if damage == "cut" else 0 :]
            elif damage == "grow":
                data += b"\nmore"
            target.write_bytes(data)
            if damage == "gone":
                target.unlink()
            try:
                with GitHistory.open(work / ".mvc") as opened:
                    problems = list(check(opened))
                    found = read_all(opened)
            except MvcError:
                pass
            else:
                # Refs and config hold no checksum of their own: a flipped digit names another,
                # missing commit, and a flipped branch name is another name.
                sums = name.parts[1] in ("objects", "index") and not problems
                assert not sums or found == expected or damage == "gone", (name, damage)
            shutil.rmtree(work)
