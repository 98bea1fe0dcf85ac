"""What is merged: tensors in memory, and branches that parted."""

import numpy as np
import pytest

from mvc.formats.layout import single_tensor
from mvc.sources import MemorySource
from mvc.workspace.tensors import ModelTensor


def tensor_of(array, dtype, *, path="m.safetensors", name="w", chunks=None):
    segment = single_tensor(name, dtype, array.shape, 0)
    source = MemorySource(np.ascontiguousarray(array).tobytes())
    return ModelTensor(path, segment.tensors[0], segment, source, 0, chunks, 2**22)


def commit(repo, text="x"):
    repo.add(".")
    return repo.commit(text).commit


@pytest.fixture
def parted(repo, root):
    """Return what makes two branches: main is the current one, side is the other."""

    def make(base, ours, theirs):
        base()
        commit(repo, "base")
        repo.switch("side", create=True)
        theirs()
        commit(repo, "theirs")
        repo.switch("main")
        ours()
        commit(repo, "ours")
        return repo

    root.mkdir(exist_ok=True)
    return make
