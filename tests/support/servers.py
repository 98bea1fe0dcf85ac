"""Small HTTP and HTTPS servers on loopback, which live as long as a block."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Says nothing of its own; ``do_GET`` and its like call ``reply``."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def reply(self, status, headers, body, *, cut=False):
        """Send an answer, or with ``cut`` half of it, and hang up."""
        self.send_response_only(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection |= cut

    def handle_one_request(self):
        with contextlib.suppress(ConnectionError, TimeoutError):
            super().handle_one_request()

    def log_message(self, *_):
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass  # a client that does not trust it hangs up


@contextlib.contextmanager
def serve(handler, certificate=None, **attributes):
    """Yield a server, which handlers find as ``self.server``; ``certificate`` makes it HTTPS."""
    server = _Server(("127.0.0.1", 0), handler)
    server.url = f"http{'s' * bool(certificate)}://127.0.0.1:{server.server_port}"
    vars(server).update(attributes)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def make_certificate(folder):
    """Make a certificate of 127.0.0.1 that nobody vouches for; return the paths of it and of its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    place = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name)
    made = made.public_key(key.public_key()).serial_number(x509.random_serial_number())
    made = made.not_valid_before(now - dt.timedelta(days=1))
    made = made.not_valid_after(now + dt.timedelta(days=2)).add_extension(place, critical=False)
    signed = made.sign(key, hashes.SHA256())
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    return files


class _Echo(Handler):
    def answer(self):
        self.server.heard.append(dict(self.headers))
        text = f"<Error><Code>x</Code><Message>{self.path} {dict(self.headers)}</Message></Error>"
        self.reply(self.server.status, {}, text.encode())

    do_GET = do_HEAD = do_PUT = answer  # noqa: N815  names of the library


@contextlib.contextmanager
def run_echo_server(certificate=None, *, status=404):
    """Yield (port, headers of the requests that came).

    Every answer says all that was asked, as a proxy or a careless server does.
    """
    with serve(_Echo, certificate, heard=[], status=status) as server:
        yield server.server_port, server.heard
