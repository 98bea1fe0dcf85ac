"""One real Ceph cluster for the tests of a module; skipped where its packages are missing."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from ceph.cluster import Cluster, missing_program
from support.s3_server import KEYS, make_bucket, new_prefix


@pytest.fixture(scope="module")
def cluster():
    missing = missing_program()
    if missing is not None:
        pytest.skip(f"{missing} is not installed (Debian: ceph-mon ceph-osd ceph-common radosgw)")
    # On a disk: an OSD asks for more than there is in memory. A short path, as sockets want it.
    with tempfile.TemporaryDirectory(
        prefix="mvc-ceph-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        cluster = Cluster(Path(folder) / "cluster")
        try:
            cluster.start()
            make_bucket(cluster.endpoint)
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture
def url(cluster, monkeypatch):
    """Return the URL of a place of its own on the cluster, whole again, which the environment leads to."""
    cluster.heal()
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", cluster.endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    return f"s3://mvc/{new_prefix()}"
