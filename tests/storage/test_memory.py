import pytest

from mvc.storage.testing.contract import StorageContract
from support.memory_storage import MemoryStorage


class TestMemoryStorage(StorageContract):
    @pytest.fixture
    def storage(self):
        return MemoryStorage()
