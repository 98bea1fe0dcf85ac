"""History on a Git host, as people name it."""

from support.git_hosts import make_bare, stock


def test_a_git_host_with_a_store(shell, tmp_path):
    host, store = str(make_bare(tmp_path / "host.git")), str(tmp_path / "store")
    told = shell.json("remote", "add", "origin", host, "--content", store)
    url = f"git+file://{host}"
    assert told == {"name": "origin", "url": url, "content": store}
    assert shell.ok("remote", "-v").lines == [f"origin\t{url} (content: {store})"]
    assert shell.json("remote") == [told]
    assert "[new branch]      main" in shell.ok("push", "-u", "origin", "main").out
    assert stock("rev-parse", "main", cwd=host) == shell.ok("log", "-1", "--format=%H").lines[0]
    shell.ok("clone", "-q", url, str(tmp_path / "copy"), "--content", store)
    assert (tmp_path / "copy/model.safetensors").exists()
    assert "up to date" in shell.ok("status").out

    failed = shell("clone", url, str(tmp_path / "other"))
    assert failed.code == 2
    assert "is a Git host" in failed.err
    assert "--content STORE" in failed.err
    moved = shell.json("remote", "set-url", "origin", "https://example.org/x.git")
    assert moved == {"name": "origin", "url": "https://example.org/x.git", "content": store}
    assert "content" not in shell.json("remote", "set-url", "origin", store)
    assert shell.ok("config", "remote.origin.url").lines == [store]


def test_what_is_no_url_or_no_place_for_content(shell):
    for words in (
        ["add", "a", "s3://b/x", "--content", "s3://b/y"],
        ["add", "a", "https://ann:s3cret@host/x"],
        ["add", "a", "https://host/x", "--content", "https://host/y"],
        ["remove", "a", "--content", "x"],
        ["-v", "--content", "x"],
    ):
        failed = shell("remote", *words)
        assert failed.code == 2, words
        assert "s3cret" not in failed.err
    assert shell.ok("remote").lines == []
    shell.ok("remote", "add", "a", "git@host:x", "--content", "s3://b/x")
    assert shell("config", "remote.a.content", "https://host/y").code == 2
    assert shell("config", "remote.a.url", "ftp://host/y").code == 2
    shell.ok("config", "remote.a.url", "ssh://git@host/y")
    assert shell.ok("remote", "-v").lines == ["a\tssh://git@host/y (content: s3://b/x)"]
