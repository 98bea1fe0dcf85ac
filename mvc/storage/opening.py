"""From a URL to a storage.

Credentials, and an endpoint and region that are not given, are found by obstore, where the platform's
own tools look: in the environment and beyond.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mvc.errors import MvcError, UsageError
from mvc.storage.urls import LOOPBACK, StoreOptions, StoreUrl

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from mvc.storage.protocol import SharedStorage

_CONNECT_TIMEOUT_S = 10
_HF_ENDPOINT = "https://s3.hf.co"
_IN_MEMORY: dict[str, ObjectStore] = {}  # stores of this process, by name


def open_store(url: StoreUrl, options: StoreOptions | None = None) -> SharedStorage:
    """Return the storage that a URL names; nothing is asked of it yet."""
    options = options or StoreOptions()
    if url.scheme == "file":
        from mvc.storage.local import LocalStorage  # noqa: PLC0415  no obstore is needed

        return LocalStorage(Path(url.prefix))
    from mvc.storage.object_store import ObjectStorage  # noqa: PLC0415  as above

    store = open_objects(url, options)
    return ObjectStorage(
        store, spool=options.spool, name=str(url), quotes_tags=not options.bare_tags
    )


def open_objects(url: StoreUrl, options: StoreOptions) -> ObjectStore:
    """Return the bucket of a URL as obstore has it, with the prefix; nothing is asked of it yet."""
    try:
        return _make(url, options)
    except MvcError:
        raise
    except Exception as error:  # noqa: BLE001  obstore says ValueError, its own errors, or panics
        raise UsageError(f"cannot open {url}: {str(error).partition(chr(10))[0][:200]}") from None


def _make(url: StoreUrl, options: StoreOptions) -> ObjectStore:
    from datetime import timedelta  # noqa: PLC0415  as below

    from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store  # noqa: PLC0415

    if url.scheme == "memory":
        return _IN_MEMORY.setdefault(f"{url.bucket}/{url.prefix}", MemoryStore())
    client: Any = {
        "timeout": f"{options.timeout_s}s",
        "connect_timeout": f"{min(_CONNECT_TIMEOUT_S, options.timeout_s)}s",
    }
    common: Any = {
        "prefix": url.prefix or None,
        "retry_config": {
            "max_retries": 4,
            "retry_timeout": timedelta(seconds=2 * options.timeout_s),
        },
    }
    if url.scheme == "gs":
        return GCSStore(url.bucket, client_options=client, **common)
    if url.scheme == "az":
        return AzureStore(container_name=url.bucket, client_options=client, **common)
    endpoint, bucket = _check_endpoint(options.endpoint), url.bucket
    if url.scheme == "hf":
        namespace, _, bucket = bucket.partition("/")
        endpoint = f"{endpoint or _HF_ENDPOINT}/{namespace}"
    where: dict[str, Any] = {"endpoint": endpoint, "region": options.region}
    # An endpoint without TLS that the environment of this very process names is allowed.
    client["allow_http"] = endpoint is None or endpoint.startswith("http:")
    return S3Store(
        bucket,
        virtual_hosted_style_request=False,
        client_options=client,
        **common,
        **{key: value for key, value in where.items() if value is not None},
    )


def _check_endpoint(endpoint: str | None) -> str | None:
    """Return where an S3 server is; a config may leave TLS out only on this very machine."""
    if endpoint is None:
        return None
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise UsageError("the endpoint of a store is a URL such as https://s3.example.com")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise UsageError(
            f"the endpoint http://{parts.hostname} is not encrypted",
            hint="use https, or name it in AWS_ENDPOINT_URL if it has to be",
        )
    return endpoint.rstrip("/")
