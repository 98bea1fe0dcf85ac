import pytest

from support.memory_storage import MemoryStorage
from support.storage_contract import StorageContract


class TestMemoryStorage(StorageContract):
    @pytest.fixture
    def storage(self):
        return MemoryStorage()
