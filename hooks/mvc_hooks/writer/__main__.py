"""``python -m mvc_hooks.writer DESCRIPTOR``: started by the training process, never by hand."""

from __future__ import annotations

import socket
import sys

from mvc_hooks.writer.serve import serve

if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
