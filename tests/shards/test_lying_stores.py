"""Shards in a store that lies: one version of an object is read, or it is refused."""

import hashlib

import pytest

from mvc.errors import ConflictError
from mvc.shards.hashing import hash_shards
from mvc.shards.places import open_place
from mvc.storage import foreign
from mvc.storage.urls import StoreOptions
from support.lying_store import run_lying_store, tag_of
from support.s3_server import KEYS

OLD, NEW = b"a" * 3000, b"b" * 3000


@pytest.fixture
def read(monkeypatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(foreign, "RANGE_BYTES", 1000)

    def run(versions, **lies):
        with run_lying_store({"train/x.bin": versions}, **lies) as endpoint:
            options = StoreOptions(endpoint=endpoint, region="us-east-1")
            place = open_place("s3://b/train", "/", options)
            (one,) = hash_shards(place, place.list(None), threads=1)
            return one.shard

    return run


@pytest.mark.parametrize("tag", [tag_of, lambda data: f"W/{tag_of(data)}", lambda _: None, lambda _: '"same"'])  # fmt: skip
def test_an_object_is_read_whatever_its_tag_is(read, tag):
    shard = read([OLD], tag=tag)
    assert (shard.sha256, shard.tag) == (hashlib.sha256(OLD).digest(), tag(OLD))


@pytest.mark.parametrize("lies", [{}, {"is_strict": False}, {"tag": lambda _: None}])
@pytest.mark.parametrize("new", [NEW, NEW + b"b"])
def test_an_object_that_is_replaced_while_it_is_read_is_refused(read, lies, new):
    with pytest.raises(ConflictError, match=r"x\.bin changed while it was read"):
        read([OLD, OLD, new, new], **lies)


def test_an_object_that_grew_since_it_was_listed_is_refused(read):
    with pytest.raises(ConflictError, match="changed"):
        read([OLD, OLD + b"a"], is_strict=False, tag=lambda _: '"same"')
