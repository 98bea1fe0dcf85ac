"""An object store keeps the contract of a storage; the one in memory is as real as any to obstore."""

import pytest
from obstore.store import MemoryStore

from mvc.errors import StorageError
from mvc.storage.object_store import ObjectStorage
from mvc.storage.testing.contract import SharedStorageContract
from mvc.storage.testing.proxy import FaultyProxy
from support.s3_server import open_s3


class TestObjectStorage(SharedStorageContract):
    @pytest.fixture
    def storage(self, tmp_path):
        return ObjectStorage(MemoryStore(), spool=tmp_path)


class TestS3(SharedStorageContract):
    @pytest.fixture
    def storage(self, moto, tmp_path):
        return open_s3(moto, tmp_path)


def test_what_a_store_fails_with_is_said_in_plain_words(moto, tmp_path):
    with FaultyProxy(moto, lambda _: "503") as proxy:
        storage = open_s3(proxy.endpoint, tmp_path)
        with pytest.raises(StorageError, match=r"^cannot read root: the store answers 503 Service"):
            storage.read_tagged("root")
    with pytest.raises(StorageError, match=r"^cannot read root: the store does not answer$"):
        open_s3(proxy.endpoint, tmp_path).read_tagged("root")
