"""What names a repository on a Git host, and what holds a secret or an option."""

import pytest

from mvc.errors import UsageError
from mvc.history.host_urls import is_git_url, parse_git_url
from support.cases import for_each


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("https://host/me/x.git", ("https", "host", None, None, "/me/x.git")),
        ("http://127.0.0.1:80/x", ("http", "127.0.0.1", 80, None, "/x")),
        ("ssh://git@host:22/x.git", ("ssh", "host", 22, "git", "/x.git")),
        ("git+ssh://host/~me/x", ("ssh", "host", None, None, "/~me/x")),
        ("git@host.org:me/x.git", ("ssh", "host.org", None, "git", "me/x.git")),
        ("host:/srv/x", ("ssh", "host", None, None, "/srv/x")),
        ("git@[::1]:x", ("ssh", "::1", None, "git", "x")),
        ("git://host/x", ("git", "host", None, None, "/x")),
        ("git+file:///srv/x%20y.git", ("file", "", None, None, "/srv/x y.git")),
    ],
)
def test_urls_of_git_hosts(text, parts):
    url = parse_git_url(text)
    assert (url.scheme, url.host, url.port, url.user, url.path) == parts
    assert is_git_url(text)
    assert parse_git_url(str(url)).path == url.path


def test_a_path_is_a_folder(tmp_path):
    url = parse_git_url("x.git", base=tmp_path)
    assert (url.scheme, url.path) == ("file", str(tmp_path / "x.git"))
    assert str(url) == f"git+file://{tmp_path}/x.git"


def test_all_ways_to_a_repository_name_the_same():
    ways = [
        "https://Host/me/x.git",
        "https://host:8443/me/x/",
        "git@host:me/x.git",
        "ssh://a@host/me/x",
    ]
    assert {parse_git_url(one).identity for one in ways} == {"host/me/x"}


@pytest.mark.parametrize(
    "text",
    [
        "", "s3://b/x", "/srv/x", "x", "file:///srv/x", "https:/host/x", "ftp://h/x", "./host:x", "memory://x",
    ],
)  # fmt: skip
def test_what_is_none(text):
    assert not is_git_url(text)


@for_each(
    "text",
    [
        "", "https://host", "https://host/", "https:///x", "ftp://host/x", "https://host:x/y", "https://h/x?a=b",
        "https://h/x#y", "ssh://-oProxyCommand=x/y", "ssh://-x@host/y", "host:-x", "git+file://h/x",
        "git+file://", "ssh://[::1/x", "https://h/\n", "git://h o/x", "ssh://h;x/y",
    ],
)  # fmt: skip
def test_what_is_refused(text):
    with pytest.raises(UsageError):
        parse_git_url(text)


@pytest.mark.parametrize(
    "text", ["https://ann:s3cret@host/x", "https://s3cret@host/x", "ssh://git:s3cret@host/x"]
)
def test_credentials_are_refused_and_not_shown(text):
    with pytest.raises(UsageError, match="holds credentials") as caught:
        parse_git_url(text)
    assert "s3cret" not in str(caught.value)
