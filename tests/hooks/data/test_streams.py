"""Streams of shards: every format by number, in the order of blocks, and shards that lie."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import tarfile
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
import torch
import zstandard
from pyarrow import parquet

from mvc import FormatError, NotFoundError, UnsupportedError, UsageError
from mvc.shards import Shard, ShardMap
from mvc_data.readers import columns
from mvc_data.streams import ShardedStream
from support.bounds import rest_nightly, rest_slow
from support.cases import for_each
from support.sample_shards import WRITERS, make_rows, read_id, write_shards, write_tar

SIZES = (13, 1, 40, 22)
HOW = {"records": "count", "shuffle_block": 8, "tokens": 2, "dtype": "uint16"}


def read_pass(stream, key, batch=5):
    indices = stream.order.find_indices(np.arange(len(stream)), key)
    parts = [indices[at : at + batch].tolist() for at in range(0, len(indices), batch)]
    return indices.tolist(), [
        read_id(sample) for part in parts for sample in stream.__getitems__(part)
    ]


@pytest.mark.parametrize("suffix", WRITERS)
def test_every_format_gives_each_sample_by_its_number(tmp_path, suffix):
    write_shards(tmp_path, suffix, SIZES)
    stream = ShardedStream(tmp_path, **HOW)
    assert tuple(stream.records) == SIZES
    for key in range(3):
        indices, found = read_pass(stream, key)
        assert found == indices
    copy = pickle.loads(pickle.dumps(stream))
    assert read_id(copy[-1]) == sum(SIZES) - 1
    stream.close()


@pytest.mark.parametrize("suffix", rest_nightly(["jsonl.zst", "jsonl", "parquet", "tar"]))
def test_workers_read_what_one_process_reads(tmp_path, suffix):
    write_shards(tmp_path, suffix, SIZES)
    stream = ShardedStream(tmp_path, **HOW)
    stream[3]  # opened before the workers are forked
    indices = stream.order.find_indices(np.arange(len(stream)), 1).tolist()
    batches = [indices[at : at + 7] for at in range(0, len(indices), 7)]
    loader = torch.utils.data.DataLoader(
        stream, batch_sampler=batches, num_workers=2, collate_fn=list
    )
    assert [read_id(sample) for batch in loader for sample in batch] == indices
    stream.close()


def test_a_sample_has_a_shard_and_a_record(tmp_path):
    paths = write_shards(tmp_path, "jsonl", SIZES)
    stream = ShardedStream(paths, **HOW)
    assert stream.locate(0) == (paths[0], 0)
    assert stream.locate(13) == (paths[1], 0)
    assert stream.locate(75) == (paths[3], 21)


def test_a_resume_opens_only_the_shards_that_it_needs(tmp_path):
    write_shards(tmp_path, "jsonl", [10] * 20)
    opened = []
    stream = ShardedStream(tmp_path, **{**HOW, "on_open": opened.append})
    indices = stream.order.find_indices(np.arange(100, 116), 4)
    stream.__getitems__(indices.tolist())
    assert len(opened) <= 3
    stream.__getitems__(indices.tolist())
    assert len(opened) == len(set(opened))


@for_each("count, size, block", [(4, 100, 32), (60, 3, 50)])
def test_a_reader_in_order_reads_a_shard_once(tmp_path, count, size, block):
    """Also where many shards are smaller than a block."""
    paths = [str(tmp_path / f"{number}.txt") for number in range(count)]
    passes = dict.fromkeys(paths, 0)

    def read_shard(path):
        passes[path] += 1
        yield from ({"id": size * paths.index(path) + number} for number in range(size))

    stream = ShardedStream(paths, read_shard, records=[size] * count, shuffle_block=block)
    indices, found = read_pass(stream, 9)
    assert found == indices
    assert set(passes.values()) == {1}


def test_a_map_of_shards_tells_their_records(tmp_path):
    paths = write_shards(tmp_path / "train", "jsonl.zst", SIZES)
    shards = [
        Shard(os.path.basename(path), os.path.getsize(path), b"\0" * 32, size)
        for path, size in zip(paths, SIZES, strict=True)
    ]
    (tmp_path / "train.shards").write_bytes(ShardMap.build("train", shards).encode())
    stream = ShardedStream(tmp_path / "train.shards")
    assert tuple(stream.records) == SIZES
    assert stream.shards == ShardMap.read(tmp_path / "train.shards").tree
    assert read_id(stream[20]) == 20


def test_a_pattern_and_a_list_are_the_same(tmp_path):
    paths = write_shards(tmp_path, "npy", SIZES)
    by_pattern = ShardedStream(f"{tmp_path}/*.npy")
    assert by_pattern.paths == ShardedStream(paths).paths == ShardedStream(tmp_path).paths


def test_long_names_in_tars_are_read(tmp_path):
    rows = [{**row, "id": row["id"]} for row in make_rows(0, 5)]
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        path = tmp_path / f"{kind}.tar"
        write_tar(path, rows, kind)
        with tarfile.open(path, "a", format=kind) as tar:
            info = tarfile.TarInfo("é" * 150 + "/000005.json")
            tar.addfile(info)
        stream = ShardedStream([path], records="count")
        assert [read_id(sample) for sample in stream.__getitems__(range(6))] == [0, 1, 2, 3, 4, 5]


def test_empty_lines_are_no_records(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\n{"id": 0}\r\n\r\n\n{"id": 1}\n7')
    stream = ShardedStream(tmp_path, records="count")
    assert stream.__getitems__([0, 1, 2]) == [{"id": 0}, {"id": 1}, 7]


# What is wrong.


def cut_off(path, share=0.6):
    os.truncate(path, int(os.path.getsize(path) * share))


def read_all(paths, counts):
    stream = ShardedStream(paths, **{**HOW, "records": counts})
    return stream.__getitems__(range(len(stream)))


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_shard_that_is_cut_off_is_named(tmp_path, suffix):
    paths = write_shards(tmp_path, suffix, [30, 30])
    cut_off(paths[1])
    with pytest.raises(FormatError, match=r"part-001\.") as caught:
        read_all(paths, [30, 30])
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("suffix", rest_slow(["jsonl.zst", "jsonl.gz"]))
def test_a_compressed_bomb_is_named_not_unpacked(tmp_path, suffix):
    path = tmp_path / f"part-000.{suffix}"
    pack = gzip.compress if suffix.endswith("gz") else zstandard.compress
    path.write_bytes(pack(b" " * (512 << 20), 1))
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"part-000\..*200 times"):
            read_all([str(path)], [1])
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 256 << 20


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("told", [29, 31])
def test_a_shard_with_other_records_than_it_should_have_is_named(tmp_path, suffix, told):
    paths = write_shards(tmp_path, suffix, [30, 30])
    with pytest.raises(FormatError, match=r"part-001\..*(29|31)"):
        read_all(paths, [30, told])


@pytest.mark.parametrize("suffix", sorted(set(WRITERS) - {"npy", "bin"}))
def test_a_shard_of_garbage_is_named(tmp_path, suffix):
    paths = write_shards(tmp_path, suffix, [30, 30])
    with open(paths[0], "r+b") as file:
        file.seek(0)
        file.write(np.random.default_rng(0).bytes(os.path.getsize(paths[0])))
    with pytest.raises(FormatError, match=r"part-000\.") as caught:
        read_all(paths, [30, 30])
    assert "\n" not in caught.value.message


def write_arrow(path):
    table = pa.table({"text": ["abc"] * 30})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize(
    ("suffix", "write", "old", "new"),
    [
        ("arrow", write_arrow, struct.pack("<3i", 9, 12, 15), struct.pack("<3i", 9, 2**30, 15)),
        ("npy", lambda path: np.save(path, np.zeros((30, 2))), b", }", b", ("),
    ],
    ids=["an offset", "a header that is no text"],
)
def test_a_shard_with_a_few_wrong_bytes_is_named(tmp_path, suffix, write, old, new):
    path = tmp_path / f"part-000.{suffix}"
    write(path)
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))
    with pytest.raises(FormatError, match=rf"part-000\.{suffix} cannot be read"):
        read_all([str(path)], [30])


def test_a_page_of_a_parquet_file_that_is_damaged_is_named(tmp_path):
    (path,) = write_shards(tmp_path, "parquet", [30])
    with open(path, "r+b") as file:
        file.seek(4)
        file.write(b"\xff" * 40)
    with pytest.raises(FormatError, match=r"part-000\.parquet cannot be read"):
        read_all([path], None)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("most_cells", [0, 1 << 20])
def test_rows_of_parquet_are_the_same_whenever_they_become_python(
    tmp_path, monkeypatch, nested, most_cells
):
    """And what is done to a sample does not show when it is read again."""
    rows = [
        {"n": number, "x": None if number % 3 else number / 7, "text": f"é{number}", "raw": b"%d" % number, "is": number > 4}
        | ({"tokens": [number, number]} if nested else {})
        for number in range(40)
    ]  # fmt: skip
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=16)
    monkeypatch.setattr(columns, "_MOST_CELLS", most_cells)
    stream = ShardedStream(tmp_path, shuffle_block=8)
    wanted = [39, 3, 3, 17, 16]
    for sample in stream.__getitems__(wanted):
        sample.clear()
    assert stream.__getitems__(wanted) == [rows[number] for number in wanted]


def test_a_reader_of_the_user_that_fails_names_the_shard(tmp_path):
    def read_shard(path):
        yield {"id": 0}
        raise RuntimeError("the tape is torn")

    stream = ShardedStream(["a.x"], read_shard, records=[5])
    with pytest.raises(
        FormatError, match=r"record 1 of shard a\.x cannot be read: the tape is torn"
    ):
        stream[3]


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"a":' * 100_000])
def test_a_line_that_is_nested_without_end_is_named(tmp_path, line):
    (tmp_path / "0.jsonl").write_bytes(b"1\n" + line + b"\n")
    stream = ShardedStream(tmp_path, records="count")
    assert stream[0] == 1
    with pytest.raises(FormatError, match=r"0\.jsonl.* nested too deep"):
        stream[1]


def test_a_line_that_is_no_json_is_named_with_its_record(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"id": 0}\n{"id": 1\n{"id": NaN}\n')
    stream = ShardedStream(tmp_path, records="count")
    assert np.isnan(stream[2]["id"])
    with pytest.raises(FormatError, match=r"record 1 of shard .*a\.jsonl cannot be read"):
        stream[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "how many records shard .* has is not known"),
        ({"records": [5, 5]}, "records are given for 2 shards, and there are 1"),
        ({"records": [-1]}, "is said to have -1 records"),
        ({"records": "guess"}, "records='guess' is neither numbers nor 'count'"),
        ({"records": [5], "shuffle_block": 0}, "shuffle_block is 0"),
    ],
)
def test_wrong_use_is_refused(tmp_path, options, message):
    paths = write_shards(tmp_path, "jsonl", [5])
    with pytest.raises(UsageError, match=message):
        ShardedStream(paths, **options)


def test_shards_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(NotFoundError, match="no shards at"):
        ShardedStream(f"{tmp_path}/*.jsonl")
    with pytest.raises(NotFoundError, match=r"shard nowhere\.jsonl does not exist"):
        ShardedStream("nowhere.jsonl", records=[3])[0]
    with pytest.raises(UsageError, match="is given twice"):
        ShardedStream(["a.jsonl", "a.jsonl"], records=[1, 1])
    with pytest.raises(UsageError, match="a stream without shards"):
        ShardedStream([])
    (tmp_path / "a.what").write_bytes(b"x")
    with pytest.raises(UnsupportedError, match="tells no known format"):
        ShardedStream([tmp_path / "a.what"], records=[1])[0]
    np.save(tmp_path / "flat.npy", np.arange(10))
    (tmp_path / "flat.bin").write_bytes(b"12345678")
    for dtype in ("uint61", "object", ""):
        with pytest.raises(UsageError, match="is not the dtype of numbers"):
            ShardedStream([tmp_path / "flat.bin"], tokens=2, dtype=dtype)
    with pytest.raises(UsageError, match="is one sequence of 10 numbers"):
        ShardedStream([tmp_path / "flat.npy"])


def test_reading_against_the_order_is_told(tmp_path, caplog):
    stream = ShardedStream(["a.x"], lambda _: iter(range(2000)), records=[2000], shuffle_block=1)
    with caplog.at_level("WARNING", "mvc_hooks"):
        for number in range(1999, 100, -100):
            assert stream[number] == number
    assert "is read from its start for the 8th time" in caplog.text
