"""Remotes whose history is on a Git host: a web server, git daemon, ssh and a folder, all real."""

import shlex
import socket
import sys

import pytest

from mvc import (
    ConflictError,
    FormatError,
    NotFoundError,
    StorageError,
    UnsupportedError,
    UsageError,
    clone,
)
from mvc.remotes.root_store import RootStore
from mvc.storage.local import LocalStorage
from support.git_hosts import make_bare, run_daemon, run_web_host, stock
from support.remote_repos import commit_model, make_repo
from support.servers import make_certificate
from support.stockgit import run_git

# What runs in place of ssh: the command that it was to run there, here.
_SSH = f'{sys.executable} -c \'import os, sys; os.execvp("sh", ["sh", "-c", sys.argv[-1]])\''


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    """Nothing of the user's own Git."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    (tmp_path / "home").mkdir()


@pytest.fixture
def host(tmp_path):
    (tmp_path / "hosts").mkdir()
    return make_bare(tmp_path / "hosts" / "model.git")


@pytest.fixture
def web(host):
    with run_web_host(host.parent) as found:
        yield found


@pytest.fixture
def repo(tmp_path, host, store):
    """A repository with a host that is a folder, which takes the least time."""
    repo = make_repo(tmp_path / "a")
    repo.remotes.add("origin", str(host), str(store))
    return repo


@pytest.fixture
def web_repo(repo, web):
    repo.remotes.set_url("origin", f"{web.url}/model.git")
    return repo


@pytest.fixture(params=["http", "git", "ssh", "file"])
def url(request, host, monkeypatch):
    if request.param == "http":
        with run_web_host(host.parent) as found:
            yield f"{found.url}/model.git"
    elif request.param == "git":
        with run_daemon(host.parent) as found:
            yield f"{found}/model.git"
    elif request.param == "file":
        yield str(host)
    else:
        monkeypatch.setenv("GIT_SSH_COMMAND", _SSH)
        yield f"ssh://git@example.org{host}"


def content_root(store):
    return RootStore(LocalStorage(store), is_hosted=True).read()


def test_history_goes_to_the_host_and_content_to_the_store(url, host, store, tmp_path):
    repo = make_repo(tmp_path / "a")
    repo.remotes.add("origin", url, str(store))
    first = commit_model(repo)
    done = repo.push(set_upstream=True)
    assert [(one.name, one.status) for one in done.refs] == [("refs/heads/main", "created")]
    assert stock("rev-parse", "main", cwd=host) == first
    assert stock("fsck", "--strict", cwd=host) == ""
    root = content_root(store)
    assert root.listed.packs
    assert not root.refs
    assert not root.listed.history

    short = url.replace("ssh://git@example.org", "git@example.org:")
    copy = clone(short, tmp_path / "b", content_url=store)
    copy.identity = repo.identity
    assert copy.head.commit == first
    name = "model.safetensors"
    assert (copy.worktree / name).read_bytes() == (repo.worktree / name).read_bytes()
    second = commit_model(copy, seed=1)
    copy.tags.create("v1", "HEAD", message="a tag")
    assert copy.push(refspecs=["main", "v1"], remote="origin").sent_bytes
    result = repo.pull()
    assert [one.status for one in result.fetched.refs] == ["updated", "created"]
    assert repo.head.commit == second
    assert repo.upkeep.fsck(data=True).ok
    assert repo.push().refs[0].status == "unchanged"
    assert sorted(repo.remotes.refs().refs) == ["refs/heads/main", "refs/tags/v1"]


def test_stock_git_reads_the_host_and_pushes_to_it(web_repo, web, tmp_path):
    repo = web_repo
    commit_model(repo)
    (repo.worktree / "notes.txt").write_text("line\n" * 200)
    repo.commit("notes", paths=["notes.txt"])
    repo.push(set_upstream=True)
    plain = tmp_path / "plain"
    stock("clone", "-q", f"{web.url}/model.git", plain)
    assert stock("log", "--format=%s", cwd=plain).splitlines() == ["notes", "model.safetensors 0"]
    assert (plain / "model.safetensors").read_bytes().startswith(b'{"mvc-manifest":')
    for number in range(3):  # so that it sends deltas
        (plain / "notes.txt").write_text("line\n" * 200 + f"more {number}\n")
        stock("commit", "-qam", f"edit {number}", cwd=plain)
    stock("push", "-q", "origin", "main", cwd=plain)
    stock("gc", "-q", cwd=web.root / "model.git")
    repo.pull()
    assert (repo.worktree / "notes.txt").read_text().endswith("more 2\n")
    assert repo.upkeep.fsck(data=True).ok


@pytest.mark.parametrize("url", ["http", "file"], indirect=True)  # protocols 2 and 0
def test_what_a_shallow_clone_never_had_comes_when_it_is_used_again(url, host, store, tmp_path):
    repo = make_repo(tmp_path / "a")
    repo.remotes.add("origin", url, str(store))
    for text in ("first", "second", "third"):
        (repo.worktree / "notes.txt").write_text(text)
        repo.commit(text, paths=["notes.txt"])
    repo.push()
    old = repo.resolve("HEAD~2")
    copy = clone(url, tmp_path / "b", content_url=store, depth=1)
    (repo.worktree / "notes.txt").write_text("first")
    repo.commit("back", paths=["notes.txt"])
    repo.push()
    stock("repack", "-qadb", cwd=host)  # with bitmaps, it knows well what it was told is here
    copy.pull()
    assert (copy.worktree / "notes.txt").read_text() == "first"
    assert [one.subject for one in copy.log()] == ["back", "third"]
    with pytest.raises(NotFoundError):  # nor did all come because of that
        copy.resolve(old)


def test_a_ref_that_moved_meanwhile_is_left_and_the_packs_are_no_harm(repo, host, tmp_path):
    commit_model(repo)
    repo.push()
    other = clone(
        f"git+file://{host}", tmp_path / "b", content_url=repo.remotes.list()["origin"].content
    )
    other.identity = repo.identity
    commit_model(other, seed=1)
    other.push()
    commit_model(repo, seed=2)
    with pytest.raises(ConflictError, match="not here"):
        repo.push()
    repo.fetch()
    with pytest.raises(ConflictError, match="diverged"):
        repo.push()
    assert repo.push(force=True).refs[0].status == "forced"
    assert repo.push("origin", ["main:other"]).refs[0].status == "created"
    assert repo.push("origin", [":other"]).refs[0].status == "deleted"


def test_what_the_host_refuses_moves_nothing_and_says_why(repo, host):
    commit_model(repo)
    repo.push()
    before = stock("for-each-ref", cwd=host)
    hook = host / "hooks" / "update"
    hook.write_text('#!/bin/sh\ntest "$1" != refs/heads/kept\n')
    hook.chmod(0o755)
    commit_model(repo, seed=1)
    repo.branches.create("kept")
    with pytest.raises(ConflictError, match="refs/heads/kept: hook declined") as caught:
        repo.push("origin", ["main", "kept"])
    assert "moved" not in caught.value.message
    assert stock("for-each-ref", cwd=host) == before
    stock("config", "receive.advertiseAtomic", "false", cwd=host)
    with pytest.raises(ConflictError, match=r"declined; refs/heads/main moved"):
        repo.push("origin", ["main", "kept"])


def test_what_has_moved_on_a_host_is_followed(web_repo, web):
    commit_model(web_repo)
    web.login = ("ann", "token")

    def move(path):
        return (
            (301, {"Location": path.replace("/model/", "/model.git/")}, b"")
            if (path.startswith("/model/"))
            else None
        )

    web.answer = move
    netrc = web.root.parent / "home" / ".netrc"
    netrc.write_text("machine 127.0.0.1 login ann password token\n")
    netrc.chmod(0o600)
    web_repo.remotes.set_url("origin", f"{web.url}/model")
    web_repo.push()
    web_repo.fetch()
    assert sum(path.startswith("/model/") for _, path, _ in web.requests) > 1


def test_a_lost_answer_is_looked_up(web_repo, web, host):
    repo = web_repo
    commit_model(repo)
    web.loses_answers = True
    repo.push()
    assert stock("rev-parse", "main", cwd=host) == repo.head.commit


def test_without_a_store_only_small_files_travel(tmp_path, host):
    repo = make_repo(tmp_path / "a")
    repo.remotes.add("origin", f"git+file://{host}")
    (repo.worktree / "notes.txt").write_text("x")
    repo.commit("notes", paths=["notes.txt"])
    repo.push()
    assert clone(f"git+file://{host}", tmp_path / "b").head.commit == repo.head.commit
    commit_model(repo)
    with pytest.raises(UsageError, match="Git host") as caught:
        repo.push()
    assert "--content" in caught.value.hint
    repo.remotes.set_url("origin", f"git+file://{host}", str(tmp_path / "store"))
    repo.push()
    with pytest.raises(UsageError, match="Git host"):
        clone(f"git+file://{host}", tmp_path / "c")
    assert not (tmp_path / "c").exists()
    bare = clone(f"git+file://{host}", tmp_path / "c", content=False)
    assert next(iter(bare.log())).id == repo.head.commit
    bare.remotes.set_url("origin", f"git+file://{host}", str(tmp_path / "store"))
    assert bare.tensor("HEAD", "model.safetensors", "norm").shape


def test_a_store_is_one_or_the_other(repo, host, store, tmp_path):
    commit_model(repo)
    repo.push()
    with pytest.raises(ConflictError, match=r"content for a Git host, /.*/model"):
        clone(str(store), tmp_path / "b")
    repo.remotes.add("plain", str(tmp_path / "other"))
    repo.push("plain")
    repo.remotes.set_url("origin", f"git+file://{host}", str(tmp_path / "other"))
    with pytest.raises(ConflictError, match="history of its own"):
        repo.push("origin", ["main:new"])
    with pytest.raises(UnsupportedError, match="no channels"):
        repo.publish("prod", remote="origin")


def test_a_host_that_is_not_there_or_no_git(tmp_path, web):
    repo = make_repo(tmp_path / "a")
    with pytest.raises(NotFoundError, match="not a Git repository"):
        repo.remotes.refs(f"{web.url}/nothing.git")
    web.answer = lambda path: (200, {"Content-Type": "text/html"}, b"<html>")
    with pytest.raises(StorageError, match="not as a Git server"):
        repo.remotes.refs(f"{web.url}/model.git")
    for where, fact in (("http://localhost:1/x", "elsewhere"), ("/x", "one place to the next")):
        web.answer = lambda path, where=where: (302, {"Location": where}, b"")
        with pytest.raises(StorageError, match=fact):
            repo.remotes.refs(f"{web.url}/model.git")
    with pytest.raises(StorageError, match="refused"):
        repo.remotes.refs("http://127.0.0.1:1/model.git")
    with pytest.raises(StorageError, match="refused"):
        repo.remotes.refs("git://127.0.0.1:1/model.git")
    with pytest.raises(StorageError):
        repo.remotes.refs(f"git+file://{tmp_path}/nothing")


@pytest.mark.parametrize("scheme", ["http", "git"])
def test_a_host_that_is_silent_is_given_up(tmp_path, scheme):
    repo = make_repo(tmp_path / "a")
    with socket.create_server(("127.0.0.1", 0)) as server:
        repo.remotes.add("origin", f"{scheme}://127.0.0.1:{server.getsockname()[1]}/x")
        repo.set_config("remote.origin.timeout", "1")
        with pytest.raises(StorageError, match="timed out"):
            repo.fetch()
        server.settimeout(0.0)
        server.accept()[0].close()
        with pytest.raises(BlockingIOError):
            server.accept()  # it asked once


def pkt(text):
    return f"{len(text) + 4:04x}".encode() + text


@pytest.mark.parametrize(
    "said",
    [
        b"zzzz",
        pkt(b"# service=git-upload-pack\n") + b"0000" + pkt(b"x" * 40 + b" refs/heads/main\0a\n") + b"0000",
        pkt(b"# service=git-upload-pack\n") + b"0000"
        + pkt(b"0" * 39 + b"1 refs/heads/../x\0a\n") + b"0000",
        pkt(b"version 2\n") + b"0000",
        pkt(b"\0\xff\n") * 10,
    ],
)  # fmt: skip
def test_a_host_that_says_what_is_not_valid(tmp_path, web, said):
    repo = make_repo(tmp_path / "a")
    kind = {"Content-Type": "application/x-git-upload-pack-advertisement"}
    web.answer = lambda path: (200, kind, said)
    with pytest.raises((FormatError, StorageError)) as caught:
        repo.fetch(f"{web.url}/model.git", ["main"])
    assert caught.value.message.isprintable()


def test_a_host_that_sends_less_or_other_than_it_names(web_repo, web, store, tmp_path):
    repo = web_repo
    commit_model(repo)
    repo.push()
    copy = clone(f"{web.url}/model.git", tmp_path / "b", content_url=store)
    second = commit_model(repo, seed=1)
    other = commit_model(repo, seed=2)
    kind = "application/x-git-upload-pack-"
    first = f"{second} refs/heads/main\0side-band-64k\n".encode()
    refs = pkt(b"# service=git-upload-pack\n") + b"0000" + pkt(first) + b"0000"
    before = copy.resolve("origin/main")
    for name in (second, other, ""):
        pack = b"<html>"
        if name:
            names = name.encode()
            pack = run_git(repo.worktree / ".mvc", "pack-objects", "--stdout", data=names).stdout
        sent = pkt(b"NAK\n") + pkt(b"\1" + pack) + b"0000"
        web.answer = lambda path, sent=sent: (
            (200, {"Content-Type": f"{kind}advertisement"}, refs)
            if "info/refs" in path
            else (200, {"Content-Type": f"{kind}result"}, sent)
        )
        with pytest.raises(FormatError):
            copy.fetch()
        assert copy.resolve("origin/main") == before
    web.answer = None
    repo.push()
    copy.fetch()
    assert copy.resolve("origin/main") == other
    assert copy.upkeep.fsck(data=True).ok


def test_a_host_that_never_ends_is_stopped(tmp_path, web, monkeypatch):
    from mvc.history import host_clients

    monkeypatch.setattr(host_clients, "_MAX_TALK_BYTES", 10_000)
    line = pkt(b"1" * 40 + b" refs/heads/" + b"x" * 900 + b"\n")
    first = pkt(b"1" * 40 + b" refs/heads/first\0a\n")
    said = pkt(b"# service=git-upload-pack\n") + b"0000" + first + line * 20 + b"0000"
    kind = {"Content-Type": "application/x-git-upload-pack-advertisement"}
    web.answer = lambda path: (200, kind, said)
    with pytest.raises(FormatError, match="says more than"):
        make_repo(tmp_path / "a").remotes.refs(f"{web.url}/model.git")


def test_credentials_come_from_netrc_and_helpers_and_are_nowhere_else(web_repo, web, tmp_path):
    repo = web_repo
    commit_model(repo)
    web.login = ("ann", "s3cret-token")
    with pytest.raises(StorageError, match="does not let us in") as caught:
        repo.push()
    assert "s3cret" not in str(caught.value)
    netrc = tmp_path / "home" / ".netrc"
    netrc.write_text("machine 127.0.0.1 login ann password s3cret-token\n")
    netrc.chmod(0o600)
    repo.push()
    netrc.write_text("machine 127.0.0.1 login ann password wrong\n")
    kept = tmp_path / "home" / ".git-credentials"
    kept.write_text(web.url.replace("//", "//ann:s3cret-token@") + "\n")
    config = f"[credential]\n\thelper = store --file={shlex.quote(str(kept))}\n"
    (tmp_path / "home" / ".gitconfig").write_text(config)
    commit_model(repo, seed=1)
    repo.push()
    copy = clone(
        f"{web.url}/model.git", tmp_path / "b", content_url=repo.remotes.list()["origin"].content
    )
    home = tmp_path / "home"
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != home]
    assert len(files) > 50
    assert not [path for path in files if b"s3cret" in path.read_bytes()]
    assert copy.head.commit == repo.head.commit


def test_the_config_of_a_repository_names_no_helper_and_no_command(web_repo, web, tmp_path):
    repo = web_repo
    commit_model(repo)
    web.login = ("ann", "token")
    mark = tmp_path / "ran"
    with (repo.worktree / ".mvc/config").open("a") as file:
        file.write(
            f'[credential]\n\thelper = "!touch {mark}"\n[core]\n\tsshCommand = touch {mark}\n'
        )
    with pytest.raises(StorageError, match="does not let us in"):
        repo.push()
    with pytest.raises(StorageError):
        repo.remotes.refs("ssh://git@localhost:1/x")
    assert not mark.exists()


def test_only_the_user_says_whom_to_trust(repo, host, tmp_path):
    commit_model(repo)
    certificate = make_certificate(tmp_path)
    with (repo.worktree / ".mvc/config").open("a") as file:
        file.write("[http]\n\tsslVerify = false\n")
    with run_web_host(host.parent, certificate) as web:
        repo.remotes.set_url("origin", f"{web.url}/model.git")
        with pytest.raises(UsageError, match=r"http\.sslverify is refused"):
            repo.push()
        repo.set_config("http.sslverify", None)
        with pytest.raises(StorageError, match="certificate"):
            repo.push()
        user = tmp_path / "home" / ".gitconfig"
        user.write_text(f"[http]\n\tsslCAInfo = {certificate[0]}\n")
        repo.push()
        with run_web_host(host.parent) as plain:
            web.answer = lambda path: (302, {"Location": f"{plain.url}{path}"}, b"")
            with pytest.raises(StorageError, match="leads elsewhere, to http://"):
                repo.fetch()
            assert not plain.requests
    assert stock("rev-parse", "main", cwd=host) == repo.head.commit


def test_a_push_of_what_was_released_takes_the_records_along(repo, host, store, tmp_path):
    for seed in range(3):
        commit_model(repo, seed=seed)
    repo.upkeep.prune(repo.upkeep.plan_prune(keep_last=1))
    repo.push()
    copy = clone(f"git+file://{host}", tmp_path / "b", content_url=str(store))
    assert copy.upkeep.fsck(data=True).ok
    assert repo.upkeep.fsck(remote="origin", data=True).ok
