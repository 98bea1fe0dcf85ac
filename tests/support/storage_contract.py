"""What every storage promises: subclass a suite and give it a ``storage`` fixture, empty each time."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mvc.errors import ConflictError, CorruptionError, StorageError, UsageError
from mvc.storage.protocol import ObjectInfo

BAD_KEYS = [
    "", "/", "/etc/passwd", "..", "../x", "packs/../../x", "packs/./x", "packs//x", "packs/", ".hidden",
    "packs/.hidden", "a\\b", "a b", "a\0b", "a\n", "ä", "x" * 513,
]  # fmt: skip


def put(storage, key, *parts):
    """Publish an object of some parts."""
    with storage.create("packs/") as pending:
        pending.write(parts)
        pending.publish(key)


def tag_of(storage):
    """Return the tag of the object ``refs``."""
    found = storage.read_tagged("refs")
    assert found is not None
    return found.tag


class StorageContract:
    """What a storage of one machine promises."""

    def test_published_bytes_come_back(self, storage):
        with storage.create("packs/") as pending:
            pending.write([b"one", memoryview(b"two")])
            pending.write([bytearray(b""), b"three"])
            pending.write([])
            assert pending.size_bytes == 11
            pending.publish("packs/a.pack")
        assert storage.read("packs/a.pack") == b"onetwothree"
        assert storage.find_size("packs/a.pack") == 11

    def test_buffers_may_be_reused_after_write(self, storage):
        buffer = bytearray(b"first")
        with storage.create() as pending:
            pending.write([buffer])
            buffer[:] = b"other"
            pending.publish("x")
        assert storage.read("x") == b"first"

    def test_many_buffers_in_one_write(self, storage):
        parts = [bytes([i % 251]) * (i % 7) for i in range(3000)]
        put(storage, "packs/many", *parts)
        assert storage.read("packs/many") == b"".join(parts)

    def test_nothing_is_visible_before_publish(self, storage):
        with storage.create("packs/") as pending:
            pending.write([b"secret"])
            assert list(storage.list("")) == []
            assert storage.find_size("packs/a") is None
        assert list(storage.list("")) == []
        assert list(storage.list("packs/")) == []

    def test_the_prefix_is_only_a_hint(self, storage):
        with storage.create("elsewhere/") as pending:
            pending.write([b"x"])
            pending.publish("packs/a")
        with storage.create() as pending:
            pending.write([b"y"])
            pending.publish("deep/er/b")
        assert list(storage.list("")) == [ObjectInfo("deep/er/b", 1), ObjectInfo("packs/a", 1)]

    def test_an_empty_object_exists(self, storage):
        put(storage, "packs/empty")
        assert storage.find_size("packs/empty") == 0
        assert storage.read("packs/empty") == b""
        storage.read_into("packs/empty", 0, memoryview(bytearray()))

    def test_an_existing_object_of_that_length_stays(self, storage):
        put(storage, "packs/a", b"first")
        put(storage, "packs/a", b"other")
        assert storage.read("packs/a") == b"first"

    def test_an_existing_object_of_another_length_is_replaced(self, storage):
        put(storage, "packs/a", b"torn")
        buffer = bytearray(4)
        storage.read_into("packs/a", 0, memoryview(buffer))
        put(storage, "packs/a", b"the whole")
        buffer = bytearray(9)
        storage.read_into("packs/a", 0, memoryview(buffer))
        assert buffer == b"the whole" == storage.read("packs/a")

    def test_read_into_reads_exactly_the_range(self, storage):
        put(storage, "packs/a", bytes(range(100)))
        buffer = bytearray(12)
        storage.read_into("packs/a", 30, memoryview(buffer)[1:11])
        assert buffer == b"\0" + bytes(range(30, 40)) + b"\0"

    @pytest.mark.parametrize(("offset", "size"), [(0, 11), (9, 2), (10, 1), (500, 1)])
    def test_a_read_past_the_end_is_corruption(self, storage, offset, size):
        put(storage, "packs/a", bytes(10))
        with pytest.raises(CorruptionError, match="packs/a ends"):
            storage.read_into("packs/a", offset, memoryview(bytearray(size)))

    def test_what_is_not_there(self, storage):
        put(storage, "packs/a", b"x")
        for key in ("packs/b", "nowhere/b", "packs", "packs/a/b"):
            assert storage.find_size(key) is None
            with pytest.raises(FileNotFoundError):
                storage.read(key)
            with pytest.raises(FileNotFoundError):
                storage.read_into(key, 0, memoryview(bytearray(1)))
            storage.delete(key)
        assert list(storage.list("nowhere/")) == []
        assert storage.read("packs/a") == b"x"

    def test_delete(self, storage):
        put(storage, "packs/a", b"x")
        storage.read_into("packs/a", 0, memoryview(bytearray(1)))
        storage.delete("packs/a")
        assert storage.find_size("packs/a") is None
        with pytest.raises(FileNotFoundError):
            storage.read_into("packs/a", 0, memoryview(bytearray(1)))
        storage.delete("packs/a")

    def test_list_is_sorted_and_below_the_prefix(self, storage):
        for key in ("packs/b", "packs/a", "packs2/x", "other", "packs/sub/c"):
            put(storage, key, key.encode())
        assert [info.key for info in storage.list("packs/")] == [
            "packs/a",
            "packs/b",
            "packs/sub/c",
        ]
        assert len(list(storage.list(""))) == 5

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_bad_keys_are_refused_everywhere(self, storage, key):
        for call in (storage.read, storage.find_size, storage.delete):
            with pytest.raises(UsageError):
                call(key)
        with pytest.raises(UsageError):
            storage.read_into(key, 0, memoryview(bytearray(1)))
        with storage.create() as pending, pytest.raises(UsageError):
            pending.publish(key)
        if key not in {"", "packs/"}:
            with pytest.raises(UsageError):
                list(storage.list(key))
            with pytest.raises(UsageError):
                storage.create(key)
        assert list(storage.list("")) == []

    def test_a_published_or_aborted_writer_refuses_more(self, storage):
        published = storage.create()
        published.write([b"x"])
        published.publish("packs/a")
        published.abort()
        aborted = storage.create()
        aborted.abort()
        aborted.abort()
        twin = storage.create()
        twin.write([b"y"])
        twin.publish("packs/a")
        for pending in (published, aborted, twin):
            with pytest.raises(StorageError):
                pending.write([b"z"])
            with pytest.raises(StorageError):
                pending.publish("packs/b")
        assert [info.key for info in storage.list("")] == ["packs/a"]

    def test_publish_from_another_thread(self, storage):
        pending = storage.create()
        pending.write([b"x"])
        with ThreadPoolExecutor(1) as pool:
            pool.submit(pending.publish, "packs/a").result()
        assert storage.read("packs/a") == b"x"

    def test_many_threads_read_many_objects(self, storage):
        contents = {f"packs/{i}": bytes([i]) * 1000 for i in range(100)}
        for key, data in contents.items():
            put(storage, key, data)

        def read_all(step):
            for i in range(300):
                key = f"packs/{i * step % 100}"
                buffer = bytearray(10)
                storage.read_into(key, i * 3, memoryview(buffer))
                assert buffer == contents[key][:10]

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(read_all, (1, 3, 7, 11)))


class SharedStorageContract(StorageContract):
    """What a storage promises that many machines write at once."""

    def test_a_ref_object_is_made_once_and_replaced_only_by_who_knows_it(self, storage):
        assert storage.read_tagged("refs") is None
        storage.replace("refs", b"one", None)
        with pytest.raises(ConflictError):
            storage.replace("refs", b"two", None)
        tag = tag_of(storage)
        assert storage.read("refs") == b"one"
        assert storage.is_current("refs", tag)
        storage.replace("refs", b"two", tag)
        assert not storage.is_current("refs", tag)
        assert storage.is_current("refs", tag_of(storage))
        with pytest.raises(ConflictError):
            storage.replace("refs", b"three", tag)
        assert storage.read("refs") == b"two"

    def test_replacing_what_is_gone_is_a_conflict(self, storage):
        storage.replace("refs", b"one", None)
        tag = tag_of(storage)
        storage.delete("refs")
        with pytest.raises(ConflictError):
            storage.replace("refs", b"two", tag)
        assert storage.read_tagged("refs") is None
        assert not storage.is_current("refs", tag)

    def test_of_many_who_replace_one_version_one_wins(self, storage):
        storage.replace("refs", b"start", None)
        for number in range(10):
            tag, ready = tag_of(storage), threading.Barrier(8)

            def race(name, tag=tag, ready=ready):
                ready.wait()
                with contextlib.suppress(ConflictError, StorageError):  # some stores say that
                    storage.replace("refs", name, tag)
                    return name
                return None

            names = [b"%d-%d" % (number, one) for one in range(8)]
            with ThreadPoolExecutor(8) as pool:
                won = [name for name in pool.map(race, names) if name]
            data = storage.read("refs")
            assert data in names
            assert won in ([data], [])

    def test_runs_of_an_object(self, storage):
        put(storage, "packs/a", bytes(range(200)))
        found = storage.read_ranges("packs/a", [(150, 3), (0, 2), (199, 1)])
        assert [bytes(one) for one in found] == [bytes([150, 151, 152]), b"\0\1", b"\xc7"]
        assert storage.read_ranges("packs/a", []) == []
        with pytest.raises(CorruptionError, match="packs/a ends"):
            storage.read_ranges("packs/a", [(0, 1), (198, 3)])
        with pytest.raises(FileNotFoundError):
            storage.read_ranges("packs/b", [(0, 1)])

    def test_a_file_is_uploaded_whatever_was_there(self, storage, tmp_path):
        path = tmp_path / "file"
        data = bytes(range(251)) * 80_000  # three parts
        with path.open("wb") as file:
            file.write(data)
        put(storage, "packs/a", b"torn")
        done = []
        storage.upload("packs/a", path, done.append)
        assert storage.read("packs/a") == data
        assert sum(done) == len(data)
