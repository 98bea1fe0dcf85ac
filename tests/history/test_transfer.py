"""Histories travel whole: whatever one side lacks, nothing of what it has; hostile packs are refused."""

import hashlib
import shutil
import struct
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import FormatError
from mvc.history.git import GitHistory
from mvc.history.reachability import read_links
from mvc.history.transfer import check_connected, list_missing, receive_packs, write_objects
from mvc.history.values import Identity, Stamp, TreeEntry
from support.bounds import on_disk

AUTHOR = Identity("A", "a@example.com")


def commit(history, files, parents, time_s):
    entries = {
        path: TreeEntry(0o100644, history.write_blob(text.encode())) for path, text in files.items()
    }
    stamp = Stamp(AUTHOR, time_s, 0)
    tree = history.write_tree(entries)
    return history.write_commit(tree=tree, parents=parents, author=stamp, message="m")


def reach(objects, starts):
    seen, pending = set(), [(one, "") for one in starts]
    while pending:
        one, kind = pending.pop()
        if one not in seen:
            seen.add(one)
            if kind != "blob":
                pending += read_links(objects, one, kind)
    return seen


@pytest.fixture
def other(tmp_path):
    return GitHistory.init(tmp_path / "other" / ".mvc")


@on_disk
@given(
    shape=st.lists(
        st.tuples(st.lists(st.integers(1, 6), max_size=2), st.integers(0, 5), st.integers(0, 3)),
        min_size=1,
        max_size=14,
    ),
    data=st.data(),
    skew=st.booleans(),
)
def test_what_is_sent_and_what_was_there_make_the_whole(shape, data, skew):
    folder = Path(tempfile.mkdtemp())
    try:
        history = GitHistory.init(folder / ".mvc")
        commits = []
        for number, (back, name, text) in enumerate(shape):
            parents = list(dict.fromkeys(commits[-one] for one in back if one <= len(commits)))
            time_s = 10_000 + (data.draw(st.integers(-5000, 5000)) if skew else number)
            files = {f"d/{name}": f"{text}", "same": "x", f"n{number % 3}": f"{number // 4}"}
            commits.append(commit(history, files, parents, time_s))
        wants = data.draw(st.lists(st.sampled_from(commits), min_size=1, max_size=3))
        haves = data.draw(st.lists(st.sampled_from(commits), max_size=3))
        sent = list_missing(history.objects, wants, haves)
        ids = [one for one, _ in sent]
        assert len(set(ids)) == len(ids)
        there = reach(history.objects, haves)
        whole = reach(history.objects, wants)
        assert whole <= there | set(ids)
        assert all(history.objects.read(one)[0] == kind for one, kind in sent)
        if not skew:
            have_commits = {one for one in there if one in commits}
            assert not have_commits & set(ids)
    finally:
        shutil.rmtree(folder)


def test_a_branch_that_left_long_ago_costs_what_is_new_of_it(history):
    main = [commit(history, {"a": "0"}, [], 0)]
    for number in range(1, 40):
        main.append(commit(history, {"a": str(number)}, [main[-1]], number))
    side = commit(history, {"a": "3", "b": "new"}, [main[3]], 100)
    sent = list_missing(history.objects, [side], [main[-1]])
    assert [kind for _, kind in sent] == ["commit", "tree", "blob"]
    assert list_missing(history.objects, [main[7]], [main[-1]]) == []
    assert list_missing(history.objects, [side], ["0" * 40])[0] == (side, "commit")


def test_a_pack_brings_what_is_new_and_only_that(history, other, tmp_path):
    first = commit(history, {"a": "1", "b": "2"}, [], 1)
    second = commit(history, {"a": "1", "b": "3"}, [first], 2)
    stamp = Stamp(AUTHOR, 3, 0)
    history.create_tag("v1", second, message="one", stamp=stamp)
    tag = history.find_ref("refs/tags/v1")
    path = write_objects(
        history.objects, list_missing(history.objects, [tag], []), tmp_path / "out"
    )
    name = path.stem.removeprefix("pack-")
    new = receive_packs(other.objects, {name: path})
    assert set(new) == reach(history.objects, [tag])
    assert receive_packs(other.objects, {name: path}) == []
    check_connected(other.objects, [tag], new)
    third = commit(history, {"a": "9", "b": "3"}, [second], 4)
    path = write_objects(
        history.objects, list_missing(history.objects, [third], [tag]), tmp_path / "out"
    )
    new = receive_packs(other.objects, {path.stem.removeprefix("pack-"): path})
    assert len(new) == 3
    check_connected(other.objects, [third], new)
    assert other.read_commit(third).parents == (second,)


def test_history_with_a_hole_is_refused(history, other, tmp_path):
    first = commit(history, {"a": "1"}, [], 1)
    second = commit(history, {"a": "2"}, [first], 2)
    for gap in reach(history.objects, [second]) - {second}:
        entries = [one for one in list_missing(history.objects, [second], []) if one[0] != gap]
        path = write_objects(history.objects, entries, tmp_path / gap)
        fresh = GitHistory.init(tmp_path / f"for-{gap}" / ".mvc")
        new = receive_packs(fresh.objects, {path.stem.removeprefix("pack-"): path})
        with pytest.raises(FormatError, match=gap):
            check_connected(fresh.objects, [second], new)


def seal(body):
    digest = hashlib.sha1(body)
    return body + digest.digest(), digest.hexdigest()


def entry(number, size, data):
    assert size < 16
    return bytes([number << 4 | size]) + data


BLOB = entry(3, 3, zlib.compress(b"abc"))


@pytest.mark.parametrize(
    ("count", "body"),
    [
        (1, b""),
        (1, BLOB + b"x"),
        (2, BLOB),
        (1 << 31, BLOB),
        (1, entry(3, 4, zlib.compress(b"abc"))),
        (1, entry(3, 2, zlib.compress(b"abc"))),
        (1, entry(3, 3, zlib.compress(b"a" * 1000000))),
        (1, entry(3, 3, zlib.compress(b"abc")[:-3])),
        (1, entry(6, 3, b"\x05" + zlib.compress(b"abc"))),
        (1, entry(7, 3, b"\x05" * 20 + zlib.compress(b"abc"))),
        (1, entry(5, 3, zlib.compress(b"abc"))),
        (1, b"\xbf" + b"\xff" * 9 + b"\x7f" + zlib.compress(b"abc")),
    ],
)
def test_hostile_packs_are_refused(other, tmp_path, count, body):
    data, name = seal(struct.pack(">4sLL", b"PACK", 2, count) + body)
    path = tmp_path / "pack"
    path.write_bytes(data)
    with pytest.raises(FormatError):
        receive_packs(other.objects, {name: path})
    assert list(other.objects.loose.iterate()) == []
    assert other.objects.packs.names() == []


def test_a_pack_under_another_name_or_cut_off_is_refused(other, tmp_path):
    data, name = seal(struct.pack(">4sLL", b"PACK", 2, 1) + BLOB)
    path = tmp_path / "pack"
    for bad, called in [(data, "0" * 40), (data[:-1], name), (data[:10], name), (b"", name)]:
        path.write_bytes(bad)
        with pytest.raises(FormatError):
            receive_packs(other.objects, {called: path})
    path.write_bytes(data)
    assert len(receive_packs(other.objects, {name: path})) == 1
