"""An S3 server in memory, in a process of its own that ends with this one."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys

from obstore.store import S3Store

from mvc.storage.object_store import ObjectStorage

KEYS = {
    "AWS_ACCESS_KEY_ID": "mvctestkey",
    "AWS_SECRET_ACCESS_KEY": "mvctestsecret",
    "AWS_REGION": "us-east-1",
}
_SERVER = """
import logging, sys, threading
logging.disable()
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer
put, is_free = S3Response.put_object, threading.Lock()
def put_alone(self):
    if "If-Match" not in self.headers and "If-None-Match" not in self.headers:
        return put(self)
    with is_free:  # moto looks, and then puts: of two that look at once, both would win
        return put(self)
S3Response.put_object = put_alone
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
_numbers = itertools.count()


@contextlib.contextmanager
def run_s3_server():
    """Yield the endpoint of a server in memory."""
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", _SERVER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=quiet, **pipes) as process:
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def new_prefix() -> str:
    """Return a prefix that no other test of this process has."""
    return f"{os.getpid()}-{next(_numbers)}"


def make_store(endpoint, bucket, prefix, *, timeout="10s", **retry):
    """Return a store of a bucket, which does not retry unless told."""
    return S3Store(
        bucket,
        prefix=prefix,
        endpoint=endpoint,
        access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        region=KEYS["AWS_REGION"],
        client_options={"allow_http": True, "timeout": timeout},
        retry_config={"max_retries": 0, **retry},
    )


def open_s3(endpoint, spool, bucket="mvc", prefix=None, **options):
    """Return a storage of its own on an S3 server."""
    return ObjectStorage(
        make_store(endpoint, bucket, prefix or new_prefix(), **options), spool=spool
    )


def make_bucket(endpoint, bucket="mvc", *, versioned=False):
    """Make a bucket, with boto3, which moto brings along."""
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        region_name=KEYS["AWS_REGION"],
        config=Config(s3={"addressing_style": "path"}),
    )
    with contextlib.closing(client):
        client.create_bucket(Bucket=bucket)
        if versioned:
            told = {"Status": "Enabled"}
            client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration=told)
