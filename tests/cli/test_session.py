"""Who acts, and which arguments are revisions and which are paths."""

from __future__ import annotations

import os
import socket

import pytest

from mvc import NotFoundError, Repo, UsageError
from mvc.cli.options import CommandUsageError
from mvc.cli.session import (
    config_paths,
    find_identity,
    find_previous,
    parse_place,
    split_revision,
    split_revisions,
    to_paths,
)


@pytest.fixture
def repo(shell, monkeypatch):
    monkeypatch.chdir(shell.folder)
    return Repo.open()


def test_where_git_looks_for_its_settings():
    assert config_paths({}) == []
    home = {"HOME": "/home/ada"}
    assert list(map(str, config_paths(home))) == [
        "/home/ada/.config/git/config",
        "/home/ada/.gitconfig",
    ]
    elsewhere = config_paths({**home, "XDG_CONFIG_HOME": "/etc/ada"})
    assert list(map(str, elsewhere)) == ["/etc/ada/git/config", "/home/ada/.gitconfig"]
    only = config_paths({**home, "GIT_CONFIG_GLOBAL": "/one"})
    assert list(map(str, only)) == ["/one"]


def test_who_acts(tmp_path):
    (tmp_path / ".gitconfig").write_text("[user]\nname = Home\nemail = home@example.org\n")
    home = {"HOME": str(tmp_path)}
    settings = {"user.name": "Repo", "user.email": "repo@example.org"}
    variables = {**home, "GIT_AUTHOR_NAME": "Env"}

    def who(settings, environment):
        identity, is_guessed = find_identity(settings, environment)
        return identity.name, identity.email, is_guessed

    assert who(settings, variables) == ("Env", "repo@example.org", False)
    assert who(settings, home) == ("Repo", "repo@example.org", False)
    assert who({}, variables) == ("Env", "home@example.org", False)
    name, email, is_guessed = who({}, {})
    assert is_guessed
    assert email == f"{name}@{socket.gethostname()}"


def test_a_broken_file_of_the_users_is_passed_over(tmp_path):
    (tmp_path / ".gitconfig").write_bytes(b"[user\n\x00")
    identity, is_guessed = find_identity({}, {"HOME": str(tmp_path), "EMAIL": "ada@example.org"})
    assert identity.email == "ada@example.org"
    assert is_guessed


def test_revisions_come_before_paths(repo):
    place = os.path.join(os.getcwd(), "config.json")
    assert split_revisions(repo, None) == ([], [])
    assert split_revisions(repo, ["v1", "side", "config.json"]) == (["v1", "side"], [place])
    assert split_revisions(repo, ["v1..side"]) == (["v1..side"], [])
    assert split_revisions(repo, ["config.json"]) == ([], [place])
    assert split_revisions(repo, ["--", "v1"]) == ([], to_paths(["v1"]))
    assert split_revision(repo, ["v1", "--", "config.json"]) == ("v1", [place])
    with pytest.raises(CommandUsageError, match="one revision, not 2"):
        split_revision(repo, ["v1", "side"])


def test_what_is_neither(repo):
    with pytest.raises(NotFoundError, match="'nope' is neither a revision nor a path"):
        split_revisions(repo, ["nope"])
    with pytest.raises(NotFoundError, match="path 'nope' does not exist"):
        split_revisions(repo, ["v1", "config.json", "nope"])
    with pytest.raises(NotFoundError, match="'nope'"):
        split_revisions(repo, ["nope", "--", "config.json"])
    with pytest.raises(UsageError, match="a path must not be empty"):
        split_revisions(repo, ["--", ""])


def test_a_removed_file_is_still_a_path(repo):
    os.remove("config.json")
    assert split_revisions(repo, ["config.json"]) == ([], to_paths(["config.json"]))


def test_a_path_behind_a_revision(repo):
    os.mkdir("sub")
    os.chdir("sub")
    assert parse_place(repo, "v1:config.json") == ("v1", "config.json")
    assert parse_place(repo, "v1:./a") == ("v1", os.path.join(os.getcwd(), "./a"))
    assert parse_place(repo, ":config.json") == ("HEAD", "config.json")
    assert parse_place(repo, "a") == ("HEAD", os.path.join(os.getcwd(), "a"))
    with pytest.raises(UsageError, match="names no path"):
        parse_place(repo, "v1:")
    with pytest.raises(NotFoundError):
        parse_place(repo, "nope:a")


def test_where_head_was_before(repo):
    repo.identity = find_identity({}, {"HOME": "/nowhere"})[0]
    assert find_previous(repo) == "side"
    repo.switch("side")
    assert find_previous(repo) == "main"
