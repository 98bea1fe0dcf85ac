"""Which arguments are revisions and which are paths."""

import os

import pytest

from mvc import NotFoundError, Repo, UsageError
from mvc.cli.options import CommandUsageError
from mvc.cli.session import (
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


def test_what_is_both(repo):
    for name in ("side", "v1"):
        with open(name, "w"):
            pass
    place = to_paths(["side"])
    with pytest.raises(UsageError, match="'side' is both a revision and a path") as caught:
        split_revisions(repo, ["side"])
    assert caught.value.hint == 'write "side --" for the revision, "-- side" for the path'
    with pytest.raises(UsageError, match="'v1' is both"):
        split_revisions(repo, ["main", "v1", "side"])
    assert split_revisions(repo, ["side", "--"]) == (["side"], [])
    assert split_revisions(repo, ["--", "side"]) == ([], place)
    assert split_revisions(repo, ["config.json", "side"]) == ([], to_paths(["config.json"]) + place)
    assert split_revision(repo, ["side"], prefer_revision=True) == ("side", [])
    with pytest.raises(UsageError, match="'side' is both"):
        split_revision(repo, ["side", "config.json"], prefer_revision=True)


def test_a_path_that_only_the_revision_has(repo):
    repo.remove(["config.json"])
    repo.commit("without")
    place = to_paths(["config.json"])
    for revisions in (["v1"], ["v1..main"], ["v1...main"], ["main", "v1"], ["main", "^v1"]):
        assert split_revisions(repo, [*revisions, "config.json"]) == (revisions, place)
    for names in (["config.json"], ["main", "config.json"]):
        with pytest.raises(NotFoundError, match="neither a revision nor a path") as caught:
            split_revisions(repo, names)
        assert 'write "--" before a path' in caught.value.hint
    with pytest.raises(NotFoundError, match="path 'v1' does not exist") as caught:
        split_revisions(repo, ["model.safetensors", "v1"])
    assert caught.value.hint == "revisions come before paths"


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
    assert find_previous(repo) == "side"
    repo.switch("side")
    assert find_previous(repo) == "main"
