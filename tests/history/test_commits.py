from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import FormatError, UsageError
from mvc.history.git import GitHistory
from mvc.history.object_formats import parse_commit, parse_identity, parse_tag
from mvc.history.values import EMPTY_BLOB, Identity, Stamp
from support.stockgit import WHO, at, git, write_commit

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    made = GitHistory.init(tmp_path_factory.mktemp("commits") / ".mvc")
    made.write_tree({})
    return made


def commit_with(history, **changes):
    options = {
        "tree": EMPTY_TREE,
        "parents": [],
        "message": "m",
        "author": at(1, 0),
    }
    return history.write_commit(**{**options, **changes})


def test_a_commit_is_byte_for_byte_the_one_git_makes(history):
    tree = history.write_tree({})
    message = "subject é\n\nbody\n\nStep: 4\n"
    author = Identity("Ann", "ann@x.org")
    made = commit_with(
        history,
        tree=tree,
        message=message,
        author=Stamp(author, 1_700_000_123, -5400),
        committer=Stamp(Identity("Bob B. Jr", "bob@x.org"), 1_700_000_123, -5400),
    )
    data = git(history.git_dir, "cat-file", "commit", made)
    assert data == (
        f"tree {tree}\nauthor Ann <ann@x.org> 1700000123 -0130\n"
        f"committer Bob B. Jr <bob@x.org> 1700000123 -0130\n\n{message}"
    ).removesuffix("\n")
    info = history.read_commit(made)
    assert (info.tree, info.parents, info.author) == (tree, (), author)
    assert (info.author_time_s, info.author_timezone_s) == (1_700_000_123, -5400)
    assert (info.commit_time_s, info.message) == (1_700_000_123, message)
    git(history.git_dir, "fsck", "--strict", made)


def test_several_parents_keep_their_order(history):
    first = write_commit(history, [], "1", time_s=1)
    second = write_commit(history, [], "2", time_s=2)
    merge = write_commit(history, [second, first], "m", time_s=3)
    assert history.read_commit(merge).parents == (second, first)


@pytest.mark.parametrize(
    ("name", "email", "stored"),
    [
        ("A <evil> B", "a@b", "A evil B <a@b>"),
        ("A\nB", "a\n@b", "AB <a@b>"),
        ("  Ann.", "<a@b>", "Ann <a@b>"),
        ("Ann", "", "Ann <>"),
        ("Änne", "ä@b", "Änne <ä@b>"),
    ],
)
def test_identities_are_cleaned_as_git_does(history, name, email, stored):
    who = Identity(name, email)
    history.write_tree({})
    commit = commit_with(history, author=Stamp(who, 1, 0))
    assert git(history.git_dir, "log", "-1", "--format=%an <%ae>", commit) == stored
    git(history.git_dir, "fsck", "--strict", commit)


@pytest.mark.parametrize(
    "change",
    [
        {"author": Stamp(Identity("", "a@b"), 1, 0)},
        {"author": Stamp(Identity("<>", "a@b"), 1, 0)},
        {"author": Stamp(Identity("a\ud800", "a@b"), 1, 0)},
        {"message": "a\0b"},
        {"message": "\udcff"},
        {"author": at(-1)},
        {"author": at(2**60)},
        {"author": at(1, 400_000)},
        {"committer": at(-1)},
    ],
)
def test_what_git_cannot_store_is_refused(shared, change):
    with pytest.raises(UsageError):
        commit_with(shared, **change)


_WORDS = st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), max_size=30)


@given(
    message=st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    name=_WORDS,
    time_s=st.integers(0, 2**39),
    zone=st.integers(-720, 840),
)
def test_any_commit_comes_back(shared, message, name, time_s, zone):
    who = Identity("N" + name, "mail@x.org")
    info = shared.read_commit(
        commit_with(shared, message=message, author=Stamp(who, time_s, zone * 60), committer=at(1))
    )
    assert info.message == message + ("\n" if message and not message.endswith("\n") else "")
    assert (info.author_time_s, info.author_timezone_s) == (time_s, zone * 60)
    assert info.committer == WHO
    assert info.author.email == "mail@x.org"
    assert info.author.name.startswith("N")


def test_other_encodings_are_read_and_wrong_ones_do_no_harm(history):
    head = f"tree {EMPTY_TREE}\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n".encode()
    latin = history.objects.write("commit", head + b"encoding ISO-8859-1\n\nna\xefve\n")
    assert history.read_commit(latin).message == "naïve\n"
    for label in (b"utf-7", b"unicode_escape", b"punycode", b"nonsense", b"ascii", b"\xff"):
        raw = history.objects.write("commit", head + b"encoding " + label + b"\n\n\xe9+\\x\n")
        assert history.read_commit(raw).message.endswith("+\\x\n")


def test_identities_of_any_shape_are_read():
    assert parse_identity(b"A B <a@b>") == Identity("A B", "a@b")
    assert parse_identity(b"<a@b>") == Identity("", "a@b")
    assert parse_identity(b"A B") == Identity("A B", "")
    assert parse_identity(b"A <b") == Identity("A b", "")
    assert parse_identity(b"<" * 100_000).email == ""


_LINES = st.sampled_from(
    [
        b"tree " + EMPTY_TREE.encode(), b"tree 12", b"parent " + b"ab" * 20, b"parent x",
        b"author A <a@b> 1 +0000", b"author A <a@b> 99999999999999999999999 +0000",
        b"author A", b"committer A <a@b> -5 +9999", b"committer A <a@b> 1 +0000", b"", b" folded",
        b"encoding x", b"gpgsig y", b"mergetag z", b"object " + b"ab" * 20, b"type commit",
        b"type moon", b"tag v1", b"tagger A <a@b> 1 +0000", b"\xff\xfe",
    ]
)  # fmt: skip


@given(st.lists(_LINES, max_size=9).map(b"\n".join) | st.binary(max_size=60))
def test_garbage_as_a_commit_or_tag_is_a_format_error_and_nothing_else(data):
    for parse in (parse_commit, parse_tag):
        try:
            parse(EMPTY_BLOB, data)
        except FormatError:
            continue
