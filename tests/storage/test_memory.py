import pytest

from mvc.storage.memory import MemoryStorage
from support.storage_contract import StorageContract


class TestMemoryStorage(StorageContract):
    @pytest.fixture
    def storage(self):
        return MemoryStorage()
