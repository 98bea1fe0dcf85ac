"""mvc ls-remote lists what is asked for."""


def test_ls_remote_by_kind_and_pattern(shell):
    shell.ok("remote", "add", "origin", "../store")
    shell.ok("push", "-q", "--all", "--tags")

    def names(*words):
        return [line.split("\t")[1] for line in shell.ok("ls-remote", *words).lines]

    assert names() == ["HEAD", "refs/heads/main", "refs/heads/side", "refs/tags/v1"]
    assert names("--heads") == names("--branches") == ["refs/heads/main", "refs/heads/side"]
    assert names("--heads", "--tags") == names()[1:]
    assert names("origin", "main") == ["refs/heads/main"]
    assert names("origin", "ain") == []
    assert names("origin", "s*", "heads/main") == ["refs/heads/main", "refs/heads/side"]
    assert names("--tags", "origin", "v*") == ["refs/tags/v1"]
    assert list(shell.json("ls-remote", "--tags")["refs"]) == ["refs/tags/v1"]
    assert shell("ls-remote", "--head").code == 2
