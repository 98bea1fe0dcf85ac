"""Shard maps: one way to write each, hostile bytes, what differs between two."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import FormatError, NotFoundError
from mvc.shards.shard_map import Shard, ShardMap, compare_maps, find_path_fault, name_of_map
from support.bounds import bounded
from support.cases import for_each
from support.machine import peak_below


def make_shard(path, content=b"", records=None, tag=None):
    return Shard(path, len(content), hashlib.sha256(content).digest(), records, tag)


GOLDEN = Path(__file__).parent.parent / "golden" / "shards"
SAMPLE = ShardMap.build(
    "train",
    [
        make_shard("b.jsonl", b"{}\n" * 3, 3, '"0123abcd"'),
        make_shard("a/one two.bin", b"abcd"),
        make_shard('"quoted".bin', b"x", 1, "-"),
        make_shard("line\nbreak \udcff", b"y", 2, "v 1\n2"),
    ],
)

paths = st.text(
    st.characters(codec=None, exclude_categories=()) | st.sampled_from('/.\n" \udc80-'), max_size=12
).filter(lambda path: find_path_fault(path) is None)
shards = st.builds(
    Shard,
    path=paths,
    size_bytes=st.integers(0, 2**63 - 1),
    sha256=st.binary(min_size=32, max_size=32),
    records=st.none() | st.integers(0, 2**63 - 1),
    tag=st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=8),
)


@given(st.lists(shards, unique_by=lambda shard: shard.path, max_size=5), st.booleans())
def test_every_map_comes_back_from_its_bytes(found, has_pattern):
    made = ShardMap.build("../data", reversed(found), "*.bin" if has_pattern else None)
    assert ShardMap.parse(made.encode()) == made
    assert list(made.shards) == sorted(found, key=lambda shard: shard.path)


@given(st.binary(max_size=300), st.integers(0, 2**16), st.booleans())
def test_any_bytes_are_a_map_or_a_format_error(noise, place, whole):
    data = SAMPLE.encode()
    place %= len(data)
    mixed = noise if whole else data[:place] + noise + data[place + len(noise) :]
    try:
        found = ShardMap.parse(mixed)
    except FormatError:
        return
    assert found.encode() == mixed


def test_flipping_any_bit_of_a_map_is_noticed_or_is_another_map():
    data = SAMPLE.encode()
    for bit in range(8 * len(data)):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        try:
            found = ShardMap.parse(bytes(broken))
        except FormatError:
            continue
        # Only the root and the tags are not part of the tree.
        assert found.tree == SAMPLE.tree
        assert [s.content for s in found.shards] == [s.content for s in SAMPLE.shards]


@for_each(
    "path",
    [
        "",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "../a",
        "a/../b",
        "a/./b",
        "a/..",
        "a\0b",
        "\ud800",
        "x" * 5000,
    ],
)
def test_a_path_that_leaves_the_root_is_refused(path):
    with pytest.raises(FormatError, match="shard path"):
        ShardMap.build("train", [make_shard(path)])


@pytest.mark.parametrize(
    "root", ["", "/etc", "a/../../b", "a/..", "s3://a\nb", "..//a", "a/../../.."]
)
def test_a_root_that_no_map_has_is_refused(root):
    with pytest.raises(FormatError, match="root"):
        ShardMap.build(root, [])


@pytest.mark.parametrize("root", [".", "..", "../..", "train", "../x/y", "s3://bucket/train"])
def test_a_root_is_relative_or_a_url(root):
    assert ShardMap.parse(ShardMap.build(root, []).encode()).root == root


def test_a_path_cannot_come_twice():
    with pytest.raises(FormatError, match="twice"):
        ShardMap.build("train", [make_shard("a"), make_shard("a", b"x")])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"shards": 4', b'"shards": 5', "total is wrong"),
        (b'"records": null', b'"records": 6', "total is wrong"),
        (b"shards 1", b"shards 2", "version of mvc"),
        (b'"root"', b'"ROOT"', "malformed header"),
        (b" 9 3 ", b" 9 4 ", "tree hash"),
        (b" 9 3 ", b" 09 3 ", "not written as mvc writes it"),
        (b" 9 3 ", b" -9 3 ", "impossible"),
        (b" 9 3 ", b" nine 3 ", "malformed line"),
        (b" b.jsonl", b" ../b.jsonl", "shard path"),
        (b" b.jsonl\n", b" b.jsonl", "not written as mvc writes it|tree hash"),
    ],
)
def test_a_map_that_was_changed_by_hand_is_refused(old, new, message):
    data = SAMPLE.encode()
    assert old in data
    with pytest.raises(FormatError, match=message):
        ShardMap.parse(data.replace(old, new))


def test_the_lines_of_another_order_are_refused():
    head, *lines, _ = SAMPLE.encode().split(b"\n")
    with pytest.raises(FormatError):
        ShardMap.parse(b"\n".join([head, *reversed(lines), b""]))


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[" * 100_000, b"null\n", b'{"mvc": 1}\n', b"\xff" * 99]
)
def test_what_is_not_a_map_is_refused(data):
    with pytest.raises(FormatError, match="not a shard map"):
        ShardMap.parse(data)


def test_the_tree_hash_leaves_out_tags_and_root():
    other = ShardMap.build(
        "s3://bucket/x", [Shard(s.path, s.size_bytes, s.sha256, s.records) for s in SAMPLE.shards]
    )
    assert other.tree == SAMPLE.tree
    assert len({ShardMap.build("x", [make_shard("a", b"", n)]).tree for n in (None, 0, 1)}) == 3


def test_find_returns_the_shard_of_a_path():
    for shard in SAMPLE.shards:
        assert SAMPLE.find(shard.path) is shard
    assert SAMPLE.find("c") is None
    assert SAMPLE.find("") is None


def test_a_map_is_read_from_its_file(tmp_path):
    (tmp_path / "train.shards").write_bytes(SAMPLE.encode())
    assert ShardMap.read(tmp_path / "train.shards") == SAMPLE
    (tmp_path / "bad.shards").write_bytes(b"x")
    with pytest.raises(FormatError, match=r"bad\.shards: not a shard map"):
        ShardMap.read(tmp_path / "bad.shards")
    for name in ("none.shards", "."):
        with pytest.raises(NotFoundError, match="no shard map"):
            ShardMap.read(tmp_path / name)


def test_what_differs_between_two_maps():
    kept, moved, gone = (
        make_shard("kept", b"k", 1),
        make_shard("was", b"m", 2),
        make_shard("gone", b"g", 4),
    )
    before, after = make_shard("both", b"one", 8), make_shard("both", b"other", 16)
    now, new = make_shard("is", b"m", 2), make_shard("new", b"n", 32)
    changes = compare_maps(
        ShardMap.build("a", [kept, moved, gone, before]),
        ShardMap.build("b", [kept, now, after, new]),
    )
    assert changes.added == (new,)
    assert changes.removed == (gone,)
    assert changes.changed == ((before, after),)
    assert changes.moved == ((moved, now),)
    assert changes.more_records == 32 - 4 + 16 - 8
    assert changes.more_bytes == 2
    assert changes
    assert not compare_maps(SAMPLE, SAMPLE)
    assert len(compare_maps(None, SAMPLE).added) == len(compare_maps(SAMPLE, None).removed) == 4
    assert compare_maps(None, SAMPLE).more_records is None


def test_copies_move_in_pairs():
    old = ShardMap.build("a", [make_shard("1", b"x"), make_shard("2", b"x")])
    new = ShardMap.build("a", [make_shard("3", b"x"), make_shard("4", b"x"), make_shard("5", b"x")])
    changes = compare_maps(old, new)
    assert [(one.path, other.path) for one, other in changes.moved] == [("1", "3"), ("2", "4")]
    assert [shard.path for shard in changes.added] == ["5"]


def test_a_map_is_called_after_its_file():
    assert name_of_map("data/train.shards") == "train"


@pytest.mark.parametrize("name", ["plain", "odd"])
def test_golden_maps_stay_readable_and_canonical(name):
    data = (GOLDEN / f"{name}.shards").read_bytes()
    found = ShardMap.parse(data)
    assert found.encode() == data
    lines = data.decode().split("\n")[1:-1]
    bare = "".join(
        " ".join(line.split(" ", 4)[:3] + line.split(" ", 4)[4:]) + "\n" for line in lines
    )
    assert found.tree == hashlib.sha256(bare.encode()).hexdigest()


def test_very_many_shards_are_written_and_read():
    many = [
        Shard(f"part-{number:06d}.tar", number, bytes(32), number, f'"{number}"')
        for number in range(bounded(10_000, 100_000))
    ]
    made = ShardMap.build("train", many)
    assert ShardMap.parse(made.encode()) == made
    assert not compare_maps(made, made)


def test_a_map_of_line_breaks_takes_no_list_of_them():
    header = ShardMap.build("data", []).encode()
    with peak_below(4 << 22):
        with pytest.raises(FormatError, match="malformed line: ''"):
            ShardMap.parse(header + b"\n" * (1 << 22))
