"""An S3 server that lies about its objects, as proxies and half-compatible stores do."""

from __future__ import annotations

import contextlib
import threading
from hashlib import md5
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from support.servers import Handler, serve

_DATE = "Thu, 01 Jan 2026 00:00:{second:02} GMT"
_LIST = (
    '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name>'
    "<IsTruncated>false</IsTruncated>{objects}</ListBucketResult>"
)
_ENTRY = (
    "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>{tag}"
    "<Size>{size}</Size></Contents>"
)


class _Handler(Handler):
    def answer(self):
        url = urlsplit(self.path)
        if "list-type" in parse_qs(url.query):
            self.send_list()
        else:
            self.send_object(unquote(url.path).removeprefix("/b/"))

    do_GET = do_HEAD = answer  # noqa: N815  names of the library

    def send_list(self):
        entries = []
        for key, versions in self.server.objects.items():
            tag = self.server.tag(versions[0])
            told = "" if tag is None else f"<ETag>{escape(tag)}</ETag>"
            entries.append(_ENTRY.format(key=key, tag=told, size=len(versions[0])))
        self.reply(200, {}, _LIST.format(objects="".join(entries)).encode())

    def send_object(self, key):
        versions = self.server.objects[key]
        with self.server.lock:
            data = versions.pop(0) if len(versions) > 1 else versions[0]
        start, _, end = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = data[int(start) : int(end) + 1 if end else None]
        wanted, tag = self.headers.get("If-Match"), self.server.tag(data)
        if self.server.is_strict and wanted and (wanted != tag or tag.startswith("W/")):
            self.reply(412, {}, b"")
            return
        last = int(start) + len(part) - 1
        told = {"Content-Range": f"bytes {start}-{last}/{len(data)}", "ETag": tag}
        told["Last-Modified"] = _DATE.format(second=len(versions))
        is_part = "Range" in self.headers
        self.reply(206 if is_part else 200, {k: v for k, v in told.items() if v}, part)


def tag_of(data):
    """Return the honest tag of an object."""
    return f'"{md5(data).hexdigest()}"'


@contextlib.contextmanager
def run_lying_store(objects, *, tag=tag_of, is_strict=True):
    """Yield the endpoint of a server with a bucket ``b``.

    Args:
        objects: key → the contents that are listed and then read, one a request; the last one stays.
        tag: what the store says is the tag of a content, or None.
        is_strict: whether it heeds ``If-Match``.
    """
    versions = {key: list(contents) for key, contents in objects.items()}
    lock = threading.Lock()
    with serve(_Handler, objects=versions, tag=tag, is_strict=is_strict, lock=lock) as server:
        yield server.url
