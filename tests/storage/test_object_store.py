"""An object store keeps the contract of a storage; the one in memory is as real as any to obstore."""

import pytest
from obstore.store import MemoryStore

from mvc.storage.object_store import ObjectStorage
from support.storage_contract import SharedStorageContract


class TestObjectStorage(SharedStorageContract):
    @pytest.fixture
    def storage(self, tmp_path):
        return ObjectStorage(MemoryStore(), spool=tmp_path)
