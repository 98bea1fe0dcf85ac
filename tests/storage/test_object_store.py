"""An object store keeps the contract of a storage; the one in memory is as real as any to obstore."""

import re
import socket

import pytest
from obstore.store import MemoryStore

from mvc.errors import StorageError
from mvc.storage.object_store import ObjectStorage
from mvc.storage.opening import open_store
from mvc.storage.urls import StoreOptions, parse_store_url
from support.s3_server import KEYS, open_s3
from support.storage_contract import SharedStorageContract
from support.storage_proxy import FaultyProxy


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
    with pytest.raises(StorageError, match=r"(?m)^cannot read root: the store does not answer$"):
        open_s3(proxy.endpoint, tmp_path).read_tagged("root")


def test_a_store_that_is_silent_is_named_with_how_long_it_was_waited_for(monkeypatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = parse_store_url("s3://bucket/models")
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        storage = open_store(url, StoreOptions(endpoint=endpoint, timeout_s=1))
        with pytest.raises(StorageError) as caught:
            storage.read_tagged("root")
    told = r"cannot read root: s3://bucket/models does not answer \(waited (\d+) s\)"
    assert int(re.fullmatch(told, str(caught.value))[1]) >= 1
