"""Which servers are believed, and what they and everybody else get to see of credentials."""

import pytest

from mvc import NotFoundError, StorageError, UsageError
from support.remote_repos import make_repo
from support.s3_server import KEYS
from support.servers import make_certificate, run_echo_server

pytest.importorskip("cryptography")

SETTINGS = (
    "http.sslVerify",
    "http.https://127.0.0.1.sslVerify",
    "http.sslCAInfo",
    "http.proxySSLCert",
    "remote.origin.sslVerify",
    "remote.origin.verify",
    "remote.origin.verify-ssl",
    "remote.origin.no-verify-ssl",
    "remote.origin.tlsverify",
    "remote.origin.insecure",
    "remote.origin.insecureSkipTLSVerify",
    "remote.origin.allowInvalidCertificates",
    "remote.origin.allow-http",
    "remote.origin.allowhttp",
    "remote.origin.ca-bundle",
    "s3.verify",
    "aws.ca-bundle",
)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def keys(monkeypatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ALLOW_HTTP", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def repo(tmp_path, keys):
    return make_repo(tmp_path / "a", "s3://bucket/x")


@pytest.fixture
def server(certificate, repo):
    with run_echo_server(certificate) as (port, heard):
        repo.set_config("remote.origin.endpoint", f"https://127.0.0.1:{port}")
        repo.set_config("remote.origin.timeout", "5")
        yield heard


def refused(repo):
    with pytest.raises(StorageError) as failed:
        repo.remotes.refs("origin")
    assert "certificate that is not trusted" in failed.value.message
    assert "\n" not in failed.value.message
    assert "SSL_CERT_FILE" in failed.value.hint


def test_a_certificate_that_nobody_vouches_for_is_refused(repo, server):
    refused(repo)
    assert server == []


def test_authorities_from_the_environment_are_trusted(repo, server, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with pytest.raises(NotFoundError):
        repo.fetch()
    assert server


@pytest.mark.parametrize("key", SETTINGS)
def test_no_setting_decides_who_is_trusted(repo, key):
    with pytest.raises(UsageError) as failed:
        repo.set_config(key, "false")
    assert key.rpartition(".")[2].lower() in str(failed.value).lower()


def test_a_config_that_came_from_elsewhere_decides_nothing(repo, server):
    """Written by hand, each is named; others of no meaning here leave the check as it is."""
    config = repo.git_dir / "config"
    sane = config.read_text()
    for line, key in (
        ("[http]\n\tsslVerify = false\n", "http.sslverify"),
        ('[http "https://127.0.0.1"]\n\tsslVerify = false\n', "http.https://127.0.0.1.sslverify"),
        ('[remote "origin"]\n\tinsecure = true\n', "remote.origin.insecure"),
        ('[remote "origin"]\n\tallowInvalidCertificates = 1\n', "remote.origin.allowinvalid"),
    ):  # fmt: skip
        config.write_text(sane + line)
        with pytest.raises(UsageError, match=key):
            repo.remotes.refs("origin")
    config.write_text(sane + '[remote "origin"]\n\tclient-options = {"x": true}\n')
    refused(repo)
    assert server == []


def test_plain_http_is_for_loopback_or_the_environment(repo, monkeypatch):
    """A request tells its key id and session token, so a config cannot have it sent in clear."""
    repo.set_config("remote.origin.endpoint", "http://store.example.com")
    with pytest.raises(UsageError, match="is not encrypted") as failed:
        repo.remotes.refs("origin")
    assert "AWS_ENDPOINT_URL" in failed.value.hint
    with run_echo_server() as (port, heard):
        repo.set_config("remote.origin.endpoint", f"http://127.0.0.1:{port}")
        with pytest.raises(NotFoundError):
            repo.fetch()
        repo.set_config("remote.origin.endpoint", None)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        with pytest.raises(NotFoundError):
            repo.fetch()
    assert len(heard) == 2
    assert not any(KEYS["AWS_SECRET_ACCESS_KEY"] in str(one) for one in heard)
