"""ConsistentDataLoader over what other libraries read by index: it goes on where it was."""

import numpy as np
import pytest

from mvc import UsageError
from mvc_data import ConsistentDataLoader
from mvc_hooks.parts.data import DataPart
from support import data_libraries as libraries

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def open_dataset(folder):
    pytest.importorskip("datasets")
    return libraries.open_dataset(folder, libraries.How(), streaming=False)


def open_mds(folder):
    streaming = libraries.import_streaming()
    return streaming.LocalDataset(libraries.write_mds(folder / "mds"))


def open_grain(folder):
    grain = pytest.importorskip("grain")
    return grain.MapDataset.source(libraries.list_samples())


def open_tokens(folder):
    text = "\n".join(sample["text"] for sample in libraries.list_samples()).encode()
    (folder / "tokens.bin").write_bytes(text)
    tokens = np.memmap(folder / "tokens.bin", np.uint8, mode="c")
    return tokens[: len(tokens) // 16 * 16].reshape(-1, 16)


SOURCES = (open_dataset, open_mds, open_grain, open_tokens)


@pytest.mark.parametrize("open_source", SOURCES)
def test_a_source_read_by_index_goes_on_where_it_was(open_source, tmp_path):
    source = open_source(tmp_path)

    def make():
        return DataPart("dataloader", ConsistentDataLoader(source, 4, seed=3))

    def draw(part, count):
        batches = [part.next_batch() for _ in range(count)]
        return [
            batch["index"].tolist() if isinstance(batch, dict) else batch.tolist()
            for batch in batches
        ]

    count = -(-len(source) // 4)
    through = draw(make(), count + 6)
    first, again = make(), make()
    assert draw(first, count + 2) == through[: count + 2]
    again.restore(first.capture())
    assert draw(again, 4) == through[count + 2 :]


def test_a_streamed_dataset_of_litdata_is_refused_though_it_has_an_index(tmp_path):
    litdata = pytest.importorskip("litdata")
    dataset = litdata.StreamingDataset(libraries.write_chunks(tmp_path / "chunks"))
    with pytest.raises(UsageError, match="no __getitem__ that finds a sample by its index"):
        ConsistentDataLoader(dataset, 4)
