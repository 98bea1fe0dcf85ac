"""mvc config."""

from support.stockgit import git


def test_config(empty):
    assert empty.ok("config", "user.name", "Ada B").out == ""
    assert empty.ok("config", "user.name").lines == ["Ada B"]
    assert empty.ok("config", "USER.Name").lines == ["Ada B"]
    assert "user.name=Ada B" in empty.ok("config", "--list").lines
    assert "user.name=Ada B" in empty.ok("config").lines
    assert empty.json("config")["user.name"] == "Ada B"
    assert empty.json("config", "user.name") == {"user.name": "Ada B"}
    empty.ok("config", "--unset", "user.name")
    assert empty("config", "user.name").code == 3
    assert empty("config", "--unset", "user.name").code == 3


def test_config_of_the_user(shell):
    home = shell.folder.parent / "home"
    shell.ok("config", "--global", "mvc.delta", "always")
    shell.ok("config", "--global", "user.name", "Of Me")
    assert (home / ".config/mvc/config").read_text().count("always") == 1
    assert shell.ok("config", "mvc.delta").lines == ["always"]
    assert "mvc.delta" in shell.json("config", "--global")
    assert "core.bare" not in shell.json("config", "--global")
    shell.ok("config", "mvc.delta", "never")
    assert shell.ok("config", "mvc.delta").lines == ["never"]
    assert shell.ok("config", "--global", "mvc.delta").lines == ["always"]
    assert shell("config", "--global", "mvc.delta", "sometimes").code == 2
    shell.environment.pop("GIT_AUTHOR_NAME")
    shell.ok("commit", "--allow-empty", "-m", "x")
    assert shell.json("show")["author"].startswith("Of Me <")
    shell.ok("config", "--global", "--unset", "user.name")
    assert shell("config", "--global", "--unset", "user.name").code == 3
    (home / ".config/mvc/config").write_text("[broken")
    assert shell("config", "mvc.delta").code == 5


def test_aliases(shell):
    shell.ok("config", "--global", "alias.l", "log --format='%h %s'")
    shell.ok("config", "--global", "alias.last", "l -n 1")
    (line,) = shell.ok("last", "side").lines
    assert line.endswith(" another config")
    shell.ok("config", "--global", "alias.status", "log")
    assert shell.ok("status").lines[0] == "On branch main"
    shell.ok("config", "--global", "alias.a", "b")
    shell.ok("config", "--global", "alias.b", "a")
    assert shell("a").error == "alias 'a' refers to itself"
    shell.ok("config", "--global", "alias.sh", "!rm -r .")
    assert shell("sh").code == 2
    git(shell.folder / ".mvc", "config", "alias.evil", "reset --hard")
    assert shell("evil").error == "'evil' is not an mvc command"


def test_config_refuses_what_a_remote_does_not_know(empty):
    answer = empty("config", "remote.origin.timeot", "5")
    assert answer.code == 2
    assert "timeout" in answer.hint
    for wrong in ("abc", "0", "3601", "99999999999", "1.5", "²"):
        assert "not seconds from 1 to 3600" in empty("config", "remote.origin.timeout", wrong).error
    empty.ok("config", "remote.origin.timeout", "30")
    empty.ok("config", "remote.pushDefault", "origin")
