import os
import time

import pytest

from mvc import fs
from mvc.errors import CorruptionError, UsageError
from mvc.history.check import check
from mvc.history.git import GitHistory
from mvc.history.notes import read_notes, write_notes
from mvc.history.object_sweep import find_recent, list_garbage, remove_objects
from mvc.history.reachability import find_roots, reachable_objects
from mvc.history.values import IndexEntry, Stamp
from support.stockgit import (
    START_S,
    WHO,
    at,
    build_tangle,
    commit_on_head,
    create_ref,
    git,
    loose_path,
    run_git,
    spoil,
    stage,
    write_commit,
)

DAY_S = 86400


def age(path, days):
    when_s = time.time() - days * DAY_S
    os.utime(path, (when_s, when_s))


def age_all(history, days):
    for path in (history.git_dir / "objects").rglob("*"):
        if path.is_file():
            age(path, days)


def loose_ids(history):
    return set(history.objects.loose.iterate())


def forget_logs(history):
    for path in (history.git_dir / "logs").rglob("*"):
        if path.is_file():
            path.unlink()


def sweep(history, *, older_than_s=14 * DAY_S):
    """What gc does."""
    with history.sweep_alone():
        listed = list_garbage(history, reachable_objects(history), older_than_s=older_than_s)
        return listed, remove_objects(history, listed)


@pytest.mark.parametrize("seed", range(3))
def test_stock_git_prunes_the_same(history, seed):
    build_tangle(history, seed)
    doomed = git(history.git_dir, "for-each-ref", "--format=%(refname)").split("\n")[1::2]
    for name in doomed:
        if name != "refs/heads/main":
            history.delete_ref(name, expected=history.find_ref(name), stamp=at())
    forget_logs(history)
    age_all(history, 20)
    expected = {
        tuple(line.split(" "))
        for line in git(history.git_dir, "prune", "--dry-run", "--expire=14.days.ago").split("\n")
    }
    listed, freed_bytes = sweep(history)
    assert {(item.id, item.kind) for item in listed} == expected
    assert len(listed) > 3
    assert freed_bytes == sum(item.size_bytes for item in listed)
    kinds = [item.kind for item in listed]
    assert kinds == sorted(kinds, key=["commit", "tag", "tree", "blob"].index)
    assert loose_ids(history) == reachable_objects(history)
    assert list(check(history)) == []
    assert run_git(history.git_dir, "fsck", "--strict", "--no-dangling").returncode == 0


def test_what_is_staged_or_noted_or_remembered_is_in_use(history):
    commit = commit_on_head(history, "one")
    blob = history.write_blob(b"staged")
    stage(history, IndexEntry("s", blob, 0o100644))
    write_notes(history, "refs/notes/released", {commit: b"note"}, message="m", stamp=at())
    dropped = commit_on_head(history, "two", time_s=START_S + 1)
    history.update_head(commit, expected=dropped, message="reset", stamp=at())
    merging = write_commit(history, [], "being merged", time_s=START_S)
    (history.git_dir / "MERGE_HEAD").write_text(f"{merging}\n")
    note = read_notes(history, "refs/notes/released")[commit]
    assert {blob, note, dropped, merging} <= reachable_objects(history)
    assert merging in find_roots(history)
    age_all(history, 99)
    assert sweep(history) == ([], 0)


def test_the_young_stay_with_all_they_lead_to(history):
    commit_on_head(history, "one")
    old = write_commit(history, [], "old", time_s=START_S)
    older = write_commit(history, [], "older", time_s=START_S, files={"shared": "shared"})
    age_all(history, 20)
    young = write_commit(
        history, [old], "young", time_s=START_S, files={"shared": "shared", "new": "new"}
    )
    age(loose_path(history, history.write_blob(b"shared")), 20)
    recent = find_recent(history, reachable_objects(history), older_than_s=14 * DAY_S)
    assert {young, old, history.read_commit(old).tree, history.write_blob(b"shared")} <= recent
    listed, _ = sweep(history)
    assert listed[0].id == older
    assert [item.kind for item in listed] == ["commit", "tree"]  # its blob is shared
    assert set(history.read_tree(young)) == {"shared", "new"}
    assert history.read_commit(old).subject == "old"
    create_ref(history, "refs/heads/again", young)
    assert list(check(history)) == []


def test_what_died_while_it_was_written(history):
    commit = commit_on_head(history, "one")
    folder = history.git_dir / "objects"
    (folder / "pack").mkdir(exist_ok=True)
    left = ["tmp_obj_1", f"{commit[:2]}/tmp_obj_2", "pack/tmp_pack_3"]
    for name in [*left, f"{commit[:2]}/other", "pack/pack-1.keep"]:
        (folder / name).write_bytes(b"xyz")
    assert sweep(history) == ([], 0)
    for name in left:
        age(folder / name, 20)
    listed, freed_bytes = sweep(history)
    assert sorted(item.name for item in listed) == sorted(left)
    assert {(item.kind, item.id) for item in listed} == {("temporary", None)}
    assert freed_bytes == 9
    assert not any((folder / name).exists() for name in left)
    assert (folder / commit[:2] / "other").exists()


def test_objects_in_packs_are_left_alone(history):
    commit_on_head(history, "one")
    lost = write_commit(history, [], "lost", time_s=START_S)
    create_ref(history, "refs/heads/lost", lost)
    git(history.git_dir, "repack", "-a", "-d", "-q")
    history.delete_ref("refs/heads/lost", expected=lost, stamp=at())
    again = GitHistory.open(history.git_dir)
    assert loose_ids(again) == set()
    assert lost not in reachable_objects(again)
    assert sweep(again, older_than_s=-1) == ([], 0)
    assert again.read_commit(lost).subject == "lost"
    commit_on_head(again, "two", time_s=START_S + 1)
    assert sweep(again, older_than_s=-1) == ([], 0)


def test_a_damaged_one_that_nothing_needs_goes(history):
    commit_on_head(history, "one")
    lost = history.write_blob(b"lost")
    spoil(loose_path(history, lost), b"damage")
    listed, _ = sweep(history, older_than_s=-1)
    assert [(item.id, item.kind) for item in listed] == [(lost, "damaged")]
    assert not loose_path(history, lost).exists()


@pytest.mark.parametrize("kind", ["commit", "tree", "blob"])
@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_nothing_is_swept_where_something_is_lost(history, kind, how):
    commit = commit_on_head(history, "one")
    commit_on_head(history, "two", time_s=START_S + 1)
    ids = {
        "commit": commit,
        "tree": history.read_commit(commit).tree,
        "blob": history.read_tree(commit)["file.txt"].blob,
    }
    path = loose_path(history, ids[kind])
    path.unlink()
    if how == "damaged":
        if kind == "blob":
            return  # blobs are not read here: gc reads the manifests, fsck the rest
        path.write_bytes(b"damage")
    with pytest.raises(CorruptionError, match=ids[kind]):
        reachable_objects(GitHistory.open(history.git_dir))


def test_an_object_of_another_kind_than_it_is_taken_for(history):
    blob = history.write_blob(b"no tree")
    wrong = history.write_commit(tree=blob, parents=[], message="m", author=Stamp(WHO, START_S, 0))
    create_ref(history, "refs/heads/wrong", wrong)
    with pytest.raises(CorruptionError, match="expected to be a tree; it is a blob"):
        reachable_objects(history)


def test_a_damaged_index_stops_it(history):
    (history.git_dir / "index").write_bytes(b"damage")
    with pytest.raises(CorruptionError):
        reachable_objects(history)


def test_only_under_the_sweep_lock(history):
    with pytest.raises(UsageError):
        remove_objects(history, [])
    with history.no_sweep(), pytest.raises(UsageError):
        remove_objects(history, [])


def test_what_vanished_or_was_written_again_is_passed_over(history):
    one, two = history.write_blob(b"one"), history.write_blob(b"two")
    age_all(history, 20)
    listed = list_garbage(history, set(), older_than_s=DAY_S)
    assert {item.id for item in listed} == {one, two}
    loose_path(history, one).unlink()
    assert history.write_blob(b"two") == two  # touched, as by a stock Git that knows no sweep lock
    with history.sweep_alone():
        assert remove_objects(history, listed) == 0
    assert history.read_blob(two) == b"two"


def test_what_was_removed_is_written_anew_when_it_is_needed_again(history):
    blob = history.write_blob(b"one")
    sweep(history, older_than_s=-1)
    assert not history.has_object(blob)
    assert blob not in history.objects._sound
    assert history.write_blob(b"one") == blob
    assert history.read_blob(blob) == b"one"


def test_each_kind_is_durably_gone_before_the_next(history, monkeypatch):
    lost = write_commit(history, [], "lost", time_s=START_S)
    tag = history.create_tag("v1", lost, message="m", stamp=at())
    history.delete_ref("refs/tags/v1", expected=tag, stamp=at())
    events = []
    real_sync = fs.fsync_dir

    def sync(folder):
        gone = [item.kind for item in listed if not (folder / item.name.split("/")[1]).exists()
                and (folder.name == item.name[:2])]  # fmt: skip
        events.append(gone)
        real_sync(folder)

    monkeypatch.setattr(fs, "fsync_dir", sync)
    with history.sweep_alone():
        listed = list_garbage(history, reachable_objects(history), older_than_s=-1)
        assert [item.kind for item in listed] == ["commit", "tag", "tree", "blob"]
        remove_objects(history, reversed(listed))
    assert sorted(events[:2]) == [["commit"], ["tag"]]
    assert events[-2:] == [["tree"], ["blob"]]


def write_pack(history, text, *, commit=False):
    """Write fifty blobs, and a commit of them, as a pack; return its file, the ids, the commit."""
    made = None
    with history.gathering():
        files = {f"f{one}": f"{text} {one}" for one in range(50)}
        ids = [history.write_blob(content.encode()) for content in files.values()]
        if commit:
            made = write_commit(history, [], text, time_s=START_S, files=files)
    assert history.has_object(ids[0])
    return history.objects.packs.find_path(ids[0]), ids, made


def test_a_pack_of_garbage_goes_whole_and_others_stay(history):
    used = commit_on_head(history, "used", files={"f": "shared 7"})
    old, old_ids, old_commit = write_pack(history, "old", commit=True)
    mixed, mixed_ids, _ = write_pack(history, "shared")
    kept, kept_ids, _ = write_pack(history, "kept")
    kept.with_suffix(".keep").write_bytes(b"")
    stage(history, IndexEntry("f", mixed_ids[3], 0o100644))
    age_all(history, 20)
    young, young_ids, young_commit = write_pack(history, "young", commit=True)
    git(history.git_dir, "fsck", "--strict", "--full")
    listed, freed_bytes = sweep(history)
    assert [(item.kind, item.name) for item in listed if item.kind == "pack"] == [
        ("pack", f"pack/{old.name}")
    ]
    assert sum(item.count for item in listed) >= len(old_ids) + 2
    assert freed_bytes > 0
    assert not list(old.parent.glob(f"{old.stem}*"))
    assert all(path.exists() for path in (mixed, kept, young))
    assert not any(history.has_object(one) for one in [*old_ids, old_commit])
    with pytest.raises(CorruptionError, match="missing"):
        history.read_commit(old_commit)
    assert history.read_commit(young_commit).subject == "young"
    assert history.read_commit(used).subject == "used"
    for one in [*mixed_ids, *kept_ids, *young_ids]:
        history.read_blob(one)
    git(history.git_dir, "fsck", "--strict", "--full")
    assert write_pack(history, "old")[1] == old_ids  # nothing is taken to be there still
    assert all(GitHistory.open(history.git_dir).has_object(one) for one in old_ids)


def test_what_a_young_pack_leads_to_stays_though_nothing_reaches_it(history):
    blob = history.write_blob(b"manifest of old")
    age_all(history, 20)
    with history.gathering():
        for one in range(40):
            history.write_blob(b"filling %d" % one)
        write_commit(history, [], "gone", time_s=START_S, files={"m": "manifest of old"})
    assert blob in find_recent(history, set(), older_than_s=DAY_S)
    assert [item.id for item in sweep(history)[0]] == []


def test_what_a_crash_left_of_a_pack_goes(history):
    pack, *_ = write_pack(history, "torn")
    pack.with_suffix(".idx").unlink()
    (pack.parent / "tmp_pack_0123").write_bytes(b"half")
    pack.with_suffix(".keep").write_bytes(b"mvc\n")
    assert sweep(history)[0] == []
    age_all(history, 20)
    names = [item.name for item in sweep(history)[0]]
    kept = f"pack/{pack.stem}.keep"
    assert names == [kept, f"pack/{pack.name}", "pack/tmp_pack_0123"]
    assert list(pack.parent.iterdir()) == []
    assert list(check(history)) == []
