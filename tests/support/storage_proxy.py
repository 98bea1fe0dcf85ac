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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

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

    def __init__(self, endpoint: str, plan: Callable[[Request], str | None]) -> None:
        self.plan = plan
        self.faults: Counter[str] = Counter()
        self.requests: list[Request] = []
        self._upstream = urlsplit(endpoint).netloc
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            def answer(self) -> None:
                proxy._pass_on(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def endpoint(self) -> str:
        """Where clients find it."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _pass_on(self, handler: _Handler) -> None:
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
            handler.send(int(fault), {}, b"")
            return
        if fault == "redirect":
            handler.send(302, {"location": f"http://{self._upstream}/elsewhere"}, b"")
            return
        if fault == "slow":
            time.sleep(_SLOW_S)
        status, headers, data = self._ask(handler, body)
        if fault == "twice":
            status, headers, data = self._ask(handler, body)
        if fault == "failed":
            handler.send(500, {}, b"")
        elif fault == "lost":
            handler.close_connection = True
        else:
            handler.send(status, headers, data, cut=fault == "short")

    def _ask(self, handler: _Handler, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return what is behind it answers; the host stays as it was signed."""
        connection = http.client.HTTPConnection(self._upstream, timeout=_TIMEOUT_S)
        with contextlib.closing(connection):
            headers = {k: v for k, v in handler.headers.items() if k.lower() not in _HOP_BY_HOP}
            length = (
                {"content-length": str(len(body))} if handler.command in ("PUT", "POST") else {}
            )
            connection.request(handler.command, handler.path, body or None, headers | length)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self) -> None:
        raise NotImplementedError

    def send(self, status: int, headers: dict[str, str], data: bytes, *, cut: bool = False) -> None:
        told = {name.lower(): value for name, value in headers.items()}
        is_head = self.command == "HEAD"
        length = told.get("content-length", "0") if is_head else str(len(data))
        self.send_response_only(status)
        for name, value in told.items():
            if name not in _HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("content-length", length)
        self.end_headers()
        if not is_head:
            self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.close_connection = True

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):
            super().handle_one_request()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  that of the base
        """Say nothing."""

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = (  # noqa: N815  names of the base
        lambda self: self.answer()
    )
