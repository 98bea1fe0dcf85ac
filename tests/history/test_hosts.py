"""What a Git host says may be anything: it is understood, or there is one error of ours."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mvc.errors import MvcError, UnsupportedError
from mvc.history.git import GitHistory
from mvc.history.host_urls import parse_git_url
from mvc.history.hosts import GitHost, Haves
from mvc.history.objects import ObjectStore
from mvc.history.refnames import is_ref_name
from mvc.history.transfer import receive_host_pack
from mvc.ids import is_git_id
from support.bounds import bounded
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
