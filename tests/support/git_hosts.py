"""Real Git hosts on loopback: ``git http-backend`` behind a small web server, and ``git daemon``."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import subprocess
import threading
from urllib.parse import urlsplit

from support.servers import Handler, serve
from support.stockgit import ENVIRONMENT


def stock(*arguments, cwd="/"):
    """Return what a command of stock Git prints."""
    done = subprocess.run(
        ["git", *map(str, arguments)], cwd=cwd, env=ENVIRONMENT, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().removesuffix("\n")


def make_bare(folder):
    """Make an empty bare repository that everybody may push to."""
    stock("init", "-q", "--bare", "-b", "main", folder)
    stock("config", "http.receivepack", "true", cwd=folder)
    return folder


class _Backend(Handler):
    def _read_body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _serve(self):
        body = self._read_body()
        host = self.server.host
        host.requests.append((self.command, self.path, self.headers.get("Authorization")))
        answer = host.answer(self.path) if host.answer else None
        if answer is not None:
            self.reply(*answer)
            return
        if host.login and self.headers.get("Authorization") != _basic(*host.login):
            self.reply(401, {"WWW-Authenticate": 'Basic realm="git"'}, b"who?")
            return
        parts = urlsplit(self.path)
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(host.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": parts.path,
            "QUERY_STRING": parts.query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "REMOTE_ADDR": "127.0.0.1",
            "REMOTE_USER": "somebody",
            "HTTP_GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        done = subprocess.run(
            ["git", "http-backend"], input=body, env=environment, capture_output=True, check=False
        )
        head, _, data = done.stdout.partition(b"\r\n\r\n")
        if host.loses_answers and self.command == "POST" and "receive-pack" in self.path:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
        self.reply(int(headers.pop("Status", "200").split()[0]), headers, data)

    def reply(self, status, headers, data, **options):
        self.server.host.replies.append((status, headers, data))
        super().reply(status, headers, data, **options)

    do_GET = do_POST = _serve  # noqa: N815


def _basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class WebHost:
    """A folder of repositories behind ``git http-backend``.

    ``login`` is what it asks for, ``answer`` may say (status, headers, body) for a path itself,
    ``loses_answers`` breaks the line once a push is done, ``requests`` has (method, path,
    Authorization) of all that came, and ``replies`` what was said.
    """

    def __init__(self, root):
        self.root, self.login, self.answer, self.loses_answers = root, None, None, False
        self.requests, self.replies = [], []


@contextlib.contextmanager
def run_web_host(root, certificate=None):
    """Serve the bare repositories of a folder over HTTP, or HTTPS with a certificate and its key."""
    host = WebHost(root)
    with serve(_Backend, certificate, host=host) as server:
        host.url = server.url
        yield host


@contextlib.contextmanager
def run_daemon(root):
    """Serve the bare repositories of a folder with ``git daemon``; yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    daemon = subprocess.Popen(
        ["git", "daemon", f"--port={port}", "--listen=127.0.0.1", "--export-all", "--reuseaddr",
         "--verbose", f"--base-path={root}", "--enable=receive-pack", str(root)],
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        for line in daemon.stderr:
            if b"Ready to rumble" in line:
                break
        threading.Thread(target=daemon.stderr.read, daemon=True).start()
        yield f"git://127.0.0.1:{port}"
    finally:
        os.killpg(daemon.pid, 15)
        daemon.wait()
        daemon.stderr.close()
