from mvc import Repo
from mvc.chunkstore.listing import find_stored_sizes
from mvc.ids import hash_chunk
from support.models import write_model


def _stored(tmp_path, *seeds):
    repo = Repo.init(tmp_path)
    for seed in seeds:
        write_model(tmp_path / "model.safetensors", seed=seed)
        repo.commit(f"seed {seed}", paths=".")
    store = repo._context.store
    chunks = {
        store_chunk
        for index in store._catalog.sound_indexes()
        for store_chunk in map(index.chunk_id, range(len(index)))
    }
    return store, chunks, repo._context._storage()


def test_sizes_are_those_of_the_catalog(tmp_path):
    store, chunks, storage = _stored(tmp_path, 1, 2)
    assert len(store.packs()) == 2
    sizes = find_stored_sizes(storage, chunks)
    assert sizes == {chunk: store.find(chunk).stored_size_bytes for chunk in chunks}
    assert find_stored_sizes(storage, [hash_chunk(b"nowhere")]) == {}
    assert find_stored_sizes(storage, []) == {}


def test_damage_is_left_to_the_catalog(tmp_path):
    _, chunks, storage = _stored(tmp_path, 1)
    (index,) = (tmp_path / ".mvc/chunks/packs").glob("*.idx")
    sound = index.read_bytes()
    index.chmod(0o600)
    for place in (3, 9, 20, 60, len(sound) // 2, len(sound) - 1):
        index.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        assert find_stored_sizes(storage, chunks) is None
    index.write_bytes(sound[:70])
    assert find_stored_sizes(storage, chunks) is None
    index.unlink()
    assert find_stored_sizes(storage, chunks) is None
