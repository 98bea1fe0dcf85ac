"""An object store keeps the contract of a storage; the one in memory is as real as any to obstore."""

import pytest
from obstore.store import MemoryStore

from mvc.storage.object_store import ObjectStorage
from mvc.storage.testing.contract import SharedStorageContract
from support.s3_server import open_s3


class TestObjectStorage(SharedStorageContract):
    @pytest.fixture
    def storage(self, tmp_path):
        return ObjectStorage(MemoryStore(), spool=tmp_path)


class TestS3(SharedStorageContract):
    @pytest.fixture
    def storage(self, moto, tmp_path):
        return open_s3(moto, tmp_path)
