"""Real Git hosts on loopback: ``git http-backend`` behind a small web server, and ``git daemon``."""

from __future__ import annotations

import base64
import contextlib
import os
import pathlib
import socket
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

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


def make_certificate(path):
    """Write a certificate of 127.0.0.1 that nobody vouches for, and its key."""
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    subprocess.run(
        ["openssl", "req", "-x509", *kind, "-subj", "/CN=mvc", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", path, "-out", f"{path}.crt"],
        check=True, capture_output=True,
    )  # fmt: skip
    with path.open("ab") as file:
        file.write(pathlib.Path(f"{path}.crt").read_bytes())
    return path


class _Backend(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

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
            self._reply(*answer)
            return
        if host.login and self.headers.get("Authorization") != _basic(*host.login):
            self._reply(401, {"WWW-Authenticate": 'Basic realm="git"'}, b"who?")
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
        self._reply(int(headers.pop("Status", "200").split()[0]), headers, data)

    def _reply(self, status, headers, data):
        self.server.host.replies.append((status, headers, data))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = _serve  # noqa: N815


def _basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args):
        """Say nothing: some clients hang up."""


class WebHost:
    """A folder of repositories behind ``git http-backend``.

    ``login`` is what it asks for, ``answer`` may say (status, headers, body) for a path itself,
    ``loses_answers`` breaks the line once a push is done, ``requests`` has (method, path,
    Authorization) of all that came, and ``replies`` what was said.
    """

    def __init__(self, root, certificate):
        self.root, self.login, self.answer, self.requests = root, None, None, []
        self.loses_answers = False
        self.replies = []
        self.server = _Server(("127.0.0.1", 0), _Backend)
        self.server.host = self
        self.url = f"http{'s' * bool(certificate)}://127.0.0.1:{self.server.server_port}"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)


@contextlib.contextmanager
def run_web_host(root, certificate=None):
    """Serve the bare repositories of a folder over HTTP, or HTTPS with a certificate and its key."""
    host = WebHost(root, certificate)
    thread = threading.Thread(target=host.server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield host
    finally:
        host.server.shutdown()
        thread.join()
        host.server.server_close()


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
