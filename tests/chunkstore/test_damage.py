"""Every damaged byte is noticed, by fsck and by whoever reads it; wrong bytes never come out."""

import gc
import os
import random
import weakref

import pytest

from mvc.chunkstore.store import ChunkStore
from mvc.chunkstore.values import ReadRequest
from mvc.dtypes import get_dtype
from mvc.errors import CorruptionError, FormatError
from mvc.formats.pack import HEADER_BYTES, RECORD_BYTES, encode_record_header
from mvc.ids import hash_chunk
from mvc.storage.local import LocalStorage
from support.chunks import add_chunks, flip, objects, overwrite
from support.memory_storage import MemoryStorage

CHUNKS = [bytes(range(90)), b"text " * 40, b"\x01\x3f" * 50, b"z"]
IDS = [hash_chunk(chunk) for chunk in CHUNKS]


@pytest.fixture
def storage():
    storage = MemoryStorage()
    add_chunks(ChunkStore(storage), CHUNKS, get_dtype("BF16"))
    return storage


def only(storage, suffix):
    (key,) = (key for key in objects(storage) if key.endswith(suffix))
    return key


def failure_of(read, *args, **options):
    """Return the corruption that a read reports, or None."""
    try:
        read(*args, **options)
    except CorruptionError as error:
        return error
    return None


def readable(storage):
    """Return which chunks can be read, one by one and in bulk; no wrong byte may come out."""
    good = set()
    store = ChunkStore(storage, threads=1)
    for number, (chunk_id, chunk) in enumerate(zip(IDS, CHUNKS, strict=True)):
        plain, bulk = bytearray(len(chunk)), []
        error = failure_of(store.read_into, chunk_id, memoryview(plain), context="tensor 'w'")
        again = failure_of(
            store.read_many,
            [ReadRequest(chunk_id, len(chunk), 0, "tensor 'w'")],
            lambda _, plain, bulk=bulk: bulk.append(bytes(plain)),
        )
        if error is None:
            assert plain == chunk
            assert bulk == [chunk]
            good.add(number)
        else:
            assert f"chunk {chunk_id.hex()[:12]} of tensor 'w'" in error.message
            assert error.hint
            assert (again.message, bulk) == (error.message, [])
    return good


def test_every_flipped_byte_of_a_pack(storage):
    key = only(storage, ".pack")
    data = storage.read(key)
    store = ChunkStore(storage)
    places = [store.find(chunk_id) for chunk_id in IDS]
    for i in range(len(data)):
        damaged = bytearray(data)
        damaged[i] ^= 1 << i % 8
        overwrite(storage, key, damaged)
        touched = {
            number
            for number, place in enumerate(places)
            if place.offset <= i < place.offset + RECORD_BYTES + place.stored_size_bytes
        }
        problems = list(ChunkStore(storage, threads=1).check(data=True))
        assert problems
        assert {p.chunk for p in problems if p.chunk} == {IDS[number] for number in touched}
        assert readable(storage) == set(range(len(CHUNKS))) - touched


def test_every_truncation_of_a_pack(storage):
    key = only(storage, ".pack")
    data = storage.read(key)
    ends = [
        p.offset + RECORD_BYTES + p.stored_size_bytes for p in map(ChunkStore(storage).find, IDS)
    ]
    for size in range(0, len(data), 3):
        overwrite(storage, key, data[:size])
        assert {p.kind for p in ChunkStore(storage, threads=1).check(data=True)} >= {"bad-pack"}
        assert readable(storage) == {number for number, end in enumerate(ends) if end <= size}
    overwrite(storage, key, data + b"\0")
    assert {p.kind for p in ChunkStore(storage).check(data=False)} == {"bad-pack"}
    assert readable(storage) == {0, 1, 2, 3}


def test_every_removed_file(tmp_path):
    storage = LocalStorage(tmp_path)
    add_chunks(ChunkStore(storage, target_pack_bytes=1), [bytes([i]) * 2**21 for i in range(3)])
    for path in sorted(tmp_path.rglob("*.*")):
        data = path.read_bytes()
        path.unlink()
        kinds = [problem.kind for problem in ChunkStore(storage).check(data=False)]
        assert kinds == ["missing-pack" if path.suffix == ".pack" else "missing-index"]
        path.write_bytes(data)
    assert list(ChunkStore(storage).check(data=True)) == []


def test_a_record_header_forged_with_its_crc(storage):
    key = only(storage, ".pack")
    data = bytearray(storage.read(key))
    place = ChunkStore(storage).find(IDS[0])
    forged = encode_record_header(IDS[1], place.encoding, 90, 90)
    data[place.offset : place.offset + RECORD_BYTES] = forged
    overwrite(storage, key, data)
    assert readable(storage) == {1, 2, 3}
    assert "bad-index" in {p.kind for p in ChunkStore(storage).check(data=False)}


def test_a_message_says_all_there_is_to_know(storage):
    key = only(storage, ".pack")
    place = ChunkStore(storage).find(IDS[1])
    flip(storage, key, place.offset + RECORD_BYTES + 3)
    with pytest.raises(CorruptionError) as caught:
        ChunkStore(storage).read_into(
            IDS[1], memoryview(bytearray(200)), context="tensor 'lm_head.weight' of a.safetensors"
        )
    assert caught.value.message.startswith(
        f"chunk {IDS[1].hex()[:12]} of tensor 'lm_head.weight' of a.safetensors "
        f"in pack {place.pack[:12]} at offset {place.offset}: "
    )
    (problem, whole) = ChunkStore(storage).check(data=True)
    assert (problem.kind, problem.pack, problem.offset, problem.chunk) == (
        "bad-chunk",
        place.pack,
        place.offset,
        IDS[1],
    )
    assert (whole.kind, whole.offset, whole.chunk) == ("bad-pack-hash", None, None)


def test_an_error_holds_no_memory_once_it_is_forgotten(storage):
    key = only(storage, ".pack")
    flip(storage, key, -40)
    store = ChunkStore(storage)
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            error = failure_of(store.read_into, IDS[-1], memoryview(bytearray(1)))
            trace = weakref.ref(error)
            del error
            assert trace() is None
    finally:
        gc.enable()


def test_garbage_in_place_of_files(storage):
    """Random garbage, spliced into sound files: only errors of ours, in bounded time."""
    chooser = random.Random(7)
    originals = objects(storage)
    for _ in range(150):
        for key, data in originals.items():
            damaged = bytearray(data)
            for _ in range(chooser.randrange(1, 4)):
                start = chooser.randrange(HEADER_BYTES, len(damaged))
                piece = os.urandom(chooser.randrange(40))
                damaged[start : start + chooser.randrange(40)] = piece
            overwrite(storage, key, damaged)
        assert list(ChunkStore(storage, threads=1).check(data=True))
        for number in range(len(CHUNKS)):
            plain = bytearray(len(CHUNKS[number]))
            try:
                ChunkStore(storage).read_into(IDS[number], memoryview(plain))
            except FormatError:
                continue
            assert plain == CHUNKS[number]
