"""The data of a run against its maps, in one process: what is said, and what is refused."""

from __future__ import annotations

import contextlib
import os
import shutil
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mvc.shards
from mvc import ConflictError, FormatError, Identity, NotFoundError, Repo, UsageError
from mvc.shards import ShardMap
from mvc_data import ConsistentDataLoader, DataError, ShardCheck, lazy_worker
from mvc_data.guard import DataGuard
from mvc_data.lazy_worker import ShardHasher
from mvc_data.shards import (
    Finding,
    as_checks,
    find_checks,
    join_findings,
    refuse_findings,
    spell_ranks,
)
from mvc_data.streams import ShardedStream
from mvc_hooks import Checkpointer
from mvc_hooks.ranks.group import Ranks
from support.bounds import on_disk
from support.s3_server import KEYS, make_store
from support.shard_sets import flip, write_map, write_set


@pytest.fixture
def place(tmp_path):
    write_set(tmp_path / "train")
    write_map(tmp_path / "train", tmp_path / "train.shards")
    return tmp_path


@pytest.fixture
def check(tmp_path):
    with contextlib.ExitStack() as until:
        repo = until.enter_context(Repo.init(tmp_path / "repo"))

        def run(shards):
            guard = DataGuard(as_checks(shards), Ranks(), repo)
            until.callback(guard.close)
            guard.check()
            return guard

        yield run


def train(place, steps, *, read=None, **options):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Checkpointer(
        place / "run", every=2, identity=Identity("A", "a@example.org"), signals=False,
        model=model, optimizer=optimizer, **options,
    ) as ckpt:  # fmt: skip
        for step in ckpt.steps(steps):
            if read is not None and step == steps - 1:
                read()
            loss = model(torch.ones(1, 2)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ckpt.step(loss=loss)
        return ckpt


def steps_of(place):
    with Repo.open(place / "run") as repo:
        return [entry.annotations.step for entry in repo.log()]


@on_disk
@given(data=st.data())
def test_any_byte_of_any_shard_is_missed(place, check, data):
    file = data.draw(
        st.sampled_from(sorted(p for p in (place / "train").rglob("*") if p.is_file()))
    )
    at = data.draw(st.integers(0, file.stat().st_size - 1))
    flip(file, at)
    try:
        with pytest.raises(DataError) as caught:
            check(place / "train.shards")
    finally:
        flip(file, at)
    name = file.relative_to(place / "train").as_posix()
    (found,) = caught.value.findings
    assert found == Finding("train", name, "changed", "has another content")
    assert f"rank 0: changed shard {name} of train" in caught.value.message
    check(place / "train.shards")


def test_each_way_to_be_wrong_has_a_line_of_its_own(place, check):
    folder = place / "train"
    os.truncate(folder / "samples.tar", 100)
    shutil.copy(folder / "0.npy", folder / "1.npy")
    (folder / "2.npy").unlink()
    (folder / "part/new.jsonl").write_text("{}\n")
    with pytest.raises(DataError) as caught:
        check(str(place / "train.shards"))
    assert caught.value.message.splitlines()[1:] == [
        "  rank 0: changed shard 1.npy of train: holds what '0.npy' should hold",
        "  rank 0: missing shard 2.npy of train: does not exist",
        "  rank 0: extra shard part/new.jsonl of train: is not in the map",
        "  rank 0: changed shard samples.tar of train: has 100 bytes, not 10,240",
    ]


def test_many_findings_are_bounded_and_counted():
    every = [
        Finding("train", f"{at:02}.npy", "missing", "does not exist", (at % 2,)) for at in range(25)
    ]
    error = refuse_findings(join_findings(every))
    assert len(error.message.splitlines()) == 22
    assert error.message.endswith("and 5 more")
    assert len(error.findings) == 25


def test_a_finding_is_one_line_whatever_its_shard_is_called():
    found = Finding("train", "a\nb\udcff\x1b[31m.npy", "extra", "is not in the map")
    assert str(found) == r"rank 0: extra shard 'a\nb\udcff\x1b[31m.npy' of train: is not in the map"


def test_ranks_are_joined_in_one_line():
    twice = [Finding("a", "b", "stale", "c", (rank,)) for rank in (8, 0, 1, 2)]
    assert [str(finding) for finding in join_findings(twice)] == [
        "ranks 0-2, 8: stale shard b of a: c"
    ]
    assert spell_ranks([3]) == "rank 3"


def test_full_reads_again_what_stat_data_vouch_for(place, check):
    check(place / "train.shards")
    file = place / "train/0.npy"
    before = file.stat()
    flip(file, 5)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DataError, match=r"0\.npy"):
        check(ShardCheck(place / "train.shards", verify="full"))


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (7, UsageError, "7 is not a shard map"),
        ("", UsageError, "'' is not a shard map"),
        ("none.shards", NotFoundError, "there is no shard map"),
        (["a/x.shards", "b/x.shards"], UsageError, "two shard maps are called 'x'"),
        ({"a b": "x.shards"}, UsageError, "'a b' cannot name a shard map"),
    ],
)
def test_wrong_use_gets_one_line(check, value, kind, text):
    with pytest.raises(kind) as caught:
        check(value)
    assert caught.value.message.startswith(text)
    assert "\n" not in caught.value.message


def test_wrong_options_and_maps_get_one_line(place, check):
    for options, text in [
        ({"verify": "fast"}, "verify is 'fast', not one of quick, full"),
        ({"lazy": 1}, "lazy is 1, neither True nor False"),
        ({"lazy": True, "verify": "full"}, "contradict each other"),
        ({"root": 3}, "root is 3, not the path of a folder"),
    ]:
        with pytest.raises(UsageError, match=text):
            ShardCheck(place / "train.shards", **options)
    (place / "train.shards").write_text("no map")
    with pytest.raises(FormatError, match=r"train\.shards"):
        check(place / "train.shards")


def test_a_loader_brings_its_own(place):
    class Loader:
        shards = str(place / "train.shards")

    class Other:
        shards = 16  # another library's

    assert list(find_checks([Loader(), Other(), object()])) == ["train"]


def test_a_loader_whose_order_is_computed_brings_its_own(place):
    """Its map is checked, is in the commit, and tells which shard a sample is in."""
    path = place / "train.shards"
    loader = ConsistentDataLoader(list(range(ShardMap.read(path).records or 60)), 4, shards=path)
    assert loader.plan.sources[0].shards == ShardMap.read(path).tree
    ckpt = train(place, 2, dataloader=loader)
    assert (
        ckpt.repo.show("HEAD").annotations.meta["data.train"] == loader.plan.sources[0].shards[:12]
    )
    flip(place / "train" / ShardMap.read(path).shards[0].path, 0)
    with pytest.raises(DataError):
        train(place, 4, dataloader=loader)


@pytest.fixture
def lines(place):
    (place / "lines").mkdir()
    for number in range(2):
        (place / f"lines/{number}.jsonl").write_text("1\n" * 6)
    write_map(place / "lines", place / "lines.shards")
    return place / "lines.shards"


def test_a_stream_brings_the_check_of_its_map(place, lines):
    path = lines
    stream = ShardedStream(path, records=[6, 6], transform=lambda _: torch.ones(2))
    ckpt = train(place, 2, dataloader=ConsistentDataLoader(stream, 4))
    assert "data.lines" in ckpt.repo.show("HEAD").annotations.meta
    mixed = ConsistentDataLoader({"a": stream, "b": [torch.ones(2)] * 8}, 4)
    assert list(find_checks([mixed])) == ["a"]
    chosen = ConsistentDataLoader(stream, 4, shards=ShardCheck(path, lazy=True))
    assert [check.lazy for check in find_checks([chosen]).values()] == [True]
    flip(place / "lines/0.jsonl", 0)
    with pytest.raises(DataError):
        train(place, 4, dataloader=ConsistentDataLoader(stream, 4))


def test_a_map_of_a_store_needs_a_copy_of_the_shards(place, lines):
    found = ShardMap.read(lines)
    stored = ShardMap.build("s3://bucket/lines", found.shards)
    (place / "there.shards").write_bytes(stored.encode())
    with pytest.raises(UsageError, match="is not a file here"):
        ShardedStream(place / "there.shards")
    stream = ShardedStream(place / "there.shards", root=place / "lines", records=[6, 6])
    assert len(stream) == 12
    assert stream[0] == 1
    with pytest.raises(UsageError, match="root is for the shards of a map"):
        ShardedStream(place / "lines", root=place / "lines")


def test_a_resume_with_other_shards_is_refused_unless_allowed(place):
    train(place, 2, shards=place / "train.shards")
    (place / "train/more.jsonl").write_text("{}\n")
    (place / "train/0.npy").write_bytes(b"other")
    new = write_map(place / "train", place / "train.shards")
    with pytest.raises(ConflictError) as caught:
        train(place, 4, shards=place / "train.shards")
    assert caught.value.message == "the data is not that of the commit: train (1 added, 1 changed)"
    assert steps_of(place) == [2, 0]
    ckpt = train(place, 4, shards=place / "train.shards", allow=["data.shards.train"])
    (change,) = [change for change in ckpt.environment_changes if change[0] == "shards.train"]
    assert change[2] == f"{new.tree[:12]} (1 added, 1 changed)"
    with Repo.open(place / "run") as repo:
        assert repo.read_file("HEAD", "train.shards") == new.encode()
        assert repo.show("HEAD").annotations.meta["data.train"] == new.tree[:12]
    train(place, 6, shards=place / "train.shards")  # without allow: it is the commit's now


def test_a_rollback_looks_at_the_data_again(place):
    model = torch.nn.Linear(2, 1)
    with pytest.raises(DataError, match=r"missing shard 2\.npy"):
        with Checkpointer(
            place / "run", every=1, identity=Identity("A", "a@example.org"), signals=False,
            shards=place / "train.shards", model=model,
        ) as ckpt:  # fmt: skip
            for _ in range(2):
                ckpt.step()
            ckpt.wait()
            (place / "train/2.npy").unlink()
            ckpt.roll_back("last")


def read_arrow(place):
    pq.read_table(place / "train/table.parquet")  # opened by C++


class Files(torch.utils.data.Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, at):
        return len(Path(self.paths[at]).read_bytes())


def read_in_worker(place):
    files = Files([str(place / "train/table.parquet")])
    list(torch.utils.data.DataLoader(files, num_workers=1))


@pytest.mark.parametrize("read", [read_arrow, read_in_worker])
def test_lazily_a_shard_is_checked_when_it_is_opened(place, read):
    lazy = ShardCheck(place / "train.shards", lazy=True)
    flip(place / "train/0.npy", 9)  # never opened
    train(place, 2, shards=lazy, read=partial(read, place))
    flip(place / "train/table.parquet", 4)
    with pytest.raises(DataError, match=r"rank 0: changed shard table\.parquet of train"):
        train(place, 4, shards=lazy, read=(place / "train/table.parquet").read_bytes)
    assert steps_of(place) == [2, 0]


def test_lazily_what_was_open_before_counts(place):
    flip(place / "train/0.npy", 9)
    with (place / "train/0.npy").open("rb"), pytest.raises(DataError, match=r"0\.npy"):
        train(place, 2, shards=ShardCheck(place / "train.shards", lazy=True))
    assert steps_of(place) == [0]


@pytest.mark.parametrize("is_link", [False, True])
def test_lazily_a_folder_that_another_one_took_the_place_of_is_followed(place, check, is_link):
    folder, link, other = place / "train", place / "link", place / "other"
    link.symlink_to(folder)
    shutil.copytree(folder, other)
    flip(other / "part/0.jsonl", 9)
    guard = check(ShardCheck(place / "train.shards", root=link, lazy=True))
    (link / "part/0.jsonl").read_bytes()
    guard.settle()
    if is_link:
        link.unlink()
        link.symlink_to(other)
    else:
        folder.rename(place / "old")
        other.rename(folder)
    with pytest.raises(DataError, match=r"changed shard part/0\.jsonl"):
        guard.settle()


def test_lazily_a_shard_that_was_known_is_checked_once_it_changes(place, check):
    check(place / "train.shards")  # hashes it
    guard = check(ShardCheck(place / "train.shards", lazy=True))
    flip(place / "train/0.npy", 9)
    with pytest.raises(DataError, match=r"changed shard 0\.npy"):
        guard.settle()


def test_lazily_a_shard_that_stays_open_is_checked_after_a_write(place, check):
    guard = check(ShardCheck(place / "train.shards", lazy=True))
    path = place / "train/0.npy"
    with path.open("rb") as reader, path.open("r+b") as writer:
        guard.settle()
        writer.seek(9)
        writer.write(b"?")
        writer.close()
        reader.read()
        with pytest.raises(DataError, match=r"changed shard 0\.npy"):
            guard.settle()


def test_lazily_two_shards_that_changed_places_are_swapped(place, check):
    guard = check(ShardCheck(place / "train.shards", lazy=True))
    one, other, aside = place / "train/0.npy", place / "train/1.npy", place / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    with pytest.raises(DataError) as caught:
        guard.settle()
    assert [found.kind for found in caught.value.findings] == ["swapped", "swapped"]


def put_pipe(path):
    path.unlink()
    os.mkfifo(path)
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))


def put_link(path):
    """As who moves data to another disk does; what opens it is not seen in this folder."""
    there = path.parent.parent / "moved"
    path.rename(there)
    path.symlink_to(there)
    path.read_bytes()


@pytest.mark.parametrize("put", [put_pipe, put_link])
def test_lazily_what_is_no_file_any_more_is_named_and_not_waited_for(place, check, put):
    guard = check(ShardCheck(place / "train.shards", lazy=True))
    put(place / "train/0.npy")
    with pytest.raises(DataError, match=r"0\.npy of train: .* no longer a plain file"):
        guard.settle()


def test_lazily_a_long_shard_is_hashed_once(tmp_path):
    path = tmp_path / "long.bin"
    path.write_bytes(bytes(2**20))
    worker = ShardHasher([str(path)], [], os.getpid())
    path.read_bytes()
    worker.look()
    for _ in range(2):
        worker._hash_piece()  # opens it, which is seen as well
    worker.look()
    assert len(worker.answer()["checked"]) == 1


def test_without_watches_all_is_looked_at_before_each_commit(tmp_path, monkeypatch):
    def refuse(folders):
        raise OSError

    monkeypatch.setattr(lazy_worker, "OpenWatch", refuse)
    path = tmp_path / "0.bin"
    path.write_bytes(b"1")
    worker = ShardHasher([str(path)], [], os.getpid())
    assert [len(worker.answer()["checked"]) for _ in range(2)] == [1, 0]
    path.write_bytes(b"23")
    assert len(worker.answer()["checked"]) == 1


@pytest.fixture
def bucket(place, moto, monkeypatch):
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": moto, "AWS_ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(name, value)
    prefix = f"train-{os.getpid()}"
    store = make_store(moto, "mvc", prefix)
    files = {
        p.relative_to(place / "train").as_posix(): p.read_bytes()
        for p in (place / "train").rglob("*")
        if p.is_file()
    }
    for name, data in files.items():
        store.put(name, data)
    url = f"s3://mvc/{prefix}"
    found = mvc.shards.open_place(url, "/").list(None)
    tags = {one.path: one.tag for one in found}
    local = write_map(place / "train", place / "train.shards")
    shards = [
        type(shard)(shard.path, shard.size_bytes, shard.sha256, None, tags[shard.path])
        for shard in local.shards
    ]
    (place / "train.shards").write_bytes(ShardMap.build(url, shards).encode())
    return store


def test_a_store_is_asked_for_sizes_and_tags(place, check, bucket):
    both = ShardCheck(place / "train.shards", root=place / "train")
    check([both])
    data = bytearray((place / "train/0.npy").read_bytes())
    data[0] ^= 1
    bucket.put("0.npy", bytes(data))
    with pytest.raises(DataError) as caught:
        check([both])
    assert "rank 0: changed shard 0.npy of train: was written again" in caught.value.message


def test_a_listing_that_lags_is_told_from_a_shard_that_is_missing(
    place, check, bucket, monkeypatch
):
    def open_lagging(root, base):
        found = real(root, base)
        every = found.list(None)
        monkeypatch.setattr(
            found,
            "list",
            lambda _: [one for one in every if one.path[0] not in "01"],
            raising=False,
        )
        return found

    real = mvc.shards.open_place
    bucket.delete("1.npy")
    monkeypatch.setattr(mvc.shards, "open_place", open_lagging)
    with pytest.raises(DataError) as caught:
        check([place / "train.shards"])
    assert caught.value.message.splitlines()[1:] == [
        "  rank 0: stale shard 0.npy of train: is there, but not listed",
        "  rank 0: missing shard 1.npy of train: does not exist",
    ]
