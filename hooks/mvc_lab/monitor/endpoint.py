"""The HTTP endpoint that Prometheus scrapes, with a registry and a thread of its own."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any

from mvc import UsageError

if TYPE_CHECKING:
    import threading

    from mvc_lab.monitor.metrics import Collector

_EXTRA = "pip install 'mvc-models[monitor]'"


class Endpoint:
    """Serves the metrics of one process until it is closed."""

    def __init__(self, address: str, port: int, collector: Collector) -> None:
        """Listen at once; port 0 takes any that is free.

        Raises:
            UsageError: prometheus-client is not installed, the port is taken, or the address is not one
                of this machine.
        """
        try:
            from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415  optional
        except ModuleNotFoundError as error:
            hint = f"{_EXTRA}; port=None measures without an endpoint"
            raise UsageError(
                "an endpoint for metrics needs prometheus-client", hint=hint
            ) from error
        registry: Any = CollectorRegistry()
        registry.register(collector)
        try:
            server, thread = start_http_server(port, address, registry)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(
                f"metrics cannot be served at {address}:{port}: {reason.lower()}",
                hint="pass Monitor(port=...) with one that is free, or port=0 for any; rank r of a machine "
                "takes port + r",
            ) from error
        self._server: Any = server
        self._thread: threading.Thread = thread
        self.url = f"http://{_bracket(address)}:{server.server_port}/metrics"

    def close(self) -> None:
        """Let go of the port, and end the thread."""
        self._server.shutdown()
        # Processes that were forked meanwhile have the socket, too; it is to listen for none of them.
        with contextlib.suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join()


def _bracket(address: str) -> str:
    return f"[{address}]" if ":" in address else address
