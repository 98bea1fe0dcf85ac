"""Credentials are in no file, output, error or traceback, whichever way they are given and whoever echoes them."""

import os
import traceback

import pytest

from mvc import MvcError, Repo
from support.cli import IDENTITY, Shell
from support.remote_repos import commit_model, make_repo
from support.servers import make_certificate, run_echo_server

pytest.importorskip("cryptography")

SECRET = "Zm9vYmFyc2VjcmV0MDEyMzQ1Njc4OQ=="
"""Also base64, as keys of Azure are."""
PARTS = ("Zm9vYmFyc2VjcmV0", "foobarsecret", "Zm9vYmFyc2VjcmV0MDEyMzQ1Njc4OQ%3D%3D")
AWS = {
    "AWS_ACCESS_KEY_ID": f"AKIA{SECRET}",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_SESSION_TOKEN": f"tok{SECRET}",
    "AWS_REGION": "us-east-1",
}
AZURE = {"AZURE_STORAGE_ACCOUNT_NAME": "me"}
SAS = f"sv=2024-11-04&ss=b&srt=sco&sp=rwdl&sig={SECRET}"
GOOGLE = '{"type":"service_account","private_key":"%s","client_email":"a@b","private_key_id":"%s"}'
WAYS = {
    "keys and token of S3": ("s3://box/x", AWS),
    "keys of hf": ("hf://buckets/ns/box", AWS),
    "a password in the endpoint": ("s3://box/x", {**AWS, "AWS_ENDPOINT_URL": "user"}),
    "an account key of Azure": ("az://box/x", {**AZURE, "AZURE_STORAGE_ACCOUNT_KEY": SECRET}),
    "a key of Azure that is none": ("az://box/x", {**AZURE, "AZURE_STORAGE_ACCOUNT_KEY": f"!{SECRET}"}),
    "a SAS of Azure": ("az://box/x", {**AZURE, "AZURE_STORAGE_SAS_KEY": SAS}),
    "a SAS of Azure that is none": ("az://box/x", {**AZURE, "AZURE_STORAGE_SAS_KEY": f"{SECRET}&&"}),
    "a token of Azure": ("az://box/x", {**AZURE, "AZURE_STORAGE_TOKEN": SECRET}),
    "a key of Google": ("gs://box/x", {"GOOGLE_SERVICE_ACCOUNT_KEY": GOOGLE % (SECRET, SECRET)}),
    "a key of Google that is none": ("gs://box/x", {"GOOGLE_SERVICE_ACCOUNT_KEY": f'{{"x":"{SECRET}'}),
}  # fmt: skip
COMMANDS = (
    ("ls-remote",),
    ("fetch",),
    ("push", "origin", "main"),
    ("pull", "origin", "main"),
    ("publish", "prod"),
    ("remote", "-v"),
    ("remote", "check"),
    ("remote", "show", "origin"),
    ("fsck", "--remote", "origin"),
    ("gc", "--remote", "origin", "-n"),
    ("config", "--list"),
    ("status",),
)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def box(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    commit_model(make_repo(tmp_path / "a"))
    return tmp_path


def leaks(text):
    return [part for part in PARTS if part in text]


def check_files(box):
    for path in box.rglob("*"):
        if path.is_file():
            assert not leaks(path.read_bytes().decode("latin-1")), path


def tracebacks(call):
    try:
        call()
    except MvcError as error:
        return "".join(traceback.format_exception(error)) + repr(error)
    return ""


@pytest.mark.parametrize("way", WAYS)
def test_a_store_that_echoes_all(box, certificate, monkeypatch, way):
    url, given = WAYS[way]
    status = 400 if way == "a SAS of Azure" else 403
    with run_echo_server(certificate, status=status) as (port, heard):
        place = f"https://127.0.0.1:{port}"
        endpoints = {"AWS_ENDPOINT_URL": place, "AZURE_STORAGE_ENDPOINT": place}
        given = {**endpoints, **given, "SSL_CERT_FILE": str(certificate[0])}
        if given["AWS_ENDPOINT_URL"] == "user":
            given["AWS_ENDPOINT_URL"] = f"https://user:{SECRET}@127.0.0.1:{port}"
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        shell = Shell(box / "a", dict(IDENTITY))
        shell.ok("remote", "add", "origin", url)
        if url.startswith("hf:"):
            shell.ok("config", "remote.origin.endpoint", place)
        if url.startswith("gs:"):
            shell.ok("config", "remote.origin.timeout", "1")
        for number, command in enumerate(COMMANDS[:: 1 if way == "keys and token of S3" else 4]):
            answer = shell(*command, *(["--json"] if number % 2 and command[0] != "config" else []))
            assert not leaks(answer.out + answer.err), command
        repo = Repo.open(box / "a")
        for call in (repo.fetch, repo.push, lambda: repo.upkeep.fsck(remote="origin")):
            assert not leaks(tracebacks(call))
        answer = shell("clone", url, str(box / "c"))
        assert answer.code
        assert not leaks(answer.out + answer.err)
        assert not leaks(shell("follow", url, "prod", str(box / "f"), "--once").err)
        check_files(box)
    if url.startswith(("s3:", "hf:")) and "user:" not in given["AWS_ENDPOINT_URL"]:
        assert any(SECRET in str(one) for one in heard), (
            "the token did not travel, so nothing was shown"
        )


@pytest.mark.parametrize(
    "url",
    [
        f"https://user:{SECRET}@host/x",
        f"https://{SECRET}@host/x",
        f"s3://AKIA:{SECRET}@box/x",
        f"https://box.s3.amazonaws.com/x?X-Amz-Credential=AKIA{SECRET}&X-Amz-Signature={SECRET}",
        f"https://me.blob.core.windows.net/box?{SAS}",
        f"az://box/x?{SAS}",
        f"https://hf_{SECRET}@huggingface.co/ns/box",
        f"hf://hf_{SECRET}@buckets/ns/box",
    ],
)
def test_a_url_that_gives_them_away_is_refused(box, url):
    shell = Shell(box / "a", dict(IDENTITY))
    shell.ok("remote", "add", "sane", str(box / "store"))
    for command in (
        ("remote", "add", "origin", url),
        ("remote", "set-url", "sane", url),
        ("remote", "add", "origin", "https://host/x", "--content", url),
        ("config", "remote.sane.url", url),
        ("config", "remote.sane.endpoint", url),
        ("fetch", url),
        ("push", url),
        ("clone", url, str(box / "c")),
        ("ls-remote", url, "--json"),
        ("remote", "check", url),
        ("fsck", "--remote", url),
        ("fsck", "--repair", "--from", url),
        ("init", "--store", url, str(box / "d")),
        ("follow", url, "prod", str(box / "f"), "--once"),
    ):
        answer = shell(*command)
        assert answer.code, command
        assert not leaks(answer.out + answer.err), command
    check_files(box)
