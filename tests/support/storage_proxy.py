"""A proxy in front of an S3 server that fails as networks and gateways do.

What stands behind it is real, and so is the client: only the wire between them is bad.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections import Counter
from dataclasses import dataclass
from urllib.parse import urlsplit

from support.servers import Handler, serve

FAULTS = ("500", "503", "lost", "failed", "short", "twice", "slow", "redirect")
"""What can happen to a request.

``500``, ``503``: it gets that answer, and nothing was done. ``lost``: it was done, and the
connection ends without an answer. ``failed``: it was done, and the answer is 500. ``short``: the answer ends in
the middle. ``twice``: it was done twice, and the second answer counts. ``slow``: it takes a while.
``redirect``: it is sent elsewhere, with a 302.
"""
UNCONDITIONAL = "unconditional"
"""A fault that none can survive: the conditions of a request are dropped, as some servers do."""
_SLOW_S = 0.05
_TIMEOUT_S = 60
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asked: ``GET``, path and query, whether on a condition, and how often before."""

    method: str
    target: str
    is_conditional: bool
    number: int

    @property
    def is_listing(self) -> bool:
        """Whether it lists a bucket in the first version of that call."""
        query = urlsplit(self.target).query
        return self.method == "GET" and "prefix=" in query and "list-type=2" not in query

    @property
    def completes_upload(self) -> bool:
        """Whether it joins the parts of an upload."""
        return self.method == "POST" and "uploadId=" in self.target


class FaultyProxy:
    """Listens on a port of this machine and passes requests on; a context manager.

    Args:
        endpoint: ``http://host:port`` of what is behind it.
        plan: asked before each request; returns one of ``FAULTS``, ``UNCONDITIONAL`` or None.

    Attributes:
        faults: how often something went wrong, by fault.
    """

    def __init__(self, endpoint, plan):
        self.plan = plan
        self.faults = Counter()
        self.requests = []
        self._upstream = urlsplit(endpoint).netloc
        self._lock = threading.Lock()
        self._until = contextlib.ExitStack()

    def __enter__(self):
        self.endpoint = self._until.enter_context(serve(_Handler, proxy=self)).url
        return self

    def __exit__(self, *exc_info):
        self._until.close()

    def pass_on(self, handler):
        conditional = any(name.lower().startswith("if-") for name in handler.headers)
        with self._lock:
            request = Request(handler.command, handler.path, conditional, len(self.requests))
            self.requests.append(request)
            fault = self.plan(request)
            if fault is not None:
                self.faults[fault] += 1
        if fault == UNCONDITIONAL:
            for name in [one for one in handler.headers if one.lower().startswith("if-")]:
                del handler.headers[name]
        body = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        if fault in ("500", "503"):
            handler.reply(int(fault), {}, b"")
            return
        if fault == "redirect":
            handler.reply(302, {"location": f"http://{self._upstream}/elsewhere"}, b"")
            return
        if fault == "slow":
            time.sleep(_SLOW_S)
        answer = self._ask(handler, body)
        if fault == "twice":
            answer = self._ask(handler, body)
        if fault == "failed":
            handler.reply(500, {}, b"")
        elif fault == "lost":
            handler.close_connection = True
        else:
            handler.reply(*answer, cut=fault == "short")

    def _ask(self, handler, body):
        """Return what is behind it answers; the host stays as it was signed."""
        connection = http.client.HTTPConnection(self._upstream, timeout=_TIMEOUT_S)
        with contextlib.closing(connection):
            headers = {k: v for k, v in handler.headers.items() if k.lower() not in _HOP_BY_HOP}
            if handler.command in ("PUT", "POST"):
                headers["content-length"] = str(len(body))
            connection.request(handler.command, handler.path, body or None, headers)
            answer = connection.getresponse()
            headers = {
                name.title(): value
                for name, value in answer.getheaders()
                if name.lower() not in _HOP_BY_HOP or name.lower() == "content-length"
            }
            return answer.status, headers, answer.read()


class _Handler(Handler):
    def answer(self):
        self.server.proxy.pass_on(self)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815  names of the base
