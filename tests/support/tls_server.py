"""An https server on loopback with a certificate that nobody vouches for."""

from __future__ import annotations

import contextlib
import datetime as dt
import http.server
import ipaddress
import ssl
import threading


def make_certificate(folder):
    """Make a self-signed certificate for 127.0.0.1; return the paths of it and of its key."""
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


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.heard.append(dict(self.headers))
        told = f"<Error><Code>x</Code><Message>{self.path} {dict(self.headers)}</Message></Error>"
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(told.encode())

    do_HEAD = do_PUT = do_GET  # noqa: N815  names of the library

    def log_message(self, *_):
        pass


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass  # a client that does not trust it hangs up


@contextlib.contextmanager
def run_tls_server(certificate=None, *, status=404):
    """Yield (port, headers of the requests that came); without a certificate plain http.

    Every answer says all that was asked, as a proxy or a careless server does.
    """
    server = _Server(("127.0.0.1", 0), _Handler)
    server.heard, server.status = [], status
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1], server.heard
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
