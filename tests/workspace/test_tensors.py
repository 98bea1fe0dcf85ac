"""Tensors of stored files: only their own chunks are read, and their elements come in C order."""

import dataclasses

import numpy as np
import pytest

from mvc import FormatError, StorageError
from mvc.formats.layout import TensorView
from mvc.workspace.manifests import find_manifest
from mvc.workspace.tensors import check_fits, in_order, stored_tensors

VALUES = np.random.default_rng(0).standard_normal((300, 40)).astype("f4")


@pytest.fixture
def tensor(repo, context):
    """One tensor of 48,000 bytes in chunks of 4,096."""
    repo.set_config("mvc.chunkbytes", "4096")
    repo.commit_state({"model": {"v": VALUES * 2, "w": VALUES}}, message="m")
    blob = context.history.read_tree(repo.resolve("HEAD"))["model.safetensors"].blob
    manifest = find_manifest(context, blob)
    version = ("model.safetensors", blob, None)
    return next(one for one in stored_tensors(context, version, manifest) if one.name == "w")


def test_all_of_it(tensor):
    assert tensor.size_bytes == VALUES.nbytes
    assert np.array_equal(tensor.read(), VALUES)


@pytest.mark.parametrize(("start", "count"), [(0, 5), (1000, 1024), (1020, 1030), (11_999, 1)])
def test_a_view_reads_its_own_chunks_only(context, tensor, start, count, monkeypatch):
    read, chunks = context.store.read_into, []

    def count_reads(chunk, plain, **options):
        chunks.append(chunk)
        read(chunk, plain, **options)

    monkeypatch.setattr(context.store, "read_into", count_reads)
    view = TensorView("part", "F32", (count,), 4 * start)
    part = dataclasses.replace(tensor, view=view).read()
    assert np.array_equal(part, VALUES.reshape(-1)[start : start + count])
    first, last = 4 * start // 4096, (4 * (start + count) - 1) // 4096
    assert sorted(chunks) == sorted(tensor.chunks[first : last + 1])


def test_a_target_of_another_length(tensor):
    with pytest.raises(FormatError, match="does not have 10 bytes"):
        tensor.read_into(memoryview(bytearray(10)))


def test_more_elements_than_memory_are_refused_before_they_are_read(tensor):
    view = TensorView("w", "F32", (2**50,), 0, (0,))
    with pytest.raises(StorageError, match="more than the memory of this machine"):
        check_fits(tensor.path, view)


def test_elements_in_c_order():
    raw = bytearray(VALUES.tobytes())
    plain = TensorView("w", "F32", (300, 40))
    assert in_order(raw, plain).tobytes() == VALUES.tobytes()
    turned = TensorView("w", "F32", (40, 300), 0, (1, 40))
    assert in_order(raw, turned).tobytes() == VALUES.T.tobytes()
    with pytest.raises((ValueError, TypeError)):
        in_order(raw[:-4], turned)
