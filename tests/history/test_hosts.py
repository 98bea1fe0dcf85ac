"""What a Git host says may be anything: it is understood, or there is one error of ours."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mvc.errors import MvcError, UnsupportedError, UsageError
from mvc.history.git import GitHistory
from mvc.history.host_urls import is_git_url, parse_git_url
from mvc.history.hosts import GitHost, Haves
from mvc.history.names import is_ref_name
from mvc.history.objects import ObjectStore
from mvc.history.transfer import receive_host_pack
from mvc.ids import is_git_id
from support.bounds import bounded
from support.cases import for_each
from support.git_hosts import make_bare, run_web_host, stock
from support.stockgit import commit_on_head, run_git


@pytest.fixture(scope="module")
def talk(tmp_path_factory):
    """A host, and all that it says when something is fetched from it."""
    root = tmp_path_factory.mktemp("hosts")
    bare = make_bare(root / "x.git")
    history = GitHistory.init(root / "work" / ".mvc")
    for number in range(3):
        commit_on_head(history, f"text {number}" * 30)
    run_git(history.git_dir, "push", "-q", str(bare), "main", "main:side")
    with run_web_host(root) as web:
        _fetch(f"{web.url}/x.git", root / "first")
        web.recorded = list(web.replies)
        yield web


def _fetch(url, folder):
    """Fetch all from a host; return the refs and what came."""
    host = GitHost(parse_git_url(url))
    found = host.read_refs()
    (folder / "pack").mkdir(parents=True, exist_ok=True)
    here = ObjectStore(folder)
    path = folder / "pack" / "some.pack"
    host.fetch(found.refs.values(), Haves(here, ()), path)
    try:
        return found, receive_host_pack(here, path)
    finally:
        path.unlink()


def test_what_was_recorded_is_a_whole_fetch(talk, tmp_path):
    found, came = _fetch(f"{talk.url}/x.git", tmp_path)
    assert sorted(found.refs) == ["refs/heads/main", "refs/heads/side"]
    assert found.head == "refs/heads/main"
    assert len(came) == 9
    assert len(talk.recorded) == 5


@settings(max_examples=bounded(20, 2000))
@given(
    which=st.integers(0, 4),
    at=st.floats(0, 1),
    value=st.integers(0, 255),
    how=st.sampled_from(["change", "cut", "insert", "double"]),
)
def test_a_host_that_says_almost_what_is_right(talk, tmp_path_factory, which, at, value, how):
    folder = tmp_path_factory.mktemp("spoilt")
    status, headers, data = talk.recorded[which]
    place = min(int(at * len(data)), len(data) - 1)
    spoilt = {
        "change": data[:place] + bytes([value]) + data[place + 1 :],
        "cut": data[:place],
        "insert": data[:place] + bytes([value]) + data[place:],
        "double": data[:place] + data,
    }[how]
    replies = list(talk.recorded)
    replies[which] = status, headers, spoilt
    left = iter(replies)
    talk.answer = lambda path: next(left, (404, {}, b""))
    try:
        found, _ = _fetch(f"{talk.url}/x.git", folder)
    except MvcError as error:
        assert error.message.isprintable()
    else:
        assert all(is_ref_name(name) and is_git_id(one) for name, one in found.refs.items())
    finally:
        talk.answer = None


def test_a_repository_of_another_kind_is_named(tmp_path):
    stock("init", "-q", "--bare", "--object-format=sha256", tmp_path / "new.git")
    with run_web_host(tmp_path) as web, pytest.raises(UnsupportedError, match="sha256"):
        GitHost(parse_git_url(f"{web.url}/new.git")).read_refs()


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
