"""Who acts, in Git's order of places."""

import os
import socket

import pytest

from mvc.workspace.settings import find_identity

_PLACES = ("HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "EMAIL")


@pytest.fixture
def who(monkeypatch):
    for name in [name for name in os.environ if name in _PLACES or name.startswith("GIT_AUTHOR_")]:
        monkeypatch.delenv(name)

    def find(settings, environment):
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, str(value))
            identity, is_guessed = find_identity(settings)
        return identity.name, identity.email, is_guessed

    return find


def _write(path, name):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[user]\nname = {name}\nemail = {name.lower()}@example.org\n")


def test_the_order_of_places(who, tmp_path):
    _write(tmp_path / ".gitconfig", "Home")
    home = {"HOME": tmp_path}
    settings = {"user.name": "Repo", "user.email": "repo@example.org"}
    variables = {**home, "GIT_AUTHOR_NAME": "Env"}
    assert who(settings, variables) == ("Env", "repo@example.org", False)
    assert who(settings, home) == ("Repo", "repo@example.org", False)
    assert who({}, variables) == ("Env", "home@example.org", False)
    everything = {**variables, "GIT_AUTHOR_EMAIL": "env@example.org", "EMAIL": "mail@example.org"}
    assert who(settings, everything) == ("Env", "env@example.org", False)
    assert who({}, {**home, "EMAIL": "mail@example.org"}) == ("Home", "home@example.org", False)
    name, email, is_guessed = who({}, {})
    assert is_guessed
    assert email == f"{name}@{socket.gethostname()}"


def test_the_files_of_the_user(who, tmp_path):
    home = {"HOME": tmp_path}
    _write(tmp_path / ".config/git/config", "Inner")
    assert who({}, home)[0] == "Inner"
    _write(tmp_path / ".gitconfig", "Outer")
    assert who({}, home)[0] == "Outer"
    _write(tmp_path / "one", "One")
    assert who({}, {**home, "GIT_CONFIG_GLOBAL": tmp_path / "one"})[0] == "One"
    _write(tmp_path / "etc/git/config", "Elsewhere")
    (tmp_path / ".gitconfig").unlink()
    assert who({}, {**home, "XDG_CONFIG_HOME": tmp_path / "etc"})[0] == "Elsewhere"


def test_a_broken_file_of_the_users_is_passed_over(who, tmp_path):
    (tmp_path / ".gitconfig").write_bytes(b"[user\n\x00")
    _, email, is_guessed = who({}, {"HOME": tmp_path, "EMAIL": "ada@example.org"})
    assert email == "ada@example.org"
    assert is_guessed
