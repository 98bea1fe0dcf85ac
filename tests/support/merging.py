"""Tensors of a merge, in memory."""

import numpy as np

from mvc.formats.layout import single_tensor
from mvc.sources import MemorySource
from mvc.workspace.tensors import ModelTensor


def tensor_of(array, dtype, *, path="m.safetensors", name="w", chunks=None):
    segment = single_tensor(name, dtype, array.shape, 0)
    source = MemorySource(np.ascontiguousarray(array).tobytes())
    return ModelTensor(path, segment.tensors[0], segment, source, 0, chunks, 2**22)
