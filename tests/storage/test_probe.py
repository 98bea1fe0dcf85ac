"""What a store keeps is found out by asking: real servers, and wires that break promises."""

import pytest
from obstore.store import MemoryStore

from mvc.errors import StorageError
from mvc.storage.local import LocalStorage
from mvc.storage.object_store import ObjectStorage
from mvc.storage.probe import probe_refs, probe_store
from support.s3_server import make_bucket, open_s3


class Careless(ObjectStorage):
    """A store that ignores the conditions of a put."""

    def put_if(self, key, data, tag, *, quoted):
        return super().put_if(key, data, None, quoted=quoted) or self._overwrite(key, data)

    def _overwrite(self, key, data):
        self.delete(key)
        return super().put_if(key, data, None, quoted=True)


class Forgetful(ObjectStorage):
    """A store that takes each tag, and lists nothing."""

    def put_if(self, key, data, tag, *, quoted):
        current = self.read_tagged(key)
        return super().put_if(key, data, current.tag if tag and current else tag, quoted=quoted)

    def list(self, prefix):
        return iter(())


class BareOnly(ObjectStorage):
    """A store that refuses quoted tags, as Ceph does."""

    def put_if(self, key, data, tag, *, quoted):
        return not (tag and quoted) and super().put_if(key, data, tag, quoted=True)


def kept(report):
    return {one.name: one.kept for one in report.promises}


@pytest.mark.parametrize("make", [ObjectStorage, BareOnly])
def test_a_good_store(make, tmp_path):
    storage = make(MemoryStore(), spool=tmp_path)
    report = probe_store(storage)
    assert report.ok
    assert report.tags == ("bare" if make is BareOnly else "quoted")
    assert all(one.kept for one in report.promises if one.needed)
    assert list(storage.list("")) == []


def test_a_folder_keeps_all(tmp_path):
    report = probe_store(LocalStorage(tmp_path))
    assert set(kept(report).values()) == {True}
    assert list(LocalStorage(tmp_path).list("")) == []


def test_a_store_that_ignores_conditions_is_found_out(tmp_path):
    storage = Careless(MemoryStore(), spool=tmp_path)
    for report in (probe_refs(storage), probe_store(storage)):
        assert not report.ok
        assert report.failed[0].name == "create only what is not there"
        assert "overwritten" in report.failed[0].detail
    assert list(storage.list("")) == []


def test_a_store_that_takes_stale_tags_is_found_out(tmp_path):
    report = probe_store(Forgetful(MemoryStore(), spool=tmp_path))
    assert "replace nothing else" in [one.name for one in report.failed]
    assert kept(report)["list what was just put"] is False


def test_a_real_server(moto, tmp_path):
    storage = open_s3(moto, tmp_path)
    report = probe_store(storage)
    assert report.ok
    told = kept(report)
    assert told["one winner of 20 writers"] is True
    assert told["versions of the bucket"] is True
    assert told["no redirects"] is True
    assert told["delete on a condition"] is not None
    assert list(storage.list("")) == []


def test_a_bucket_with_versions_is_told(moto, tmp_path):
    make_bucket(moto, "versioned", versioned=True)
    report = probe_store(open_s3(moto, tmp_path, bucket="versioned"))
    assert kept(report)["versions of the bucket"] is False


def test_a_store_that_cannot_be_written_is_an_error(moto, tmp_path):
    with pytest.raises(StorageError, match="the bucket does not exist"):
        probe_refs(open_s3(moto, tmp_path, bucket="nowhere"))
