"""Chunks that cannot be read: why, and at which chunk the loss begins."""

from mvc.chunkstore.store import ChunkStore
from mvc.ids import hash_chunk
from mvc.upkeep.chunk_health import DAMAGED, LOST_BASE, MISSING, ChunkHealth
from support.chunks import objects, overwrite
from support.forged import delta, put_pack, whole
from support.memory_storage import MemoryStorage

CHUNKS = [bytes([number]) * 40 for number in range(5)]
IDS = [hash_chunk(chunk) for chunk in CHUNKS]


def health_of(storage):
    store = ChunkStore(storage, threads=1)
    return ChunkHealth(store, store.check(data=True))


def chain(first, last):
    """Return records of chunks each of which is the difference to the one before."""
    return [delta(CHUNKS[n], CHUNKS[n - 1]) for n in range(first, last)]


def damage(storage, pack, chunk):
    key = f"packs/{pack}.pack"
    data = bytearray(objects(storage)[key])
    data[data.index(chunk)] ^= 1
    overwrite(storage, key, bytes(data))


def test_sound_chunks_are_not_lost():
    storage = MemoryStorage()
    pack = put_pack(storage, [whole(CHUNKS[0]), *chain(1, 4)])
    health = health_of(storage)
    assert [health.look_at(one) for one in IDS[:4]] == [40] * 4
    assert health.lost == {}
    assert health.packs == {pack}
    assert not health.lacks_indexes


def test_a_missing_chunk():
    health = health_of(MemoryStorage())
    assert health.look_at(IDS[0]) == 0
    loss = health.lost[IDS[0]]
    assert (loss.kind, loss.fact, loss.is_damage) == (MISSING, "is missing", False)


def test_a_missing_base_is_named_by_all_that_need_it():
    storage = MemoryStorage()
    put_pack(storage, chain(1, 4))
    health = health_of(storage)
    for one in IDS[1:4]:
        health.look_at(one)
    kinds = {one: (loss.kind, loss.root, loss.links) for one, loss in health.lost.items()}
    assert kinds[IDS[0]][0] == MISSING
    assert [kinds[IDS[n]] for n in (1, 2, 3)] == [(LOST_BASE, IDS[0], n) for n in (1, 2, 3)]
    assert health.lost[IDS[3]].fact.endswith("(2 more between them), which is missing")


def test_a_damaged_base_says_where_the_damage_is():
    storage = MemoryStorage()
    pack = put_pack(storage, [whole(CHUNKS[0])])
    put_pack(storage, chain(1, 3))
    damage(storage, pack, CHUNKS[0])
    health = health_of(storage)
    health.look_at(IDS[2])
    assert health.lost[IDS[0]].kind == DAMAGED
    loss = health.lost[IDS[2]]
    assert (loss.kind, loss.root, loss.location.pack) == (LOST_BASE, IDS[0], pack)
    assert f"damaged in pack {pack[:12]} at offset" in loss.fact


def test_a_sound_copy_elsewhere_is_enough():
    storage = MemoryStorage()
    pack = put_pack(storage, [whole(CHUNKS[0])])
    put_pack(storage, [whole(CHUNKS[0]), *chain(1, 2)])
    damage(storage, pack, CHUNKS[0])
    health = health_of(storage)
    assert [health.look_at(one) for one in IDS[:2]] == [40, 40]
    assert health.lost == {}


def test_a_pack_without_an_index_is_told():
    storage = MemoryStorage()
    put_pack(storage, [whole(CHUNKS[0])], with_index=False)
    health = health_of(storage)
    assert health.lacks_indexes
    assert health.look_at(IDS[0]) == 40
    assert health.lost == {}
