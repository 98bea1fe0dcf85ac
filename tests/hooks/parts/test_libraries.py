"""What loaders of other libraries need: seeds that can come back, passes that are counted, ends of passes."""

import json
import tarfile
from io import BytesIO

import pytest
import torch

from mvc import ConflictError, UsageError
from mvc_hooks.parts.data import DataPart
from mvc_hooks.ranks.own import splits_data

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    # webdataset leaves the files of a pass that is not drawn to its end open.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

webdataset = pytest.importorskip("webdataset")


@pytest.fixture
def tars(tmp_path):
    """Four tar files of three words each."""
    paths = []
    for number in range(4):
        paths.append(str(tmp_path / f"{number}.tar"))
        with tarfile.open(paths[-1], "w") as tar:
            for word in range(3):
                entry, data = tarfile.TarInfo(f"{number}{word}.txt"), f"{number} {word}".encode()
                entry.size = len(data)
                tar.addfile(entry, BytesIO(data))
    return paths


def draw(part, count):
    return [part.next_batch()["__key__"] for _ in range(count)]


def test_a_later_pass_of_webdataset_comes_back_in_its_own_order(tars):
    def make():
        dataset = webdataset.WebDataset(tars, shardshuffle=4, detshuffle=True, seed=3)
        return DataPart("dataloader", dataset.compose(webdataset.detshuffle(5)))

    through = draw(make(), 36)
    assert through[:12] != through[12:24]
    first = make()
    draw(first, 17)
    again = make()
    again.restore(first.capture())
    assert draw(again, 4) == through[17:21]
    third = make()
    third.restore(again.capture())
    assert draw(third, 15) == through[21:]


@pytest.mark.parametrize(
    ("shuffle", "reason"),
    [
        (
            lambda tars: webdataset.WebDataset(tars, shardshuffle=False).shuffle(5),
            "takes a new seed",
        ),
        (
            lambda tars: webdataset.WebDataset(tars, shardshuffle=False, resampled=True),
            "resampled by webdataset",
        ),
        (
            lambda tars: torch.utils.data.DataLoader(
                webdataset.WebDataset(tars, shardshuffle=False).shuffle(5), batch_size=None
            ),
            "takes a new seed",
        ),
    ],
)
def test_an_order_that_cannot_come_back_is_refused(tars, shuffle, reason):
    with pytest.raises(UsageError, match=reason):
        DataPart("dataloader", shuffle(tars))


def test_a_seed_that_webdataset_made_up_is_not_that_of_the_commit(tars):
    first = DataPart("dataloader", webdataset.WebDataset(tars, shardshuffle=4, seed=3))
    draw(first, 2)
    again = DataPart("dataloader", webdataset.WebDataset(tars, shardshuffle=4, seed=4))
    found = list(again.compare(again.capture(), first.capture(), ("dataloader",)))
    assert [str(one.path[-1]) for one in found] == ["order"]
    assert not list(first.compare(first.capture(), first.capture(), ("dataloader",)))


def test_tars_that_are_split_by_rank_are_a_position_of_that_many_ranks(tars):
    split = webdataset.WebDataset(tars, shardshuffle=False, nodesplitter=webdataset.split_by_node)
    assert splits_data(DataPart("dataloader", split))
    assert not splits_data(DataPart("dataloader", webdataset.WebDataset(tars, shardshuffle=False)))


class Unseeded:
    """An iterable whose order comes from nothing that is stored."""

    passes = 0

    def __iter__(self):
        type(self).passes += 1
        return iter([torch.tensor(self.passes + one) for one in range(5)])


def test_another_first_batch_is_said():
    first = DataPart("dataloader", Unseeded())
    for _ in range(2):
        first.next_batch()
    again = DataPart("dataloader", Unseeded())
    with pytest.warns(UserWarning, match="the first batch of this pass of dataloader is not"):
        again.restore(first.capture())


datasets = pytest.importorskip("datasets")


def make_streamed(*, buffer=0):
    rows = datasets.Dataset.from_dict({"index": list(range(12))}).to_iterable_dataset(num_shards=3)
    return rows.shuffle(seed=0, buffer_size=buffer) if buffer else rows


def test_a_streamed_dataset_begins_its_next_pass_at_the_beginning():
    dataset = make_streamed()
    part, seen = DataPart("dataloader", dataset), []
    for row in dataset:
        seen.append(row["index"])
        if len(seen) == 5:
            break
    state = json.loads(json.dumps(part.capture()["loader"]))
    again = make_streamed()
    other = DataPart("dataloader", again)
    other.restore({**part.capture(), "loader": state})
    assert other.capture()["loader"] == state
    for row in again:
        seen.append(row["index"])
        other.check_known()
    assert seen == list(range(12))
    assert [row["index"] for row in again] == list(range(12))


def test_a_shuffle_buffer_is_drawn_again():
    through = DataPart("dataloader", make_streamed(buffer=5))
    expected = [through.next_batch()["index"] for _ in range(24)]
    first, again = (DataPart("dataloader", make_streamed(buffer=5)) for _ in range(2))
    assert first.position == "drawn again"
    assert [first.next_batch()["index"] for _ in range(15)] == expected[:15]
    again.restore(first.capture())
    assert [again.next_batch()["index"] for _ in range(9)] == expected[15:]


def test_a_shuffle_buffer_whose_loader_would_lose_it_is_refused():
    loader = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    with pytest.raises(UsageError, match="StatefulDataLoader over a shuffle buffer"):
        DataPart("dataloader", loader(make_streamed(buffer=5)))


def test_nodes_with_a_random_order_have_to_be_drawn_here():
    nodes = pytest.importorskip("torchdata.nodes")
    generator = torch.Generator().manual_seed(0)
    sampler = torch.utils.data.RandomSampler(range(6), generator=generator)
    part = DataPart("dataloader", nodes.Loader(nodes.SamplerWrapper(sampler)))
    with pytest.raises(
        UsageError, match="a random order, which its state alone does not bring back"
    ):
        part.check_drawn()


@pytest.mark.slow
def test_a_position_of_grain_is_that_of_its_iterator():
    grain = pytest.importorskip("grain")

    def make():
        rows = grain.MapDataset.range(10).shuffle(seed=1).repeat().batch(4)
        return DataPart("dataloader", rows.to_iter_dataset())

    through = make()
    expected = [through.next_batch().tolist() for _ in range(9)]
    first, again = make(), make()
    assert [first.next_batch().tolist() for _ in range(5)] == expected[:5]
    state = first.capture()
    assert state["loader"] is not None
    again.restore(state)
    assert [again.next_batch().tolist() for _ in range(4)] == expected[5:]


def test_a_state_of_grain_with_other_workers_is_refused():
    grain = pytest.importorskip("grain")

    def make(name):
        sampler = grain.samplers.IndexSampler(8, shuffle=True, seed=1, num_epochs=1)
        shards = grain.sharding.NoSharding()
        rows = list(range(8))
        return DataPart(
            name, grain.DataLoader(data_source=rows, sampler=sampler, shard_options=shards)
        )

    first = make("dataloader")
    first.next_batch()
    state = first.capture()
    other = {**json.loads(state["loader"]), "worker_count": 2}
    state["loader"] = json.dumps(other).encode()
    with pytest.raises(
        ConflictError, match="does not accept its state: Worker count in checkpoint"
    ):
        make("dataloader").restore(state)


def test_the_middle_of_a_stream_is_not_drawn_again_by_other_workers():
    def make(workers):
        return DataPart(
            "dataloader",
            torch.utils.data.DataLoader(make_streamed(buffer=5), batch_size=2, num_workers=workers),
        )

    first = make(0)
    first.next_batch()
    state = first.capture()
    with pytest.raises(ConflictError, match="divided among 1 workers, and is now among 2"):
        make(2).restore(state)
    again = make(0)
    again.restore(state)
    assert again.next_batch()["index"].tolist() == first.next_batch()["index"].tolist()


def test_between_two_passes_a_stream_may_get_other_workers():
    def make(workers):
        rows = make_streamed(buffer=5)
        loader = torch.utils.data.DataLoader(rows, batch_size=4, num_workers=workers)
        return DataPart("dataloader", loader)

    first, again = make(0), make(2)
    state = first.capture()
    again.restore(state)
    assert again.capture().keys() == state.keys()
    assert not list(again.compare(again.capture(), state, ("dataloader",)))
